"""What a private round costs beside its sum: noise, checkpoint, logging and accounting, as shares of the round.

python -m benchmarks.speed.overheads

The rounds are the stage's own: `train` with the stage's checkpoint (on the disk before every round), its MLflow run in
a fresh SQLite store, its progress bar and its reports of ε, in a project in a temporary folder beside this one. Shares
are told twice. The median over rounds of each round's own share is that of a usual round; accounting and evaluations,
which come now and then, are hardly in it. The total over the total has them, and every delay by another program.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import ROOT, row, write
from benchmarks.speed.fixed_round import FixedRound, Units
from primorl.config.params import load
from primorl.engine.training import TrainingState, train
from primorl.paid.training import training_report
from primorl.privacy.ledger.checkpoint import write_checkpoint
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.tracking import stage_run
from tests.units import server_training

RATE, EVALUATE_EVERY, PUBLIC = 0.1, 5, 60
SIZES = [
    (
        FixedRound(members=3, width=64, transitions=200, cohort=2940),
        150,
    ),  # the default: a cohort of 294
    (FixedRound(members=5, width=128, transitions=1000, cohort=300), 40),  # a cohort of 30
]


PARTS = ("noise", "checkpoint", "logging", "accounting")
COMMAND = "python -m benchmarks.speed.overheads"


def main() -> None:
    """Run the rounds of both sizes and keep the shares."""
    torch.set_num_threads(1)
    write(
        "overheads",
        [made for size, rounds in SIZES for made in shares(size, measure(size, rounds))],
    )


def shares(size: FixedRound, of_rounds: list[dict[str, float]]) -> list[dict[str, object]]:
    """A row for each part: the total over the total; and for all of them also by the median round."""
    whole = [spent["round"] for spent in of_rounds]
    of_what = (
        f"of a private round: K {size.cohort}, q {RATE}, N {size.members}, 2x{size.width}, T {size.transitions}, B 16, "
        f"{len(of_rounds)} rounds"
    )
    rows: list[dict[str, object]] = []
    for what, names in [*((part, (part,)) for part in PARTS), ("all of them", PARTS)]:
        mine = [sum(spent[name] for name in names) for spent in of_rounds]
        for average, how in ((statistics.fmean, "totals"), (statistics.median, "medians")):
            if (
                how == "medians" and names != PARTS
            ):  # accounting and evaluations come now and then: medians miss them
                continue
            each = [part / own for part, own in zip(mine, whole, strict=True)]
            share = sum(mine) / sum(whole) if how == "totals" else average(each)
            beside = "the whole round, in the same run"
            ours, peer = 1e3 * average(mine), 1e3 * average(whole)
            rows.append(row(COMMAND, f"{what}, {of_what}, {how}", ours, peer, beside, share, "ms"))
    return rows


def measure(size: FixedRound, rounds: int) -> list[dict[str, float]]:
    """Seconds of every round, whole (``round``) and by part; what ends the run is its last round's."""
    layers = len(size.shape.layers)
    clip = EnsembleClip(0.35, "flat", size.members, layers)
    plan = Plan(size.cohort, "trajectory", PoissonSampler(RATE), clip, 8.0, rounds, 1e-5)
    source = size.source()
    spent = dict.fromkeys((*PARTS, "round"), 0.0)
    marks = [dict(spent)]
    with project() as folder, stage_run("train_model", load(folder / "params.yaml")) as run:
        file = folder / ".primorl" / "checkpoints" / "benchmark.safetensors"

        def save_checkpoint(state: TrainingState) -> None:
            write_checkpoint(file, state, charge="benchmark")

        setup = replace(size.setup(), plan=plan, server=server_training(0.6, 0.9, EVALUATE_EVERY))
        with timed(spent), training_report(run, setup, "overheads") as report:

            def on_round(done: int, evaluation: Any) -> None:
                started, accounted = time.perf_counter(), spent["accounting"]
                report(done, evaluation)
                ended = time.perf_counter()
                spent["logging"] += ended - started - (spent["accounting"] - accounted)
                marks.append(spent | {"round": ended - began})

            began = time.perf_counter()
            timed_save = add_time(save_checkpoint, spent, "checkpoint")
            train(setup, source, public_of(source), save_checkpoint=timed_save, on_round=on_round)
            add_time(run.flush, spent, "logging")()
            marks[-1] = spent | {"round": time.perf_counter() - began}
    return [
        {name: after[name] - before[name] for name in after} for before, after in pairwise(marks)
    ]


@contextmanager
def project() -> Iterator[Path]:
    """A project of its own, on the disk that this one is on."""
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".overheads-") as name:
        folder, before = Path(name), Path.cwd()
        shutil.copy(ROOT / "params.yaml", folder)
        shutil.copytree(ROOT / "datasets", Path(folder) / "datasets")
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add up the time in the plan's release and accounting."""
    release, accounted = Plan.release, Plan.spent
    Plan.release = add_time(release, spent, "noise")  # type: ignore[method-assign]
    Plan.spent = add_time(accounted, spent, "accounting")  # type: ignore[method-assign]
    try:
        yield
    finally:
        Plan.release, Plan.spent = release, accounted  # type: ignore[method-assign]


def add_time(work: Callable[..., Any], spent: dict[str, float], part: str) -> Callable[..., Any]:
    """``work``, whose time is added to ``spent``."""

    def timing(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return work(*arguments, **options)
        finally:
            spent[part] += time.perf_counter() - started

    return timing


def public_of(source: Units) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a few units, which the looks are taken at."""
    return source.inputs[:PUBLIC].flatten(0, 1), source.targets[:PUBLIC].flatten(0, 1)


if __name__ == "__main__":
    main()
