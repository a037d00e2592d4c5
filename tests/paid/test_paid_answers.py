"""Which answers are the same work, so that nobody is charged again."""

from types import SimpleNamespace
from typing import Any

from primorl.config.blocks import EstimatorName
from primorl.config.params import from_plain
from primorl.paid import private_evaluation
from primorl.paid.private_evaluation import QUESTIONS, EvaluatedFiles
from tests.evaluate.private.conftest import model, problem
from tests.projects import project_settings

PROBLEM = problem(40, model([1.0], [1.0]))
DATA: Any = SimpleNamespace(
    identity="data",
    manifest=SimpleNamespace(info=SimpleNamespace(dataset="pendulum")),
    version=None,
)


def identity(name: EstimatorName, model_charge: str = "charge", **private: Any) -> str:
    raw = project_settings()
    raw["evaluation"]["private"] |= {"discount": 0.9, "return_bounds": None, "draw": 0} | private
    question, files = QUESTIONS[name], EvaluatedFiles(model_charge, "model", "policy", None)
    run: Any = SimpleNamespace(run_id="run")
    plan = question.plan(PROBLEM, 10.0)
    return private_evaluation._request(from_plain(raw), run, DATA, question, plan, files).identity


def test_other_settings_are_other_work_and_another_model_only_where_it_is_asked_about() -> None:
    others: list[dict[str, Any]] = [
        {},
        {"return_bounds": [-1.0, 2.0]},
        {"discount": 0.8},
        {"draw": 1},
    ]
    assert len({identity("behaviour", **other) for other in others}) == 4
    assert identity("behaviour") == identity("behaviour", "another")
    assert identity("model_check") != identity("model_check", "another")
