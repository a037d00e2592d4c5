"""Seeded schedules of crashes of paid work: ``python -m benchmarks.privacy.crash_schedules [--seed
S]``.

A schedule runs the real code of a paid training (`Desk.pay`, `train`, the writing of the model) in
a world of its own (`crash_world.py`), on SQLite in memory or PostgreSQL, with crashes at moments
that its seed draws. The next process begins with what is durable; nothing disturbs the last one,
and then the judge looks. The data are four made-up units, and the rounds are sums of two numbers.
What pays, saves, resumes, releases and writes is the project's.
"""

import argparse
import ast
import importlib
import io
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial, partialmethod
from pathlib import Path
from types import SimpleNamespace as Stub
from typing import Any, Self
from unittest.mock import patch

import psycopg
import torch

from benchmarks.machine import ROOT, command, row, write
from benchmarks.privacy.crash_world import (
    DB,
    DELTA,
    OUTPUT,
    UNITS,
    WEIGHTS,
    BrokenPromiseError,
    DiedError,
    StoppedError,
    World,
    device_of,
    held,
    in_world,
    must,
)
from primorl.base import PipelineError, files
from primorl.base.files import LEDGER, LEDGER_HEAD, MODEL, SECRET
from primorl.config.params import LedgerStore
from primorl.engine import training
from primorl.engine.heads import LENGTHS, SCALES
from primorl.engine.training import TrainingState
from primorl.privacy.ledger import ledger as ledgers
from primorl.privacy.ledger.history import Budget, Request, Version
from primorl.privacy.mechanism.mechanism import GaussianQuery, Mechanism
from primorl.work.data import open_to_charge
from primorl.work.desk import Desk
from tests.faults.table import CHARGES, FAULTS, Fault
from tests.privacy.ledger import postgresql

OURS = b"s" * 32
MODULE = "benchmarks.privacy.crash_schedules"
PLANTED = [
    *(
        fault
        for fault in FAULTS
        if fault.module == CHARGES or fault.name == "payment-rounds-made-up-for"
    ),
    Fault("lost-work-goes-unnoticed", CHARGES, "_refuse_lost_work", "has_begun(file)", "False"),
    Fault("number-one-behind", CHARGES, "_writer", "mark.saves + 1", "mark.saves"),
    Fault("fsync-dropped", "primorl.base.files", "sync", "os.fsync(handle)", "None"),
]
VERSION = Version("a" * 64, "trajectory", UNITS, bytes(range(16 * UNITS)))


class Rounds:
    """Sums of made-up updates, in the place of `primorl.engine.rounds.Rounds`."""

    def __init__(self, world: World, setup: Any, *_: object):
        self._world, self._mechanism = world, setup.mechanism

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Compute a round's sum; its number is that of the checkpoint, which announced it."""
        must(
            self._world.announced <= self._mechanism.rounds,
            "more rounds were announced than were paid for",
        )
        self._world.compute(f"round {self._world.announced}")
        cohort = self._mechanism.cohort()
        return self._mechanism.clip.finish(torch.ones(len(cohort), 2, dtype=torch.float64)).sum(0)


def settings(world: World) -> tuple[Any, Any, Any]:
    """Make parameters, partitions and the setup of a training, of no more than the code reads."""
    params = Stub(ledger=LedgerStore(url=world.url))
    facts = {
        "dataset_fingerprint": VERSION.fingerprint,
        "unit": VERSION.unit,
        "horizon": 3,
        "termination": "none",
    }
    info = Stub(dataset="data", environment=None, trajectories_per_person=None, **facts)
    partitions = Stub(
        manifest=Stub(info=info, private_units=UNITS, public_units=0, public_by="nobody")
    )
    stopping = Stub(patience=None, every=1)

    nothing = torch.zeros(2, dtype=torch.int64)

    def asked_late(*_: object) -> torch.Tensor:
        world.compute("the late query")
        return torch.zeros(2, dtype=torch.int64)

    setup = Stub(
        mechanism=world.mechanism,
        execution=Stub(device=torch.device("cpu")),
        server=Stub(server_momentum=0.0, server_averaging=0.0, early_stopping=stopping),
        first_weights=lambda: (torch.zeros(2),),
        digest="",
        shrink=lambda weights: weights,
        shape=lambda vector: (vector,),
        make_normaliser=lambda public, answers: Stub(to=lambda device: None),
        early_queries=lambda answers: {SCALES: Stub(total=lambda _: nothing)},
        late_queries=lambda: {LENGTHS: Stub(total=asked_late)} if world.mechanism.queries else {},
    )
    return params, partitions, setup


