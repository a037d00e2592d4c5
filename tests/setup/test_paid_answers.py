"""Answers and choices that people paid for under an earlier version are the same work: nobody is charged again."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from primorl.config import params as params_module
from primorl.config.blocks import EstimatorName
from primorl.config.suggestions import TO_FIT
from primorl.setup import private_evaluation, selection
from primorl.setup.estimators import estimator
from primorl.setup.private_evaluation import Asked, Subject
from tests.evaluation.private.conftest import model, problem
from tests.projects import project_settings

ANSWERS = {
    "behaviour": "b44f8a3caf0208d530c09a30c598500e891974768ea77b68b4752b2f8e84b088",
    "model_check": "a2e516b5046ecfb49a87ac1f0e088d59370cebc9dd093793eb744fc8e4e25449",
    "lstd": "03c35909f384501888195a3283c727a8bf7a2f9d18b2e3514095851c494413e0",
}
BOUNDED = "8b71ab8d8c5d37265cb51e7fe15ad076dfb6a032fcd02309d9ea768862b2bff8"
CHOICE = "1cccb626c1e12fe4b723f6331bd4503234479ef15c4a21eebbe3835f6285fc41"
"""What commit 42ef484f computes for the same settings."""
DATA: Any = SimpleNamespace(identity="data")
PROBLEM = problem(40, model([1.0], [1.0]))
INFO: Any = SimpleNamespace(horizon=5, behaviour_probabilities=None)


def answered(name: EstimatorName, origins: dict[str, str] | None = None, **changes: Any) -> str:
    raw = project_settings()
    raw["policy"] |= {key.removeprefix("policy__"): changes.pop(key) for key in list(changes) if "__" in key}
    raw["evaluation"]["private"] |= {"discount": 0.9, "return_bounds": None, "draw": 0} | changes
    params, asked = params_module.from_plain(raw, origins), estimator(name, INFO, cloned=False)
    subject = Subject("charge", "model", "policy", None, None)
    return private_evaluation._identity(params, DATA, Asked(asked, asked.plan(PROBLEM, 0.1)), subject)


def test_an_answer_is_the_same_work_as_before_settings_were_fitted() -> None:
    names: tuple[EstimatorName, ...] = ("behaviour", "model_check", "lstd")
    assert {name: answered(name) for name in names} == ANSWERS
    assert answered("behaviour", return_bounds=[-1.0, 2.0]) == BOUNDED
    others: list[dict[str, Any]] = [{"return_bounds": "public"}, {"discount": 0.8}, {"draw": 1}]
    assert len({ANSWERS["behaviour"], *(answered("behaviour", **other) for other in others)}) == 4


def test_an_answer_with_a_fitted_behaviour_stands_where_it_was_paid_for() -> None:
    params = params_module.from_plain(project_settings())
    subject = Subject("charge", "model", "policy", "clone's charge", "clone")
    new, old = (estimator("doubly_robust", INFO, cloned=cloned) for cloned in (True, False))
    question = replace(PROBLEM, discrete_actions=True)
    earlier = Asked(old, old.plan(question, 0.1))
    asked = Asked(new, new.plan(question, 0.1), earlier)

    def identity(asked: Asked, subject: Subject = subject) -> str:
        return private_evaluation._identity(params, DATA, asked, subject)

    def stands(known: set[str]) -> Asked:
        return private_evaluation._as_paid(params, DATA, asked, subject, known)

    assert stands({identity(earlier)}) is earlier
    assert stands(set()) is asked
    assert stands({identity(earlier), identity(asked)}) is asked
    other = replace(subject, clone_charge="other")
    assert identity(asked, other) != identity(asked)
    assert identity(earlier, other) == identity(earlier)


def test_what_a_policy_was_fitted_to_is_the_same_work_whatever_stands_in_for_it() -> None:
    fitted = {"policy.horizon": TO_FIT}
    assert answered("lstd", fitted, policy__horizon=30) == answered("lstd", fitted, policy__horizon=20)
    assert answered("lstd", policy__horizon=20) != answered("lstd", policy__horizon=30)


def test_a_clone_of_another_network_makes_another_policy_to_ask_about() -> None:
    def asked(name: EstimatorName, epsilon: float | None, hidden: list[int]) -> str:
        raw, question = project_settings(), estimator(name, INFO, cloned=False)
        raw["behaviour"] |= {"target_epsilon": epsilon, "hidden": hidden}
        plan, subject = question.plan(PROBLEM, 0.1), Subject("charge", "model", "policy", None, None)
        return private_evaluation._identity(params_module.from_plain(raw), DATA, Asked(question, plan), subject)

    assert asked("lstd", 0.3, [8]) != asked("lstd", 0.3, [32])
    assert asked("lstd", None, [8]) == asked("lstd", None, [32]) == asked("lstd", 0.3, [32])
    assert asked("model_check", 0.3, [8]) == asked("model_check", 0.3, [32])


def chosen(draw: int = 0) -> str:
    raw = project_settings()
    raw["evaluation"]["private"]["draw"] = draw
    candidates: Any = [SimpleNamespace(sha256="a"), SimpleNamespace(sha256="b")]
    score = selection.ESTIMATORS["corrected"]
    return selection._identity(params_module.from_plain(raw), DATA, candidates, score, PROBLEM, 0.2)


def test_a_choice_is_the_same_work_as_before_settings_were_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "file_sha256", lambda file: file.name)
    assert chosen() == CHOICE
    assert chosen(draw=1) != CHOICE
