"""Cloning a policy with the engine's kernel: exact gradients, bounded updates, a unit's bits its own.

What `test_local_update` and `test_independence` say of the dynamics is said here of both heads of a policy.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from primorl.dynamics.ensemble import Bounds
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training import local_update
from primorl.training.cloning import CloningSetup
from primorl.training.independence import check_independence, check_setup
from primorl.training.local_update import LocalBatches, sum_of_updates, updates_of_units
from primorl.training.normaliser_query import ObservationColumns
from primorl.training.policy_network import PolicyNetwork, constant_policy_loss, policy_row_losses
from primorl.training.settings import Execution
from primorl.training.training import train
from tests.training.reference import reference_sum
from tests.units import Ragged, local_training, server_training

CPU = torch.device("cpu")
HEADS = pytest.mark.parametrize("discrete", [False, True])


def network(discrete: bool, hidden: tuple[int, ...] = (16, 12), size: int = 3, actions: int = 2) -> PolicyNetwork:
    return PolicyNetwork(size, actions, discrete, hidden, -5.0, 1.0)


def weights_of(shape: PolicyNetwork, seed: int) -> tuple[Tensor, ...]:
    """Weights whose last layer is not zero."""
    drawn = torch.Generator().manual_seed(seed)
    return tuple(w + 0.3 * torch.randn(w.shape, generator=drawn) for w in shape.initial_weights(seed))


def actions_of(shape: PolicyNetwork, rows: int, drawn: torch.Generator) -> Tensor:
    if shape.discrete_actions:
        choice = torch.randint(shape.action_size, (rows,), generator=drawn)
        return torch.nn.functional.one_hot(choice, shape.action_size).float()
    return torch.rand(rows, shape.action_size, generator=drawn) * 2 - 1


def batches_of(shape: PolicyNetwork, steps: list[int], rows: int, seed: int, scale: float = 1.0) -> LocalBatches:
    """Units of so many steps each, the last of fewer rows."""
    drawn, most = torch.Generator().manual_seed(seed), max(steps)
    weights = torch.zeros(most, len(steps), rows)
    for unit, own in enumerate(steps):
        weights[:own, unit] = 1 / rows
        last = 1 + unit % rows
        weights[own - 1, unit] = (torch.arange(rows) < last) / last
    inputs = torch.randn(most, len(steps), rows, shape.inputs, generator=drawn) * scale
    targets = actions_of(shape, most * len(steps) * rows, drawn).view(most, len(steps), rows, -1)
    return LocalBatches(inputs, targets, weights)


def some(batches: LocalBatches, units: list[int], steps: int) -> LocalBatches:
    return LocalBatches(*(values[:steps, units].contiguous() for values in vars(batches).values()))


def norm(parts: list[Tensor]) -> float:
    return math.sqrt(sum(float(p.double().square().sum()) for p in parts))


@HEADS
@pytest.mark.parametrize("bound", [0.05, math.inf])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_agrees_with_autograd(discrete: bool, bound: float, weight_decay: float) -> None:
    shape = network(discrete, actions=3)
    batches = batches_of(shape, [3, 1, 2, 4], 7, 0)
    local = local_training(0.3, 7, weight_decay=weight_decay)
    start = weights_of(shape, 1)
    fast = sum_of_updates(start, batches, shape, local, EnsembleClip(bound, "flat", 1, 3))
    slow = reference_sum(start, batches, shape, local, bound, "flat")
    assert norm(slow) > 0.01
    for ours, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-5 * norm(slow))


@HEADS
def test_the_agreement_sees_the_actions(discrete: bool) -> None:
    """The twin: other actions give another sum, by far more than the tolerance."""
    shape = network(discrete)
    batches = batches_of(shape, [3, 2], 7, 0)
    turned = replace(batches, targets=batches.targets.flip(-1))
    start, local, clip = weights_of(shape, 1), local_training(0.3, 7), EnsembleClip(0.5, "flat", 1, 3)
    slow = reference_sum(start, batches, shape, local, 0.5, "flat")
    fast = sum_of_updates(start, turned, shape, local, clip)
    assert norm([a - b for a, b in zip(fast, slow, strict=True)]) > 20 * 5e-5 * norm(slow)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_neighbours_and_places_do_not_matter(data: st.DataObject) -> None:
    """One unit alone, among others, elsewhere, with more idle steps: the same bits."""
    draw = data.draw
    hidden = tuple(draw(st.lists(st.sampled_from([1, 5, 8, 17, 32, 37]), min_size=1, max_size=2)))
    actions = draw(st.sampled_from([2, 3, 7, 8, 9, 16, 25]))
    shape = network(draw(st.booleans()), hidden, draw(st.integers(1, 6)), actions)
    rows, steps = draw(st.sampled_from([1, 2, 7, 16, 19])), draw(st.lists(st.integers(1, 4), min_size=2, max_size=14))
    clip = EnsembleClip(draw(st.sampled_from([1e-6, 0.35, 50.0])), "flat", 1, len(hidden) + 1)
    seed = draw(st.integers(0, 99))
    start, local = weights_of(shape, seed), local_training(draw(st.sampled_from([1e-3, 1.0, 10.0])), rows)
    batches = batches_of(shape, steps, rows, seed, draw(st.sampled_from([1.0, 100.0])))
    one = draw(st.integers(0, len(steps) - 1))
    others = draw(st.permutations([unit for unit in range(len(steps)) if unit != one]))
    chosen = [*others[: draw(st.integers(0, len(others)))], one]
    alone = updates_of_units(start, some(batches, [one], steps[one]), shape, local, clip)
    whole = updates_of_units(start, batches, shape, local, clip)
    moved = updates_of_units(start, some(batches, chosen, max(steps[u] for u in chosen)), shape, local, clip)
    for a, b, c in zip(alone, whole, moved, strict=True):
        assert torch.equal(b[one], a[0])
        assert torch.equal(c[-1], a[0])


@HEADS
def test_the_check_before_a_charge_covers_policies(discrete: bool) -> None:
    shape, local, clip = network(discrete, (37,), actions=3), local_training(1.0, 7), EnsembleClip(10.0, "flat", 1, 2)
    check_independence(shape, local, clip, range(1, 16), CPU)
    check_setup(cloning(shape, units=20))


def test_without_gaps_the_last_bits_would_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin, of a box: here an exponential alone has the same bits everywhere, and a sigmoid has not."""
    monkeypatch.setattr(local_update, "_GAP", 0)
    shape, batches = network(discrete=False, hidden=(37,)), batches_of(network(discrete=False), [2] * 15, 7, 0)
    local, clip, start = local_training(1.0, 7), EnsembleClip(10.0, "flat", 1, 2), weights_of(shape, 0)
    of = [updates_of_units(start, some(batches, list(range(n)), 2), shape, local, clip) for n in range(2, 16)]
    assert any(
        not torch.equal(few[n + 1], all_[n + 1]) for n, u in enumerate(of) for few, all_ in zip(u, of[-1], strict=True)
    )


