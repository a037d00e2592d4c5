"""Single transitions as privacy units: each is one row of its own, and their number is public."""

import math

import pytest
import torch

from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import run
from primorl.evaluation.private.transitions import Transitions, per_transition
from tests.evaluation.private.chain import chain, problem, settings


def test_every_transition_is_one_unit_and_empty_places_are_null_records() -> None:
    source = Transitions(chain([3, 1]), 4)
    episodes = Episodes.read(source, torch.arange(8))
    assert source.units == 8
    assert episodes.own[:, 0].tolist() == [True, True, True, False, True, False, False, False]
    assert episodes.reward[:3, 0].tolist() == [1, 0.5, 0]
    assert torch.equal(episodes.begins, episodes.own)
    nothing = Episodes.read(source, torch.tensor([3, 7]))
    estimator, question = settings(), problem(8)
    assert not estimator.contributions(question, estimator.begin(question), nothing).any()


def test_their_number_is_the_same_whatever_the_lengths() -> None:
    question = problem(2, horizon=4)
    counts = {per_transition(question, chain(lengths), 1e-7)[1].units for lengths in ([1, 1], [4, 4], [9, 2])}
    assert counts == {8}


def test_a_run_states_its_own_unit() -> None:
    question, source = per_transition(problem(3, horizon=4), chain([3, 1, 4]), 1e-7)
    estimator = settings(privacy_unit="transition", sampling_probability=0.5)
    plan = estimator.plan(question, 1.0)
    assert (plan.unit, plan.units, plan.delta, plan.queries) == ("transition", 12, 1e-7, ())
    (estimate,) = estimator.estimates(question, plan, run(estimator, question, plan, source))
    assert math.isfinite(estimate.value)


def test_units_and_settings_must_agree() -> None:
    with pytest.raises(ValueError, match="per_transition"):
        settings(privacy_unit="transition").plan(problem(3), 1.0)
    question, _ = per_transition(problem(3, horizon=4), chain([3, 1, 4]), 1e-7)
    with pytest.raises(ValueError, match="transition"):
        settings().plan(question, 1.0)
    for refused in (problem(3), problem(3, horizon=4, discount=1.0)):
        with pytest.raises(ValueError, match="declared horizon"):
            per_transition(refused, chain([3, 1, 4]), 1e-7)
