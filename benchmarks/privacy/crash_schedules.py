"""Seeded schedules of crashes of paid work: ``python -m benchmarks.privacy.crash_schedules [--seed S]``.

A schedule runs the real code of a paid training (`paid_work`, `train`, the writing of the model, the log) in a world of
its own: a folder in memory, and SQLite in memory or PostgreSQL. At every write the schedule may kill the process, stop
it by a signal, cut the power, fail the write, lose the connection before or after COMMIT, or move the clock. The next
process begins with what is durable; nothing disturbs the last one. The data are four made-up units, the rounds are sums
of two numbers, and MLflow's client is a stub. What pays, saves, resumes, releases and writes is the project's.

After a power cut a file has one of its states since its folder's last fsync; content that was renamed before its own
fsync is torn. A disk that *lies* may go back beyond that. The books of the judge lie outside the world: what was
computed, which charges were granted, which models were made.
"""

import argparse
import ast
import errno
import importlib
import io
import itertools
import json
import os
import random
import secrets
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, redirect_stderr, suppress
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace as Stub
from typing import Any, Self, TypeVar
from unittest.mock import patch

import mlflow.entities
import mlflow.exceptions  # noqa: F401 - else a process would import it at a moment of its own
import psycopg
import sqlalchemy as sa
import torch
from psycopg.errors import UndefinedTable
from sqlalchemy.engine.default import DefaultDialect

from benchmarks.machine import ROOT, command, row, write
from primorl.base import files
from primorl.base.errors import PipelineError
from primorl.base.paths import CHECKPOINTS, LEDGER, LEDGER_HEAD, MODEL, SECRET
from primorl.engine import training
from primorl.engine.heads import LENGTHS, SCALES
from primorl.engine.training import ENGINE_VERSION, TrainingState
from primorl.paid import work
from primorl.paid.training import PaidModel, _released
from primorl.privacy.ledger import ledger as ledgers
from primorl.privacy.ledger import store
from primorl.privacy.ledger.history import Request, Version
from primorl.privacy.ledger.ledger import BrokenLedger
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.tracking import StageRun
from primorl.tracking.store import Log
from primorl.tracking.store import Store as Tracking
from tests.faults.edits import expression, module_file, planted
from tests.faults.table import CHARGES, FAULTS, Fault
from tests.privacy.ledger import postgresql

T = TypeVar("T")
L = TypeVar("L", bound=ledgers.Ledger)
Content = bytes | dict[str, bytes] | None
"""Of a file, or of the files of a folder; None: there is nothing."""
ROUNDS, UNITS, DELTA = 3, 4, 1e-5
MOMENTS = 120  # writes of an undisturbed run, about
OURS = b"s" * 32
MODULE = "benchmarks.privacy.crash_schedules"
DB, HEAD, CHECKPOINT, OUTPUT = "database", "head", "checkpoint", "output"
LIARS = [(), (DB,), (HEAD,), (CHECKPOINT,), (OUTPUT,), (DB, HEAD), (HEAD, CHECKPOINT), (DB, HEAD, CHECKPOINT)]
PLANTED = [
    *(fault for fault in FAULTS if fault.module == CHARGES or fault.name == "payment-rounds-made-up-for"),
    Fault("lost-work-goes-unnoticed", CHARGES, "_refuse_lost_work", expression("has_begun(file)", "False")),
    Fault("number-one-behind", CHARGES, "_writer", expression("mark.saves + 1", "mark.saves")),
    Fault("fsync-dropped", "primorl.base.files", "flush", expression("os.fsync(handle)", "None")),
]
WEIGHTS = "weights.safetensors"
VERSION = Version("a" * 64, "trajectory", UNITS, bytes(range(16 * UNITS)))


class Memory(sqlite3.Connection):
    """SQLite's database in memory. All processes of a world are given this connection."""

    def close(self) -> None:
        """End a process's connection: what was not committed is lost."""
        self.rollback()


class Server(psycopg.Connection[Any]):
    """A connection to PostgreSQL that all processes of a world are given, since to begin one takes long."""

    close = Memory.close


class DiedError(BaseException):
    """The process is gone: no handler sees it, and nothing is written any more."""


class StoppedError(KeyboardInterrupt):
    """SIGTERM or Ctrl-C."""


