"""The fast kernel computes what the slow reference computes, and no unit can move the sum by more than C."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.entropy import SeededEntropy
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training import local_update, rounds
from primorl.training.cohort import local_batches
from primorl.training.local_update import LocalBatches, sum_of_updates
from primorl.training.settings import Execution
from tests.training.reference import reference_sum
from tests.units import Ragged, local_training, make_units, training_setup


def joint_norm(parts: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(p.double().square().sum()) for p in parts))


def with_ends(source: Ragged) -> Ragged:
    """The same units with a column of flags: the last step of each, and every seventh from some step on."""
    flags = [(torch.arange(len(y)) % 7 == len(y) % 3) | (torch.arange(len(y)) == len(y) - 1) for y in source.targets]
    return Ragged(
        source.inputs, [torch.cat((y, f.unsqueeze(1)), 1) for y, f in zip(source.targets, flags, strict=True)]
    )


def batches_of(source: Ragged, normaliser: Normaliser, batch_size: int, epochs: int, seed: int = 0) -> LocalBatches:
    return local_batches(
        source,
        torch.arange(source.units),
        normaliser,
        batch_size=batch_size,
        epochs=epochs,
        max_transitions=None,
        entropy=SeededEntropy(seed),
    )


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("mode", ["flat", "per_layer"])
@pytest.mark.parametrize("norm", [0.05, 0.5, math.inf])
@pytest.mark.parametrize(
    ("epochs", "weight_decay", "beta_nll"), [(1, 0.0, 0.0), (3, 0.1, 0.0), (3, 0.0, 1.0), (1, 0.1, 0.5)]
)
def test_agrees_with_the_reference(
    shape: Architecture,
    identity: Normaliser,
    learned: bool,
    mode: str,
    epochs: int,
    norm: float,
    weight_decay: float,
    beta_nll: float,
) -> None:
    """Uneven lengths (1 and batch ± 1 among them), E > 1, both clippings and losses, clipped, partly and unclipped."""
    source = make_units(shape, [40, 1, 16, 17, 15, 33, 8])
    if learned:
        shape, identity = dataclasses.replace(shape, learned_termination=True), dataclasses.replace(identity, flag=True)
        source = with_ends(source)
    batches = batches_of(source, identity, batch_size=16, epochs=epochs)
    local = local_training(
        learning_rate=0.05, batch_size=16, local_epochs=epochs, weight_decay=weight_decay, beta_nll=beta_nll
    )
    weights = shape.initial_weights(3)
    fast = sum_of_updates(weights, batches, shape, local, EnsembleClip(norm, mode, shape.members, len(shape.layers)))
    slow = reference_sum(weights, batches, shape, local, norm, mode)
    scale = joint_norm(slow)
    assert scale > 0.01
    for ours, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-5 * scale)


def test_the_agreement_sees_the_termination(shape: Architecture, identity: Normaliser) -> None:
    """The twin: flags that are turned round give another sum, by far more than the tolerance."""
    shape, identity = dataclasses.replace(shape, learned_termination=True), dataclasses.replace(identity, flag=True)
    batches = batches_of(with_ends(make_units(shape, [40, 33, 48])), identity, batch_size=16, epochs=1)
    local = local_training(learning_rate=0.05, batch_size=16)
    weights = shape.initial_weights(3)
    clip = EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
    turned = dataclasses.replace(batches, targets=batches.targets.clone())
    turned.targets[..., -1] = 1 - turned.targets[..., -1]
    slow = reference_sum(weights, batches, shape, local, 0.5, "flat")
    fast = sum_of_updates(weights, turned, shape, local, clip)
    assert joint_norm([a - b for a, b in zip(fast, slow, strict=True)]) > 20 * 5e-5 * joint_norm(slow)


def test_the_agreement_sees_the_loss(shape: Architecture, identity: Normaliser) -> None:
    """The twin: with another β the sums differ by far more than the tolerance."""
    batches = batches_of(make_units(shape, [40, 33, 48]), identity, batch_size=16, epochs=1)
    weights, clip = shape.initial_weights(3), EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
    slow = reference_sum(weights, batches, shape, local_training(beta_nll=1.0), 0.5, "flat")
    for beta_nll in (0.0, 0.8):
        fast = sum_of_updates(weights, batches, shape, local_training(beta_nll=beta_nll), clip)
        assert joint_norm([a - b for a, b in zip(fast, slow, strict=True)]) > 20 * 5e-5 * joint_norm(slow)


def test_the_agreement_can_fail(shape: Architecture, identity: Normaliser) -> None:
    """The twin: clipping once at the end instead of after every step is told apart by the same tolerance."""
    source = make_units(shape, [40, 33, 48])
    batches = batches_of(source, identity, batch_size=16, epochs=1)
    local = local_training(learning_rate=0.05, batch_size=16)
    weights = shape.initial_weights(3)
    clip = EnsembleClip(0.05, "flat", shape.members, len(shape.layers))
    unclipped = dataclasses.replace(clip, clipping_norm=math.inf)
    moved = local_update.updates_of_units(weights, batches, shape, local, unclipped)
    late = [m.unflatten(0, (-1, shape.members)).sum(0) for m in clip.finish([m.flatten(0, 1).clone() for m in moved])]
    slow = reference_sum(weights, batches, shape, local, 0.05, "flat")
    gap = joint_norm([a.double() - b for a, b in zip(late, slow, strict=True)])
    assert gap > 20 * 5e-5 * joint_norm(slow)


@pytest.mark.parametrize("kilobytes", [1, 64, 10_000])
def test_chunks_do_not_change_the_sum(shape: Architecture, identity: Normaliser, kilobytes: int) -> None:
    """A round in chunks of one unit, of a few, and of all gives one sum."""
    from primorl.privacy.mechanism.plan import Plan

    source = make_units(shape, [40, 1, 16, 17, 15, 33, 8, 20, 3])
    # Whole batches: an order cannot matter, so chunks that draw different orders must agree.
    plan = Plan(
        source.units,
        "trajectory",
        PoissonSampler(1.0),
        EnsembleClip(0.2, "flat", shape.members, len(shape.layers)),
        1.0,
        1,
        1e-5,
    )
    local = local_training(learning_rate=0.05, batch_size=64)
    execution = Execution(torch.device("cpu"), kilobytes * 1000)
    weights = shape.initial_weights(1)
    training = rounds.Rounds(training_setup(plan, shape, local=local, execution=execution), source, identity)
    total = training.sum(weights)
    whole = reference_sum(weights, batches_of(source, identity, 64, 1), shape, local, 0.2, "flat")
    for ours, theirs in zip(total, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-5 * joint_norm(whole))


ADVERSARIAL = st.sampled_from([0.0, 1.0, -1e3, 1e6, 1e20, -3e38, math.nan, math.inf, -math.inf, 1e-40])


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(ADVERSARIAL, min_size=1, max_size=4),
    length=st.integers(1, 40),
    mode=st.sampled_from(["flat", "per_layer"]),
    rate=st.sampled_from([0.03, 1.0, 100.0]),
    learned=st.booleans(),
    beta_nll=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_no_unit_moves_the_sum_by_more_than_the_clip(
    values: list[float], length: int, mode: str, rate: float, learned: bool, beta_nll: float
) -> None:
    """‖sum(D) - sum(D minus one)‖ ≤ C, whatever the one unit's data: huge, zero, NaN, infinite, one row."""
    shape = Architecture(3, 1, 3, (8, 8), -10.0, 0.5, learned)
    identity = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4), learned)
    ordinary = make_units(shape, [20, 9])
    cycle = torch.tensor(values).repeat(5 * length)
    odd = Ragged([cycle[: 4 * length].view(length, 4)], [cycle.flip(0)[: 4 * length].view(length, 4)])
    if learned:  # whatever stands where a flag belongs
        ordinary = with_ends(ordinary)
        odd.targets = [cycle.flip(0)[: 5 * length].view(length, 5)]
    both = Ragged([*ordinary.inputs, *odd.inputs], [*ordinary.targets, *odd.targets])
    local = local_training(learning_rate=rate, batch_size=8, beta_nll=beta_nll)
    clip = EnsembleClip(0.5, mode, shape.members, len(shape.layers))
    weights = shape.initial_weights(0)
    batches = batches_of(both, identity, 8, 1)
    without = LocalBatches(batches.inputs[:, :2], batches.targets[:, :2], batches.weights[:, :2])
    with_odd = sum_of_updates(weights, batches, shape, local, clip)
    without_odd = sum_of_updates(weights, without, shape, local, clip)
    moved = joint_norm([a - b for a, b in zip(with_odd, without_odd, strict=True)])
    assert moved <= clip.sensitivity


