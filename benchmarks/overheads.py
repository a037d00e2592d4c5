"""What a private round costs beside its sum: noise, checkpoint, logging and accounting, as shares of the round.

python -m benchmarks.overheads

The rounds are the stage's own: `train` with the stage's checkpoint (on the disk before every round), its MLflow run in
a fresh SQLite store, its progress bar and its reports of ε, in a project in a temporary folder beside this one. Noise
and checkpoint come with every round: their medians, for other programs may hold up the disk now and then. Logging and
accounting come now and then: their means.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.fixed_round import FixedRound, Recorded
from benchmarks.machine import machine, write
from pipeline.dynamics import checkpoint
from pipeline.dynamics.rounds import CHUNK_BYTES, Execution
from pipeline.dynamics.training import Progress, ServerTraining, train
from pipeline.params import load
from pipeline.privacy.plan import Plan
from pipeline.progress import progress_bar
from pipeline.stages import train_model
from pipeline.tracking import stage_run

ROOT = Path(__file__).resolve().parent.parent
RATE, LOOK_EVERY, PUBLIC = 0.1, 5, 60
SIZES = [
    (FixedRound(members=3, width=64, transitions=200, cohort=2940), 150),  # the default: a cohort of 294
    (FixedRound(members=5, width=128, transitions=1000, cohort=300), 40),  # a cohort of 30
]


def main() -> None:
    """Run the rounds of both sizes and keep the shares."""
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for size, rounds in SIZES:
        spent = measure(size, rounds)
        whole = spent.pop("round")
        for what, mine in [*spent.items(), ("all of them", sum(spent.values()))]:
            rows.append(
                {
                    "what": f"{what}, of a private round: K {size.cohort}, q {RATE}, N {size.members}, 2x{size.width}, "
                    f"T {size.transitions}, B 16, {rounds} rounds",
                    "ours": 1e3 * mine,
                    "peer": 1e3 * whole,
                    "peer_name": "the whole round, in the same run; ratio: the share",
                    "ratio": mine / whole,
                    "unit": "ms",
                    "machine": machine(),
                    "command": "python -m benchmarks.overheads",
                }
            )
    write("overheads", rows)


def measure(size: FixedRound, rounds: int) -> dict[str, float]:
    """Seconds of a round, whole and by part."""
    layers = len(size.shape.layers)
    plan = Plan(size.cohort, "trajectory", RATE, 8.0, 0.35, "flat", rounds, 1e-5, size.members, layers)
    source = size.source()
    parts: dict[str, list[float]] = {"noise": [], "checkpoint": [], "logging": [], "accounting": []}
    with project() as folder, stage_run("train_model", load(folder / "params.yaml")) as run:
        file = folder / ".primorl" / "checkpoints" / "benchmark.safetensors"

        def keep(progress: Progress) -> None:
            checkpoint.write(file, progress, "benchmark")

        with timed(parts), progress_bar(rounds, "overheads", "round") as bar:
            report = train_model._reporter(run, bar, plan, size.shape)

            def on_round(done: int, look: Any) -> None:
                started, accounted = time.perf_counter(), sum(parts["accounting"])
                report(done, look)
                parts["logging"].append(time.perf_counter() - started - (sum(parts["accounting"]) - accounted))

            started = time.perf_counter()
            train(
                plan,
                size.shape,
                source,
                public_of(source),
                normaliser=size.normaliser,
                local=size.local,
                server=ServerTraining(momentum=0.6, averaging=0.9, look_every=LOOK_EVERY, patience=None),
                max_transitions=None,
                seed=0,
                execution=Execution(torch.device("cpu"), CHUNK_BYTES["cpu"], read_ahead=True),
                keep=add_time(keep, parts, "checkpoint"),
                on_round=on_round,
            )
            add_time(run.flush, parts, "logging")()
            whole = time.perf_counter() - started
    means = {name: sum(parts[name]) / rounds for name in ("logging", "accounting")}
    medians = {name: statistics.median(parts[name]) for name in ("noise", "checkpoint")}
    return medians | means | {"round": whole / rounds}


@contextmanager
def project() -> Iterator[Path]:
    """A project of its own, on the disk that this one is on."""
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".overheads-") as name:
        folder, before = Path(name), Path.cwd()
        shutil.copy(ROOT / "params.yaml", folder)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


@contextmanager
def timed(parts: dict[str, list[float]]) -> Iterator[None]:
    """Add up the time in the plan's release and accounting."""
    release, spent = Plan.release, Plan.spent
    Plan.release = add_time(release, parts, "noise")  # type: ignore[method-assign]
    Plan.spent = add_time(spent, parts, "accounting")  # type: ignore[method-assign]
    try:
        yield
    finally:
        Plan.release, Plan.spent = release, spent  # type: ignore[method-assign]


def add_time(work: Callable[..., Any], parts: dict[str, list[float]], part: str) -> Callable[..., Any]:
    """``work``, whose time is added to ``parts``."""

    def timing(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return work(*arguments, **options)
        finally:
            parts[part].append(time.perf_counter() - started)

    return timing


def public_of(source: Recorded) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a few units, which the looks are taken at."""
    return source.inputs[:PUBLIC].flatten(0, 1), source.targets[:PUBLIC].flatten(0, 1)


if __name__ == "__main__":
    main()
