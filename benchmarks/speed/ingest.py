"""Ingest of logs in Parquet at full scale: transitions a second, and the most memory it took.

python -m benchmarks.speed.ingest [--units 30000] [--steps 1000]

The logs (float32 columns, user and trajectory numbers, ten files) are written to a temporary folder
first, in a process of its own; another then runs the whole stage's work: read, assemble, check
every row, fingerprint, write. The peers are the two things that no ingest can go without: reading
the log, and reading and writing the result, with Arrow alone. A second log has as many rows in
order of time, all users' together, and is sorted on the way.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import row, write
from primorl.config.datasets import TabularDataset, validate
from primorl.config.reading import read_yaml
from primorl.data.ingestion import ingest

WORK = ("make", "ingest", "read", "copy", "make_by_time", "ingest_by_time")
OBSERVATION = 5
FILES = 10
ROWS_PER_WRITE = 100_000
Integers = npt.NDArray[np.int64]


def main() -> None:
    """Make the logs, ingest them, keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, default=30_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--work", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        _work(arguments.work, arguments.folder, arguments.units, arguments.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = {work: _process(work, folder, arguments) for work in WORK}
    transitions = arguments.units * arguments.steps
    what = (
        f"{transitions} transitions of {arguments.units} units, observation {OBSERVATION}, action "
        "1, Parquet logs"
    )
    command = (
        f"python -m benchmarks.speed.ingest --units {arguments.units} --steps {arguments.steps}"
    )
    peers = {
        "read": "reading the log with Arrow alone",
        "copy": "reading and writing the result with Arrow alone",
    }
    rows: list[dict[str, object]] = []
    for work, kind in (("ingest", "sorted"), ("ingest_by_time", "in order of time, sorted here")):
        rate = transitions / figures[work]["seconds"]
        for peer, name in peers.items():
            beside = transitions / figures[peer]["seconds"]
            rows.append(
                row(
                    command,
                    f"ingest, {what}, {kind}",
                    rate,
                    beside,
                    name,
                    rate / beside,
                    "transitions/s",
                )
            )
        million = 1e6 * figures[work]["processor_seconds"] / transitions
        rows += [
            row(
                command,
                f"peak memory of ingest, {what}, {kind}",
                figures[work]["gigabytes"],
                None,
                None,
                None,
                "GB",
            ),
            row(
                command,
                f"processor time a million of ingest, {what}, {kind}",
                million,
                None,
                None,
                None,
                "s",
            ),
        ]
    write("ingest", rows)


def _process(work: str, folder: str, arguments: argparse.Namespace) -> dict[str, float]:
    sizes = ["--units", str(arguments.units), "--steps", str(arguments.steps)]
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.ingest",
        "--work",
        work,
        "--folder",
        folder,
        *sizes,
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(work, figures, flush=True)
    return figures


def _work(work: str, folder: Path, units: int, steps: int) -> None:
    raw, target = folder / "raw", folder / "trajectories"
    started, before = time.perf_counter(), time.process_time()
    if work.startswith("make"):
        shutil.rmtree(raw, ignore_errors=True)
        _make(raw, units, steps, by_time=work == "make_by_time")
    elif work.startswith("ingest"):
        ingest(raw, target, "log", _dataset(is_sorted=work == "ingest"))
    elif work == "read":
        for path in sorted(raw.iterdir()):
            for _ in pq.ParquetFile(path).iter_batches():
                pass
    else:
        for part in sorted(target.glob("*.parquet")):
            file = pq.ParquetFile(part)
            with pq.ParquetWriter(folder / "copy.parquet", file.schema_arrow) as writer:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))
    taken, worked = time.perf_counter() - started, time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    print(json.dumps({"seconds": taken, "processor_seconds": worked, "gigabytes": peak / 1e9}))


def _make(raw: Path, units: int, steps: int, by_time: bool) -> None:
    """Write the logs: users 0 … units - 1 with one session each, its rows together or, ``by_time``,
    scattered.

    A session has a row for every step and one for what was observed after the last.
    """
    raw.mkdir()
    generator = np.random.default_rng(0)
    outer, inner = (steps + 1, units) if by_time else (units, steps + 1)
    at_once = max(ROWS_PER_WRITE // inner, 1)
    for index, part in enumerate(np.array_split(np.arange(outer), FILES)):
        with pq.ParquetWriter(
            raw / f"log-{index}.parquet", _rows(part[:0], part[:0], 0, generator).schema
        ) as writer:
            for some in (part[first : first + at_once] for first in range(0, len(part), at_once)):
                slow, quick = np.repeat(some, inner), np.tile(np.arange(inner), len(some))
                user, step = (quick, slow) if by_time else (slow, quick)
                writer.write_table(_rows(user, step, steps, generator))


def _rows(user: Integers, step: Integers, last: int, generator: np.random.Generator) -> pa.Table:
    count = len(user)
    numbers = {
        f"o{index}": generator.standard_normal(count, dtype=np.float32).round(3)
        for index in range(OBSERVATION)
    } | {name: generator.random(count, dtype=np.float32) for name in ("action", "reward")}
    columns = {"user": user, "session": 7 * user, "step": step.astype(np.int32), **numbers}
    return pa.table(
        columns | {"terminated": np.zeros(count, dtype=bool), "truncated": step == last}
    )


def _dataset(is_sorted: bool) -> TabularDataset:
    """The example of a log, with these columns."""
    entry = read_yaml(
        Path(__file__).resolve().parents[2] / "datasets/csv-log.yaml", "the example of a log"
    )
    columns = {
        "unit": "user",
        "trajectory": "session",
        "order": "step",
        "observation": [f"o{index}" for index in range(OBSERVATION)],
        "action": {"columns": ["action"], "low": [0.0], "high": [1.0]},
        "reward": "reward",
        "terminated": "terminated",
        "truncated": "truncated",
        "next_observation": None,
    }
    options = entry["options"] | {
        "columns": columns,
        "trajectory_ids": "global",
        "end": "flags",
        "sorted": is_sorted,
    }
    changes = {
        "unit": "user",
        "horizon": None,
        "options": options,
        "bounds": {"observation": "public", "reward": "public"},
    }
    return validate(TabularDataset, entry | changes)


if __name__ == "__main__":
    main()
