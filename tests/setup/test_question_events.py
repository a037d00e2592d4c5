"""A question is foretold at what it is charged as, before there is a model or a policy."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from dp_accounting import dp_event

from primorl.config.blocks import EstimatorName
from primorl.config.params import from_plain
from primorl.privacy.accounting.privacy_filter import cost, total
from primorl.project.errors import PipelineError
from primorl.setup.estimators import estimator
from primorl.setup.private_evaluation import gaussian_mean, plan_at
from primorl.setup.questions import about, question_event
from primorl.trajectories.storage.schema import Spaces
from tests.evaluation.private import tiny_mdp
from tests.projects import project_settings
from tests.trajectories.builders import INFO

UNITS = 40
NAMES: tuple[EstimatorName, ...] = ("lstd", "dptd", "doubly_robust")


def filtered(event: dp_event.DpEvent) -> float:
    return total([cost(dp_event.GaussianDpEvent(5.0)), cost(event)]).epsilon(1e-5)


def manifest(*, discrete: bool) -> Any:
    spaces = Spaces((0.0,) * 3, (1.0,) * 3, (0.0,) * 2, (1.0,) * 2, discrete)
    return SimpleNamespace(info=replace(INFO, spaces=spaces, horizon=5, unit="person"), private_units=UNITS)


@pytest.mark.parametrize("name", NAMES)
def test_the_event_costs_what_the_real_question_is_charged(name: EstimatorName) -> None:
    params = from_plain(project_settings())
    real = tiny_mdp.problem(UNITS)
    params = replace(params, privacy=replace(params.privacy, delta=real.delta))
    known = manifest(discrete=True)
    charged = plan_at(estimator(name, known.info, cloned=False), real, 1.0).event
    assert filtered(question_event(params, name, 1.0, known)) >= filtered(charged) * (1 - 1e-9)
    gaussian = dp_event.GaussianDpEvent(1 / gaussian_mean(1.0, real.delta))
    assert (filtered(gaussian) < 0.99 * filtered(charged)) is (name != "lstd")


@pytest.mark.parametrize("cloned", [False, True])
@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("name", get_args(EstimatorName))
def test_what_a_question_is_about_is_known_without_its_estimator(
    name: EstimatorName, stated: bool, cloned: bool
) -> None:
    info = replace(INFO, horizon=5, behaviour_probabilities=stated)
    assert about(name, info, cloned=cloned) == estimator(name, info, cloned=cloned).about


def test_a_question_that_does_not_fit_the_data_is_refused_before_anything_is_paid() -> None:
    params = from_plain(project_settings())
    with pytest.raises(PipelineError, match="doubly_robust: needs discrete actions"):
        question_event(params, "doubly_robust", 0.5, manifest(discrete=False))
    question_event(params, "doubly_robust", 0.5, manifest(discrete=True))
    question_event(params, "doubly_robust", 0.5, None)
