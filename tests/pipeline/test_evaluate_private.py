"""How `evaluate_private` pays, asks and writes: nothing is read before it is charged, and nothing is paid twice."""

from pathlib import Path
from typing import Any

import pytest

from pipeline import evaluate_private
from primorl.config import params as params_module
from primorl.config.params import Params
from primorl.evaluation.private.behaviour import Behaviour
from primorl.evaluation.private.results import PrivateEvaluation
from primorl.policy.exported import save
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.mechanism.plan import Plan
from primorl.project.errors import PipelineError
from primorl.project.files import write_json
from primorl.setup import private_evaluation
from primorl.setup.paid_training import write_nothing
from primorl.trajectories.storage.store import UnitStore
from tests.evaluation.conftest import random_policy
from tests.pipeline.tiny_policy import RememberingRun, write_model
from tests.pipeline.training_project import charged, watch_private, with_changes
from tests.statements import NOT_PRIVATE, PRIVATE

FILE, FIGURE = Path("metrics/private_evaluation.json"), Path("plots/private_evaluation.png")
BOTH = {"behaviour": 3.0, "model_check": 2.0}


@pytest.fixture
def ready(data: Params) -> Params:
    write_model(PRIVATE | {"charge": None, "spent_on_dataset": None})
    write_policy(0)
    write_nothing(Path("models/behaviour"))
    return asking(data, BOTH)


def write_policy(seed: int) -> None:
    Path("models/policy").mkdir(exist_ok=True)
    save(Path("models/policy"), [random_policy(1, 3, 2.0, seed)], variant="private", environment="Pendulum-v1")


def asking(params: Params, estimators: dict[str, float], **changes: Any) -> Params:
    raw = params_module.plain(with_changes(params))
    raw["evaluation"]["private"] |= {"estimators": estimators} | changes
    return params_module.from_plain(raw)


def evaluated(params: Params) -> PrivateEvaluation:
    evaluate_private.body(params, RememberingRun())  # type: ignore[arg-type]
    return PrivateEvaluation.read(FILE)


def count_releases(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    released: list[int] = []
    release = Plan.release
    monkeypatch.setattr(Plan, "release", lambda self, total: (released.append(1), release(self, total))[1])
    return released


def test_every_answer_is_charged_before_a_private_byte_is_read(ready: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[list[str]] = []
    watch_private(monkeypatch, lambda: states.append([charge.state for charge in charged(ready)]))
    found = evaluated(ready)
    assert states[0] == ["reserved"]
    charges = charged(ready)
    assert [(charge.state, charge.stage) for charge in charges] == [
        ("committed", "evaluate_private: behaviour"),
        ("committed", "evaluate_private: model_check"),
    ]
    for charge, (name, epsilon) in zip(charges, BOTH.items(), strict=True):
        assert charge.made == ({f"private_evaluation: {name}": found.digest(name)},)
        assert 0.98 * epsilon <= found.statements[name].epsilon <= epsilon  # type: ignore[operator]
        assert found.statements[name].charge == charge.id
    assert found.total is not None
    assert found.total.charges == 2
    assert found.total.epsilon > max(BOTH.values())  # type: ignore[operator]
    assert {answer.estimator for answer in found.values()} >= {"behaviour"}
    assert all(answer.ci95[0] <= answer.value <= answer.ci95[1] for answer in found.estimates if answer.ci95)
    assert FIGURE.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_asked_charged_or_read_without_estimators(ready: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    watch_private(monkeypatch, lambda: pytest.fail("the private partition was opened"))
    found = evaluated(asking(ready, {}))
    assert (found.estimates, found.total, charged(ready)) == ((), None, [])
    assert FIGURE.exists()


def test_what_was_paid_for_is_restored_and_an_added_estimator_alone_is_charged(
    ready: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluated(asking(ready, {"behaviour": 3.0}))
    released = count_releases(monkeypatch)
    both = evaluated(ready)
    assert (len(charged(ready)), len(released)) == (2, 1)
    again = evaluated(ready)
    assert (len(charged(ready)), len(released)) == (2, 1)
    assert both.estimates == again.estimates
    of_behaviour = [answer for answer in both.estimates if answer.estimator == "behaviour"]
    assert of_behaviour == [answer for answer in first.estimates if answer.estimator == "behaviour"]


def test_a_budget_that_does_not_allow_all_allows_nothing(ready: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    watch_private(monkeypatch, lambda: pytest.fail("the private partition was opened"))
    raw = params_module.plain(ready)
    raw["privacy"]["budget"] = {"epsilon": 3.2, "delta": 1e-3}
    with pytest.raises(PipelineError, match="budget"):
        evaluate_private.body(params_module.from_plain(raw), RememberingRun())  # type: ignore[arg-type]
    assert charged(ready) == []


class Killed(BaseException):
    pass


def die(*arguments: Any, **named: Any) -> None:
    raise Killed


def killed(ready: Params, where: type, method: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(where, method, die)
        with pytest.raises(Killed):
            evaluate_private.body(ready, RememberingRun())  # type: ignore[arg-type]


@pytest.mark.parametrize(("where", "method"), [(UnitStore, "transitions"), (Ledger, "commit")])
def test_a_stage_killed_before_or_after_its_releases_goes_on_with_its_charges(
    ready: Params, where: type, method: str
) -> None:
    killed(ready, where, method)
    before = [charge.id for charge in charged(ready)]
    evaluated(ready)
    after = charged(ready)
    assert [charge.id for charge in after][: len(before)] == before
    assert [charge.state for charge in after] == ["committed", "committed"]


def test_a_stage_killed_at_its_only_release_has_spent_it_and_asks_before_it_pays_again(ready: Params) -> None:
    killed(ready, Plan, "release")
    with pytest.raises(PipelineError, match=r"behaviour.*evaluation\.private\.draw"):
        evaluate_private.body(ready, RememberingRun())  # type: ignore[arg-type]
    assert [charge.state for charge in charged(ready)] == ["reserved"]
    evaluated(asking(ready, BOTH, draw=1))
    assert [charge.state for charge in charged(ready)] == ["reserved", "committed", "committed"]


def test_an_answer_is_never_read_on_the_scale_of_other_bounds(ready: Params) -> None:
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(private_evaluation, "_about", lambda estimator, problem, subject: "")
        evaluated(asking(ready, {"behaviour": 3.0}))
    evaluated(ready)
    config = Path("models/dynamics/config.json")
    config.write_text(config.read_text(encoding="utf-8").replace("-17.0", "-19.0"), encoding="utf-8")
    with pytest.raises(PipelineError, match=r"model_check.*other bounds.*evaluation\.private\.draw"):
        evaluate_private.body(ready, RememberingRun())  # type: ignore[arg-type]
    assert len(charged(ready)) == 2


def test_answers_about_a_clone_without_a_guarantee_say_so(ready: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Behaviour, "about", ("clone",))
    write_json(Path("models/behaviour/privacy.json"), NOT_PRIVATE | {"charge": None, "spent_on_dataset": None})
    statements = evaluated(ready).statements
    assert statements["behaviour"].void[-1].startswith("the clone")
    assert not any("clone" in reason for reason in statements["model_check"].void)
