"""The mechanism audit on the plans of private estimators: below the claim, and a cheat is seen."""

from dataclasses import fields

import pytest

from primorl.evaluation.private.behaviour import Behaviour
from primorl.evaluation.private.estimator import Estimator
from primorl.evaluation.private.model_check import ModelCheck
from primorl.privacy.audits.canaries import audit_mechanism
from primorl.privacy.mechanism.plan import Plan
from tests.evaluation.private.query_units import problem
from tests.evaluation.private.test_trained import FQE, LSTD
from tests.privacy.audits.test_canaries import SURE, HalfTheNoise

ESTIMATORS: list[Estimator] = [
    Behaviour(levels=4, mean_share=0.5),
    ModelCheck(horizons=(1, 3), starts=2, cap=1.5, bins=4, histogram_share=0.2),
    LSTD,
    FQE,
]


def plan_of(estimator: Estimator, kind: type[Plan]) -> Plan:
    made = estimator.plan(problem(300), 0.6)
    return kind(**{field.name: getattr(made, field.name) for field in fields(Plan) if field.name != "queries"})


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: each.name)
def test_an_estimators_plan_is_not_refuted_and_half_its_noise_is(estimator: Estimator) -> None:
    sound, cheat = plan_of(estimator, Plan), plan_of(estimator, HalfTheNoise)
    runs = max(1, 240 // sound.rounds)
    spent = sound.spent()
    assert spent is not None
    assert audit_mechanism(sound, canaries=256, runs=runs, confidence=SURE).epsilon <= spent.epsilon_pld
    assert audit_mechanism(cheat, canaries=256, runs=runs, confidence=SURE).epsilon > spent.epsilon_pld
