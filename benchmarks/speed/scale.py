"""Time and memory of the stages that read the data, as units, rows and columns grow.

python -m benchmarks.speed.scale [--axes units rows columns processes] [--most 1e7]

Each stage runs in a process of its own on rows on disk, of which 16 MiB may stay in memory
(16 MB of them in memory): the smallest memory, and the most reading. What counts is processor time,
of the work without imports: other programs may run beside. Memory is the peak above that of the
imports. Units have mixed lengths. A point that is in benchmarks/results/scale.json is not measured
again. A line's slope is that of least squares in the logarithms over the upper half of its points.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from matplotlib.figure import Figure

from benchmarks.machine import ROOT, keep, read, row, write
from primorl.config.datasets import TabularDataset, validate
from primorl.config.reading import read_yaml
from primorl.data.identity.membership import Membership, project_secret
from primorl.data.ingestion import ingest
from primorl.data.partitioning import partition
from primorl.data.private import open_units
from primorl.data.storage.rows import PartReader, UnitStore
from primorl.engine import heads
from primorl.engine.settings import CHUNK_BYTES, Execution
from primorl.engine.setup import CloningSetup, TrainingSetup
from primorl.engine.shards import ALONE, Group, Processes
from primorl.engine.training import serve, train
from primorl.evaluate.private.behaviour import Asked, Behaviour, ask
from primorl.model.architecture import Architecture, CloneNetwork
from primorl.model.ensemble import GaussianEnsemble, Normaliser
from primorl.model.features import Columns, Polynomials
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import GaussianQuery, Mechanism
from tests.evaluate.private.conftest import mechanism_of, question
from tests.units import local_training, training_setup

COMMAND = "python -m benchmarks.speed.scale"
FIGURE = ROOT / "benchmarks" / "figures" / "scale.png"
KEPT = 16 << 20
ROUNDS, SESSION, AT_ONCE = 3, 100, 100_000
WHATS = ("linear heads", "network", "clone")  # what rounds train
STAGES = ("ingest", "partition", "open", *WHATS, "behaviour")


@dataclass(frozen=True)
class Size:
    """K units of about so many rows, and so many columns of an observation."""

    units: int
    rows: int
    columns: int = 3


AXES = {
    "units": [Size(units, 10) for units in (10**3, 3 * 10**3, 10**4, 3 * 10**4, 10**5, 10**6)],
    "rows": [Size(2000, rows) for rows in (5, 50, 500, 5000, 50_000)],
    "columns": [Size(2000, 20, columns) for columns in (2, 10, 25, 50, 100, 200)],
    "processes": [Size(units, 10) for units in (10**4, 10**5)],
}


def main() -> None:
    """Measure what is missing, then draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--most", type=float, default=1e7, help="rows of a point; up to 1e8")
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        stage, *numbers = arguments.work
        return work_together(stage, arguments.folder, Size(*map(int, numbers)))
    rows = read("scale")
    for axis in arguments.axes:
        for size in AXES[axis]:
            if size.units * size.rows <= arguments.most:
                measure(axis, size, rows)
    write("scale", rows)
    draw(rows)
    return None


def measure(axis: str, size: Size, rows: list[dict[str, Any]]) -> None:
    """Measure all stages at one point, or those that an interrupted run left."""
    jobs = [(stage, 1) for stage in STAGES]
    if axis == "processes":
        jobs = [(stage, processes) for stage in WHATS[:2] for processes in (1, 2)]
    point = {"axis": axis, **vars(size)}
    missing = [job for job in jobs if not any(_is(each, point, *job) for each in rows)]
    if not missing:
        return
    # Two stages make the files that the others read.
    made = [(stage, 1) for stage in ("make", "ingest", "partition")]
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        for stage, processes in [*made, *(job for job in missing if job not in made)]:
            found = child(stage, Path(folder), size, processes)
            if (stage, processes) not in missing:
                continue
            of = (
                f"{axis}: {size.units} units, {size.units * size.rows} rows, {size.columns} columns"
            )
            what = f"processor time of {stage}, {of}" + f", {processes} processes" * (processes > 1)
            own = row(COMMAND, what, found.pop("processor"), None, None, None, "s")
            rows.append(own | point | {"stage": stage, "processes": processes} | found)
            keep("scale", rows)
            print(what, own["ours"], found, flush=True)


def _is(each: dict[str, Any], point: dict[str, Any], stage: str, processes: int) -> bool:
    return each.items() >= (point | {"stage": stage, "processes": processes}).items()