class World:
    """One schedule: what is durable, the faults to come, and the judge's books."""

    def __init__(self, seed: int, folder: Path, server: "postgresql.Server | None", trace: bool = False):
        self.rng, self.folder, self.trace = random.Random(seed), folder, trace
        self.url = None if server is None else server.new_url()
        self.plan = plan_of(self.rng.random() < 0.5)
        on_disk = server is None  # a server's disk is not simulated
        self.lies = self.rng.choices(LIARS, [10, on_disk, 1, 3, 1, on_disk, 1, on_disk])[0]
        self.all_may_be_lost = {DB, CHECKPOINT} <= set(self.lies)
        self.crashes, self.clock, self.life = self.rng.choices([1, 2, 3, 4], [4, 3, 2, 1])[0], 0.0, 0
        self.memory, self.connections = Memory(":memory:"), self.connected()
        self.history: dict[Path, list[Content]] = {}  # states of each file, oldest first
        self.durable: Counter[Path] = Counter()  # index of the state that is surely on the disk
        self.unsynced: set[Path] = set()
        self.newest: dict[Path, Content] = {}  # as a process wrote it
        self.fallen: set[Path] = set()
        # The judge's books
        self.computed: list[tuple[str, str]] = []  # charge, and round or query
        self.granted: set[str] = set()
        self.models: dict[str, Content] = {}
        self.lost = False  # charges that something was computed under
        self.hits: Counter[str] = Counter()

    def connected(self) -> list[Server]:
        """Connect to the server, to write and to read."""
        url = None if self.url is None else self.url.replace("+psycopg", "")
        return [] if url is None else [Server.connect(url), Server.connect(url)]

    def say(self, line: str) -> None:
        """Print a line of the trace."""
        if self.trace:
            print(f"  process {self.life}: {line}")

    def begin_life(self, last: bool) -> None:
        """Begin a process, and draw its faults."""
        self.life, self.moments, self.dead, self.charge, self.announced = self.life + 1, 0, False, "", 0
        rng, self.faults = self.rng, {}
        if not last:
            for kind in (rng.choice(["die", "die", "die", "fail", "stop"]), rng.choice(["fail", "clock", "clock"])):
                self.faults[1 + int(MOMENTS * rng.random() ** 2)] = (kind, rng.choice(["before", "half", "after"]))

    def at(
        self, what: str, path: Any, act: Callable[[], T], error: Exception, half: Callable[[], object] = lambda: None
    ) -> T:
        """Make a write, with the fault that the schedule has for this moment."""
        if self.dead:
            raise DiedError
        self.moments += 1
        kind, when = self.faults.get(self.moments, ("", ""))
        if self.trace:
            self.say(f"{self.moments}: {what} {self.path(path)}{kind and f': {kind} {when}'}")
        if kind == "":
            return act()
        self.hits[kind] += 1
        if kind == "clock":
            self.clock += self.rng.choice([-1, 1]) * 10 ** self.rng.uniform(0, 9)
            return act()
        {"before": lambda: None, "half": half, "after": act}[when]()
        if kind == "fail":
            raise error
        if kind == "stop":
            raise StoppedError
        self.dead = True
        raise DiedError

    def path(self, name: Any) -> Path:
        """Return a path relative to the world."""
        path = Path(name)
        return path.relative_to(self.folder) if path.is_absolute() else path

    def track(self, path: Path, content: Content, *, durable: bool = False) -> None:
        """Note that a process has made the disk hold ``content``, or has asked it to."""
        self.newest[path] = content
        states = self.history.setdefault(path, [None])
        states.append(content)
        self.durable[path] = len(states) - 1 if durable else self.durable[path]

    def sync(self, path: Path) -> None:
        """Note that a file, or the names in a folder, are on the disk."""
        self.unsynced.discard(path)
        for known, states in self.history.items():
            if known.parent == path:
                self.durable[known] = len(states) - 1

    def database_written(self) -> None:
        """Note what SQLite has committed."""
        if DB in self.lies and not self.memory.in_transaction:
            self.track(LEDGER, self.memory.serialize(), durable=True)

    def cut_power(self) -> None:
        """Put every file into a state that the disk may hold."""
        far = self.rng.choice([1, 2, 4, 99])
        for path, states in self.history.items():
            last, least = len(states) - 1, self.durable[path]
            if device_of(path) in self.lies:
                least = max(0, least - self.rng.randint(0, far))
            chosen = self.rng.randint(least, last)
            if chosen < last:
                self.say(f"{path} falls back by {last - chosen} of {last} writes")
            if chosen < self.durable[path]:
                self.hits["lost"] += 1
                self.fallen.add(path)
            self.put(path, states[chosen])
            states.append(states[chosen])
            self.durable[path] = len(states) - 1
        self.unsynced.clear()

    def put(self, path: Path, content: Content) -> None:
        """Make the disk hold this at ``path``."""
        if path == LEDGER:
            self.memory, self.connections = Memory(":memory:"), self.connected()
            if isinstance(content, bytes):
                self.memory.deserialize(content)
            return
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if isinstance(content, dict):
            path.mkdir(parents=True)
            for name, part in content.items():
                (path / name).write_bytes(part)
        elif content is not None:
            path.write_bytes(content)

    def charges(self) -> dict[str, tuple[str, str]]:
        """Return state and identity of each charge in the database, read past the project's code."""
        select, bodies = "SELECT body FROM ledger_records ORDER BY sequence", []
        if self.url is not None:
            with suppress(UndefinedTable), self.connections[True].transaction():
                bodies = self.connections[True].execute(select).fetchall()
        else:
            there = self.memory.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger_records'").fetchall()
            bodies = self.memory.execute(select).fetchall() if there else []
        found: dict[str, tuple[str, str]] = {}
        for (body,) in bodies:
            record = json.loads(body)
            if record["kind"] in ("reserved", "committed", "aborted"):
                _, identity = found.get(record["charge"], ("", record.get("identity")))
                found[record["charge"]] = (record["kind"], identity)
        return found

    def check_losses(self) -> None:
        """Note whether charges are gone under which something was computed; check the model that is there."""
        there = self.charges()
        self.lost = any(charge not in there for charge, _ in self.computed)
        must(not self.lost or DB in self.lies, "the ledger has lost charges")
        if MODEL.exists() and not {DB, OUTPUT} & set(self.lies):
            content = held(MODEL)
            assert isinstance(content, dict)
            stated = json.loads(content.get("privacy.json", b"{}"))
            must(WEIGHTS in content and stated.get("charge") in there, "the model is not whole, or unpaid")

    def compute(self, what: str) -> None:
        """Count a look at private rows; its charge must be there, and not have paid for it before."""
        must(self.charge in self.charges(), f"{what} was computed under charge {self.charge}, which is not there")
        must((self.charge, what) not in self.computed, f"{what} was computed twice under charge {self.charge}")
        must(not self.lost, f"{what} was computed although the ledger has lost charges")
        self.computed.append((self.charge, what))
        self.say(f"computes {what} under {self.charge}")


