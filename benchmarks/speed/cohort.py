"""A Poisson cohort of 300 units x 1,000 steps out of 30 million private transitions: read by the index, and in memory.

python -m benchmarks.speed.cohort [--units 30000] [--keep FOLDER]

Cold: the first read of the process; the system has the files' pages in its own cache (they are read once before), and
another small partition was read, so that libraries are loaded. Warm: the same row groups again, which stay in memory.
The peer is what reading a cohort takes without an index: a scan of the column of ids that reads the rows of the units
it wants.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import torch

from benchmarks.machine import machine, write
from primorl.trajectories.storage.parquet import RANDOM, PartReader, PartWriter
from primorl.trajectories.storage.schema import DatasetInfo, Spaces, trajectory_table
from primorl.trajectories.storage.store import ShardedStore, UnitStore

STEPS, COHORT, UNITS_A_BATCH = 1000, 300, 64
SPACES = Spaces((-1.0,) * 5, (1.0,) * 5, (-1.0,), (1.0,))
INFO = DatasetInfo("cohort", None, "trajectory", SPACES, STEPS, "none", "refuse", "0" * 64)


def main() -> None:
    """Write the partition, read cohorts, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=30_000)
    parser.add_argument("--keep", type=Path, help="write the partition here, or read the one that is here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        if not list(folder.glob("*.parquet")):
            fill(folder, arguments.units)
        measure(folder, f"python -m benchmarks.speed.cohort --units {arguments.units}")


def fill(folder: Path, units: int) -> None:
    """A private partition of ``units`` units of random numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    end = np.arange(STEPS) == STEPS - 1
    with PartWriter(folder, SPACES, RANDOM) as writer:
        for first in range(0, units, UNITS_A_BATCH):
            ids = [f"{i:012d}" for i in range(first, min(first + UNITS_A_BATCH, units))]
            observations = generator.uniform(-1, 1, (len(ids), STEPS + 1, 5)).astype(np.float32)
            actions = generator.uniform(-1, 1, (len(ids), STEPS, 1)).astype(np.float32)
            rewards = generator.uniform(0, 1, (len(ids), STEPS)).astype(np.float32)
            ends = ([np.zeros(STEPS, bool)] * len(ids), [end] * len(ids))
            writer.write(trajectory_table(SPACES, ids, ids, observations, actions, rewards, *ends))
        writer.finish(INFO)


def measure(folder: Path, command: str) -> None:
    """Time the reads one after the other."""
    with tempfile.TemporaryDirectory() as small:
        fill(Path(small), 3)
        ShardedStore(Path(small), 1 << 20).transitions(torch.arange(3), torch.zeros(3, 5, dtype=torch.int64))
    for part in folder.glob("*.parquet"):
        with part.open("rb") as file:
            while file.read(1 << 24):
                pass
    started = time.perf_counter()
    store = ShardedStore(folder, keep_bytes=4 << 30)
    opened = time.perf_counter() - started
    chosen = torch.rand(store.units).argsort()[:COHORT].sort().values
    steps = torch.rand(COHORT, STEPS).argsort(1)
    cold = _milliseconds(lambda: store.transitions(chosen, steps))
    warm = min(_milliseconds(lambda: store.transitions(chosen, steps)) for _ in range(5))
    others = [torch.rand(store.units).argsort()[:COHORT].sort().values for _ in range(5)]
    fresh = sorted(_milliseconds(lambda units=units: store.transitions(units, steps)) for units in others)[2]  # type: ignore[misc]
    scanned = _milliseconds(lambda: _scan(folder, [f"{i:012d}" for i in chosen.tolist()]))
    memory = UnitStore.open(folder)
    in_memory = min(_milliseconds(lambda: memory.transitions(chosen, steps)) for _ in range(5))
    first, second = store.transitions(chosen, steps), memory.transitions(chosen, steps)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    what = f"{COHORT} units x {STEPS} steps out of {PartReader(folder, 'partition').rows / 1e6:.0f}M transitions"
    rows: list[dict[str, object]] = [
        _row(f"{what}: opening the index", 1e3 * opened, command),
        _row(f"{what}: cold in the process", cold, command, scanned, "a filtered scan by pyarrow.dataset"),
        _row(f"{what}: another cohort, footers read (median of 5)", fresh, command, scanned, "the same"),
        _row(f"{what}: warm, the same row groups in memory", warm, command),
        _row(f"{what}: the whole partition in memory", in_memory, command),
    ]
    write("cohort", rows)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def _scan(folder: Path, ids: list[str]) -> object:
    wanted = ds.field("unit_id").isin(ids)
    return ds.dataset(folder).to_table(columns=["observation", "action", "reward", "next_observation"], filter=wanted)


def _milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - started)


def _row(
    what: str, ours: float, command: str, peer: float | None = None, named: str | None = None
) -> dict[str, object]:
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "peer_is": named,
        "ratio": None if peer is None else peer / ours,
        "unit": "ms",
        "machine": machine(),
        "command": command,
    }


if __name__ == "__main__":
    main()
