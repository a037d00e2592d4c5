"""Ingest of logs in Parquet at full scale: transitions a second, and the most memory it took.

python -m benchmarks.ingest [--units 30000] [--steps 1000]

The logs (float32 columns, user and trajectory numbers, ten files) are written to a temporary folder first, in a process
of its own; another then runs the whole stage's work: read, assemble, check every row, fingerprint, write. The peers are
the two things that no ingest can go without, on the same files: reading the log and writing the result, both with
Arrow alone.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import machine, write
from pipeline import params
from pipeline.params import AnyDataset
from pipeline.trajectories.ingestion import ingest

OBSERVATION = 5
FILES = 10
UNITS_PER_WRITE = 100


def main() -> None:
    """Make the logs, ingest them, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=30_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--work", choices=["make", "ingest", "read", "copy"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        _work(arguments.work, arguments.folder, arguments.units, arguments.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = {work: _process(work, folder, arguments) for work in ("make", "ingest", "read", "copy")}
    transitions = arguments.units * arguments.steps
    what = f"{transitions} transitions of {arguments.units} units, observation {OBSERVATION}, action 1, Parquet logs"
    command = f"python -m benchmarks.ingest --units {arguments.units} --steps {arguments.steps}"
    common = {"machine": machine(), "command": command}
    rows: list[dict[str, object]] = []
    for peer, name in (("read", "reading the log with Arrow alone"), ("copy", "reading and writing the result alone")):
        ours, theirs = (transitions / figures[work]["seconds"] for work in ("ingest", peer))
        rows.append(
            {"what": f"ingest, {what}", "ours": ours, "peer": theirs, "peer_name": name, "ratio": ours / theirs}
            | {"unit": "transitions/s"}
            | common
        )
    rows.append(
        {"what": f"peak memory of ingest, {what}", "ours": figures["ingest"]["gigabytes"], "peer": None, "ratio": None}
        | {"unit": "GB"}
        | common
    )
    write("ingest", rows)


def _process(work: str, folder: str, arguments: argparse.Namespace) -> dict[str, float]:
    sizes = ["--units", str(arguments.units), "--steps", str(arguments.steps)]
    command = [sys.executable, "-m", "benchmarks.ingest", "--work", work, "--folder", folder, *sizes]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(work, figures, flush=True)
    return figures


def _work(work: str, folder: Path, units: int, steps: int) -> None:
    raw, target = folder / "raw", folder / "trajectories"
    started, before = time.perf_counter(), time.process_time()
    if work == "make":
        _make(raw, units, steps)
    elif work == "ingest":
        ingest(raw, target, "log", _dataset())
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": taken, "processor_seconds": worked, "gigabytes": peak / 1e9}))


def _make(raw: Path, units: int, steps: int) -> None:
    """Write the logs in order: ``user`` 0 … units - 1 with one trajectory each, the last row of it truncated."""
    raw.mkdir()
    generator = np.random.default_rng(0)
    per_file = -(-units // FILES)
    for index in range(FILES):
        users = range(index * per_file, min((index + 1) * per_file, units))
        writer = None
        for first in range(users.start, users.stop, UNITS_PER_WRITE):
            table = _rows(range(first, min(first + UNITS_PER_WRITE, users.stop)), steps, generator)
            writer = writer or pq.ParquetWriter(raw / f"log-{index}.parquet", table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def _rows(users: range, steps: int, generator: np.random.Generator) -> pa.Table:
    """What was observed before each step and after the last: steps + 1 rows a user."""
    per_user = steps + 1
    rows = len(users) * per_user
    step = np.tile(np.arange(per_user, dtype=np.int32), len(users))
    numbers = {
        f"o{index}": generator.standard_normal(rows, dtype=np.float32).round(3) for index in range(OBSERVATION)
    } | {name: generator.random(rows, dtype=np.float32) for name in ("action", "reward")}
    return pa.table(
        {
            "user": np.repeat(np.array(users, dtype=np.int64), per_user),
            "session": np.repeat(np.array(users, dtype=np.int64) * 7, per_user),
            "step": step,
            **numbers,
            "terminated": np.zeros(rows, dtype=bool),
            "truncated": step == steps,
        }
    )


def _dataset() -> AnyDataset:
    """The example of a log in params.yaml, with these columns."""
    project = params.load(Path(__file__).resolve().parent.parent / "params.yaml")
    entry = project.datasets["csv-log"].model_dump()
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
    options = entry["options"] | {"columns": columns, "trajectory_ids": "global", "end": "flags", "sorted": True}
    changes = {
        "unit": "user",
        "horizon": None,
        "options": options,
        "bounds": {"observation": "public", "reward": "public"},
    }
    return type(project.datasets["csv-log"]).model_validate(entry | changes)


if __name__ == "__main__":
    main()
