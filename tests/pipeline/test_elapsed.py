"""What a dataset declares of the time between rows goes on to the model and the policy, which `predict` reads."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import clone_behaviour, optimize_policy
from primorl import load_policy
from primorl.config.params import Params
from primorl.dynamics.config import ModelConfig
from primorl.policy.config import PolicyConfig
from primorl.project.elapsed import ElapsedTime
from primorl.setup import clone_work
from primorl.setup.model_files import write_nothing
from tests.pipeline import tiny_policy
from tests.pipeline.tiny_policy import RememberingRun, tiny
from tests.pipeline.training_project import OUTPUT, trained, with_changes, write_partitions
from tests.trajectories.builders import INFO, episode

SINCE = ElapsedTime(name="observation_2", unit="hours", most=4.0)


@pytest.mark.parametrize("elapsed", [SINCE, None])
def test_the_policy_says_which_dimension_is_the_time_since_the_row_before(
    small: Params, elapsed: ElapsedTime | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_policy, "INFO", replace(INFO, spaces=replace(INFO.spaces, elapsed=elapsed)))
    write_partitions([episode(1 + 7 * i % 30, i) for i in range(9)], [episode(20, 100 + i) for i in range(4)])
    trained(with_changes(small))
    assert ModelConfig.read(OUTPUT).elapsed == elapsed
    monkeypatch.setattr(clone_work, "ROUNDS", 2)
    monkeypatch.setattr(clone_work, "SAMPLING_PROBABILITY", 0.5)
    monkeypatch.setattr(clone_work, "noise_for", lambda epsilon, delta: 10.0)
    clone_behaviour.body(with_changes(small, behaviour={"target_epsilon": 0.4}), RememberingRun())  # type: ignore[arg-type]
    assert PolicyConfig.read(Path("models/behaviour")).elapsed == elapsed
    write_nothing(Path("models/behaviour"))
    optimize_policy.body(tiny(with_changes(small), starts="public"), RememberingRun())
    assert load_policy("models/policy").elapsed == elapsed
    for folder in ("dynamics", "policy"):
        mentioned = '"elapsed"' in Path(f"models/{folder}/config.json").read_text(encoding="utf-8")
        assert mentioned is (elapsed is not None)
