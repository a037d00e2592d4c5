"""Every unit's own transitions, each once an epoch, shuffled in secret; padding is weightless."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from primorl.engine import local_update
from primorl.engine.local_update import LocalBatches, read_batches
from primorl.model.ensemble import Normaliser
from primorl.privacy.mechanism.sampling import SystemEntropy
from tests.units import Ragged, local_training

IDENTITY = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4))


def numbered(lengths: list[int]) -> Ragged:
    """Units whose rows say which they are: 1000·unit + step, everywhere."""
    rows = [
        1000.0 * u + torch.arange(n, dtype=torch.float32).unsqueeze(1).expand(n, 4)
        for u, n in enumerate(lengths)
    ]
    return Ragged(rows, rows)


def batches_of(source: Ragged, batch: int, epochs: int, most: int | None) -> LocalBatches:
    local = local_training(batch_size=batch, local_epochs=epochs, max_transitions_per_unit=most)
    batches = read_batches(source, torch.arange(source.units), local, SystemEntropy())
    return batches.standardise(IDENTITY)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch=st.integers(1, 17),
    epochs=st.integers(1, 3),
    most=st.none() | st.integers(1, 45),
)
def test_every_epoch_takes_each_transition_once(
    lengths: list[int], batch: int, epochs: int, most: int | None
) -> None:
    batches = batches_of(numbered(lengths), batch, epochs, most)
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
    if first_only:
        in_order = lambda lengths, most, entropy: torch.arange(most).minimum(lengths[:, None] - 1)  # noqa: E731
        monkeypatch.setattr(local_update, "_shuffle", in_order)
    batches = batches_of(numbered([100, 7] * 1000), 8, 1, 8)
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
        batches_of(source, 50, 1, None).inputs, batches_of(source, 50, 1, None).inputs
    )
