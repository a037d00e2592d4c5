"""Each cohort is summed whole and once, whatever the chunks and threads, and cohorts are
independent.
"""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.engine.rounds import Rounds, chunks
from primorl.engine.settings import Execution
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser
from primorl.model.features import Polynomials
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from tests.units import Ragged, local_training, make_units, training_setup

WHOLE = local_training(learning_rate=0.05, batch_size=64)  # one batch: no order matters
LENGTHS = [40, 1, 16, 17, 15, 33, 8, 20, 3]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def rounds_of(
    shape: Architecture, source: Ragged, identity: Normaliser, chunk_bytes: int = 1000
) -> Rounds:
    """Rounds in chunks of one unit, unless told otherwise."""
    clip = EnsembleClip(0.2, "flat", shape.members, len(shape.layers))
    plan = Plan(source.units, "trajectory", PoissonSampler(0.3), clip, 1.0, 9, 1e-5)
    execution = Execution(torch.device("cpu"), chunk_bytes)
    return Rounds(training_setup(plan, shape, local=WHOLE, execution=execution), source, identity)


def test_sums_do_not_depend_on_chunks_and_a_broken_round_leaves_nothing(
    shape: Architecture, identity: Normaliser, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:

    class Corrupt(Ragged):
        def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
            if 5 in units:
                raise PipelineError("part-0.parquet: corrupt")
            return super().transitions(units, steps)

    good, weights = make_units(shape, LENGTHS), shape.initial_weights(0)
    source = Corrupt(good.inputs, good.targets)
    sums = []
    for chunk_bytes in (1000, 300_000, 1 << 24):
        cohorts = iter([[0, 3, 8], [0, 1, 5, 2], [], [0, 1, 2, 3, 4, 6, 7, 8]])
        monkeypatch.setattr(
            Plan, "cohort", lambda plan, left=cohorts: torch.tensor(next(left), dtype=torch.int64)
        )
        with rounds_of(shape, source, identity, chunk_bytes=chunk_bytes) as training:
            first = training.sum(weights)
            with pytest.raises(PipelineError, match="corrupt"):
                training.sum(weights)
            assert not any(part.any() for part in training.sum(weights))
            sums.append([*first, *training.sum(weights)])
            assert torch.get_num_threads() == threads
    assert all(part.any() for part in sums[0])
    for other in sums[1:]:
        for a, b in zip(sums[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)  # rows come in another order
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("chunk")]


def test_features_of_all_steps_of_a_chunk_fit_the_memory() -> None:
    """Kernels copy them once, to put a column of ones beside."""
    features, chunk_bytes, epochs, rows = Polynomials(20, (), 2), 1 << 24, 4, 64
    shape = Architecture(
        16, 4, 1, (), -10.0, 0.5, learned_termination=False, features=features, spread=False
    )
    plan = Plan(
        64, "trajectory", PoissonSampler(1.0), EnsembleClip(0.2, "flat", 1, 1), 1.0, 9, 1e-5
    )
    local = local_training(batch_size=8, local_epochs=epochs)
    setup = training_setup(
        plan, shape, local=local, execution=Execution(torch.device("cpu"), chunk_bytes)
    )
    units = chunks(setup, torch.arange(64), torch.full((64,), rows), 1)[0][1]
    assert 1 < units <= chunk_bytes / (2 * 4 * features.size * epochs * rows)
