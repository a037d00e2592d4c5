"""Which answers are the same work, so that nobody is charged again; tests/golden has those of an earlier version."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from primorl.config.blocks import EstimatorName
from primorl.config.params import Params, from_plain
from primorl.config.suggestions import TO_FIT
from primorl.paid import private_evaluation
from primorl.paid.private_evaluation import EvaluatedFiles, PlannedEstimator, estimator
from tests.evaluate.private.conftest import model, problem
from tests.projects import project_settings

DATA: Any = SimpleNamespace(identity="data")
PROBLEM = problem(40, model([1.0], [1.0]))
INFO: Any = SimpleNamespace(horizon=5, behaviour_probabilities=None)


def settings(origins: dict[str, str] | None = None, **blocks: dict[str, Any]) -> Params:
    raw = project_settings()
    raw["evaluation"]["private"] |= {
        "discount": 0.9,
        "return_bounds": None,
        "draw": 0,
    } | blocks.pop("private", {})
    for name, changes in blocks.items():
        raw[name] |= changes
    return from_plain(raw, origins)


def answered(
    name: EstimatorName, origins: dict[str, str] | None = None, **blocks: dict[str, Any]
) -> str:
    asked = estimator(name, INFO, cloned=False)
    question, subject = (
        PlannedEstimator(asked, asked.plan(PROBLEM, 0.1)),
        EvaluatedFiles("charge", "model", "policy", None, None),
    )
    return private_evaluation._identity(settings(origins, **blocks), DATA, question, subject)


def test_another_policy_is_other_work_and_what_stands_in_for_a_fitted_value_is_not() -> None:
    def near(name: EstimatorName, epsilon: float | None, hidden: list[int]) -> str:
        return answered(name, behaviour={"target_epsilon": epsilon, "hidden": hidden})

    assert near("lstd", 0.3, [8]) != near("lstd", 0.3, [32])
    assert near("lstd", None, [8]) == near("lstd", None, [32]) == near("lstd", 0.3, [32])
    assert near("model_check", 0.3, [8]) == near("model_check", 0.3, [32])
    others: list[dict[str, Any]] = [
        {},
        {"return_bounds": [-1.0, 2.0]},
        {"discount": 0.8},
        {"draw": 1},
    ]
    assert len({answered("behaviour", private=other) for other in others}) == 4
    short, long = {"policy": {"horizon": 20}}, {"policy": {"horizon": 30}}
    assert answered("lstd", **short) != answered("lstd", **long)
    assert answered("lstd", {"policy.horizon": TO_FIT}, **short) == answered(
        "lstd", {"policy.horizon": TO_FIT}, **long
    )


def test_an_answer_with_a_fitted_behaviour_stands_where_it_was_paid_for() -> None:
    subject = EvaluatedFiles("charge", "model", "policy", "clone's charge", "clone")
    new, old = (estimator("doubly_robust", INFO, cloned=cloned) for cloned in (True, False))
    question = replace(PROBLEM, discrete_actions=True)
    earlier = PlannedEstimator(old, old.plan(question, 0.1))
    asked = PlannedEstimator(new, new.plan(question, 0.1), earlier)

    def identity(asked: PlannedEstimator, subject: EvaluatedFiles = subject) -> str:
        return private_evaluation._identity(settings(), DATA, asked, subject)

    def stands(known: set[str]) -> PlannedEstimator:
        return private_evaluation._as_paid(settings(), DATA, asked, subject, known)

    assert stands({identity(earlier)}) is earlier
    assert stands(set()) is asked
    assert stands({identity(earlier), identity(asked)}) is asked
    other = replace(subject, clone_charge="other")
    assert identity(asked, other) != identity(asked)
    assert identity(earlier, other) == identity(earlier)
