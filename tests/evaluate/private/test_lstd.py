"""Least squares on what the model gets wrong: what it finds, by rows of the unit's own."""

import math

import pytest
import torch

from primorl.evaluate.private.estimator import run
from primorl.evaluate.private.model_values import ModelQ
from primorl.evaluate.private.problem import first_rows, mean_over_trajectories, row_shares, thinned
from tests.evaluate.private.conftest import RETURN, Log, payers, problem
from tests.evaluate.private.test_one_unit import LSTD


def value(source: Log, mean: float = math.inf) -> tuple[float, float, float]:
    asked = problem(source.units)
    plan = LSTD.plan(asked, mean)
    (found,) = LSTD.estimates(asked, plan, run(LSTD, asked, plan, source))
    assert found.ci95 is not None
    return found.value, *found.ci95


def test_it_finds_the_value_of_a_chain_that_the_model_has_wrong() -> None:
    public = ModelQ(problem(1), 8, 16)
    assert float(public.at_starts(public.fit()).mean()) == pytest.approx(0.7 * RETURN, rel=0.02)
    found, low, high = value(payers(300, 1.0))
    assert found == pytest.approx(RETURN, rel=0.02)
    assert low < RETURN < high < low + 2 * RETURN, (
        "the correction of the model's value is allowed for"
    )
    noisy = [value(payers(400, 1.0, seed=seed), 1.0)[1:] for seed in range(10)]
    assert sum(low <= RETURN <= high for low, high in noisy) >= 7
    assert all(high - low < 3 * RETURN for low, high in noisy)


def test_rows_are_the_units_own() -> None:
    whole = payers(3, 1.0).episodes()
    first = first_rows(whole)
    assert first.own.sum(1).tolist() == [1, 2, 3]
    assert (first.step[first.own] == 0).all()
    numbers = torch.arange(9, dtype=torch.float64).view(3, 3)
    assert mean_over_trajectories(first, numbers).tolist() == [0.0, 3.5, 7.0]
    shares = row_shares(problem(3), whole)
    torch.testing.assert_close(shares.sum(1), torch.ones(3, dtype=torch.float64))
    assert (shares[~whole.own] == 0).all()
    some = thinned(whole, 6)
    assert some.own.sum(1).tolist() == [5, 6, 6]
    assert some.step[0, :5].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(some.reward[2], whole.reward[2, [0, 2, 5, 7, 10, 12]])
    assert thinned(whole, 100) is whole
