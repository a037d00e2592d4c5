"""Behaviour cloning through the engine: its rows, and a behaviour that is found."""

from typing import Any

import pytest
import torch

from primorl.engine.queries import ObservationColumns
from primorl.engine.rounds import check_setup
from primorl.engine.settings import Execution
from primorl.engine.setup import CloningSetup
from primorl.engine.training import train
from primorl.model.architecture import CloneNetwork
from primorl.model.ensemble import Bounds, Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.units import Ragged, local_training, server_training

CPU = torch.device("cpu")


def test_rows_are_observations_and_scaled_actions() -> None:
    units = Ragged(
        [torch.tensor([[7.0, 8.0, 9.0, -2.0, 1.0], [1.0, 2.0, 3.0, 1.0, 2.0]])], [torch.zeros(2, 4)]
    )
    source = cloning(False, 1).view(units)
    observation, action = source.transitions(torch.tensor([0]), torch.tensor([[1, 0]]))
    assert observation.tolist() == [[[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]]]
    assert action.tolist() == [[[0.5, 1.0], [-1.0, 0.5]]]
    assert (source.units, source.lengths(torch.tensor([0])).tolist()) == (1, [2])
    inputs = torch.tensor([3.0, 4.0, 5.0, 0.0, 1.0])
    assert cloning(True, 1).view_public((inputs, inputs))[1].tolist() == [0.0, 1.0]


def cloning(discrete: bool, units: int, noise: float = 0.0) -> CloningSetup:
    shape, side = CloneNetwork(3, 2, discrete, (16,), -5.0, 1.0), torch.full((3,), 3.0)
    ends = (
        (torch.zeros(2), torch.ones(2))
        if discrete
        else (torch.full((2,), -2.0), torch.full((2,), 2.0))
    )
    mechanism = Mechanism(
        units, "trajectory", PoissonSampler(0.5), EnsembleClip(0.5, "flat", 1, 2), noise, 40, 1e-4
    )
    facts: Any = {
        "bounds": Bounds(-side, side, *ends, -1.0, 1.0, discrete),
        "normaliser": Normaliser(*(torch.full((5,), each) for each in (0.0, 1.5, 0.0, 1.0))),
        "seed": 0,
    }
    facts |= {"columns": ObservationColumns(3, (), discrete), "execution": Execution(CPU, 1 << 20)}
    server = server_training(momentum=0.8, averaging=0.8)
    return CloningSetup(
        mechanism=mechanism,
        architecture=shape,
        local=local_training(1.0, 64),
        server=server,
        **facts,
    )


@pytest.mark.parametrize("discrete", [False, True])
def test_a_behaviour_is_found_through_the_engine(discrete: bool) -> None:
    """People act by the first observation alone; the twin is the loss of a constant."""
    drawn, inputs = torch.Generator().manual_seed(0), []
    for _ in range(40):
        x = torch.randn(30, 3, generator=drawn)
        right = (x[:, 0] > 0).long()
        action = torch.nn.functional.one_hot(right, 2).float()
        inputs.append(torch.cat((x, action if discrete else 3 * action - 1.5), 1))
    units, setup = Ragged(inputs, [torch.zeros(30, 5)] * 40), cloning(discrete, 40, noise=0.05)
    public = setup.view_public((torch.cat(inputs), torch.zeros(1)))
    check_setup(setup)
    trained = train(setup, setup.view(units), public)
    assert trained.public_loss is not None
    assert trained.public_loss.final < trained.public_loss.constant - (0.3 if discrete else 0.6)
    assert trained.normaliser.target_mean.tolist() == [0.0, 0.0]
    assert len(trained.normaliser.input_mean) == 3
