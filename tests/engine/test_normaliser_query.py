"""Normalisers without a public split: what is declared, or a query whose sum one unit moves by what is stated."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.engine.queries import (
    BINS,
    NormaliserQuery,
    ObservationColumns,
    StartQuery,
    halved_fractions,
    likely_fractions,
    normaliser_of_bounds,
    possible_fractions,
    units_in_parts,
)
from primorl.model.ensemble import Bounds, Normaliser
from primorl.privacy.mechanism.queries import ONE
from tests.units import Ragged

COLUMNS = ObservationColumns(
    4, ((1, 2),), discrete_actions=False
)  # two continuous dimensions around a category
LOW, HIGH = torch.tensor([-2.0, 0.0, 0.0, 10.0]), torch.tensor([6.0, 1.0, 1.0, 30.0])
BOUNDS = Bounds(LOW, HIGH, torch.tensor([-1.0]), torch.tensor([3.0]), -10.0, 0.0)
AWKWARD = [0.0, 1.0, -5.0, 1e-30, 1e30, -3e38, math.nan, math.inf, -math.inf]


def random_units(count: int) -> Ragged:
    """Units of uneven length: a drift, heavy-tailed changes, a reward near the top of its range."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = [], []
    for unit in range(count):
        rows = 20 + 7 * unit % 31
        drawn = torch.randn(rows, 5, generator=generator)
        uniform = torch.rand(rows, 3, generator=generator)
        category = torch.nn.functional.one_hot((uniform[:, 2] > 0.5).long(), 2).float()
        change = torch.where(
            torch.rand(rows, 2, generator=generator) < 0.01, 3.0, 0.05 * drawn[:, 2:4]
        )
        inputs.append(
            torch.cat((drawn[:, :1], category, 20 + 3 * drawn[:, 1:2], 4 * uniform[:, :1] - 1), 1)
        )
        reward = -2 + 0.5 * drawn[:, 4:]
        targets.append(
            torch.cat(
                (change[:, :1], torch.zeros(rows, 2), change[:, 1:], reward, torch.zeros(rows, 1)),
                1,
            )
        )
    return Ragged(inputs, targets)


def flat(units: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat(list(units.inputs)), torch.cat(list(units.targets))


def test_without_noise_the_query_gives_nearly_what_public_rows_would() -> None:
    units = random_units(300)
    inputs, targets = flat(units)
    query = NormaliserQuery(COLUMNS, BOUNDS)
    found = query.normaliser(query.total(units).double() / ONE / units.units, 0.0)
    public = Normaliser.from_public(inputs, targets[:, :5])
    for dimension, span in ((0, 8.0), (3, 20.0)):
        assert abs(found.input_mean[dimension] - public.input_mean[dimension]) < span / BINS
        assert found.input_scale[dimension] == pytest.approx(
            float(public.input_scale[dimension]), rel=0.1
        )
        assert found.target_scale[dimension] == pytest.approx(
            float(public.target_scale[dimension]), rel=0.15
        )
        assert found.target_scale[dimension] < 0.3 * float(targets[:, dimension].std()), (
            "rare jumps do not widen it"
        )
    assert abs(found.target_mean[4] - public.target_mean[4]) < 10 / BINS
    assert found.target_scale[4] == pytest.approx(float(public.target_scale[4]), rel=0.15)
    assert found.input_mean[1:3].tolist() == [0, 0]
    assert found.input_scale[1:3].tolist() == [1, 1]
    assert (float(found.input_mean[4]), float(found.input_scale[4])) == (1.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.sampled_from(AWKWARD), min_size=2, max_size=7), length=st.integers(1, 40))
def test_a_unit_more_moves_the_sum_by_at_most_the_sensitivity(
    values: list[float], length: int
) -> None:
    rest = random_units(3)
    rows = torch.tensor((values * 300)[: 11 * length]).view(length, 11)
    more = Ragged([*rest.inputs, rows[:, :5]], [*rest.targets, rows[:, 5:]])
    query = NormaliserQuery(COLUMNS, BOUNDS)
    moved = (query.total(more) - query.total(rest)).double() / ONE
    assert float(moved.norm()) <= COLUMNS.fractions.sensitivity * (1 + 1e-12)
    assert float(moved.sum(1).max()) <= 1


def test_all_units_are_asked_in_any_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    units, query, starts = (
        random_units(9),
        NormaliserQuery(COLUMNS, BOUNDS),
        StartQuery(COLUMNS, BOUNDS),
    )
    whole, first = query.total(units), starts.total(units)
    assert whole.sum(1).tolist() == pytest.approx([9 * ONE] * 5, abs=9 * BINS)
    for most in (1, 30_000, 60_000, 100_000):
        monkeypatch.setattr("primorl.engine.queries.BYTES_AT_ONCE", most)
        assert torch.equal(query.total(units), whole)
        assert torch.equal(starts.total(units), first)
        held = 100 + 40 * units.lengths(torch.arange(9))
        parts = [held[some] for some in units_in_parts(units, 100, 40)]
        assert torch.cat(parts).tolist() == held.tolist()
        assert all(int(part[1:].sum()) <= most for part in parts), (
            "a long unit does not bring many others with it"
        )


def test_declared_bounds_alone() -> None:
    found = normaliser_of_bounds(COLUMNS, BOUNDS)
    assert found.inputs(torch.tensor([-2.0, 0.0, 1.0, 30.0, 3.0])).tolist() == [-2, 0, 1, 2, 2]
    changes = found.targets(torch.tensor([8 / 32, 0.0, 0.0, -20 / 32, -5.0]))
    assert changes.tolist() == [1, 0, 0, -1, 0]
    assert found.target_scale.tolist() == pytest.approx([0.25, 2**0.5 / 2, 2**0.5 / 2, 0.625, 2.5])
    discrete = ObservationColumns(4, ((1, 2),), discrete_actions=True)
    found = normaliser_of_bounds(
        discrete, replace(BOUNDS, action_low=torch.zeros(3), action_high=torch.ones(3))
    )
    assert (found.input_mean[4:].tolist(), found.input_scale[4:].tolist()) == ([0, 0, 0], [1, 1, 1])


@pytest.mark.parametrize(
    "repair",
    [
        possible_fractions,
        lambda noisy: likely_fractions(noisy, 0.01),
        lambda noisy: halved_fractions(noisy, 0.01),
    ],
)
def test_noise_in_empty_bins_is_taken_out(repair: Callable[[torch.Tensor], torch.Tensor]) -> None:
    exact = torch.zeros(BINS, dtype=torch.float64)
    exact[10:13] = torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64)
    noisy = exact + 0.01 * torch.randn(
        BINS, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    found = repair(noisy)
    assert float(found.sum()) == pytest.approx(1)
    assert float(found.min()) >= 0
    assert float((found - exact).abs().sum()) < float((noisy - exact).abs().sum()) / 2
    torch.testing.assert_close(repair(exact), exact)