ADVERSARIAL = st.sampled_from([0.0, 1.0, -1e3, 1e20, -3e38, math.nan, math.inf, -math.inf, 1e-40])


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(ADVERSARIAL, min_size=1, max_size=4),
    discrete=st.booleans(),
    rate=st.sampled_from([0.03, 1.0, 100.0]),
)
def test_no_unit_moves_the_sum_by_more_than_the_clip(values: list[float], discrete: bool, rate: float) -> None:
    """Whatever its observations are, and whatever stands where its actions should."""
    shape = network(discrete, (8,))
    batches = batches_of(shape, [3, 2, 2], 5, 0)
    bad = torch.tensor(values).repeat(100)
    batches.inputs[:, 0] = bad[: batches.inputs[:, 0].numel()].view_as(batches.inputs[:, 0])
    batches.targets[:, 0] = bad[: batches.targets[:, 0].numel()].view_as(batches.targets[:, 0])
    start, local, clip = weights_of(shape, 0), local_training(rate, 5), EnsembleClip(0.3, "flat", 1, 2)
    whole = sum_of_updates(start, batches, shape, local, clip)
    less = sum_of_updates(start, some(batches, [1, 2], 3), shape, local, clip)
    gap = norm([a - b for a, b in zip(whole, less, strict=True)])
    assert gap <= 0.3 * (1 + 1e-6)


