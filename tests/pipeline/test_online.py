"""How `online` pays for its users, meets each once, goes on after a kill, and writes; it is idle unless asked."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import primorl
from pipeline import online
from primorl.config import params as params_module
from primorl.config.params import Params
from primorl.dynamics.config import Variant
from primorl.evaluation.summary import OnlineSummary
from primorl.policy import exported
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.setup.simulated_users import SimulatedUsers
from tests.pipeline.test_train_model_resumption import KilledError, dying
from tests.pipeline.tiny_policy import RememberingRun
from tests.pipeline.training_project import charged
from tests.privacy.test_together import statement as of_training
from tests.projects import project_settings, write_settings
from tests.trajectories.builders import snapshot

FOLDER = Path("models/online")
DELTA = 1e-3
VARIANT: Variant = "private"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    content = project_settings()
    content["chosen"]["environment"] = "CartPole-v1"
    content["privacy"]["delta"] = DELTA
    content["privacy"]["budget"]["delta"] = DELTA
    content["evaluation"] |= {"episodes": 2, "epoch_episodes": 2}
    content["online"] |= {"users": 12, "cohort": 3, "start": "scratch", "steps": 20, "algorithm": "dp-pg"}
    return write_settings(content)


def changed(params: Params, seed: int = 0, **of_online: Any) -> Params:
    raw = params_module.plain(params)
    raw["seed"] = seed
    raw["online"] |= of_online
    return params_module.from_plain(raw)


def learned(params: Params) -> RememberingRun:
    run = RememberingRun()
    online.body(params, run)  # type: ignore[arg-type]
    return run


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    met: list[int] = []
    meet = SimulatedUsers.meet

    def spying(self: SimulatedUsers, numbers: Sequence[int], *others: Any) -> Any:
        met.extend(numbers)
        return meet(self, numbers, *others)

    monkeypatch.setattr(SimulatedUsers, "meet", spying)
    return met


def statement() -> Statement:
    return Statement.read(FOLDER)


def test_it_pays_once_meets_everybody_once_and_writes(asked: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    met = watched(monkeypatch)
    run = learned(asked)
    assert sorted(met) == list(range(12))
    (charge,) = charged(asked)
    own, summary = statement(), OnlineSummary.read(Path("metrics/online.json"))
    assert charge.state == "committed"
    assert (charge.stage, own.charge) == ("online", charge.id)
    assert own.sound
    assert own.unit == "user"
    assert own.units == summary.users == 12
    assert own.epsilon == summary.epsilon == summary.epsilon_in_all
    assert own.epsilon is not None
    assert 0.99 < own.epsilon <= 1
    assert own.event["count"] == 1
    assert own.online is not None
    assert (own.online.cohort, own.online.cohorts, own.online.appearances, own.online.releases) == (3, 4, 1, 1)
    assert primorl.load_policy(FOLDER).act([0.0, 0.0, 0.1, 0.0]) in (0, 1)
    assert "joint differential privacy" in (FOLDER / "card.md").read_text(encoding="utf-8")
    assert Path("plots/online.csv").read_text().count("\n") == 1 + 1 + 4
    assert run.steps["return"] == [0, 3, 6, 9, 12]
    assert Path("plots/online.png").read_bytes()[:4] == b"\x89PNG"


def test_it_is_idle_unless_asked(asked: Params) -> None:
    learned(changed(asked, users=None))
    assert charged(asked) == []
    assert not OnlineSummary.read(Path("metrics/online.json")).met
    assert json.loads((FOLDER / "config.json").read_text())["policy"] == "models/policy"


def test_the_same_run_is_restored_and_nobody_is_met(asked: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    learned(asked)
    first = snapshot(FOLDER)
    met = watched(monkeypatch)
    learned(asked)
    assert snapshot(FOLDER) == first
    assert met == []
    assert len(charged(asked)) == 1


def test_a_killed_run_goes_on_with_the_next_users(asked: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    met = watched(monkeypatch)
    with monkeypatch.context() as patched:
        dying(patched, 3)
        with pytest.raises(KilledError):
            learned(asked)
    assert [charge.state for charge in charged(asked)] == ["reserved"]
    learned(asked)
    assert max(Counter(met).values()) == 1
    assert sorted(met) == list(range(12))
    assert [charge.state for charge in charged(asked)] == ["committed"]
    assert Path("plots/online.csv").read_text().split("\n")[1:-1][-1].startswith("12,")


def test_who_comes_twice_is_charged_twice_and_others_once(asked: Params) -> None:
    learned(asked)
    once = statement().spent_on_dataset
    learned(changed(asked, learning_rate=1.0))
    twice = statement().spent_on_dataset
    learned(changed(asked, seed=1))
    others = statement().spent_on_dataset
    assert once is not None
    assert twice is not None
    assert others is not None
    assert once.epsilon is not None
    assert twice.epsilon is not None
    assert (once.charges, twice.charges, others.charges) == (1, 2, 1)
    assert twice.epsilon > 1.3 * once.epsilon
    assert others.epsilon == once.epsilon


def test_the_budget_refuses_before_anybody_is_met(asked: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    met = watched(monkeypatch)
    raw = params_module.plain(asked)
    raw["privacy"]["budget"]["epsilon"] = 0.5
    with pytest.raises(PipelineError, match=r"privacy\.budget is .*; ask for a smaller ε .*online\.target_epsilon"):
        learned(params_module.from_plain(raw))
    assert met == []
    assert not FOLDER.exists()


def test_those_who_come_back_are_paid_for_with_the_cap(asked: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("data/arrivals").mkdir(parents=True)
    Path("data/arrivals/today").write_text("\n".join("abcabcabcdef"))
    met = watched(monkeypatch)
    listed = changed(asked, users=None, arrivals="data/arrivals/today", appearances=2)
    learned(listed)
    own = statement()
    assert sorted(met) == [0, 1, 2, 3, 4, 5, 9, 10, 11]  # each of a, b and c came a third time
    assert own.units == 6
    assert own.event["count"] == 2
    assert own.epsilon is not None
    assert 0.99 < own.epsilon <= 1
    (charge,) = charged(listed)
    assert compose([event_from_json(own.event)], DELTA).epsilon_pld == pytest.approx(charge.epsilon)


def test_a_policy_that_was_trained_offline_goes_on_and_both_are_stated(asked: Params) -> None:
    offline = write_offline(DELTA)
    learned(changed(asked, start="policy"))
    own = statement()
    assert [each.what for each in own.mechanisms] == ["models/policy", "models/online"]
    assert own.epsilon is not None
    assert own.epsilon == compose([event_from_json(each.event) for each in own.mechanisms], DELTA).epsilon_pld
    assert offline.epsilon is not None
    assert own.epsilon > max(each.epsilon or 0.0 for each in own.mechanisms)
    card = (FOLDER / "card.md").read_text(encoding="utf-8")
    assert "somebody who is both" in card
    before = load_file(FOLDER / "epochs.safetensors")
    weights = DeterministicPolicy.load(Path("models/policy")).layers[0]
    assert torch.equal(next(value for name, value in before.items() if name.endswith("weight"))[0], weights[0])


def test_a_run_goes_on_only_from_the_policy_that_it_began_with(asked: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    write_offline(DELTA)
    begun = changed(asked, start="policy")
    with monkeypatch.context() as patched:
        dying(patched, 2)
        with pytest.raises(KilledError):
            learned(begun)
    write_offline(DELTA)
    with pytest.raises(PipelineError, match=r"began with another offline policy .* set online\.draw"):
        learned(begun)
    assert not FOLDER.exists()


def test_an_offline_policy_at_another_delta_is_refused_before_the_charge(asked: Params) -> None:
    write_offline(DELTA / 10)
    with pytest.raises(
        PipelineError, match=r"privacy\.delta: found 0\.001, and models/policy/privacy\.json is at 0\.0001"
    ):
        learned(changed(asked, start="policy"))
    assert charged(asked) == []


def test_without_privacy_the_ledger_says_so(asked: Params) -> None:
    learned(changed(asked, target_epsilon=None))
    own = statement()
    assert not own.private
    assert own.void
    assert [charge.epsilon for charge in charged(asked)] in ([None], [float("inf")])
    assert "Nothing: the user's data" in (FOLDER / "card.md").read_text(encoding="utf-8")


def test_users_need_an_environment(asked: Params) -> None:
    raw = params_module.plain(asked)
    raw["chosen"]["environment"] = None
    raw["policy"]["starts"] = "public"
    with pytest.raises(PipelineError, match="environment: found null, and users of the stage online act in one"):
        learned(params_module.from_plain(raw))


def write_offline(delta: float) -> Statement:
    folder = Path("models/policy")
    folder.mkdir(parents=True, exist_ok=True)
    policy = DeterministicPolicy(
        (torch.randn(1, 8, 4), torch.zeros(1, 1, 8), torch.randn(1, 2, 8), torch.zeros(1, 1, 2)),
        *(torch.zeros(4), torch.ones(4), torch.zeros(2), torch.ones(2)),
        discrete_actions=True,
    )
    exported.save(folder, [policy], variant=VARIANT, environment="CartPole-v1")
    statement = replace(
        of_training(9.0), charge=None, delta=delta
    )  # of a charge that the ledger of this test does not have
    statement.write(folder)
    return statement
