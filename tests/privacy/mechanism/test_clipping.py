"""Neighbouring datasets, under each relation, are no farther apart than the clip says, and may be
as far.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from primorl.privacy.mechanism import clipping
from primorl.privacy.mechanism.clipping import EnsembleClip, L2Clip
from primorl.privacy.statement import Relation

C, MEMBERS, SIZES = 0.5, 3, (6, 4)  # two layers
AWKWARD = [0.0, 1.0, -1.0, 0.1, 1e-30, 1e-40, -1e6, 3e19, -3e38, math.nan, math.inf, -math.inf]
each_mode = pytest.mark.parametrize("mode", ["flat", "per_layer"])
each_relation = pytest.mark.parametrize("relation", ["zero_out_one", "replace_one"])

Unit = list[Tensor]  # a layer each: what every member would have its update be, [N, size] float32


def joint_norm(parts: list[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def make_clip(mode: str, norm: float = C) -> EnsembleClip:
    return EnsembleClip(norm, mode, MEMBERS, len(SIZES))  # type: ignore[arg-type]


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
@settings(max_examples=60, deadline=None)
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
