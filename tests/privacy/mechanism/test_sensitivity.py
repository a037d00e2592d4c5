"""Neighbouring datasets, under each relation, are no farther apart than a clip or a query says,
and may be as far.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from primorl.privacy.mechanism import clipping
from primorl.privacy.mechanism.clipping import EnsembleClip, L2Clip
from primorl.privacy.mechanism.mechanism import ONE, BoundedSum, Fractions, GaussianQuery
from primorl.privacy.mechanism.sampling import SystemEntropy
from primorl.privacy.statement import Relation
from tests.engine.kernel import joint_norm
from tests.hostile.fft_accountant import gaussian_delta

C, MEMBERS, SIZES = 0.5, 3, (6, 4)  # two layers
AWKWARD = [0.0, 1.0, -1.0, 0.1, 1e-30, 1e-40, -1e6, 3e19, -3e38, math.nan, math.inf, -math.inf]
each_mode = pytest.mark.parametrize("mode", ["flat", "per_layer"])
each_relation = pytest.mark.parametrize("relation", ["zero_out_one", "replace_one"])

Unit = list[Tensor]  # a layer each: what every member would have its update be, [N, size] float32


def make_clip(mode: Any, norm: float = C) -> EnsembleClip:
    return EnsembleClip(norm, mode, MEMBERS, len(SIZES))


def clipped_sum(clip: EnsembleClip, units: list[Unit]) -> list[Tensor]:
    layers = [torch.cat([unit[i] for unit in units]) for i in range(len(SIZES))]
    return [
        layer.view(-1, MEMBERS, layer.shape[1]).sum(0, dtype=torch.float64)
        for layer in clip.finish(layers)
    ]


def make_unit(values: list[float], member: int | None = None) -> Unit:
    """Updates that repeat ``values``; with ``member``, those of the other members are small."""
    flat = (
        torch.tensor(values).repeat(MEMBERS * sum(SIZES))[: MEMBERS * sum(SIZES)].view(MEMBERS, -1)
    )
    if member is not None:
        flat = torch.where(
            (torch.arange(MEMBERS) == member)[:, None], flat, torch.full_like(flat, 0.01)
        )
    return list(flat.split(SIZES, dim=1))


def distance(clip: EnsembleClip, relation: str, odd: Unit, other: Unit) -> float:
    """Of datasets that differ in one unit: ``odd`` is there or not, or ``other`` is there in its
    place.
    """
    rest = [make_unit([0.05, -0.2, 0.3]), make_unit([7.0, -1.0])]
    one = clipped_sum(clip, [*rest, odd])
    two = clipped_sum(clip, [*rest, other] if relation == "replace_one" else rest)
    return joint_norm([a - b for a, b in zip(one, two, strict=True)])


FACTOR = {"zero_out_one": 1, "replace_one": 2}  # what a replaced unit moves is two contributions
VALUES = st.lists(st.sampled_from(AWKWARD), min_size=1, max_size=5)
UNITS = st.builds(make_unit, VALUES, st.none() | st.integers(0, MEMBERS - 1))


@each_relation
@each_mode
@settings(max_examples=60)
@given(odd=UNITS, other=UNITS)
def test_neighbours_differ_by_at_most_the_sensitivity(
    relation: Relation, mode: str, odd: Unit, other: Unit
) -> None:
    clip = make_clip(mode)
    assert distance(clip, relation, odd, other) <= FACTOR[relation] * clip.sensitivity


@each_mode
@each_relation
def test_the_sensitivity_is_reached(
    mode: str, relation: Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opposite updates are 2C apart.

    The twin: members (and layers) held to C each pass the bound by a root.
    """
    clip, opposite = make_clip(mode), (make_unit([1e6]), make_unit([-1e6]))
    farthest = FACTOR[relation] * clip.sensitivity
    assert clip.sensitivity == C
    assert 0.999 * farthest < distance(clip, relation, *opposite) <= farthest
    monkeypatch.setattr(EnsembleClip, "bound", property(lambda clip: clip.clipping_norm))
    pieces = MEMBERS * (len(SIZES) if mode == "per_layer" else 1)
    assert distance(clip, relation, *opposite) == pytest.approx(
        farthest * math.sqrt(pieces), rel=1e-3
    )


