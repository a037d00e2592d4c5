"""How `evaluate_private` pays, asks and writes: nothing is read before it is charged, and nothing
is paid twice.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline import evaluate_private, plan
from primorl.base import PipelineError
from primorl.base.files import BEHAVIOUR
from primorl.base.reporting import StageLog
from primorl.config.params import Params, plain
from primorl.evaluate.private.behaviour import Asked
from primorl.evaluate.private.results import Conduct, Outcome, PrivateEvaluation
from primorl.model.architecture import ModelConfig
from primorl.policy.config import BehaviourConfig, write_nothing
from primorl.policy.exported import save
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.stages.asking import begin, find_bars
from primorl.work.jobs import digest_of_settings
from primorl.work.rules import epsilon_of
from tests.evaluate.conftest import random_policy
from tests.evaluate.private.conftest import problem
from tests.mechanisms import watch
from tests.pipeline.training_project import (
    charged,
    edited,
    killed,
    states,
    unopened,
    watch_private,
    write_model,
)
from tests.statements import PRIVATE

FILE = Path("metrics/private_evaluation.json")
ASKED = {"behaviour": 0.3}


@pytest.fixture
def ready(data: Params) -> Params:
    write_model(PRIVATE | {"charge": None, "spent_on_dataset": None})
    folder = Path("models/policy")
    folder.mkdir()
    save(folder, [random_policy(1, 3, 2.0, 0)], variant="private", environment="Pendulum-v1")
    write_nothing(Path("models/behaviour"))
    return asking(data, ASKED)


def asking(params: Params, shares: dict[str, float], **changes: Any) -> Params:
    asked = plain(params.evaluation.private) | changes
    shared = {"model": 0.4} | shares
    return edited(params, privacy={"shares": shared}, evaluation={"private": asked})


def evaluated(params: Params) -> PrivateEvaluation:
    plan.body(params, StageLog())
    if not evaluate_private.idle(params):
        evaluate_private.body(params, StageLog())
    return PrivateEvaluation.read(FILE)


def refused(params: Params, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        evaluated(params)


def test_the_answer_is_charged_once_and_first(
    ready: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    watch_private(monkeypatch, lambda: seen.append(states(ready)))
    released: list[object] = []
    watch(monkeypatch, Mechanism, "release", lambda _, total: released.append(total))
    found = evaluated(ready)
    assert seen[0] == ["reserved"]
    (charge,) = charged(ready)
    assert (charge.state, charge.stage) == ("committed", "evaluate_private: behaviour")
    epsilon = epsilon_of(ready, "behaviour")
    assert charge.made[-1] == found.hash_answers()
    told = found.statements["behaviour"].epsilon
    assert told is not None
    assert 0.9 * epsilon <= told <= epsilon
    assert found.statements["behaviour"].charge == charge.id
    assert found.total is not None
    assert evaluated(ready).estimates == found.estimates
    assert (len(charged(ready)), len(released)) == (1, 2)


def test_beside_values_of_a_model_without_a_guarantee_the_answer_is_void(ready: Params) -> None:
    """Twin: beside those of a sound model it is sound."""
    assert evaluated(ready).statements["behaviour"].sound
    write_model(PRIVATE | {"charge": None, "spent_on_dataset": None, "void": ["noise is seeded"]})
    assert "no sound guarantee" in evaluated(ready).statements["behaviour"].void[0]


@pytest.mark.parametrize(("termination", "barred"), [("none", False), ("learned", True)])
def test_learned_ends_that_rollouts_do_without_bar_a_trial(
    ready: Params, monkeypatch: pytest.MonkeyPatch, termination: str, barred: bool
) -> None:
    config = replace(ModelConfig.read(Path("models/dynamics")), termination=termination)
    stated = SimpleNamespace(read=lambda _: config)
    monkeypatch.setattr("primorl.stages.asking.ModelConfig", stated)
    verdict = evaluated(ready).verdict
    assert verdict is not None
    assert any("ends episodes" in veto.reason for veto in verdict.vetoes) is barred


@pytest.mark.parametrize(
    ("died", "ended", "told"),
    [
        (None, None, ""),
        (None, 0.06, ""),
        (None, 0.002, "0.2% end at all"),
        (0.01, 0.9, "1.0% end as “died”"),
    ],
)
def test_ends_that_are_too_rare_to_be_learned_bar_a_trial(
    ready: Params, died: float | None, ended: float | None, told: str
) -> None:
    ends = [(died, "died"), (0.5, "went home")] if died else []
    conduct = Conduct(
        discrete=True,
        actions=(),
        today_error=None,
        contrast=None,
        clone_ended=ended,
        policy_ended=ended,
        outcomes=tuple(Outcome(name=of, reward=0.0, clone=p, policy=p) for p, of in ends),
    )
    found = find_bars(problem(1), conduct, nobody=True)
    assert [told in each for each in found] == [True] * bool(told)
    assert find_bars(problem(1), conduct, nobody=False) == [], "their ends support the model's"


def test_what_was_found_of_the_clone_bars_a_trial(ready: Params) -> None:
    replace(BehaviourConfig.read(BEHAVIOUR), warnings=("a sign lasts",)).write(BEHAVIOUR)
    verdict = evaluated(ready).verdict
    assert verdict is not None
    assert ("warned", "a sign lasts") in [(each.kind, each.reason) for each in verdict.vetoes]


def test_what_is_refused_or_not_asked_reads_nothing(
    ready: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    unopened(monkeypatch)
    refused(edited(ready, privacy={"budget": {"epsilon": 2.0}}), "budget")
    assert charged(ready) == []
    found = evaluated(asking(ready, {}))
    assert (found.estimates, found.total, charged(ready)) == ((), None, [])


@pytest.mark.parametrize("at", [1, 2])
def test_a_stage_killed_at_a_release_has_spent_it_and_asks_before_it_pays_again(
    ready: Params, at: int
) -> None:
    """Of two, of which the second follows from the first."""
    with killed(at):
        evaluated(ready)
    refused(ready, r"the run died.*evaluation\.private\.draw")
    assert states(ready) == ["reserved"]
    evaluated(asking(ready, ASKED, draw=1))
    assert states(ready) == ["reserved", "committed"]


def test_an_answer_is_never_read_on_the_scale_of_other_bounds(ready: Params) -> None:
    evaluated(ready)
    config = Path("models/dynamics/config.json")
    config.write_text(
        config.read_text(encoding="utf-8").replace("-17.0", "-19.0"), encoding="utf-8"
    )
    refused(ready, r"other bounds.*evaluation\.private\.draw")
    assert len(charged(ready)) == 1


def test_other_bounds_and_another_draw_are_told_apart(ready: Params) -> None:
    """Of rewards, of returns, and of returns that are no sums."""
    asked = problem(4)
    others = [replace(asked, return_low=-9.0), replace(asked, return_high=9.0)]
    others += [replace(asked, return_is_sum=not asked.return_is_sum)]
    assert len({begin(each).about for each in (asked, *others)}) == 4
    again = asking(ready, ASKED, draw=1)
    assert digest_of_settings(again) != digest_of_settings(ready)


def test_an_answer_that_is_there_is_not_lost() -> None:
    """Between two of them; and of an earlier version, which counted no releases."""
    assert not Asked(torch.empty(0), "it", started=1, made=1).lost
    assert not Asked(torch.empty(0), "it", started=1, made=0, finished=True).lost