def process(world: World, identity: str) -> None:
    """Do as the stage does: sweep, pay or resume, train, write the model, commit."""
    files.sweep_leftovers(Path())
    params, partitions, setup = settings(world)
    request = Request(VERSION, "data", "train_model", identity, world.mechanism.event, DELTA)
    begin = TrainingState.begin(setup)
    ledger = open_to_charge(params)
    desk = Desk(ledger, Budget(100.0, DELTA), DELTA, VERSION, _partitions=partitions)
    with desk.pay(request, begin) as paid:
        charge = world.charge = paid.charge.id
        must(not world.lost, f"charge {charge} was granted although the ledger has lost charges")
        world.granted.add(charge)

        def save(state: TrainingState) -> None:
            paid.save(state)
            world.announced = state.started

        source: Any = None if paid.finished else Stub(units=UNITS)
        trained = training.train(setup, source, None, state=paid.state, save_checkpoint=save)
        weights = trained.weights[0].numpy().tobytes()
        statement = paid.state_privacy(world.mechanism, "none")
        with paid.finish(MODEL, statement) as folder:
            (folder / WEIGHTS).write_bytes(weights)
    written = held(MODEL / WEIGHTS)
    must(
        world.models.setdefault(charge, written) == written,
        f"charge {charge} made two different models",
    )


_ANSWER = Mechanism.answer


def _answer(
    mechanism: Mechanism, world: World, query: GaussianQuery, total: torch.Tensor
) -> torch.Tensor:
    """Draw a query's noise, which a charge pays for once; its rows may be read again."""
    if query.what == SCALES:
        world.compute("the query")
    return _ANSWER(mechanism, query, total)


def live(world: World, identity: str, *, last: bool = False) -> str:
    """Run one process with its faults; return how it ended: an empty string if well."""
    world.begin_life(last)
    if MODEL.exists() and world.rng.random() < 0.5:  # DVC deletes outputs before it runs a stage
        world.put(MODEL, None)
        world.track(MODEL, None, durable=True)
    said = ""
    try:
        rounds = patch.object(training, "Rounds", partial(Rounds, world))
        answers = patch.object(Mechanism, "answer", partialmethod(_answer, world))
        with in_world(world), rounds, answers, redirect_stderr(io.StringIO()):
            process(world, identity)
    except (DiedError, StoppedError, PipelineError, OSError) as ended:
        said = str(ended) or "stopped"
    except BrokenPromiseError:
        raise
    except Exception as unexpected:
        raise BrokenPromiseError(f"{type(unexpected).__name__}: {unexpected}") from None
    if world.dead:
        said = "died"
        if world.rng.random() < (0.9 if world.lies else 0.5):
            world.say("the power is cut")
            world.hits["power cut"] += 1
            world.cut_power()
    world.say(said or "ended well")
    world.check_losses()
    return said


def advised(world: World, said: str) -> bool:
    """Do as an error advises after a lie of the disk; False if it advises nothing, or no more can
    be done.
    """
    if OUTPUT in world.lies and "or delete it" in said:
        world.put(MODEL, None)
        return True
    back = {path for path in world.fallen if device_of(path) != OUTPUT}
    for path in back:
        world.put(path, world.newest[path])
        world.track(path, world.newest[path], durable=True)
    world.fallen -= back
    world.check_losses()
    return bool(back)


@contextmanager
def opened(world: World) -> Iterator[ledgers.Ledger]:
    """Open the world's ledger, undisturbed."""
    world.begin_life(last=True)
    url = world.url or f"sqlite:///{LEDGER}"
    with in_world(world):
        yield ledgers.Ledger(url, secret=OURS, anchor=LEDGER_HEAD)


def settle(world: World, identity: str) -> str:
    """Run on without faults, and do as errors advise; return the error that is left."""
    said = live(world, identity, last=True)
    for _ in range(4):
        if not said or not advised(world, said):
            break
        world.hits["advised"] += 1
        said = live(world, identity, last=True)
    return said


def judge(world: World, identities: Sequence[str]) -> str:
    """Run on without faults, to the end; return the refusal that is left where a lost database
    excuses it.
    """
    for identity in identities:
        said = settle(world, identity)
        if "pays for one answer only" in said:
            (lost,) = (charge for charge, (_, of) in world.charges().items() if of == identity)
            done = [what for of, what in world.computed if of == lost]
            must(
                done in ([], ["the query"]) and bool(world.mechanism.queries),
                f"charge {lost} was given up after {done}",
            )
            world.hits["another draw"] += 1
            identity += ", another draw"
            said = settle(world, identity)
        if said:
            must(DB in world.lies, f"what was paid cannot be had: {said}")
            return said
        charges = world.charges()
        own = {charge: state for charge, (state, of) in charges.items() if of == identity}
        must(list(own.values()) == ["committed"], f"one charge should be committed, found {own}")
        stated = files.read_json(MODEL / "privacy.json")["charge"]
        must(stated in own, "the model names another charge than was paid")
    must(
        DB in world.lies or world.granted <= charges.keys(),
        "a charge that was granted is not there",
    )
    with opened(world) as book:
        book.verify()
    return ""


