"""A round with the next chunk read while one is worked on, beside the same rounds read chunk by chunk.

python -m benchmarks.speed.read_ahead

On two cores: with one thread of compute a core is left for reading; with two none is, and training would read nothing
ahead. Here it is made to.
"""

import tempfile
import time
from pathlib import Path

import torch

from benchmarks.machine import machine, write
from benchmarks.speed.cohort import SPACES, STEPS, fill
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training.cohort import CohortSource
from primorl.training.rounds import Rounds
from primorl.training.settings import CHUNK_BYTES, Execution
from primorl.trajectories.storage.store import ShardedStore, UnitStore
from tests.units import local_training, training_setup

UNITS, COHORT, ROUNDS, REPEATS = 3000, 300, 3, 3


def main() -> None:
    """Time both in turn, in memory and from disk, with one thread of compute and with two."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, UNITS)
        memory, disk = UnitStore.open(folder), ShardedStore(folder, keep_bytes=1 << 20)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for where, source in (("in memory", memory), ("from row groups on disk, none kept", disk)):
                for transitions in (200, STEPS) if threads == 1 else (200,):
                    rows.append(row(f"{where}, T {transitions}, {threads} thread(s) of compute", source, transitions))
    write("read_ahead", rows)


def row(what: str, source: CohortSource, transitions: int) -> dict[str, object]:
    """Rounds read ahead beside rounds that are not, median over repeats in turn."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(REPEATS):
        for ahead in times:
            times[ahead].append(seconds(source, transitions, ahead=ahead))
    ours, peer = (sorted(times[ahead])[REPEATS // 2] for ahead in (True, False))
    return {
        "what": f"a round, qK {COHORT} of K {UNITS}, N 3, 2x64, B 16, {what}",
        "ours": ours,
        "peer": peer,
        "peer_name": "the same round, each chunk read when its turn comes",
        "ratio": peer / ours,
        "unit": "s",
        "machine": machine(),
        "command": "python -m benchmarks.speed.read_ahead",
    }


def seconds(source: CohortSource, transitions: int, *, ahead: bool) -> float:
    """Wall time of a round, over a few in a row."""
    shape = Architecture(SPACES.observation_size, SPACES.action_size, 3, (64, 64), -10.0, 0.5)
    plan = Plan(
        source.units,
        "trajectory",
        PoissonSampler(COHORT / UNITS),
        EnsembleClip(0.5, "flat", 3, len(shape.layers)),
        1.0,
        ROUNDS,
        1e-5,
    )
    normaliser = Normaliser(
        torch.zeros(shape.inputs), torch.ones(shape.inputs), torch.zeros(shape.targets), torch.ones(shape.targets)
    )
    local = local_training(0.01, max_transitions_per_unit=transitions)
    execution = Execution(torch.device("cpu"), CHUNK_BYTES["cpu"], read_ahead=ahead)
    weights = shape.initial_weights(0)
    setup = training_setup(plan, shape, local=local, execution=execution)
    with Rounds(setup, source, normaliser) as training:
        started = time.perf_counter()
        for i in range(ROUNDS):
            total = training.sum(weights, last=i == ROUNDS - 1)
            weights = tuple(w + step for w, step in zip(weights, plan.release(total), strict=True))
        return (time.perf_counter() - started) / ROUNDS


if __name__ == "__main__":
    main()