@each_mode
def test_the_edge_cases_are_those_of_the_table(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero stays zero, what is within the bound is unchanged, and what is not finite takes its
    member's update only.
    """
    clip = make_clip(mode)
    assert joint_norm(clipped_sum(clip, [make_unit([0.0])])) == 0
    small = make_unit([0.01, -0.02])
    for ours, theirs in zip(clipped_sum(clip, [small]), small, strict=True):
        assert torch.equal(ours, theirs.double())
    for broken in (math.nan, math.inf, 3e38, 1e18):
        first, last = clipped_sum(clip, [make_unit([0.01, broken], member=1)])
        assert bool(first[1].any() | last[1].any()) == (broken == 1e18)
        assert torch.equal(first[0], torch.full((6,), 0.01).double())
    unclipped = make_clip(mode, math.inf)
    assert unclipped.sensitivity == math.inf
    assert torch.equal(clipped_sum(unclipped, [make_unit([1e6])])[0], make_unit([1e6])[0].double())
    # The twin: one NaN is in every sum.
    monkeypatch.setattr(EnsembleClip, "finish", lambda clip, updates: updates)
    assert not distance(clip, "zero_out_one", make_unit([math.nan], member=1), []) <= C


@pytest.mark.parametrize("rows", [1, 16, 1024, 2048])
def test_wide_layers_keep_the_bound(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few large entries among a million small ones.

    The twin: squares added one by one in float32.
    """

    def wide() -> float:
        update = torch.full((1, rows, (1 << 20) // rows), 2e-4)
        update[0, 0, :4] = 4.0
        return joint_norm(EnsembleClip(C, "flat", members=1, layers=1).finish([update]))

    def norm(update: Tensor, *, dim: int, dtype: torch.dtype | None) -> Tensor:
        return torch.from_numpy(np.cumsum(update.square().numpy(), axis=dim)[..., -1]).sqrt()

    assert 0.4999 < wide() <= C
    monkeypatch.setattr(torch.linalg, "vector_norm", norm)
    assert rows > 1 or wide() > C


def vectors(dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows far above, about and below the bound, one of zeros, one NaN, one infinite, one whose
    squares overflow.
    """
    rows = torch.randn(7, 40, generator=torch.Generator().manual_seed(0), dtype=dtype)
    rows *= torch.tensor([[100.0], [C / 6], [1e-3], [0.0], [1.0], [1.0], [1e30]], dtype=dtype)
    rows[4, 3], rows[5, 7] = math.nan, -math.inf
    return rows


@each_relation
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_vector_moves_the_sum_by_no_more_than_an_l2_clip_states(
    relation: Relation, dtype: torch.dtype
) -> None:
    clip = L2Clip(C)
    clipped = clip.finish(vectors(dtype)).double()
    assert bool(clipped.isfinite().all())
    for row in clipped:
        for other in torch.zeros(1, 40) if relation == "zero_out_one" else [*clipped, *-clipped]:
            assert float((row - other).norm()) <= FACTOR[relation] * clip.sensitivity
    assert float(vectors(dtype)[0].norm()) > FACTOR[relation] * clip.sensitivity


@pytest.mark.parametrize("norm", [C, 1e-3])
def test_rounding_carries_no_vector_above_the_bound(
    norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of rows, one of a length whose squares overflow; the twin has no margin for
    rounding.
    """

    def largest() -> float:
        rows = torch.randn(3000, 1025, generator=torch.Generator().manual_seed(0)) * 100
        rows[0] = 1e30
        return float(torch.linalg.vector_norm(L2Clip(norm).finish(rows).double(), dim=1).max())

    assert largest() <= norm
    monkeypatch.setattr(clipping, "_MARGIN", 1)
    assert largest() > norm


BINS = 5

Binned = tuple[Tensor, Tensor]


def norm(difference: Tensor) -> float:
    return math.sqrt(sum(int(x) ** 2 for x in difference.flatten().tolist())) / ONE


def histogram_sum(units: list[Binned]) -> Tensor:
    query, total = Fractions(BINS), torch.zeros(BINS, dtype=torch.int64)
    for bins, own in units:  # one by one, and all at once: padding changes nothing
        total += query.total(bins.unsqueeze(0), own.unsqueeze(0))
    if units:
        padded, owned = (
            pad_sequence([unit[i] for unit in units], batch_first=True) for i in (0, 1)
        )
        assert torch.equal(query.total(padded, owned), total)
    return total


BINNED = st.lists(st.integers(-2, BINS + 1), min_size=1, max_size=9).map(
    lambda rows: (torch.tensor(rows), torch.tensor([i % 4 != 3 for i in range(len(rows))]))
)


@each_relation
@settings(max_examples=80)
@given(odd=BINNED, other=BINNED, rest=st.lists(BINNED, max_size=2))
def test_histograms_of_neighbours(
    relation: Relation, odd: Binned, other: Binned, rest: list[Binned]
) -> None:
    neighbour = [*rest, other] if relation == "replace_one" else rest
    moved = norm(histogram_sum([*rest, odd]) - histogram_sum(neighbour))
    assert moved <= FACTOR[relation] * Fractions(BINS).sensitivity


def test_the_sensitivities_are_reached() -> None:
    """So nothing less could be stated."""
    rows, own = torch.zeros(7, dtype=torch.int64), torch.ones(7, dtype=torch.bool)
    there = histogram_sum([(rows, own)])
    assert norm(there) == Fractions(BINS).sensitivity == 1
    # The twin: a unit that adds its rows, not its share, passes the bound by its length.
    each = sum(Fractions(BINS).total(rows[None, [i]], own[None, [i]]) for i in range(7))
    assert norm(torch.as_tensor(each)) == 7


def test_the_sums_are_what_they_say_and_what_is_no_number_counts_nowhere() -> None:
    nothing = torch.full((4,), -1)
    assert not histogram_sum([(nothing, torch.ones(4, dtype=torch.bool))]).any()
    assert not histogram_sum([(nothing + 1, torch.zeros(4, dtype=torch.bool))]).any()
    bins = torch.tensor([[0, 0, 1], [4, 4, 4], [2, 2, 9]])
    found = Fractions(BINS).total(bins, torch.ones(3, 3, dtype=torch.bool)) / ONE
    torch.testing.assert_close(found, torch.tensor([2 / 3, 1 / 3, 2 / 3, 0, 1]), atol=1e-6, rtol=0)


def test_its_statement_is_the_accountants_and_without_noise_nothing_is_claimed() -> None:
    """ε of one Gaussian; the twin is the ε of two thirds of the noise."""
    query, exact = GaussianQuery("starts", 2.0, 0.0), torch.tensor([3.0], dtype=torch.float64)
    assert torch.equal(query.release(torch.tensor([3 * ONE]), SystemEntropy()), exact)
    assert query.event == dp_event.NonPrivateDpEvent()
    assert query.statement(1e-5).epsilon is None
    epsilon = GaussianQuery("starts", 2.0, 10.0).statement(1e-5).epsilon
    assert epsilon is not None
    assert 0.97e-5 < gaussian_delta(1 / 10, epsilon) <= 1e-5 * (1 + 1e-6)
    assert gaussian_delta(3 / 20, epsilon) > 1e-5 * (1 + 1e-6)


@each_relation
def test_one_unit_moves_a_bounded_sum_by_no_more_than_stated(relation: Relation) -> None:
    """Vectors of any length, NaN and infinite ones among them; the twin's bound is half as wide,
    and broken.
    """
    contribution = BoundedSum(3, 2.0)
    short, whole = [[0.1, 0.2, -0.3], [2.0, 0.0, 0.0]], [[5.0, -7.0, 1e300]]
    no_numbers = [[math.nan, 1.0, 1.0], [1.0, math.inf, 0.0], [0, 0, 0]]
    rows = torch.tensor([*whole, *short, *no_numbers], dtype=torch.float64)
    alone = [contribution.total(row.unsqueeze(0)) for row in torch.cat((rows, -rows))]
    nothing = torch.zeros(3, dtype=torch.int64)
    others = alone if relation == "replace_one" else [nothing]
    moves = [norm(one - other) for one in alone for other in others]
    assert max(moves) <= FACTOR[relation] * contribution.sensitivity
    assert max(moves) > FACTOR[relation] * BoundedSum(3, 1.0).sensitivity
    assert torch.equal(sum(alone[:6], nothing), contribution.total(rows))
    assert not alone[3].any()
