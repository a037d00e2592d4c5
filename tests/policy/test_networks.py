"""The backward pass written by hand is autograd's, and Adam is torch's."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from primorl.policy.exported import side_by_side
from primorl.policy.networks import Adam, Networks, initial_layers
from tests.policy.reference import module

CPU = torch.device("cpu")


@pytest.fixture
def double() -> Iterator[None]:
    """Numbers so exact that a formula is right or wrong, and nothing between."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def made(sizes: tuple[int, ...], networks: int) -> Networks:
    return Networks(initial_layers(sizes, networks, torch.Generator().manual_seed(0)), CPU)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("sizes", [(5, 7, 6, 2), (3, 4, 1)])
@pytest.mark.parametrize("networks", [1, 4])
@pytest.mark.parametrize("begin", [0, 6])
def test_outputs_and_gradients_are_autograds(sizes: tuple[int, ...], networks: int, begin: int) -> None:
    """Of every network by itself, also where only the last rows have a slope, and twice over on the same buffers."""
    ours = made(sizes, networks)
    for step in range(2):
        inputs, slope = some(networks, 10, sizes[0], seed=step), some(networks, 10 - begin, sizes[-1], seed=step + 9)
        outputs = ours.forward(inputs)
        ours.backward(slope, begin)
        for number in range(networks):
            plain, own = module(ours.layers, number), inputs[number].clone().requires_grad_()
            true = plain(own)
            torch.testing.assert_close(outputs[number], true.detach())
            true[begin:].backward(slope[number])
            for found, parameter in zip(ours.gradient_layers, plain.parameters(), strict=True):
                assert parameter.grad is not None
                torch.testing.assert_close(found[number].view_as(parameter), parameter.grad)
            if begin == 0:
                assert own.grad is not None
                torch.testing.assert_close(ours.input_slope(slope, 1)[number], own.grad[:, 1:])


@pytest.mark.usefixtures("double")
def test_a_slope_of_inputs_leaves_the_gradient_alone_and_a_wrong_slope_would_be_noticed() -> None:
    """The actor's loss asks for it between a critic's gradient and nobody's step. The twin turns one unit's ReLU."""
    ours = made((3, 4, 1), 2)
    ours.forward(some(2, 8, 3))
    ours.backward(some(2, 8, 1))
    before = ours.gradient.clone()
    ours.input_slope(some(2, 8, 1, seed=3), 0)
    assert torch.equal(ours.gradient, before)
    ours._kept[1][:, :, 0] = ours._kept[1][:, :, 0] <= 0
    ours.backward(some(2, 8, 1))
    assert not torch.allclose(ours.gradient, before)


def test_initial_weights_are_those_of_a_linear_layer() -> None:
    """Uniform within 1/√in, biases as well; networks of one draw differ."""
    layers = initial_layers((100, 50, 3), 2, torch.Generator().manual_seed(0))
    assert [tuple(layer.shape) for layer in layers] == [(2, 50, 100), (2, 1, 50), (2, 3, 50), (2, 1, 3)]
    assert 0.099 < float(layers[0].abs().max()) <= 0.1
    assert abs(float(layers[0].mean())) < 0.002
    assert not torch.equal(layers[0][0], layers[0][1])
    stacked = side_by_side([layers, layers])
    assert torch.equal(stacked[0][2:], layers[0])


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_adam_is_torchs_adam(precision: torch.dtype) -> None:
    """Bias corrections included, on several vectors, over gradients of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(20, generator=generator, dtype=precision) for _ in range(2)]
    gradients = [torch.zeros_like(vector) for vector in ours]
    theirs = [vector.clone().requires_grad_() for vector in ours]
    adam, reference = Adam(ours, gradients, 0.01), torch.optim.Adam(theirs, 0.01, foreach=False, fused=False)
    for _ in range(30):
        for gradient, vector in zip(gradients, theirs, strict=True):
            gradient.copy_(torch.randn(20, generator=generator, dtype=precision) * 10.0 ** torch.arange(-10, 10))
            vector.grad = gradient.clone()
        adam.step()
        reference.step()
    for found, true in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, true.detach())