def round_sum(source: Ragged, shape: Architecture, mode: str, batch_size: int) -> list[torch.Tensor]:
    """What a round of all units sums to, through secret orders, padding and chunks as in training."""
    from primorl.privacy.mechanism.plan import Plan

    identity = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4))
    plan = Plan(
        source.units,
        "trajectory",
        PoissonSampler(1.0),
        EnsembleClip(0.5, mode, shape.members, len(shape.layers)),
        1.0,
        1,
        1e-5,
    )  # type: ignore[arg-type]
    local = local_training(learning_rate=0.05, batch_size=batch_size)
    execution = Execution(torch.device("cpu"), 1 << 24)
    training = rounds.Rounds(training_setup(plan, shape, local=local, execution=execution), source, identity)
    return training.sum(shape.initial_weights(0))


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(ADVERSARIAL | st.just(1e24), min_size=1, max_size=4),
    length=st.integers(1, 90),
    mode=st.sampled_from(["flat", "per_layer"]),
)
def test_neighbouring_rounds_differ_by_at_most_the_clip(values: list[float], length: int, mode: str) -> None:
    """Whole rounds, built apart: a long newcomer gives the others more padding, which must not touch their updates.

    One of the others overflows on a finite row: were padding to repeat it, the newcomer's length would decide whether
    that unit is zeroed, and move the sum by more than C. Constant rows make the secret orders irrelevant.
    """
    shape = Architecture(3, 1, 3, (8, 8), -10.0, 0.5)
    constant = [torch.full((n, 4), v) for n, v in ((3, 0.3), (2, -1.0))]
    others = Ragged([*constant, torch.full((1, 4), 1e24)], [*constant, torch.full((1, 4), 1.0)])
    row = torch.tensor((values * 4)[:4]).expand(length, 4)
    both = Ragged([*others.inputs, row], [*others.targets, row])
    pairs = zip(round_sum(both, shape, mode, 1), round_sum(others, shape, mode, 1), strict=True)
    assert joint_norm([a - b for a, b in pairs]) <= 0.5


