"""What fills a chunk up to the size of a captured graph must move nothing."""

import pytest
import torch

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.training.chunks import filled_up, next_size
from primorl.training.cuda_graph import SumOfUpdates
from primorl.training.local_update import sum_of_updates
from tests.training.test_local_update import batches_of
from tests.units import local_training, make_units

LOCAL = local_training(learning_rate=0.05, batch_size=16, weight_decay=0.1)


@pytest.mark.parametrize("mode", ["flat", "per_layer"])
def test_a_chunk_that_is_filled_up_has_the_same_sum(shape: Architecture, identity: Normaliser, mode: str) -> None:
    """Nine units of up to nine batches, weight decay too, become ten of ten."""
    batches = batches_of(make_units(shape, [140, 1, 16, 17, 15, 33, 8, 20, 64]), identity, batch_size=16, epochs=1)
    filled = filled_up(batches)
    assert batches.weights.shape == (9, 9, 16)
    assert filled.inputs.shape == (10, 10, 16, shape.inputs)
    clip = EnsembleClip(0.3, mode, shape.members, len(shape.layers))  # type: ignore[arg-type]
    weights = shape.initial_weights(0)
    for ours, theirs in zip(
        sum_of_updates(weights, filled, shape, LOCAL, clip),
        sum_of_updates(weights, batches, shape, LOCAL, clip),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_rows_that_count_would_be_seen(shape: Architecture, identity: Normaliser) -> None:
    """The twin: were one row of what was filled up given weight, the sum would be another."""
    batches = batches_of(make_units(shape, [140, 16, 16, 16, 16, 16, 16, 16, 16]), identity, batch_size=16, epochs=1)
    filled, clip = filled_up(batches), EnsembleClip(0.3, "flat", shape.members, len(shape.layers))
    filled.weights[0, -1, 0] = 1.0
    weights = shape.initial_weights(0)
    ours = sum_of_updates(weights, filled, shape, LOCAL, clip)
    theirs = sum_of_updates(weights, batches, shape, LOCAL, clip)
    assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) > 1e-4


def test_sizes_are_few_and_little_is_wasted() -> None:
    sizes = [next_size(count) for count in range(1, 1025)]
    assert all(count <= size <= 1.25 * count for count, size in enumerate(sizes, start=1))
    assert len(set(sizes)) <= 36
    assert all(next_size(size) == size for size in sizes)


def test_without_a_gpu_nothing_is_captured(shape: Architecture, identity: Normaliser) -> None:
    batches = batches_of(make_units(shape, [40, 3]), identity, batch_size=16, epochs=1)
    clip = EnsembleClip(0.3, "flat", shape.members, len(shape.layers))
    weights = shape.initial_weights(0)
    for ours, theirs in zip(
        SumOfUpdates(shape, LOCAL, clip)(weights, batches),
        sum_of_updates(weights, batches, shape, LOCAL, clip),
        strict=True,
    ):
        assert torch.equal(ours, theirs)
