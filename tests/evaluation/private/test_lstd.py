"""Least squares on what the model gets wrong: what it finds, and how far one unit reaches."""

import math

import pytest
import torch
from torch import Tensor

from primorl.evaluation.private.estimator import NOISE, FirstStateValue, noise_of, run
from primorl.evaluation.private.lstd import Lstd
from primorl.evaluation.private.model_values import ModelQ
from primorl.evaluation.private.problem import (
    Episodes,
    first_rows,
    mean_over_trajectories,
    row_shares,
    thinned,
)
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.queries import ONE
from tests.evaluation.private.conftest import Log, model, payers, problem

LSTD = Lstd(model_features=8, rollouts=16, rows=100, clipping_norm=0.4, query_share=0.5)
MODEL = model([0.5, 0.9], [1.0, 1.0])
RETURN = (1 - 0.9**5) / 0.1  # of a reward of 1 on every step
HOSTILE = (math.nan, math.inf, -1e300, 1e8)


@pytest.fixture(scope="module")
def values() -> dict[str, Tensor]:
    """After a release."""
    asked = problem(MODEL, 4)
    noise = torch.tensor(noise_of(LSTD.plan(asked, 1.0)), dtype=torch.float64)
    begun = {**LSTD.begin(asked), NOISE: noise}
    size = LSTD.contributions(asked, begun, payers(4, 1.0).episodes()).shape[1]
    released = 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(3))
    return LSTD.stepped(asked, begun, released, 0)


def value(estimator: Lstd, source: Log, mean: float = math.inf) -> tuple[float, tuple[float, float]]:
    asked = problem(MODEL, source.units)
    plan = estimator.plan(asked, mean)
    (found,) = estimator.estimates(asked, plan, run(estimator, asked, plan, source))
    assert found.ci95 is not None
    return found.value, found.ci95


def test_whatever_a_unit_holds_it_is_clipped_and_moves_nobody_else(values: dict[str, Tensor]) -> None:
    """Spoilt rows of another unit, padding and the company of a batch change nothing."""
    asked, source = problem(MODEL, 4), payers(4, 1.0)
    plan = LSTD.plan(asked, 1.0)
    clip, (query,) = L2Clip(1e-3), plan.queries
    expected = LSTD.contributions(asked, values, source.episodes())
    assert (expected.norm(dim=1) > clip.sensitivity).any(), "this clip binds"
    for number in HOSTILE:
        found = LSTD.contributions(asked, values, source.spoilt(1, number).episodes())
        torch.testing.assert_close(found[[0, 2, 3]], expected[[0, 2, 3]], rtol=1e-9, atol=1e-12)
        assert (clip.finish(found).norm(dim=1) <= clip.sensitivity).all()
        alone = Episodes.read(source.spoilt(0, number), torch.tensor([0]))
        total = LSTD.query_total(asked, query.what, values, alone)
        assert torch.linalg.vector_norm(total.double() / ONE) <= query.sensitivity
    for unit in range(4):
        own = LSTD.contributions(asked, values, Episodes.read(source, torch.tensor([unit])))
        torch.testing.assert_close(own[0], expected[unit], rtol=1e-9, atol=1e-12)


def test_a_query_without_its_bound_would_be_caught(values: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: what a unit would add if numbers were not held within ±1."""
    (query,) = LSTD.plan(problem(MODEL, 1), 1.0).queries
    monkeypatch.setattr(
        FirstStateValue, "total", lambda self, x: (x.nan_to_num() / self.problem.return_high * 50 * ONE).long()
    )
    total = LSTD.query_total(problem(MODEL, 1), query.what, values, payers(1, 1.0).episodes())
    assert torch.linalg.vector_norm(total.double() / ONE) > query.sensitivity


def test_it_finds_the_value_of_a_chain_that_the_model_has_wrong() -> None:
    """Members pay 0.5 and 0.9; the chain pays 1. Their difference spans the error, so the answer is exact."""
    public = ModelQ(problem(MODEL, 1), 8, 16)
    assert float(public.at_starts(public.fit()).mean()) == pytest.approx(0.7 * RETURN, rel=0.02)
    found, (low, high) = value(LSTD, payers(300, 1.0))
    assert found == pytest.approx(RETURN, rel=0.02)
    assert low < RETURN < high
    assert high - low < 2 * RETURN  # the correction of the model's value is allowed for
    noisy = [value(LSTD, payers(400, 1.0, seed=seed), 1.0)[1] for seed in range(10)]
    assert sum(low <= RETURN <= high for low, high in noisy) >= 7
    assert all(high - low < 3 * RETURN for low, high in noisy)


def test_statistics_are_what_loops_over_rows_add_up_to(values: dict[str, Tensor]) -> None:
    """Slow reference: one row at a time, weights γ^t over the unit's own."""
    asked, whole = problem(MODEL, 3), payers(3, 1.0).episodes()
    found = LSTD.contributions(asked, values, whole)
    here, gap, error = LSTD._temporal_differences(asked, values, whole)
    size = here.shape[-1]
    for unit in range(3):
        matrix, vector = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        rows = [row for row in range(whole.own.shape[1]) if whole.own[unit, row]]
        total = sum(0.9 ** int(whole.step[unit, row]) for row in rows)
        for row in rows:
            share = 0.9 ** int(whole.step[unit, row]) / total
            matrix += share * torch.outer(here[unit, row], gap[unit, row])
            vector += share * here[unit, row] * error[unit, row]
        torch.testing.assert_close(found[unit], torch.cat((matrix.flatten(), vector)))
    assert (torch.linalg.vector_norm(here, dim=-1) <= 1 + 1e-9).all()


def test_the_correction_weighs_rows_by_the_adjoint_system(values: dict[str, Tensor]) -> None:
    """η solves Aᵀη = φ₀ and θ solves A θ = b: then ⟨η, b⟩ = ⟨θ, φ₀⟩, whatever A is."""
    asked = problem(MODEL, 4)
    size = LSTD._size(asked)
    drawn = torch.randn(size * size + size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = LSTD.stepped(asked, {**values, NOISE: torch.tensor(0.0)}, drawn, 0)
    states = asked.starts.double()
    start = LSTD._features(asked, values, states, asked.actions(states), torch.zeros(4).long())[0].mean(0)
    torch.testing.assert_close(exact["eta"] @ drawn[-size:], exact["theta"] @ start, rtol=1e-3, atol=1e-6)
    shrunk = LSTD.stepped(asked, {**values, NOISE: torch.tensor(1e6)}, drawn, 0)
    assert float(shrunk["theta"].norm()) < 1e-6, "θ fades to the model's value under noise"


def test_rows_are_the_units_own() -> None:
    whole = payers(3, 1.0).episodes()
    first = first_rows(whole)
    assert first.own.sum(1).tolist() == [1, 2, 3]
    assert (first.step[first.own] == 0).all()
    numbers = torch.arange(9, dtype=torch.float64).view(3, 3)
    assert mean_over_trajectories(first, numbers).tolist() == [0.0, 3.5, 7.0]
    shares = row_shares(problem(MODEL, 3), whole)
    torch.testing.assert_close(shares.sum(1), torch.ones(3, dtype=torch.float64))
    assert (shares[~whole.own] == 0).all()
    some = thinned(whole, 6)
    assert some.own.sum(1).tolist() == [5, 6, 6]
    assert some.step[0, :5].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(some.reward[2], whole.reward[2, [0, 2, 5, 7, 10, 12]])
    assert thinned(whole, 100) is whole
