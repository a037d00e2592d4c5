"""The closed-form gradients are those of autograd, transition by transition."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from primorl.evaluation.private.dptd import TdBatch, ValueNetwork

_GENERATOR = torch.Generator()


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=_GENERATOR)


def _batch(networks: int, units: int, length: int, size: int) -> TdBatch:
    shape = (networks, units, length)
    weight = _normal(*shape).abs()
    weight[..., -1] = 0.0
    return TdBatch(_normal(*shape, size), _normal(*shape, size), *(_normal(*shape) for _ in range(3)), weight)


def plain(network: ValueNetwork, theta: Tensor, inputs: Tensor) -> Tensor:
    """One network on one input, step by step."""
    first, hidden = 0, inputs
    for below, above in pairwise(network.sizes):
        layer = theta[first : first + above * (below + 1)].view(above, below + 1)
        first += above * (below + 1)
        hidden = layer[:, :-1] @ hidden + layer[:, -1]
        hidden = elu(hidden) if first < len(theta) else hidden
    return hidden[0]


def transition_loss(
    network: ValueNetwork, theta: Tensor, omega: Tensor, batch: TdBatch, place: tuple[int, int, int]
) -> Tensor:
    """ℓ of one transition, by autograd and literally as the paper writes it."""
    value = plain(network, theta, batch.inputs[place])
    (gradient,) = torch.autograd.grad(value, theta, create_graph=True)
    features = batch.factor[place] * gradient
    following = batch.next_factor[place] * plain(network, theta, batch.next_inputs[place])
    error = batch.reward[place] + following - batch.factor[place] * value
    return (error * features) @ omega - 0.5 * (features @ omega).square()


@pytest.mark.parametrize(("hidden", "shared"), [((6, 5), True), ((4,), False), ((3, 3, 3), True)])
def test_gradients_and_losses_are_those_of_autograd(hidden: tuple[int, ...], shared: bool) -> None:
    _GENERATOR.manual_seed(0)
    network, networks, units, length = ValueNetwork(4, hidden), 2, 2, 3
    batch = _batch(1 if shared else networks, units, length, 4)
    theta, omega = network.initial(networks, _GENERATOR), network.initial(networks, _GENERATOR)
    gradients, losses = network.gradients(theta, omega, batch), network.losses(theta, omega, batch)
    assert gradients.shape == (units, networks, 2, network.parameters)
    for n in range(networks):
        for u in range(units):
            own_theta, own_omega = theta[n].clone().requires_grad_(), omega[n].clone().requires_grad_()
            places = [(0 if shared else n, u, m) for m in range(length)]
            each = [transition_loss(network, own_theta, own_omega, batch, place) for place in places]
            total = sum(batch.weight[place] * loss for place, loss in zip(places, each, strict=True))
            assert isinstance(total, Tensor)
            expected = torch.stack(torch.autograd.grad(total, (own_theta, own_omega)))
            torch.testing.assert_close(gradients[u, n], expected, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(losses[n, u], torch.stack(each).detach(), rtol=1e-10, atol=1e-12)
    inputs = batch.inputs[:1]
    expected = [[plain(network, own, row) for row in inputs[0].flatten(0, 1)] for own in theta]
    torch.testing.assert_close(network.values(theta, inputs).flatten(1), torch.tensor(expected).double())


def test_each_unit_depends_on_its_own_transitions_alone() -> None:
    _GENERATOR.manual_seed(2)
    network, batch = ValueNetwork(4, (6, 5)), _batch(1, 3, 4, 4)
    theta, omega = network.initial(2, _GENERATOR), network.initial(2, _GENERATOR)
    before = network.gradients(theta, omega, batch).clone()
    batch.reward[0, 1], batch.inputs[0, 1] = 1e9, float("nan")
    after = network.gradients(theta, omega, batch)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])