def child(stage: str, folder: Path, size: Size, processes: int) -> dict[str, float]:
    """Run ``stage`` in processes of its own; of several, the largest figures."""
    if processes == 1:
        with ProcessPoolExecutor(1, get_context("fork")) as pool:
            return pool.submit(_alone, stage, folder, size).result()
    numbers = [size.units, size.rows, size.columns]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [
        sys.executable,
        *torchrun,
        *COMMAND.split()[1:],
        "--work",
        stage,
        *map(str, numbers),
        "--folder",
        str(folder),
    ]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: max(each[name] for each in found) for name in found[0]}


def _alone(stage: str, folder: Path, size: Size) -> dict[str, float]:
    torch.set_num_threads(1)
    return timed(lambda: task(stage, folder, size))


def work_together(stage: str, folder: Path, size: Size) -> None:
    """Run rounds as one of the processes that torchrun started, and print its figures."""
    torch.set_num_threads(1)
    with Processes() as group:
        figures = timed(lambda: rounds(stage, folder, size, group))
    print(json.dumps(figures), flush=True)


def timed(task: Callable[[], Callable[[], object] | None]) -> dict[str, float]:
    """Wall and processor seconds and memory of a task, or of the second half that it returns."""
    before, clocks = _memory(), (time.perf_counter(), time.process_time())
    rest = task()
    if rest is not None:
        clocks = time.perf_counter(), time.process_time()
        rest()
    wall, processor = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
    return {"wall": wall, "processor": processor, "memory": _memory() - before}


def _memory() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