def device_of(path: Path) -> str:
    """Tell what a file is part of."""
    return {LEDGER: DB, LEDGER_HEAD: HEAD}.get(path, CHECKPOINT if path.parent == CHECKPOINTS else OUTPUT)


class BrokenPromiseError(Exception):
    """An invariant does not hold."""


def must(holds: bool, otherwise: str) -> None:
    """Raise the error of the judge."""
    if not holds:
        raise BrokenPromiseError(otherwise)


def held(path: Path, torn: Callable[[Path], bool] = lambda path: False) -> Content:
    """Return what is at ``path``; what ``torn`` names is cut in half."""
    if path.is_dir():
        return {file.name: held(file, torn) for file in path.iterdir()}  # type: ignore[misc]
    content = path.read_bytes()
    return content[: len(content) // 2] if torn(path) else content


@cache
def plan_of(queries: bool) -> Plan:
    """A plan with a query before and one after its rounds, or without."""
    asked = (GaussianQuery(SCALES, 1.0, 20.0), GaussianQuery(LENGTHS, 1.0, 20.0)) if queries else ()
    return Plan(UNITS, "trajectory", PoissonSampler(0.5), L2Clip(1.0), 20.0, ROUNDS, DELTA, asked)


class Rounds:
    """Sums of made-up updates, in the place of `primorl.engine.rounds.Rounds`."""

    def __init__(self, world: World, setup: Any, *_: object):
        self._world, self._plan = world, setup.plan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sum(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute a round's sum; its number is that of the checkpoint, which announced it."""
        must(self._world.announced <= self._plan.rounds, "more rounds were announced than were paid for")
        self._world.compute(f"round {self._world.announced}")
        cohort = self._plan.cohort()
        return [self._plan.clip.finish(torch.ones(len(cohort), 2, dtype=torch.float64)).sum(0)]

    def late(self, *_: object) -> torch.Tensor:
        """Compute the sum of the query that follows the rounds."""
        self._world.compute("the late query")
        return torch.zeros(2, dtype=torch.int64)


class Tracker:
    """In the place of MLflow's client: every call is a write that may fail."""

    def __init__(self, world: World):
        self._world = world

    def __getattr__(self, name: str) -> Callable[..., object]:
        running = Stub(info=Stub(status="RUNNING"))
        return lambda *_, **__: self._world.at("mlflow", name, lambda: running, ConnectionError("lost"))


def settings(world: World) -> tuple[Any, Any, Any]:
    """Make parameters, partitions and the setup of a training, of no more than the code reads."""
    budget, model = Stub(epsilon=100.0, delta=DELTA), Stub(variant="private")
    params = Stub(ledger=Stub(url=world.url), privacy=Stub(budget=budget), dynamics=model, origins={}, suggested=dict)
    facts = {"dataset_fingerprint": VERSION.fingerprint, "unit": VERSION.unit, "horizon": 3, "termination": "none"}
    info = Stub(dataset="data", environment=None, trajectories_per_person=None, **facts)
    partitions = Stub(manifest=Stub(info=info, private_units=UNITS, public_units=0, public_by="nobody"))
    stopping = Stub(patience=None, every=1)

    def asked(source: object) -> torch.Tensor:
        world.compute("the query")
        return torch.zeros(2, dtype=torch.int64)

    setup = Stub(
        plan=world.plan,
        execution=Stub(device=torch.device("cpu")),
        server=Stub(server_momentum=0.0, server_averaging=0.0, early_stopping=stopping),
        first_weights=lambda: (torch.zeros(2),),
        without_noise=lambda weights: weights,
        make_normaliser=lambda public, answers: Stub(to=lambda device: None),
        queries=lambda answers: {SCALES: Stub(total=asked)},
    )
    return params, partitions, setup


def process(world: World, identity: str) -> None:
    """Do as the stage does: sweep, pay or resume, train, write the model, commit."""
    files.sweep_leftovers(Path())
    params, partitions, setup = settings(world)
    tracking = Tracking(Tracker(world), "stub")  # type: ignore[arg-type]
    run = StageRun(tracking, "run", Log(tracking, "pipeline"), first=False)
    request = Request(VERSION, "data", "train_model", identity, world.plan.event, DELTA, None, "run")
    shape: Any = Stub(initial_weights=lambda seed: (torch.zeros(2),))
    begin, restore = TrainingState.begin(setup.first_weights()), partial(TrainingState.restore, shape)
    with work.paid_work(params, run, request, begin, restore) as paid:
        payment = paid.payment
        charge = world.charge = payment.charge.id
        must(not world.lost, f"charge {charge} was granted although the ledger has lost charges")
        world.granted.add(charge)

        def save(state: TrainingState) -> None:
            payment.save_checkpoint(state)
            world.announced = state.started

        def on_round(started: int, _: object) -> None:
            run.metric("round", started)

        source: Any = None if payment.finished else Stub(units=UNITS)
        trained = training.train(setup, source, None, state=payment.state, save_checkpoint=save, on_round=on_round)
        with _released(
            MODEL, params, partitions, PaidModel(setup, trained, ENGINE_VERSION, paid), run, [WEIGHTS]
        ) as fresh:
            (fresh / WEIGHTS).write_bytes(trained.weights[0].numpy().tobytes())
    run.end("FINISHED")
    weights = held(MODEL / WEIGHTS)
    must(world.models.setdefault(charge, weights) == weights, f"charge {charge} made two different models")


@contextmanager
def in_world(world: World) -> Iterator[None]:
    """Send every write of a process through `World.at`, and give it the world's clock, names and process id."""
    full, broken = (OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.EIO))
    real: Any = Stub(**{name: getattr(os, name) for name in ("open", "replace", "unlink", "fsync", "mkdir")})
    write_bytes, swap, now = Path.write_bytes, files._swap, time.time
    commit: Any = DefaultDialect.do_commit

    def lasting(path: Path) -> bool:
        return not any(".new-" in part for part in path.parts) and path.suffix != ".lock"

    def open_(path: Any, flags: int, *rest: Any, **named: Any) -> Any:
        act = partial(real.open, path, flags, *rest, **named)
        return world.at("create", path, act, full) if flags & os.O_CREAT else act()

    def mkdir(path: Any, *mode: Any, **named: Any) -> None:
        act = partial(real.mkdir, path, *mode, **named)
        act() if Path(path).is_dir() else world.at("mkdir", path, act, full)

    def written(path: Path, content: bytes) -> int:
        def act(part: bytes) -> int:
            world.unsynced.add(world.path(path))
            return write_bytes(path, part)

        return world.at("write", path, lambda: act(content), full, lambda: act(content[: len(content) // 2]))

    def moved(one: Path, other: Path, move: Callable[[Path, Path], T]) -> T:
        before, after = world.path(one), world.path(other)
        content = held(one, lambda file: world.path(file) in world.unsynced)
        done = move(one, other)
        if before in world.unsynced:
            world.unsynced.add(after)
        world.unsynced -= {path for path in world.unsynced if path.is_relative_to(before)}
        if lasting(before):
            world.track(before, None)
        if lasting(after):
            world.track(after, content)
        return done

    def replaced(one: Any, other: Any) -> None:
        world.at("rename", other, lambda: moved(Path(one), Path(other), real.replace), full)

    def swapped(one: Path, other: Path) -> bool:
        try:
            return world.at("swap", other, lambda: moved(one, other, swap), broken)
        except OSError:
            return False  # as where the file system cannot

    def unlinked(path: Any, **named: Any) -> None:
        def act() -> None:
            real.unlink(path, **named)
            if "dir_fd" not in named and world.path(path) in world.history:
                world.track(world.path(path), None)

        world.at("unlink", path, act, broken)

    def synced(handle: int) -> None:
        def act() -> None:
            real.fsync(handle)
            world.sync(path)

        path = world.path(Path(f"/proc/self/fd/{handle}").readlink())
        world.at("fsync", path, act, broken)

    def executing(execute: Callable[..., None]) -> Callable[..., None]:
        def executed(self: Any, cursor: Any, statement: str, *rest: Any) -> None:
            act = partial(execute, self, cursor, statement, *rest)
            if statement.split()[0].upper() not in ("INSERT", "UPDATE", "CREATE"):
                return act()
            error = self.loaded_dbapi.OperationalError("disk I/O error")
            world.at("statement", " ".join(statement.split()[:3]), act, error)
            world.database_written()  # SQLite commits CREATE by itself

        return executed

    def committed(self: Any, connection: Any) -> None:
        def act() -> None:
            commit(self, connection)
            world.database_written()

        world.at("COMMIT", "", act, self.loaded_dbapi.OperationalError("connection lost"))

    class Clock(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> Any:
            return datetime.fromtimestamp(now() + world.clock, zone)

    with ExitStack() as patched:
        for owner, name, new in (
            (os, "open", open_),
            (os, "replace", replaced),
            (os, "unlink", unlinked),
            (os, "fsync", synced),
            (os, "mkdir", mkdir),
            (os, "getpid", lambda: 900_000_000 + world.life),
            (files, "_swap", swapped),
            (files, "_alive", lambda process: process == os.getpid()),
            (Path, "write_bytes", written),
            (Path, "write_text", lambda path, text, **_: path.write_bytes(text.encode())),
            (tempfile, "_name_sequence", map(str, itertools.count())),
            (DefaultDialect, "do_execute", executing(DefaultDialect.do_execute)),
            (DefaultDialect, "do_executemany", executing(DefaultDialect.do_executemany)),
            (DefaultDialect, "do_commit", committed),
            (time, "time", lambda: now() + world.clock),
            (time, "sleep", lambda seconds: None),
            (ledgers, "datetime", Clock),
            (secrets, "token_hex", lambda size: world.rng.randbytes(size).hex()),
            (training, "Rounds", partial(Rounds, world)),
            (store, "_engine", partial(engine_of, world)),
        ):
            patched.enter_context(patch.object(owner, name, new))
        yield


def live(world: World, identity: str, *, last: bool = False) -> str:
    """Run one process with its faults; return how it ended: an empty string if well."""
    world.begin_life(last)
    if MODEL.exists() and world.rng.random() < 0.5:  # DVC deletes outputs before it runs a stage
        world.put(MODEL, None)
        world.track(MODEL, None, durable=True)
    said = ""
    try:
        with in_world(world), redirect_stderr(io.StringIO()):
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
    """Do as an error advises after a lie of the disk; False if it advises nothing, or no more can be done."""
    if HEAD in world.lies and "primorl ledger repair" in said and not world.lost:
        with opened(world, BrokenLedger) as book:
            book.renew_head()
        world.fallen.discard(LEDGER_HEAD)
        return True
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
def opened(world: World, kind: type[L]) -> Iterator[L]:
    """Open the world's ledger, undisturbed."""
    world.begin_life(last=True)
    url = world.url or f"sqlite:///{LEDGER}"
    with in_world(world), closing(kind.open(url, secret=OURS, anchor=LEDGER_HEAD)) as book:
        yield book


def judge(world: World, identities: Sequence[str]) -> str:
    """Run on without faults, to the end; return the refusal that is left where a lost database excuses it."""
    for identity in identities:
        said = live(world, identity, last=True)
        for _ in range(4):
            if not said or not advised(world, said):
                break
            world.hits["advised"] += 1
            said = live(world, identity, last=True)
        if said:
            must(DB in world.lies, f"what was paid cannot be had: {said}")
            return said
        charges = world.charges()
        own = {charge: state for charge, (state, of) in charges.items() if of == identity}
        kept = [charge for charge, state in own.items() if state != "aborted"]
        must(len(kept) == 1 and own[kept[0]] == "committed", f"one charge should be committed, found {own}")
        for charge in own.keys() - set(kept):
            done = [what for of, what in world.computed if of == charge]
            must(done in ([], ["the query"]) and bool(world.plan.queries), f"charge {charge} was given up after {done}")
        stated = files.read_json(MODEL / "privacy.json")["charge"]
        must(stated == kept[0], "the model names another charge than was paid")
    must(DB in world.lies or world.granted <= charges.keys(), "a charge that was granted is not there")
    with opened(world, ledgers.Ledger) as book:
        book.verify()
    return ""


CONNECTIONS: dict[bool, Any] = {}  # of the present world: to write, and to read only


@cache
def _engine(sqlite: bool, read_only: bool) -> sa.Engine:
    """An engine whose pool is one connection, that of the world; it compiles each statement once."""
    kind = "sqlite://" if sqlite else "postgresql+psycopg://"
    engine = sa.create_engine(kind, creator=lambda: CONNECTIONS[read_only], poolclass=sa.StaticPool)
    sa.event.listen(engine, "connect", store._sqlite_settings if sqlite else store._postgresql_settings)
    if read_only and not sqlite:
        sa.event.listen(engine, "connect", store._postgresql_reads)
    return engine


def engine_of(world: World, url: sa.URL, shown: str, read_only: bool) -> sa.Engine:
    """In the place of `store._engine`."""
    engine = _engine(world.url is None, read_only)
    engine.dispose()  # the pool's connection may be another world's
    CONNECTIONS[read_only] = world.memory if world.url is None else world.connections[read_only]
    return engine


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
    world.say(f"{world.crashes} crashes, queries: {len(world.plan.queries)}, lies: {', '.join(world.lies) or 'none'}")
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
    source = planted(module_file(ROOT, fault.module).read_text(encoding="utf-8"), fault.function, fault.edit)
    name = fault.function.partition(".")[0]
    (changed,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
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
    """Run schedules on both databases and with planted faults; write the table. With ``--seed``, replay one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=100_000, help="on SQLite")
    parser.add_argument("--postgresql", type=int, default=1000, help="schedules on a PostgreSQL server")
    parser.add_argument("--minutes", type=float, default=60, help="for each database, at most")
    parser.add_argument("--seed", type=int, help="replay this schedule; on PostgreSQL with --schedules 0")
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
            rows += many("PostgreSQL", range(arguments.postgresql), folder, server, arguments.minutes)
        for fault in PLANTED:
            what = f"planted, {fault.name}: schedules until caught"
            rows.append(row(command(MODULE), what, first_caught(fault, folder, 1000), None, None, None, "schedules"))
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
        ("losses noticed, and put right as the error advises", hits["advised"], "refusals"),
        ("losses noticed, and refused for good", hits["refused"], "schedules"),
        ("losses of database and checkpoint together", hits["both"], "schedules"),
        ("of these, not noticed (documented)", hits["not noticed"], "schedules"),
        ("schedules a second", done / (time.monotonic() - began), "1/s"),
        ("schedules a second of processor", done / (time.process_time() - used), "1/s"),
    ]
    return [row(command(MODULE), f"{database}: {what}", found, None, None, None, unit) for what, found, unit in figures]


if __name__ == "__main__":
    sys.exit(main())
