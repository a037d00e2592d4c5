"""Small ensembles for tests."""

import torch
from torch import Tensor

from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser

CPU = torch.device("cpu")


def plain_maps(inputs: int, targets: int, *, flag: bool = False) -> Normaliser:
    return Normaliser(
        torch.zeros(inputs), torch.ones(inputs), torch.zeros(targets), torch.ones(targets), flag
    )


def box(limits: Tensor | float, size: int, reward: tuple[float, float]) -> Bounds:
    """States within ±``limits``, one action within ±1."""
    high = torch.as_tensor(limits).expand(size).clone()
    return Bounds(-high, high, torch.tensor([-1.0]), torch.tensor([1.0]), *reward)


def ends_where_positive(sharpness: float) -> GaussianEnsemble:
    """Two members that end an episode where the state is positive, as surely as
    ``sharpness`` says.
    """
    shape = Architecture(1, 1, 2, (2,), -10.0, 0.5, True)
    weights = [weight.clone() for weight in shape.initial_weights(0)]
    weights[0][:] = torch.tensor([[40.0, -40.0], [0.0, 0.0]])
    weights[1][:] = 0.0
    weights[2][..., -1] = torch.tensor([1.0, -1.0]) * sharpness / 400
    weights[3][..., -1] = 0.0
    return GaussianEnsemble(
        shape, tuple(weights), plain_maps(2, 2, flag=True), box(9.0, 1, (-9.0, 9.0)), "learned"
    )
