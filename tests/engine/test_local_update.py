"""The fast kernel computes what the slow reference computes, and no unit can move the sum by more
than C; every unit's own transitions are taken once an epoch, shuffled in secret; a unit's update is
the same to the last bit, whoever shares its chunk, and sums of updates are exact.
"""

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from primorl.base import PipelineError
from primorl.data.storage.rows import UnitStore
from primorl.engine import local_update
from primorl.engine.local_update import Kernel, LocalBatches, read_batches
from primorl.engine.rounds import Rounds, check_independence, check_setup, chunk_sizes, cut_chunks
from primorl.engine.settings import Execution
from primorl.model import numerics
from primorl.model.architecture import Architecture, Network
from primorl.model.ensemble import Normaliser, Weights
from primorl.model.features import Polynomials
from primorl.model.numerics import flatten
from primorl.privacy.mechanism.clipping import EnsembleClip, L2Clip
from primorl.privacy.mechanism.mechanism import MOST_UNITS, Mechanism
from primorl.privacy.mechanism.sampling import Entropy, SystemEntropy
from tests.data.builders import episode, table
from tests.engine.kernel import KINDS, batches_of, equal, gap, joint_norm, network, some, weights_of
from tests.engine.reference import reference_sum
from tests.model.models import plain_maps
from tests.pipeline.training_project import write_partition
from tests.units import Ragged, local_training, make_units, training_setup

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


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_last_chunk_is_left(kind: str) -> None:
    shape = network(kind)
    local, clip, start = (
        local_training(0.05, 8, weight_decay=0.1),
        clip_of(shape),
        weights_of(shape),
    )
    kernel = Kernel(shape, local, clip)
    kernel.sum(start, batches_of(shape, [3, 2, 5, 2], 8))
    for steps in ([3, 1], [8] * 6):
        with torch.inference_mode():
            for held in kernel.workspace._held.values():
                held.fill_(math.nan)
        batches = batches_of(shape, steps, 8, seed=1)
        again = kernel.sum(start, batches)
        assert equal(again, Kernel(shape, local, clip).sum(start, batches))


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


# The same bits in any company

CPU = torch.device("cpu")
SHAPE = Architecture(3, 1, 3, (37, 41), -10.0, 0.5)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in rounds, whose threads work on chunks of their own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@settings(max_examples=120)
@given(data=st.data())
def test_neighbours_and_places_do_not_matter(data: st.DataObject) -> None:
    draw = data.draw
    hidden = tuple(
        draw(
            st.lists(
                st.sampled_from([1, 3, 5, 8, 16, 17, 31, 32, 37, 48, 64]), min_size=1, max_size=3
            )
        )
    )
    actions = draw(st.sampled_from([1, 2, 3, 7, 8, 9, 16, 25]))
    kind, size = draw(st.sampled_from(KINDS)), draw(st.integers(1, 6))
    shape = network(kind, hidden, size=size, actions=actions, members=draw(st.integers(1, 5)))
    rows = draw(st.sampled_from([1, 2, 5, 7, 16, 19]))
    one_batch = kind.startswith("linear") and draw(st.booleans())
    steps = draw(st.lists(st.integers(1, 1 if one_batch else 6), min_size=2, max_size=20))
    rate, decay = (
        draw(st.sampled_from([1e-3, 0.3, 1.0, 5.0, 10.0])),
        draw(st.sampled_from([0.0, 0.1, 1.0])),
    )
    local = local_training(
        rate, rows, weight_decay=decay, max_transitions_per_unit=rows if one_batch else None
    )
    mode: Any = draw(st.sampled_from(["flat", "per_layer"]))
    clip = EnsembleClip(
        draw(st.sampled_from([1e-6, 0.35, 10.0, 50.0, 1e6])), mode, shape.members, len(hidden) + 1
    )
    seed, scale = draw(st.integers(0, 99)), draw(st.sampled_from([1.0, 100.0]))
    start, batches = weights_of(shape, seed), batches_of(shape, steps, rows, seed, scale)
    one = draw(st.integers(0, len(steps) - 1))
    others = draw(st.permutations([unit for unit in range(len(steps)) if unit != one]))
    present = others[: draw(st.integers(0, len(others)))]
    place = draw(st.integers(0, len(present)))
    chosen = [*present[:place], one, *present[place:]]

    alone = Kernel(shape, local, clip).updates(start, some(batches, [one], steps[one]))
    whole = Kernel(shape, local, clip).updates(start, batches)
    moved = Kernel(shape, local, clip).updates(
        start, some(batches, chosen, max(steps[u] for u in chosen))
    )
    assert equal([u[one] for u in whole], [u[0] for u in alone])
    assert equal([u[place] for u in moved], [u[0] for u in alone])