def make(folder: Path, size: Size) -> None:
    """Write a log: units of half to one and a half times ``size.rows`` rows in trajectories of 100
    to 199.
    """
    (folder / "raw").mkdir()
    generator, writer = np.random.default_rng(0), None
    lengths = generator.integers(
        max(2, size.rows // 2), size.rows + (size.rows + 1) // 2 + 1, size.units
    )
    ends = np.cumsum(lengths)
    starts = ends - lengths
    for first in range(0, int(ends[-1]), AT_ONCE):
        place = np.arange(first, min(first + AT_ONCE, int(ends[-1])))
        user = np.searchsorted(ends, place, side="right")
        step = place - starts[user]
        session = np.minimum(step // SESSION, np.maximum(lengths[user] // SESSION - 1, 0))
        numbers = {
            f"o{i}": generator.standard_normal(len(place), dtype=np.float32).clip(-5, 5)
            for i in range(size.columns)
        }
        numbers |= {
            name: generator.random(len(place), dtype=np.float32) for name in ("action", "reward")
        }
        table = pa.table(
            {"user": user, "session": session, "step": step.astype(np.int32), **numbers}
        )
        writer = writer or pq.ParquetWriter(folder / "raw/log.parquet", table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def dataset(size: Size) -> TabularDataset:
    """The entry of the log."""
    names = [f"o{i}" for i in range(size.columns)]
    entry = read_yaml(ROOT / "datasets/csv-log.yaml", "the example of a log")
    action = {"columns": ["action"], "low": [0.0], "high": [1.0]}
    columns = entry["options"]["columns"] | {
        "unit": "user",
        "trajectory": "session",
        "order": "step",
        "action": action,
    }
    options = entry["options"] | {"columns": columns | {"observation": names}, "sorted": True}
    bounds = {
        "observation": {"low": [-5.0] * len(names), "high": [5.0] * len(names)},
        "reward": [0.0, 1.0],
    }
    changes = {"unit": "user", "horizon": 2 * SESSION, "trajectories_per_person": None}
    return validate(TabularDataset, entry | changes | {"options": options, "bounds": bounds})


def opened(folder: Path, own: slice = slice(None), *, members: bool = False) -> UnitStore:
    """The private rows; with ``members``, compared with the account as `open_private` does."""
    private = folder / "partitions/private"
    found = Membership(project_secret(), PartReader(private, made_by="partition").info.population)
    store = open_units(private, KEPT, found.update if members else lambda table: None, own)
    assert not members or found.to_bytes()
    return store


def setup_of(what: str, size: Size, units: int) -> TrainingSetup:
    """A few rounds, with the queries that the pipeline asks."""
    S, features = size.columns, None
    zeros, ones = torch.zeros(S + 1), torch.ones(S + 1)
    queries: tuple[GaussianQuery, ...] = ()
    changes: dict[str, Any] = {
        "normaliser": Normaliser(zeros, ones, zeros, ones),
        "execution": Execution(torch.device("cpu"), CHUNK_BYTES["cpu"]),
    }
    if what == "clone":
        shape: Any = CloneNetwork(S, 1, False, (32, 32), -5.0, 1.0)
    elif what == "network":
        shape = Architecture(S, 1, 3, (64, 64), -10.0, 0.5)
    else:
        features = Polynomials(S + 1, (), 2)
        shape = Architecture(S, 1, 1, (), -10.0, 0.5, features=features, spread=False)
        asked = heads.sensitivities(Columns(S, 1, (), discrete=False), clone=False).items()
        queries = tuple(GaussianQuery(*each, 1.0) for each in asked)
        changes["normaliser"] = "private"
    clip = EnsembleClip(0.5, "flat", shape.members, len(shape.layers))
    mechanism = Mechanism(
        units,
        "user",
        0.3 if what == "clone" else 0.05,
        clip,
        8.0,
        ROUNDS,
        1e-9,
        queries,
    )
    one = what != "network"
    local = local_training(0.1, 256 if one else 16, max_transitions_per_unit=256 if one else None)
    whole = training_setup(mechanism, shape, local=local, horizon=2 * SESSION, **changes)
    return CloningSetup(**vars(whole)) if what == "clone" else whole


def rounds(what: str, folder: Path, size: Size, group: Group = ALONE) -> Callable[[], object]:
    """Open the rows; then answer the queries and run the rounds."""
    rank, ranks = group.rank, group.ranks
    store = opened(folder, slice(rank, None, ranks))
    units = PartReader(folder / "partitions/private", made_by="partition").lengths().size
    setup = setup_of(what, size, units)
    setup = replace(setup, execution=replace(setup.execution, rank=rank, ranks=ranks))
    source = setup.view(store)
    group.check_coverage(units, store.numbers)
    if isinstance(group, Processes) and rank:
        return lambda: serve(group, setup, source, None)
    return lambda: train(setup, source, None, group=group)


def evaluation(folder: Path, size: Size) -> Callable[[], object]:
    """Open the rows; then ask for today's returns."""
    store, side = opened(folder), torch.full((size.columns,), 5.0)
    shape = Architecture(size.columns, 1, 3, (64, 64), -10.0, 0.5)
    zeros, ones = torch.zeros(size.columns + 1), torch.ones(size.columns + 1)
    bounds = setup_of("network", size, store.units).bounds
    ensemble = GaussianEnsemble(
        shape, shape.initial_weights(0), Normaliser(zeros, ones, zeros, ones), bounds
    )
    known = {
        "observation_low": -side,
        "observation_high": side,
        "horizon": 2 * SESSION,
        "ensemble": ensemble,
    }
    problem = question(store.units, size.columns, 1, **known)
    begin = Asked(torch.empty(0, dtype=torch.float64))
    asked = Behaviour(levels=6)
    mechanism = mechanism_of(store.units, 1.0)
    return lambda: ask(asked, problem, mechanism, store, begin)


def task(stage: str, folder: Path, size: Size) -> Callable[[], object] | None:
    """Run a stage, or open its rows and return the rest; files that nothing reads any more are
    deleted.
    """
    if stage in WHATS:
        return rounds(stage, folder, size)
    if stage == "behaviour":
        return evaluation(folder, size)
    if stage == "make":
        make(folder, size)
    elif stage == "ingest":
        ingest(folder / "raw", folder / "trajectories", "log", dataset(size))
        shutil.rmtree(folder / "raw")
    elif stage == "partition":
        partition(folder / "trajectories", folder / "partitions", public_fraction=0.01)
        shutil.rmtree(folder / "trajectories")
    else:
        opened(folder, members=True)
    return None


def slope(sizes: list[float], values: list[float]) -> float:
    """Slope of the upper half of a curve in the logarithms."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(np.maximum(values[half:], 1e-3)), 1)[0])


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw a panel for each axis, processor time above memory."""
    figure = Figure(figsize=(12.5, 8), dpi=110, layout="constrained")
    panels = figure.subplots(2, 3, sharex="col", sharey="row")
    labels = {
        "units": "units of 10 rows",
        "rows": "rows of 2,000 units",
        "columns": "columns, 2,000 units of 20 rows",
    }
    for place, (axis, label) in enumerate(labels.items()):
        for line, (key, name) in enumerate(
            (("ours", "processor seconds"), ("memory", "GB beside the imports"))
        ):
            panel = panels[line, place]
            for stage in STAGES:
                own = [each for each in rows if (each["axis"], each["stage"]) == (axis, stage)]
                sizes = [
                    each["units"] * each["rows"] if axis == "rows" else each[axis] for each in own
                ]
                values = [each[key] for each in own]
                if sizes:
                    panel.plot(
                        sizes, values, "o-", ms=3, label=f"{stage}: {slope(sizes, values):.2f}"
                    )
            panel.set(
                xscale="log",
                yscale="log",
                xlabel=label if line else None,
                ylabel=None if place else name,
            )
            panel.grid(alpha=0.3)
            panel.set_ylim(top=(1e3, 10)[line])  # room for the legend
            panel.legend(fontsize=7.5, title="slope", title_fontsize=7.5)
    figure.savefig(FIGURE)


if __name__ == "__main__":
    main()
