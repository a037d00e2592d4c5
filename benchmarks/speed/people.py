"""Time and memory of ingest, partition and the first cohort for many people and for wide rows.

python -m benchmarks.speed.people [--people 1000000] [--rows 5000000] [--before TREE]

Two logs are made: PEOPLE people with one trajectory of 5 transitions each, and ROWS rows of 50 columns in trajectories
of 50. Each step runs in a process of its own, so that its peak memory is its own. ``--before`` names another checkout
of this project; the same steps then run there too, and are the peer of every row.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import machine, write
from primorl.config.datasets import TabularDataset, checked

HERE = Path(__file__).resolve().parents[2]
WORK = ("ingest", "partition", "open")
ROWS_PER_WRITE = 100_000
COHORT = 1_000
SALT = "benchmark"


def main() -> None:
    """Make both logs, run every step on them, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--before", type=Path, default=None)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--work", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--columns", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        _work(arguments.work, arguments.columns)
        return
    command = f"python -m benchmarks.speed.people --people {arguments.people} --rows {arguments.rows}"
    command += "" if arguments.before is None else " --before TREE"
    rows: list[dict[str, object]] = []
    for name, units, steps, columns in (
        (f"{arguments.people} people of 5 transitions", arguments.people, 5, 4),
        (f"{arguments.rows} transitions of 50 columns", arguments.rows // 50, 50, 50),
    ):
        trees = [HERE] if arguments.before is None else [HERE, arguments.before.resolve()]
        with tempfile.TemporaryDirectory() as folder:
            _make(Path(folder), units, steps, columns)
            measured = [_measure(tree, Path(folder), columns, arguments.repeats) for tree in trees]
        for work in WORK:
            for what, unit in (("seconds", "s"), ("processor_seconds", "s"), ("gigabytes", "GB")):
                ours = measured[0][work][what]
                peer = measured[1][work][what] if len(measured) > 1 else None
                rows.append(
                    {"what": f"{work}: {what.replace('_', ' ')}, {name}", "ours": ours, "peer": peer}
                    | {"peer_name": "before", "ratio": None if peer is None else ours / peer, "unit": unit}
                    | {"machine": machine(), "command": command}
                )
    write("people", rows)


def _measure(tree: Path, folder: Path, columns: int, repeats: int) -> dict[str, dict[str, float]]:
    """The best of ``repeats`` for every step, with the code of ``tree``."""
    best: dict[str, dict[str, float]] = {}
    script = Path(__file__).resolve()
    for work in WORK:
        for _ in range(repeats):
            done = subprocess.run(
                [sys.executable, str(script), "--work", work, "--columns", str(columns)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            )
            found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
            known = best.setdefault(work, found)
            best[work] = {key: min(value, known[key]) for key, value in found.items()}
        print(tree.name, work, {key: round(value, 2) for key, value in best[work].items()}, flush=True)
    return best


def _work(work: str, columns: int) -> None:
    import torch

    from primorl.trajectories.identity.fingerprint import project_secret
    from primorl.trajectories.identity.membership import Membership
    from primorl.trajectories.ingestion import ingest
    from primorl.trajectories.partitioning import partition
    from primorl.trajectories.storage.store import open_units

    started, before = time.perf_counter(), time.process_time()
    if work == "ingest":
        ingest(Path("raw"), Path("trajectories"), "log", _dataset(columns))
    elif work == "partition":
        partition(Path("trajectories"), Path("partitions"), public_fraction=0.02, salt=SALT)
    else:
        members = Membership(project_secret(), "log")
        store = open_units(Path("partitions/private"), 2**40, members.update)
        members.to_bytes()
        units = torch.arange(0, store.units, max(store.units // COHORT, 1))
        store.transitions(units, torch.zeros(len(units), 4, dtype=torch.int64))
    taken, worked = time.perf_counter() - started, time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": taken, "processor_seconds": worked, "gigabytes": peak / 1e9}))


def _make(folder: Path, units: int, steps: int, columns: int) -> None:
    """Write the log: people 0 … units - 1 with ``steps`` rows each, sorted, in one Parquet file."""
    (folder / "raw").mkdir()
    generator = np.random.default_rng(0)
    at_once = max(ROWS_PER_WRITE // steps, 1)
    writer: pq.ParquetWriter | None = None
    for first in range(0, units, at_once):
        count = min(at_once, units - first)
        person, step = np.repeat(np.arange(first, first + count), steps), np.tile(np.arange(steps), count)
        numbers = {f"o{i}": generator.standard_normal(len(step), dtype=np.float32) for i in range(columns)}
        numbers |= {f"n{i}": np.append(numbers[f"o{i}"][1:], np.float32(0)) for i in range(columns)}
        numbers |= {name: generator.random(len(step), dtype=np.float32) for name in ("action", "reward")}
        ends = {"terminated": np.zeros(len(step), dtype=bool), "truncated": step == steps - 1}
        table = pa.table({"person": person, "step": step.astype(np.int32), **numbers, **ends})
        writer = writer or pq.ParquetWriter(folder / "raw" / "log.parquet", table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def _dataset(columns: int) -> TabularDataset:
    named: dict[str, Any] = {
        "unit": None,
        "trajectory": "person",
        "order": "step",
        "observation": [f"o{i}" for i in range(columns)],
        "action": {"columns": ["action"], "low": [0.0], "high": [1.0]},
        "reward": "reward",
        "terminated": "terminated",
        "truncated": "truncated",
        "next_observation": [f"n{i}" for i in range(columns)],
    }
    options = {"files": "log.parquet", "csv": {"delimiter": ",", "decimal_point": "."}, "columns": named}
    return checked(
        TabularDataset,
        {
            "source": "tabular",
            "environment": None,
            "unit": "trajectory",
            "horizon": None,
            "termination": "none",
            "ingestion": {},
            "options": options | {"trajectory_ids": "global", "end": "flags", "sorted": True},
            "bounds": {"observation": "public", "reward": "public"},
            "score": None,
            "suggested": {block: {} for block in ("partition", "privacy", "dynamics", "policy", "evaluation")},
        },
    )


if __name__ == "__main__":
    main()
