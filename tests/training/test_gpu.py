"""On a GPU: the training that a CPU does, with chunks captured and not, alone and shared by two processes."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.entropy import SeededEntropy
from primorl.privacy.mechanism.plan import Plan
from primorl.setup import launcher
from primorl.training.cuda_graph import SumOfUpdates
from primorl.training.distributed import DistributedRounds, Group, _Do, _flat, _tell
from primorl.training.rounds import Rounds
from primorl.training.settings import Execution
from primorl.training.training import train
from tests.training import crew
from tests.training.crew import CPU, GPU
from tests.training.test_distributed import COMMAND
from tests.units import local_training, make_units, server_training, training_setup

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LENGTHS = [1, 4, 9, 14, 19, 24, 30, 39, 44, 55, 75, 120]  # in chunks of one unit: more than eight sizes
ONE_UNIT = 1000  # bytes


def trained(shape: Architecture, device: torch.device, chunk_bytes: int) -> Tensor:
    source = make_units(shape, LENGTHS)
    everything = torch.cat(list(source.inputs)), torch.cat(list(source.targets))
    plan = Plan(
        len(LENGTHS), "trajectory", 0.7, 0.3, 0.5, "flat", 6, 1e-3, shape.members, len(shape.layers),
        entropy=SeededEntropy(0),
    )  # fmt: skip
    setup = training_setup(
        plan,
        shape,
        local=local_training(learning_rate=0.05, batch_size=4, local_epochs=2, weight_decay=0.1),
        server=server_training(0.5, 0.5, 2, None),
        execution=Execution(device, chunk_bytes, read_ahead=True),
    )
    result = train(setup, source, everything)
    assert all(w.device.type == device.type for w in result.weights)
    return _flat([w.cpu() for w in result.weights])


@pytest.mark.parametrize("chunk_bytes", [ONE_UNIT, 1 << 26])
def test_a_seeded_training_releases_what_a_cpu_does(shape: Architecture, chunk_bytes: int) -> None:
    """Six rounds with noise, momentum and weight decay; with small chunks, more sizes than there may be graphs."""
    expected = trained(shape, CPU, chunk_bytes)
    torch.testing.assert_close(trained(shape, GPU, chunk_bytes), expected, rtol=0, atol=1e-5)
    assert float((expected - _flat(shape.initial_weights(0))).abs().max()) > 0.01


def test_rows_read_ahead_give_the_same_sums_in_every_round(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies run beside compute: a chunk that was used too early, or overwritten too early, would change a sum."""
    layers = len(shape.layers)
    source, plan = make_units(shape, LENGTHS), Plan(
        len(LENGTHS), "trajectory", 1.0, 1.0, 0.2, "flat", 9, 1e-5, shape.members, layers
    )  # fmt: skip
    local = local_training(learning_rate=0.05, batch_size=128)  # one batch: no order matters
    graphs: list[SumOfUpdates] = []

    def sums(device: torch.device, chunk_bytes: int, count: int) -> list[Tensor]:
        maps, weights = identity.to(device), [w.to(device) for w in shape.initial_weights(0)]
        execution = Execution(device, chunk_bytes, read_ahead=True)
        with Rounds(training_setup(plan, shape, local=local, execution=execution), source, maps) as rounds:
            graphs.append(rounds._sum_of_updates)
            return [_flat(rounds.sum(tuple(weights), last=i == count - 1)).cpu() for i in range(count)]

    (expected,) = sums(CPU, 1 << 26, 1)
    for chunk_bytes, captured in ((ONE_UNIT, 1), (200_000, 2), (1 << 26, 1)):
        for found in sums(GPU, chunk_bytes, 20):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert len(graphs[-1]._graphs) >= captured


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """This process and a second one, which share the GPU: tensors go through gloo, by way of the CPU."""
    with launcher.started(2, COMMAND) as watch, Group(GPU, watch=watch, silence=timedelta(seconds=60)) as both:
        yield both


def test_two_processes_on_one_gpu_have_the_sum_of_one(group: Group) -> None:
    weights = tuple(w.to(GPU) for w in crew.SHAPE.initial_weights(0))
    with crew.rounds(crew.plan(), crew.normaliser()) as alone:
        expected = _flat(alone.sum(crew.SHAPE.initial_weights(0), last=True))
    own: Any = crew.rounds(crew.plan().of_process(0, 2), crew.normaliser().to(GPU), GPU)
    _tell(group, crew.ON_GPU)  # type: ignore[arg-type]
    with DistributedRounds(group, own, crew.normaliser().to(GPU)) as shared:
        for last in (False, False, True):
            found = _flat(shared.sum(weights, last=last))
            assert found.device.type == "cuda"
            torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    _tell(group, _Do.STOP)
