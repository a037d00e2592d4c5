"""How `online` pays for its users, meets each once, goes on after a kill, and writes; it is idle
unless asked.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import primorl
from pipeline import online
from primorl.base import PipelineError
from primorl.base.files import read_json
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.evaluate.summary import OnlineSummary
from primorl.online.learning import SimulatedUsers
from primorl.policy import exported
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.epsilon import compose, event_from_json
from primorl.privacy.statement import Statement
from tests.data.builders import snapshot
from tests.mechanisms import watch
from tests.pipeline.training_project import charged, edited, killed, states
from tests.privacy.test_statements import statement as of_training
from tests.projects import project_settings, write_settings

FOLDER, SUMMARY = Path("models/online"), Path("metrics/online.json")
DELTA = 1e-3


@pytest.fixture
def asked(folder_with_store: Path) -> Params:
    content = project_settings()
    content["chosen"]["environment"] = "CartPole-v1"
    content["privacy"]["delta"] = DELTA
    content["evaluation"] |= {"episodes": 2, "epoch_episodes": 2}
    content["online"] |= {"users": 14, "cohort": 3, "steps": 20}
    write_offline(DELTA)
    return write_settings(content)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The users that were met, in their order."""
    met: list[int] = []
    watch(monkeypatch, SimulatedUsers, "meet", lambda _, numbers, *__: met.extend(numbers))
    return met


def learned(params: Params, **of_online: Any) -> None:
    changed = edited(params, online=of_online)
    if not online.idle(changed):
        online.body(changed, StageLog())


def test_it_pays_once_meets_everybody_once_and_is_restored(asked: Params, met: list[int]) -> None:
    learned(asked)
    assert sorted(met) == list(range(12))
    (charge,) = charged(asked)
    own, summary = Statement.read(FOLDER), OnlineSummary.read(SUMMARY)
    assert (charge.state, charge.stage, own.charge) == ("committed", "online", charge.id)
    assert own.sound
    assert (own.unit, own.units, summary.users) == ("user", 12, 12)
    assert own.epsilon == summary.epsilon_in_all
    of_user = own.mechanisms[-1]
    assert 0.99 < (of_user.epsilon or 0.0) <= 1.0
    assert of_user.event["count"] == 1
    assert own.online is not None
    assert (own.online.cohort, own.online.cohorts) == (3, 4)
    assert [each.what for each in own.mechanisms] == ["models/policy", "models/online"]
    events = [event_from_json(each.event) for each in own.mechanisms]
    assert own.epsilon == compose(events, DELTA).epsilon_pld
    first = DeterministicPolicy.load(FOLDER, "epochs.safetensors")
    offline = DeterministicPolicy.load(Path("models/policy"))
    assert torch.equal(first.layers[0][0], offline.layers[0][0])
    assert primorl.load_policy(FOLDER).act([0.0, 0.0, 0.1, 0.0]) in (0, 1)
    lines = Path("plots/online.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "3", "6", "9", "12"]
    written = snapshot(FOLDER)
    learned(asked)
    assert snapshot(FOLDER) == written
    assert (len(met), len(charged(asked))) == (12, 1)
    learned(asked, learning_rate=1.0)
    again = Statement.read(FOLDER).spent_on_dataset
    assert again is not None
    assert again.charges == 2, "the same seed means the same people"
    learned(edited(asked, seed=1), learning_rate=1.0)
    others = Statement.read(FOLDER).spent_on_dataset
    assert others is not None
    assert others.charges == 1


def test_it_is_idle_unless_asked_and_says_where_nothing_is_guaranteed(asked: Params) -> None:
    learned(asked, users=None)
    assert charged(asked) == []
    assert not OnlineSummary.read(SUMMARY).met
    assert read_json(FOLDER / "config.json")["policy"] == "models/policy"
    learned(asked, target_epsilon=None)
    own = Statement.read(FOLDER)
    assert not own.private
    assert own.void
    assert [charge.epsilon for charge in charged(asked)] in ([None], [float("inf")])


def test_a_killed_run_goes_on_with_the_next_users(asked: Params, met: list[int]) -> None:
    with killed(3):
        learned(asked)
    assert states(asked) == ["reserved"]
    learned(asked)
    assert sorted(met) == list(range(12))
    assert states(asked) == ["committed"]
    assert Path("plots/online.csv").read_text().split("\n")[1:-1][-1].startswith("12,")


def test_a_run_goes_on_only_from_the_policy_that_it_began_with(asked: Params) -> None:
    with killed(2):
        learned(asked)
    write_offline(DELTA)
    with pytest.raises(PipelineError, match="another offline policy"):
        learned(asked)
    assert not FOLDER.exists()


def test_what_cannot_be_is_refused_before_anybody_is_charged_or_met(
    asked: Params, met: list[int]
) -> None:
    nowhere = edited(asked, chosen={"environment": None}, policy={"starts": "public"})
    tight = edited(asked, privacy={"budget": {"epsilon": 0.5}})
    few = edited(asked, online={"users": 2})
    for params, delta, says in (
        (few, DELTA, "cohort: found 3, and 2 users come"),
        (tight, DELTA, r"privacy\.budget is .*; ask for a smaller ε"),
        (nowhere, DELTA, "environment: found null, which online"),
        (
            asked,
            DELTA / 10,
            r"privacy\.delta: found 0\.001, allowed: 0\.0001, as in models/policy",
        ),
    ):
        write_offline(delta)
        with pytest.raises(PipelineError, match=says):
            learned(params)
    assert met == []
    assert charged(asked) == []
    assert not FOLDER.exists()


def write_offline(delta: float) -> Statement:
    folder = Path("models/policy")
    folder.mkdir(parents=True, exist_ok=True)
    layers = tuple(torch.randn(1, *size) for size in ((8, 4), (1, 8), (2, 8), (1, 2)))
    scales = (torch.zeros(4), torch.ones(4), torch.zeros(2), torch.ones(2))
    policy = DeterministicPolicy(layers, *scales, discrete_actions=True)
    exported.save(folder, [policy], variant="private", environment="CartPole-v1")
    # Of a charge that this ledger does not have.
    statement = replace(of_training(9.0), charge=None, delta=delta)
    statement.write(folder)
    return statement