@pytest.mark.parametrize("kind", [*KINDS[:4], KINDS[6]])
def test_gaps_give_every_pair_its_own_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a processor that rounds the last number of a row of numbers otherwise.

    The twin: no gaps. Linear heads of a model take products, differences and sums alone.
    """
    shape = network(kind, (37,))
    local, clip = local_training(1.0, 7), EnsembleClip(10.0, "flat", shape.members, 2)
    check_independence(Kernel(shape, local, clip), range(1, 20), 7)

    def with_another_end(name: str) -> Any:
        operation = getattr(Tensor, name)

        def computed(values: Tensor) -> Tensor:
            found: Tensor = operation(values)
            across = found.is_contiguous()
            found[-1 if across else slice(None), -1, -1] *= 1.001
            return found

        return computed

    for name in ("exp_", "sigmoid_"):
        monkeypatch.setattr(Tensor, name, with_another_end(name))
    check_independence(Kernel(shape, local, clip), range(1, 20), 7)
    monkeypatch.setattr(numerics, "_GAP", 0)
    with pytest.raises(PipelineError, match=r"compute\.device"):
        check_independence(Kernel(shape, local, clip), range(1, 20), 7)


def test_a_machine_that_cannot_promise_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = training_setup(mechanism_of(4, 1.0), SHAPE, local=local_training(0.05, 7))
    check_setup(setup)
    updates = Kernel.updates

    def uneven(kernel: Kernel, start: Any, batches: Any) -> Any:
        """The last of several units gets other last bits, as on a processor whose vectors run
        across units.
        """
        first, *others = updates(kernel, start, batches)
        scale = torch.ones(len(first), 1, 1, 1)
        scale[1:][-1:] += 1e-6
        return [first * scale, *others]

    monkeypatch.setattr(Kernel, "updates", uneven)
    with pytest.raises(PipelineError, match=r"compute\.device: on this machine"):
        check_setup(setup)


def mechanism_of(units: int, norm: float) -> Mechanism:
    return Mechanism(units, "unit", 1.0, EnsembleClip(norm, "flat", 3, 3), 3.0, 4, 1e-6)


def reversed_order(lengths: Tensor, most: int, entropy: Entropy) -> Tensor:
    """Every unit's rows from the last to the first, in place of a secret order."""
    return (lengths.unsqueeze(1) - 1 - torch.arange(most)).clamp(min=0)