def test_padding_steps_leave_a_unit_as_it_was_to_the_last_bit() -> None:
    """A newcomer whose own update is zero (it is not finite) changes nothing at all, however long it is.

    Of these sizes every tensor of a unit fills whole vector registers, so that no number of the others is computed as
    one left over, whose last bit may differ.
    """
    shape = Architecture(3, 1, 4, (32, 32), -10.0, 0.5)
    rows = [torch.full((n, 4), v) for n, v in ((13, 3.0), (9, -2.0), (16, 5.0), (3, 0.3), (11, 9.0), (12, -7.0))]
    alone = round_sum(Ragged(rows, rows), shape, "flat", 4)
    ghost = torch.full((50, 4), math.nan)
    with_ghost = round_sum(Ragged([*rows, ghost], [*rows, ghost]), shape, "flat", 4)
    for ours, theirs in zip(with_ghost, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-15)


def test_a_step_without_rows_clips_nothing() -> None:
    """Two units above the bound, of which one has rows in this step: the other's weights stay to the last bit."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(3, 4, 4, generator=generator), torch.zeros(3, 1, 4)
    layer = local_update._Layer(weight, bias, 2, 8, local_update.Workspace())
    layer.moved.normal_(generator=generator)
    before = layer.moved.clone()
    local_update._clip([layer], torch.tensor([[False], [True]]), EnsembleClip(0.5, "flat", members=3, layers=1))
    assert torch.equal(layer.moved[3:], before[3:])
    assert 0.499 < joint_norm([layer.moved[:3]]) < 0.501
    assert torch.equal(layer.now, layer.origin.repeat(2, 1, 1) + layer.moved)


def test_the_sensitivity_test_finds_a_planted_bug(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: members clipped to C instead of C/√N break the bound, by a factor of √N."""
    source = make_units(shape, [64])
    source.targets = [t * 1e3 for t in source.targets]
    local = local_training(learning_rate=1.0, batch_size=8)
    batches = batches_of(source, identity, 8, 1)
    clip = EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
    weights = shape.initial_weights(0)
    sound = joint_norm(sum_of_updates(weights, batches, shape, local, clip))
    monkeypatch.setattr(EnsembleClip, "bound", property(lambda self: self.clipping_norm))
    broken = joint_norm(sum_of_updates(weights, batches, shape, local, clip))
    assert 0.49 < sound <= 0.5
    assert broken > 0.5 * 1.7