@HEADS
def test_public_losses_are_those_of_torch(discrete: bool) -> None:
    """Of rows as the reference has them, and of a constant; a constant network gets the constant's."""
    shape, drawn = network(discrete, (8,)), torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 3, generator=drawn), actions_of(shape, 400, drawn)
    weights = weights_of(shape, 0)
    losses, expected = policy_row_losses(shape, weights, x[None], y)
    single = [w[0] for w in weights]
    output = torch.relu(x @ single[0] + single[1]) @ single[2] + single[3]
    if discrete:
        torch.testing.assert_close(expected[0], output.softmax(1))
        torch.testing.assert_close(losses[0], torch.nn.functional.cross_entropy(output, y.argmax(1), reduction="none"))
        shares = y.mean(0)
        assert constant_policy_loss(shape, y) == pytest.approx(float(-(shares * shares.log()).sum()))
    else:
        torch.testing.assert_close(expected[0], output[:, :2].tanh())
        variance = y.var(0, unbiased=False)
        assert constant_policy_loss(shape, y) == pytest.approx(float(0.5 * (1 + variance.log()).sum()), rel=1e-5)
    assert constant_policy_loss(shape, y) < float(losses.mean())


def test_rows_are_observations_and_scaled_actions() -> None:
    """Actions in a box of ±2 are halved; one-hot ones stay."""
    units = Ragged([torch.tensor([[7.0, 8.0, 9.0, -2.0, 1.0], [1.0, 2.0, 3.0, 1.0, 2.0]])], [torch.zeros(2, 4)])
    source = cloning(network(discrete=False), 1).source_of(units)
    observation, action = source.transitions(torch.tensor([0]), torch.tensor([[1, 0]]))
    assert observation.tolist() == [[[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]]]
    assert action.tolist() == [[[0.5, 1.0], [-1.0, 0.5]]]
    assert (source.units, source.lengths(torch.tensor([0])).tolist()) == (1, [2])
    inputs = torch.tensor([3.0, 4.0, 5.0, 0.0, 1.0])
    assert cloning(network(discrete=True), 1).public_of((inputs, inputs))[1].tolist() == [0.0, 1.0]


def cloning(shape: PolicyNetwork, units: int, noise: float = 0.0) -> CloningSetup:
    low, high = torch.full((shape.inputs,), -3.0), torch.full((shape.inputs,), 3.0)
    sides = torch.zeros(shape.action_size) if shape.discrete_actions else -2 * torch.ones(shape.action_size)
    ends = torch.ones(shape.action_size) if shape.discrete_actions else 2 * torch.ones(shape.action_size)
    clip = EnsembleClip(0.5, "flat", 1, len(shape.layers))
    return CloningSetup(
        plan=Plan(units, "trajectory", PoissonSampler(0.5), clip, noise, 40, 1e-4),
        architecture=shape,
        bounds=Bounds(low, high, sides, ends, -1.0, 1.0, shape.discrete_actions),
        columns=ObservationColumns(shape.inputs, (), shape.discrete_actions),
        normaliser="bounds",
        local=local_training(1.0, 64),
        server=server_training(momentum=0.8, averaging=0.8),
        seed=0,
        execution=Execution(CPU, 1 << 20),
    )


@HEADS
def test_a_behaviour_is_found_through_the_engine(discrete: bool) -> None:
    """People act by the first observation alone; the twin is the loss of a constant."""
    shape, drawn = network(discrete, (16,)), torch.Generator().manual_seed(0)
    inputs = []
    for _ in range(40):
        x = torch.randn(30, 3, generator=drawn)
        right = (x[:, 0] > 0).long()
        action = torch.nn.functional.one_hot(right, 2).float()
        inputs.append(torch.cat((x, action if discrete else 3 * action - 1.5), 1))
    units, setup = Ragged(inputs, [torch.zeros(30, 5)] * 40), cloning(shape, 40, noise=0.05)
    public = setup.public_of((torch.cat(inputs), torch.zeros(1)))
    trained = train(setup, setup.source_of(units), public)
    assert trained.public_loss is not None
    assert trained.public_loss.final < trained.public_loss.constant - (0.3 if discrete else 0.6)
    assert trained.normaliser.target_mean.tolist() == [0.0, 0.0]
    assert len(trained.normaliser.input_mean) == 3
