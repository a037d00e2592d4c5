"""The fast kernel computes what the slow reference computes, and no unit can move the sum by more
than C; every unit's own transitions are taken once an epoch, shuffled in secret.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from primorl.engine import local_update
from primorl.engine.local_update import Kernel, LocalBatches, read_batches
from primorl.engine.rounds import Rounds
from primorl.engine.settings import Execution
from primorl.model.architecture import Architecture, Network
from primorl.model.ensemble import Weights
from primorl.model.numerics import flatten
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.privacy.mechanism.sampling import SystemEntropy
from tests.engine.kernel import KINDS, batches_of, equal, gap, joint_norm, network, some, weights_of
from tests.engine.reference import reference_sum
from tests.model.models import plain_maps
from tests.units import Ragged, local_training, training_setup

TOLERANCE = 5e-5  # of the sum's norm
IDENTITY = plain_maps(4, 4)


def clip_of(shape: Network, bound: float = 0.5, mode: Any = "flat") -> EnsembleClip:
    return EnsembleClip(bound, mode, shape.members, len(shape.layers))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", [0.05, math.inf])
@pytest.mark.parametrize(
    ("mode", "weight_decay", "beta_nll"),
    [("flat", 0.0, 0.0), ("flat", 0.0, 1.0), ("per_layer", 0.1, 0.5)],
)
def test_agrees_with_the_reference(
    kind: str, mode: str, bound: float, weight_decay: float, beta_nll: float
) -> None:
    shape = network(kind)
    batches, start = batches_of(shape, [3, 1, 2, 4], 7), weights_of(shape, 1)
    local = local_training(0.3, 7, weight_decay=weight_decay, beta_nll=beta_nll)
    fast = Kernel(shape, local, clip_of(shape, bound, mode)).sum(start, batches)
    slow = reference_sum(start, batches, shape, local, bound, mode)
    assert joint_norm(slow) > 0.01
    for ours, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE * joint_norm(slow))


ADVERSARIAL = st.sampled_from(
    [0.0, 1.0, -1e3, 1e6, 1e20, -3e38, math.nan, math.inf, -math.inf, 1e-40]
)


@settings(max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    values=st.lists(ADVERSARIAL, min_size=1, max_size=4),
    mode=st.sampled_from(["flat", "per_layer"]),
    rate=st.sampled_from([0.03, 1.0, 100.0]),
    beta_nll=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_no_unit_moves_the_sum_by_more_than_the_clip(
    kind: str, values: list[float], mode: str, rate: float, beta_nll: float
) -> None:
    """‖sum(D) - sum(D minus one)‖ ≤ C, whatever the one unit's rows are: huge, zero, NaN,
    infinite.
    """
    shape = network(kind, (8, 8))
    batches = batches_of(shape, [3, 2, 2], 5)
    bad = torch.tensor(values).repeat(800)
    for rows in (batches.inputs, batches.targets):
        rows[:, 0] = bad[: rows[:, 0].numel()].view_as(rows[:, 0])
    start, local, clip = (
        weights_of(shape),
        local_training(rate, 5, beta_nll=beta_nll),
        clip_of(shape, 0.5, mode),
    )
    whole = Kernel(shape, local, clip).sum(start, batches)
    assert (
        gap(whole, Kernel(shape, local, clip).sum(start, some(batches, [1, 2], 3)))
        <= clip.sensitivity
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_of_few_rows_counts_for_less_and_none_for_more(kind: str) -> None:
    """After the clip, in proportion to its rows. The twin: units that all count in full."""
    shape = network(kind)
    batches, start = batches_of(shape, [3, 1, 2, 4], 7), weights_of(shape, 1)
    kernel = Kernel(shape, local_training(0.3, 7), clip_of(shape))
    counts = torch.tensor([1.0, 0.25, 0.5, 1.0])
    whole = kernel.updates(start, batches)
    held = [update.clone() for update in whole]
    ours = kernel.updates(start, replace(batches, counts=counts))
    for own, full in zip(ours, held, strict=True):
        assert torch.equal(own, full * counts[:, None, None, None])
    assert not equal(ours, held)
    alone = kernel.sum(start, some(replace(batches, counts=counts), [1], 1))
    assert 0 < joint_norm(alone) <= 0.25 * 0.5


def test_a_unit_counts_in_full_from_so_many_rows_on() -> None:
    rows = [torch.ones(length, 4) for length in (1, 4, 8, 40)]
    local = local_training(0.05, 8, full_rows=8, max_transitions_per_unit=2)
    batches = read_batches(Ragged(rows, rows), torch.arange(4), local, SystemEntropy())
    assert batches.counts is not None
    assert batches.counts.tolist() == [0.25, 0.5, 1.0, 1.0], "of all rows, and at most 1"


def round_sum(source: Ragged, shape: Architecture, mode: str) -> Weights:
    """What a round of all units sums to, through secret orders, padding and chunks as in
    training.
    """
    clip = clip_of(shape, 0.5, mode)
    mechanism = Mechanism(source.units, "trajectory", 1.0, clip, 1.0, 1, 1e-5)
    together = Execution(torch.device("cpu"), 1 << 24)
    setup = training_setup(mechanism, shape, local=local_training(0.05, 1), execution=together)
    with Rounds(setup, source, IDENTITY) as rounds:
        return setup.shape(rounds.sum(flatten(shape.initial_weights(0))))


@settings(max_examples=40)
@given(
    values=st.lists(ADVERSARIAL | st.just(1e24), min_size=1, max_size=4),
    length=st.integers(1, 90),
    mode=st.sampled_from(["flat", "per_layer"]),
)
def test_neighbouring_rounds_differ_by_at_most_the_clip(
    values: list[float], length: int, mode: str
) -> None:
    """Whole rounds, built apart: a long newcomer gives the others more padding, which must not
    touch their updates.

    One of the others overflows on a finite row: were padding to repeat it, the newcomer's length
    would decide whether that unit is zeroed, and move the sum by more than C. Constant rows make
    the secret orders irrelevant.
    """
    shape = Architecture(3, 1, 3, (8, 8), -10.0, 0.5)
    constant = [torch.full((n, 4), v) for n, v in ((3, 0.3), (2, -1.0))]
    others = Ragged([*constant, torch.full((1, 4), 1e24)], [*constant, torch.full((1, 4), 1.0)])
    row = torch.tensor((values * 4)[:4]).expand(length, 4)
    both = Ragged([*others.inputs, row], [*others.targets, row])
    assert gap(round_sum(both, shape, mode), round_sum(others, shape, mode)) <= 0.5


def numbered(lengths: list[int]) -> Ragged:
    """Units whose rows say which they are: 1000·unit + step, everywhere."""
    rows = [
        1000.0 * u + torch.arange(n, dtype=torch.float32).unsqueeze(1).expand(n, 4)
        for u, n in enumerate(lengths)
    ]
    return Ragged(rows, rows)


def epochs_of(source: Ragged, batch: int, epochs: int, most: int | None) -> LocalBatches:
    local = local_training(batch_size=batch, local_epochs=epochs, max_transitions_per_unit=most)
    batches = read_batches(source, torch.arange(source.units), local, SystemEntropy())
    return batches.standardise(IDENTITY)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch=st.integers(1, 17),
    epochs=st.integers(1, 3),
    most=st.none() | st.integers(1, 45),
)
def test_every_epoch_takes_each_transition_once(
    lengths: list[int], batch: int, epochs: int, most: int | None
) -> None:
    batches = epochs_of(numbered(lengths), batch, epochs, most)
    steps = batches.inputs.shape[0] // epochs
    for unit, length in enumerate(lengths):
        taken = []
        for epoch in range(epochs):
            part = slice(epoch * steps, (epoch + 1) * steps)
            own = batches.weights[part, unit] > 0
            taken.append(sorted(batches.inputs[part, unit][own][:, 0].tolist()))
            assert torch.equal(batches.inputs[part, unit], batches.targets[part, unit])
        assert len(taken[0]) == len(set(taken[0])) == min(length, most or length)
        assert all(1000 * unit <= row < 1000 * unit + length for row in taken[0])
        assert all(other == taken[0] for other in taken)
    sums = batches.weights.sum(-1)
    assert torch.all(((sums - 1).abs() < 1e-5) | (sums == 0))


@pytest.mark.parametrize("first_only", [False, True])
def test_a_cap_draws_from_all_trajectories_of_a_unit(
    first_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person of three trajectories (50, 10 and 40 steps) and a cap of 8: each is drawn by its
    length, every round.

    The twin takes the first 8 steps, so the first trajectory only, and is told apart.
    """

    def in_order(lengths: torch.Tensor, most: int, entropy: object) -> torch.Tensor:
        return torch.arange(most).minimum(lengths[:, None] - 1)

    if first_only:
        monkeypatch.setattr(local_update, "_shuffle", in_order)
    batches = epochs_of(numbered([100, 7] * 1000), 8, 1, 8)
    own = batches.weights[0, ::2] > 0
    steps = batches.inputs[0, ::2, :, 0].remainder(1000).long()[own]
    assert len(steps) == 8 * 1000
    counts = np.histogram(steps.numpy(), bins=[0, 50, 60, 100])[0]
    uniform = stats.chisquare(counts, len(steps) * np.array([0.5, 0.1, 0.4])).pvalue > 1e-6
    assert uniform is not first_only
    together = np.abs(counts / len(steps) - [0.5, 0.1, 0.4]).max() < 0.03
    assert together is not first_only


def test_no_two_rounds_share_their_orders() -> None:
    source = numbered([50])
    assert not torch.equal(
        epochs_of(source, 50, 1, None).inputs, epochs_of(source, 50, 1, None).inputs
    )
