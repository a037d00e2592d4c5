"""On a GPU: rounds and SAC give what a CPU does, but for rounding."""

import math
from dataclasses import is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.engine.rounds import check_setup
from primorl.engine.settings import Execution
from primorl.engine.training import train
from primorl.model.architecture import Architecture
from primorl.model.numerics import SeedGenerators
from primorl.policy.sac import DiscreteSac, KLConstraint, Sac
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import Mechanism
from tests.engine.test_linear import setup_of
from tests.policy.test_sac import BATCHES, KAPPAS, prior_of, scaling_of, some_rows
from tests.units import local_training, make_units, server_training, training_setup

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def trained(shape: Architecture, device: torch.device) -> Tensor:
    source = make_units(shape, [1, 4, 9, 14, 19, 24, 30, 39, 44, 55, 75, 120])
    clip = EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
    mechanism = Mechanism(source.units, "trajectory", 1.0, clip, 0.0, 6, 1e-3)
    # one batch: no order matters
    local = local_training(batch_size=128, local_epochs=2, weight_decay=0.1)
    setup = training_setup(
        mechanism,
        shape,
        local=local,
        server=server_training(0.5, 0.5, 2),
        execution=Execution(device, 1 << 26),
    )
    result = train(setup, source, (torch.cat(list(source.inputs)), torch.cat(list(source.targets))))
    return torch.cat([w.cpu().flatten() for w in result.weights])


def test_a_training_without_noise_releases_what_a_cpu_does(shape: Architecture) -> None:
    torch.testing.assert_close(trained(shape, GPU), trained(shape, CPU), rtol=0, atol=1e-4)


def test_a_unit_alone_is_a_unit_in_company_to_the_last_bit(shape: Architecture) -> None:
    clip = EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
    mechanism = Mechanism(300, "trajectory", 1.0, clip, 0.3, 6, 1e-3)
    one_step = training_setup(
        mechanism, shape, local=local_training(batch_size=256, max_transitions_per_unit=256)
    )
    for setup in (training_setup(mechanism, shape), one_step, setup_of(300)):
        check_setup(replace(setup, execution=Execution(GPU, 1 << 28)))


def moved(value: Any) -> Any:
    """The same on the GPU, with what it is made of."""
    if isinstance(value, torch.Tensor):
        return value.to(GPU)
    if isinstance(value, tuple):
        return tuple(map(moved, value))
    if not is_dataclass(value):
        return value
    kind: Any = type(value)
    return kind(**{key: moved(part) for key, part in vars(value).items()})


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("seeds", [(0,), (3, 4, 5)])
def test_recorded_updates_are_those_that_are_launched_one_by_one(
    seeds: tuple[int, ...], prior: bool, discrete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling, constraint = moved(scaling_of(discrete)), None
    if prior:
        weight = 0.1 * torch.randn(
            5, 3 if discrete else 4, generator=torch.Generator().manual_seed(9)
        )
        constraint = KLConstraint.of(
            moved(prior_of(weight, discrete)), scaling, KAPPAS[: len(seeds)], GPU
        )
    rows = torch.cat([some_rows(scaling.columns, seed, len(seeds)) for seed in range(9)]).to(GPU)
    found = []
    for before in (3, 100):
        monkeypatch.setattr("primorl.policy.sac._WARM_UPS", before)
        kind = DiscreteSac if discrete else Sac
        sac = kind(BATCHES, scaling.columns, SeedGenerators.of(seeds, GPU), constraint)
        for each in rows.view(9, len(seeds), *rows.shape[1:]):
            sac.update(each)
        found.append([sac.actor.vector, sac.critic.vector, sac.log_alpha, sac.act(each[..., :5])])
        assert all(
            math.isfinite(value) for of_seed in sac.pop_figures() for value in of_seed.values()
        )
    for recorded, launched in zip(*found, strict=True):
        torch.testing.assert_close(recorded, launched, rtol=0, atol=1e-6)