@pytest.mark.parametrize(
    ("threads", "kilobytes", "width", "one_step"),
    [
        (1, 1, 64, False),
        (2, 1, 37, False),
        (1, 200, 37, False),
        (2, 200, 64, False),
        (2, 12_000, 37, False),
        *((1, 12_000, 0, True), (2, 100, 0, True), (1, 12_000, 37, True), (2, 200, 64, True)),
    ],
)
def test_a_unit_moves_the_sum_by_its_own_update_exactly(
    threads: int, kilobytes: int, width: int, one_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Width 0: linear heads.

    One step is on 8, 16, 32 or 40 rows; the last unit alone has more, and is shuffled.
    """
    monkeypatch.setattr(local_update, "_shuffle", reversed_order)
    torch.set_num_threads(threads)
    shape, units = Architecture(3, 1, 3, (width, width), -10.0, 0.5), 21
    mechanism = mechanism_of(units, 10.0)
    data = make_units(
        shape, [2 * i + 25 * (i // 20) + 1 if one_step else 20 + 3 * i for i in range(units)], 0
    )
    identity = IDENTITY
    rows = 40 if one_step else 1
    local = local_training(
        1.0, batch_size=rows, max_transitions_per_unit=rows if one_step else None
    )
    if not width:
        features = Polynomials(4, (), 2)
        shape = Architecture(3, 1, 1, (), -10.0, 0.5, features=features, spread=False)
        identity = identity.with_features(features, torch.zeros(4))
    weights = shape.initial_weights(0)
    execution = Execution(CPU, kilobytes << 10)

    def total(chosen: list[int]) -> Weights:
        source = Ragged([data.inputs[i] for i in chosen], [data.targets[i] for i in chosen])
        own = replace(
            mechanism_of(len(chosen), 10.0),
            clip=EnsembleClip(10.0, "flat", shape.members, len(shape.layers)),
        )
        setup = training_setup(own, shape, local=local, execution=execution)
        with Rounds(setup, source, identity) as rounds:
            return setup.shape(rounds.sum(flatten(weights)))

    everybody = list(range(units))
    whole, less, one = total(everybody), total(everybody[:-1]), total(everybody[-1:])
    assert equal([a - b for a, b in zip(whole, less, strict=True)], one)
    assert equal(total(everybody[::-1]), whole)
    assert math.sqrt(sum(float(part.square().sum()) for part in one)) <= mechanism.clipping_norm
    assert all(torch.equal(part, (part / mechanism.grid).trunc() * mechanism.grid) for part in one)
    assert torch.get_num_threads() == threads


@dataclass
class WithEmptyUnits(Ragged):
    """Units of which some have no row of their own; those have one in their tensors, which padding
    may point to.
    """

    counts: Tensor

    def lengths(self, units: Tensor) -> Tensor:
        return self.counts[units]


@settings(max_examples=150)
@given(data=st.data())
def test_an_update_of_heads_is_its_units_own_from_the_rows_on(data: st.DataObject) -> None:
    """Rows are read, standardised and made into features in company: in any order, beside units of
    0 or more rows.
    """
    draw = data.draw
    observations, actions = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    inputs, flag = observations + actions, draw(st.booleans())
    one_hot = ((0, 2),) if observations > 2 and draw(st.booleans()) else ()
    features = Polynomials(inputs, one_hot, draw(st.integers(1, 3 if inputs < 6 else 2)))
    shape = Architecture(
        observations, actions, 1, (), -10.0, 0.5, flag, features=features, spread=False
    )
    rows = draw(st.sampled_from([1, 2, 3, 8, 16, 20, 64]))
    lengths = draw(st.lists(st.integers(0, rows), min_size=1, max_size=20))
    drawn = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    parts = [
        [torch.randn(length + (length == 0), size, generator=drawn) for length in lengths]
        for size in (inputs, observations + 2)
    ]
    source = WithEmptyUnits(parts[0], parts[1], torch.tensor(lengths))
    scales = [torch.rand(size, generator=drawn) + 0.1 for size in (inputs, observations + 1)]
    normaliser = Normaliser(scales[0], scales[0], scales[1], scales[1], flag)
    normaliser = normaliser.with_features(features, torch.rand(inputs, generator=drawn))
    local = local_training(1.0, rows, max_transitions_per_unit=rows)
    kernel = Kernel(shape, local, EnsembleClip(draw(st.sampled_from([0.35, 1e6])), "flat", 1, 1))
    start = weights_of(shape)

    def updates(units: list[int], size: int) -> list[Tensor]:
        batches = local_update.read_batches(
            source, torch.tensor(units), local, SystemEntropy(), rows=rows
        )
        found = kernel.updates(
            start, local_update.add_idle_units(batches, size).standardise(normaliser)
        )
        return [part[: len(units)].clone() for part in found]

    everybody = draw(st.permutations(range(len(lengths))))
    whole = updates(everybody, len(everybody) + draw(st.integers(0, 5)))
    some = everybody[: draw(st.integers(1, len(everybody)))][::-1]
    for units in (some, *([unit] for unit in some[:3])):
        places = [everybody.index(unit) for unit in units]
        found = updates(units, draw(st.sampled_from([0, 1, 2, 5, 8, 12, 64])))
        assert equal(found, [part[places] for part in whole])
        assert not any(
            part[i].any() for part in found for i, unit in enumerate(units) if lengths[unit] == 0
        )


def test_what_could_not_be_summed_exactly_or_clipped_in_float32_is_refused() -> None:
    with pytest.raises(ValueError, match="units: found 67108865, allowed are up to 67108864"):
        mechanism_of(MOST_UNITS + 1, 1.0)
    for norm in (1e-22, 1e-7, 0.0, -1.0, math.nan, 1e7):
        with pytest.raises(ValueError, match=r"clipping_norm: found .* allowed: 1e-06 to 1e"):
            L2Clip(norm)
        with pytest.raises(ValueError, match=r"clipping_norm: found .* allowed: 1e-06 to 1e"):
            EnsembleClip(norm, "flat", 3, 3)
    for norm in (1e-6, 0.35, 1.0, 1e6):
        assert 2**26 <= norm / mechanism_of(3, norm).grid < 2**27
        assert MOST_UNITS * norm / mechanism_of(3, norm).grid <= 2**53
    rows = L2Clip(1e-6).finish(torch.full((2, 1000), 1e-6))
    assert float(torch.linalg.vector_norm(rows.double(), dim=1).max()) <= 1e-6, (
        "the least norm holds"
    )


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_cohort_is_cut_into_sizes_that_are_tried_out(threads: int) -> None:
    setup = training_setup(mechanism_of(300, 1.0), SHAPE, execution=Execution(CPU, 3 << 20))
    ((_, sizes),) = chunk_sizes(setup)
    assert sizes[:10] == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16]
    for units in (0, 1, 2, 30, 65, 300):
        cut = cut_chunks(setup, torch.arange(units), torch.full((units,), 40), threads)
        assert [unit for chosen, _, _ in cut for unit in chosen.tolist()] == list(range(units))
        assert all(len(chosen) <= size and size in sizes for chosen, size, _ in cut)


def test_on_a_gpu_the_size_of_a_chunk_follows_from_a_units_own_length() -> None:
    setup = training_setup(
        mechanism_of(40, 1.0), SHAPE, execution=Execution(torch.device("cuda"), 8 << 20)
    )
    lengths = torch.tensor([3] * 30 + [100] * 9 + [5000])
    whole = cut_chunks(setup, torch.arange(40), lengths, 1)
    sizes = {int(lengths[unit]): size for chosen, size, _ in whole for unit in chosen}
    assert sizes[3] == sizes[100] > sizes[5000]
    assert sorted(int(unit) for chosen, _, _ in whole for unit in chosen) == list(range(40))
    few = cut_chunks(setup, torch.arange(2), torch.tensor([3, 5000]), 1)
    assert [size for _, size, _ in few] == [sizes[5000], sizes[3]]
    assert {size for _, (size,) in chunk_sizes(setup)} >= set(sizes.values())


WHOLE = local_training(learning_rate=0.05, batch_size=64)  # one batch: no order matters
LENGTHS = [40, 1, 16, 17, 15, 33, 8, 20, 3]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_broken_round_leaves_nothing(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    torch.set_num_threads(threads)

    class Corrupt(Ragged):
        def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
            if 5 in units:
                raise PipelineError("part-0.parquet: corrupt")
            return super().transitions(units, steps)

    good, weights = make_units(shape, LENGTHS), flatten(shape.initial_weights(0))
    clip = EnsembleClip(0.2, "flat", shape.members, len(shape.layers))
    mechanism = Mechanism(good.units, "trajectory", 0.3, clip, 1.0, 9, 1e-5)
    # in chunks of one unit
    setup = training_setup(mechanism, shape, local=WHOLE, execution=Execution(CPU, 1000))
    cohorts = iter([[0, 3, 8], [0, 1, 5, 2], [], [0, 3, 8]])
    monkeypatch.setattr(Mechanism, "cohort", lambda mechanism: torch.tensor(next(cohorts)).long())
    with Rounds(setup, Corrupt(good.inputs, good.targets), identity) as training:
        first = training.sum(weights)
        with pytest.raises(PipelineError, match="corrupt"):
            training.sum(weights)
        assert not training.sum(weights).any()
        # rows come in another order
        torch.testing.assert_close(first, training.sum(weights), rtol=0, atol=1e-6)
        assert torch.get_num_threads() == threads
    assert all(part.any() for part in setup.shape(first))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("chunk")]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="it counts Linux' threads")
def test_a_pool_of_a_round_starts_no_further_threads() -> None:
    """A thread's first product would start a team of its own, which splits products elsewhere."""
    program = """
import os, torch
from primorl.model.numerics import map_in_threads, start_pool
left, right = torch.randn(1000, 30), torch.randn(30, 20)
left @ right
before = len(os.listdir("/proc/self/task"))
torch.set_num_threads(1)
with start_pool(2) as pool:
    list(map_in_threads(pool, 2, lambda _: left @ right, range(8)))
    print(len(os.listdir("/proc/self/task")) - before)
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "2", found.stderr


@pytest.mark.parametrize("by_person", [True, False])
def test_removing_a_person_moves_a_round_by_at_most_the_clip(
    tmp_path: Path, by_person: bool
) -> None:
    shape, sums = Architecture(3, 1, 2, (8,), -10.0, 0.5), []
    maps = plain_maps(4, 4)
    for people in (3, 2):
        names = [f"t{i:02d}" for i in range(4 * people)]
        units = [f"p{i // 4}" for i in range(4 * people)] if by_person else names
        folder = tmp_path / str(people)
        write_partition(
            folder, table([episode(6, i) for i in range(4 * people)], units=units, names=names)
        )
        store = UnitStore.open(folder)
        clip = EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
        assert store.units == (people if by_person else 4 * people)
        mechanism = Mechanism(store.units, "person", 1.0, clip, 1.0, 1, 1e-3)
        # One batch.
        setup = training_setup(
            mechanism, shape, local=local_training(learning_rate=1.0, batch_size=64)
        )
        sums.append(Rounds(setup, store, maps).sum(flatten(shape.initial_weights(0))))
    moved = float((sums[0] - sums[1]).norm())
    assert (moved <= 0.5 * (1 + 1e-6)) is by_person
    assert moved > 0.45, "the clip binds, or nothing was tested"