def test_a_unit_that_is_not_finite_leaves_the_others_alone(shape: Architecture, identity: Normaliser) -> None:
    """One poisoned unit is zeroed; the sum of the rest is what it would be without it."""
    good = make_units(shape, [20, 30])
    poisoned = Ragged([*good.inputs, torch.full((25, 4), math.nan)], [*good.targets, torch.zeros(25, 4)])
    local = local_training(learning_rate=0.05, batch_size=64)
    clip = EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
    weights = shape.initial_weights(0)
    with_poison = sum_of_updates(weights, batches_of(poisoned, identity, 64, 1), shape, local, clip)
    without = sum_of_updates(weights, batches_of(good, identity, 64, 1), shape, local, clip)
    for ours, theirs in zip(with_poison, without, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lengths", [[20, 30, 7], [64, 64, 64, 64, 64, 64]])
def test_nothing_of_the_last_chunk_is_left(shape: Architecture, identity: Normaliser, lengths: list[int]) -> None:
    """A workspace full of NaN, larger or smaller than what is needed, gives the sum of a fresh one."""
    local = local_training(learning_rate=0.05, batch_size=8, weight_decay=0.1)
    clip = EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
    weights, workspace = shape.initial_weights(0), local_update.Workspace()
    before = batches_of(make_units(shape, [20, 9, 40, 16]), identity, 8, 1)
    sum_of_updates(weights, before, shape, local, clip, workspace)
    with torch.inference_mode():
        for held in workspace._held.values():
            held.fill_(math.nan)
    batches = batches_of(make_units(shape, lengths), identity, 8, 1)
    again = sum_of_updates(weights, batches, shape, local, clip, workspace)
    for ours, theirs in zip(again, sum_of_updates(weights, batches, shape, local, clip), strict=True):
        assert torch.equal(ours, theirs)


def test_an_empty_cohort_sums_to_zero(shape: Architecture) -> None:
    """No unit, no update, no crash: what is released then is noise alone."""
    nothing = LocalBatches(torch.zeros(0, 0, 8, 4), torch.zeros(0, 0, 8, 4), torch.zeros(0, 0, 8))
    local = local_training(learning_rate=0.05, batch_size=8)
    clip = EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
    for part in sum_of_updates(shape.initial_weights(0), nothing, shape, local, clip):
        assert part.dtype == torch.float64
        assert not part.any()