def simulate(
    seed: int, folder: Path, server: "postgresql.Server | None" = None, *, trace: bool = False
) -> Counter[str]:
    """Run one schedule in ``folder``; return the numbers of its faults and its outcome.

    Raises:
        BrokenPromiseError: an invariant does not hold; the message names the seed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / SECRET.parent).mkdir(parents=True)
    os.chdir(folder)
    SECRET.write_bytes(OURS)
    MODEL.parent.mkdir()
    world = World(seed, folder, server, trace)
    identities = ["one", "two"] if world.rng.random() < 0.25 else ["one"]
    world.say(
        f"{world.crashes} crashes, queries: {len(world.mechanism.queries)}, lies: "
        f"{', '.join(world.lies) or 'none'}"
    )
    try:
        for _ in range(world.crashes):
            live(world, world.rng.choice(identities))
        refused = judge(world, identities)
    except BrokenPromiseError as broken:
        if not world.all_may_be_lost:
            raise BrokenPromiseError(f"seed {seed}: {broken}") from None
        world.hits["not noticed"] += 1
        refused = ""
    for connection in world.connections:
        psycopg.Connection.close(connection)
    world.hits["refused"] += bool(refused)
    world.hits["both"] += world.all_may_be_lost and world.hits["lost"] > 0
    return world.hits


@contextmanager
def with_fault(fault: Fault) -> Iterator[None]:
    """Plant a fault into a function of the project, as long as the block lasts."""
    module = importlib.import_module(fault.module)
    source = fault.plant(ROOT)
    name = fault.function.partition(".")[0]
    (changed,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    with patch.dict(vars(module)):
        exec(compile(ast.Module([changed], []), module.__file__ or name, "exec"), vars(module))
        yield


def first_caught(fault: Fault, folder: Path, most: int) -> int:
    """Return the number of schedules until a planted fault is noticed; 0: it was not."""
    with with_fault(fault):
        for seed in range(most):
            try:
                simulate(seed, folder)
            except BrokenPromiseError:
                return seed + 1
    return 0


def main() -> int:
    """Run schedules on both databases and with planted faults; write the table.

    With ``--seed``, replay one.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=100_000, help="on SQLite")
    parser.add_argument(
        "--postgresql", type=int, default=1000, help="schedules on a PostgreSQL server"
    )
    parser.add_argument("--minutes", type=float, default=60, help="for each database, at most")
    parser.add_argument(
        "--seed", type=int, help="replay this schedule; on PostgreSQL with --schedules 0"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name).resolve() / "world"
        if arguments.seed is not None:
            with nullcontext() if arguments.schedules else postgresql.server() as server:
                simulate(arguments.seed, folder, server, trace=True)
            return 0
        rows = many("SQLite", range(arguments.schedules), folder, None, arguments.minutes)
        with postgresql.server() as server:
            rows += many(
                "PostgreSQL", range(arguments.postgresql), folder, server, arguments.minutes
            )
        for fault in PLANTED:
            what = f"planted, {fault.name}: schedules until caught"
            rows.append(
                row(
                    command(MODULE),
                    what,
                    first_caught(fault, folder, 1000),
                    None,
                    None,
                    None,
                    "schedules",
                )
            )
        os.chdir(ROOT)
    write("crash_schedules", rows)
    return int(any("must be 0" in str(found["what"]) and found["ours"] for found in rows))


def many(
    database: str, seeds: range, folder: Path, server: "postgresql.Server | None", minutes: float
) -> list[dict[str, object]]:
    """Run schedules until the time is over; return the rows of the table."""
    began, used = time.monotonic(), time.process_time()
    done, broken, hits = 0, 0, Counter[str]()
    for seed in seeds:
        if time.monotonic() - began > 60 * minutes:
            break
        try:
            hits += simulate(seed, folder, server)
        except BrokenPromiseError as found:
            broken += 1
            print(found, flush=True)
        done += 1
    figures = [
        ("schedules", done, "schedules"),
        ("broken promises (must be 0)", broken, "schedules"),
        ("processes that died", hits["die"], "processes"),
        ("processes that were stopped by a signal", hits["stop"], "processes"),
        ("writes that failed", hits["fail"], "writes"),
        ("clock jumps", hits["clock"], "jumps"),
        ("power cuts", hits["power cut"], "cuts"),
        ("files that lost synced writes", hits["lost"], "files"),
        ("lost answers, for which another draw was paid", hits["another draw"], "answers"),
        ("losses noticed, and put right as the error advises", hits["advised"], "refusals"),
        ("losses noticed, and refused for good", hits["refused"], "schedules"),
        ("losses of database and checkpoint together", hits["both"], "schedules"),
        ("of these, not noticed (documented)", hits["not noticed"], "schedules"),
        ("schedules a second", done / (time.monotonic() - began), "1/s"),
        ("schedules a second of processor", done / (time.process_time() - used), "1/s"),
    ]
    return [
        row(command(MODULE), f"{database}: {what}", found, None, None, None, unit)
        for what, found, unit in figures
    ]


if __name__ == "__main__":
    sys.exit(main())
