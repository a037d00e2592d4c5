"""The mechanism audit on the plans of private estimators: below the claim, and a cheat is seen."""

from dataclasses import fields

import pytest

from primorl.evaluation.private.behaviour import Behaviour
from primorl.evaluation.private.estimator import Estimator
from primorl.privacy.audits.canaries import audit_mechanism
from primorl.privacy.mechanism.plan import Plan
from tests.evaluation.private.conftest import problem
from tests.evaluation.private.test_lstd import LSTD, MODEL
from tests.plans import HalfTheNoise
from tests.privacy.audits.test_canaries import SURE


@pytest.mark.parametrize("estimator", [Behaviour(levels=4, mean_share=0.5), LSTD], ids=lambda each: each.name)
def test_an_estimators_plan_is_not_refuted_and_half_its_noise_is(estimator: Estimator) -> None:
    made = estimator.plan(problem(MODEL, 300), 0.6)
    parts = {field.name: getattr(made, field.name) for field in fields(Plan) if field.name != "queries"}
    spent = Plan(**parts).spent()
    assert spent is not None
    found = [
        audit_mechanism(kind(**parts), canaries=256, runs=240, confidence=SURE).epsilon for kind in (Plan, HalfTheNoise)
    ]
    assert found[0] <= spent.epsilon_pld < found[1]
