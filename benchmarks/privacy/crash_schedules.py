"""Seeded schedules of crashes of paid work: ``python -m benchmarks.privacy.crash_schedules [--schedules N | --seed S]``.

A schedule runs the real code of a paid training (`paid_work`, `train`, the writing of the model, the log) in a world of
its own: a folder in memory, and SQLite or PostgreSQL. Every write is a *moment*, at which the schedule may kill the
process, cut the power, fail the write, lose the connection before or after COMMIT, or move the clock. After it the next
process begins with what is durable, until the last one, which nothing disturbs. The data are four made-up units, the
rounds are sums of two numbers, and MLflow is a list; what pays, saves, resumes, releases and writes is the project's.

What the disk holds after a power cut: of each file one of its states since the last fsync of its folder; content that
was renamed before its own fsync is torn. A disk that *lies* may go back beyond that. The books of the judge (`World`)
lie outside: rounds computed, payments granted, outputs made.
"""

import argparse
import ast
import errno
import importlib
import io
import itertools
import os
import random
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
from types import SimpleNamespace
from typing import Any, Self, TypeVar
from unittest.mock import patch

import mlflow.entities  # noqa: F401 - a process would import them at a moment of its own
import mlflow.exceptions  # noqa: F401
import psycopg
import sqlalchemy as sa
import torch
from psycopg.errors import UndefinedTable
from sqlalchemy.engine.default import DefaultDialect

from benchmarks.machine import ROOT, row, write
from primorl.base import files
from primorl.base.errors import PipelineError
from primorl.base.paths import CHECKPOINTS, LEDGER, LEDGER_HEAD, MODEL, SECRET
from primorl.engine import training
from primorl.engine.heads import LENGTHS, SCALES
from primorl.engine.training import ENGINE_VERSION, TrainingState
from primorl.paid import accounts, work
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
from primorl.tracking.store import Log, Store
from tests.faults.edits import module_file, planted
from tests.faults.table import CHARGES, FAULTS, Fault, expression
from tests.privacy.ledger import postgresql

T = TypeVar("T")
L = TypeVar("L", bound=ledgers.Ledger)
Content = bytes | dict[str, bytes] | None
ROUNDS, UNITS, DELTA = 3, 4, 1e-5
MOMENTS = 120  # of an undisturbed run, about
DB, HEAD, CHECKPOINT, OUTPUT = "database", "head", "checkpoint", "output"
LIARS = [(), (DB,), (HEAD,), (CHECKPOINT,), (OUTPUT,), (DB, HEAD), (HEAD, CHECKPOINT), (DB, HEAD, CHECKPOINT)]
PLANTED = [
    *(fault for fault in FAULTS if fault.module == CHARGES or fault.name == "payment-rounds-made-up-for"),
    Fault("lost-work-is-deleted", f"{CHARGES}", "_orphans", expression("has_begun(file)", "False")),
    Fault("number-one-behind", f"{CHARGES}", "_writer", expression("mark.saves + 1", "mark.saves")),
    Fault("fsync-dropped", "primorl.base.files", "flush", expression("os.fsync(handle)", "None")),
]
VERSION = Version("a" * 64, "trajectory", UNITS, bytes(range(16 * UNITS)))


class InMemory(sqlite3.Connection):
    """SQLite's database in memory. Whoever connects is given this connection."""

    def close(self) -> None:
        """End a process's connection: what was not committed is lost."""
        self.rollback()


class Shared(psycopg.Connection[Any]):
    """A connection to PostgreSQL that all processes of a world are given, since to begin one takes long."""

    def close(self) -> None:
        """End a process's connection: what was not committed is lost."""
        self.rollback()


class DiedError(BaseException):
    """The process is gone: no handler sees it, and nothing is written any more."""


class World:
    """One schedule: what is durable, the faults to come, and the judge's books."""

    def __init__(self, seed: int, folder: Path, server: "postgresql.Server | None", trace: bool = False):
        self.rng, self.folder, self.trace = random.Random(seed), folder, trace
        self.url = None if server is None else server.new_url()
        self.plan = plan_of(self.rng.random() < 0.5)
        on_disk = server is None  # a server's disk is not simulated
        weights = [10, on_disk, 1, 3, 1, on_disk, 1, on_disk]
        self.lies = self.rng.choices(LIARS, weights)[0]
        self.crashes, self.clock, self.life = self.rng.choices([1, 2, 3, 4], [4, 3, 2, 1])[0], 0.0, 0
        self.memory, self.connections = InMemory(":memory:"), self.connected()
        self.dead, self.charge, self.announced = False, "", 0
        self.history: dict[Path, list[Content]] = {}  # of each file, oldest first
        self.durable: Counter[Path] = Counter()  # index of the state that is surely on the disk
        self.unsynced: set[Path] = set()
        self.computed: list[tuple[str, str]] = []  # charge, and round or query
        self.granted: set[str] = set()
        self.outputs: dict[str, bytes] = {}
        self.newest: dict[Path, Content] = {}  # as a process wrote it
        self.fallen: set[Path] = set()
        self.lost = False
        self.limit = {DB, CHECKPOINT} <= set(self.lies)
        self.hits: Counter[str] = Counter()

    def connected(self) -> list[Shared]:
        url = None if self.url is None else self.url.replace("+psycopg", "")
        return [] if url is None else [Shared.connect(url), Shared.connect(url)]

    def say(self, line: str) -> None:
        if self.trace:
            print(f"  process {self.life}: {line}")

    def begin_life(self, last: bool) -> None:
        self.life, self.moments, self.dead, self.charge = self.life + 1, 0, False, ""
        rng, self.faults = self.rng, {}
        if not last:
            for kind in ("die" if rng.random() < 0.75 else "fail", "fail" if rng.random() < 0.2 else "clock"):
                self.faults[1 + int(MOMENTS * rng.random() ** 1.3)] = (kind, rng.choice(["before", "half", "after"]))

    def at(
        self,
        what: str,
        path: Any,
        act: Callable[[], T],
        error: Callable[[], Exception],
        half: Callable[[], object] | None = None,
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
        if when == "after":
            act()
        elif when == "half" and half is not None:
            half()
        if kind == "fail":
            raise error()
        self.dead = True
        raise DiedError

    # What the disk holds

    def path(self, name: Any) -> Path:
        """A path relative to the world."""
        path = Path(name)
        return path.relative_to(self.folder) if path.is_absolute() else path

    def track(self, path: Path, content: Content, *, durable: bool = False) -> None:
        self.newest[path] = content
        states = self.history.setdefault(path, [None])
        states.append(content)
        if durable:
            self.durable[path] = len(states) - 1

    def sync(self, path: Path) -> None:
        self.unsynced.discard(path)
        for known, states in self.history.items():
            if known.parent == path:
                self.durable[known] = len(states) - 1

    def database_written(self) -> None:
        if DB in self.lies and not self.memory.in_transaction:
            self.track(LEDGER, self.memory.serialize(), durable=True)

    def cut_power(self) -> None:
        """Put every file into a state that the disk may hold."""
        far = self.rng.choice([1, 2, 4, 99])
        for path, states in self.history.items():
            last = len(states) - 1
            least = self.durable[path]
            if device_of(path) in self.lies:
                least = max(0, least - self.rng.randint(0, far))
            chosen = self.rng.randint(least, last)
            if chosen < last:
                self.say(f"{path}: falls back by {last - chosen} of {last} writes")
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
            self.memory, self.connections = InMemory(":memory:"), self.connected()
            if content:
                self.memory.deserialize(content)
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if isinstance(content, dict):
            path.mkdir(parents=True)
            for name, part in content.items():
                (path / name).write_bytes(part)
        elif content is not None:
            path.write_bytes(content)

    # The judge's books

    def charges(self) -> dict[str, tuple[str, str]]:
        """State and identity of each charge in the database, read past the project's code."""
        select, bodies = "SELECT body FROM ledger_records ORDER BY sequence", []
        if self.url is not None:
            with suppress(UndefinedTable), self.connections[True].transaction():
                bodies = self.connections[True].execute(select).fetchall()
        else:
            there = self.memory.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger_records'").fetchall()
            bodies = self.memory.execute(select).fetchall() if there else []
        found: dict[str, tuple[str, str]] = {}
        for (body,) in bodies:
            record = ledgers.json.loads(body)
            if record["kind"] == "reserved":
                found[record["charge"]] = (record["kind"], record["identity"])
            elif record["kind"] in ("committed", "aborted"):
                found[record["charge"]] = (record["kind"], found[record["charge"]][1])
        return found

    def check_losses(self) -> None:
        """Note whether charges are gone under which something was computed; check the model that is there."""
        there = self.charges()
        self.lost = any(charge not in there for charge, _ in self.computed)
        must(not self.lost or DB in self.lies, "the ledger has lost charges")
        if MODEL.exists() and not {DB, OUTPUT} & set(self.lies):
            released = files.read_json(MODEL / "privacy.json")["charge"]
            must(released in there, f"the model that is there names charge {released}, which is not")
            must(held(MODEL / "weights.safetensors") is not None, "the model has no weights")

    def compute(self, what: str) -> None:
        """Count a look at private rows; its charge must be there, and not have paid for it before."""
        must(self.charge in self.charges(), f"{what} was computed under charge {self.charge}, which is not there")
        must((self.charge, what) not in self.computed, f"{what} was computed twice under charge {self.charge}")
        must(not self.lost, f"{what} was computed although the ledger has lost charges")
        self.computed.append((self.charge, what))
        self.say(f"computes {what} under {self.charge}")


def device_of(path: Path) -> str:
    """Which of the parts of the world a file belongs to."""
    if path == LEDGER:
        return DB
    return HEAD if path == LEDGER_HEAD else CHECKPOINT if path.parent == CHECKPOINTS else OUTPUT


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


# One process


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
        running = SimpleNamespace(info=SimpleNamespace(status="RUNNING"))
        return lambda *_, **__: self._world.at("mlflow", name, lambda: running, lambda: ConnectionError("lost"))


def process(world: World, identity: str) -> None:
    """Do as the stage: sweep, pay or resume, train, write the model, commit."""
    files.sweep_leftovers(Path())
    none = SimpleNamespace()
    budget = SimpleNamespace(epsilon=100.0, delta=DELTA)
    params: Any = SimpleNamespace(
        ledger=SimpleNamespace(url=world.url),
        privacy=SimpleNamespace(budget=budget),
        dynamics=SimpleNamespace(variant="private"),
        origins={},
        suggested=dict,
    )
    info = SimpleNamespace(
        dataset="data",
        dataset_fingerprint=VERSION.fingerprint,
        unit="trajectory",
        termination="none",
        environment=None,
        horizon=3,
        trajectories_per_person=None,
    )
    manifest = SimpleNamespace(info=info, private_units=UNITS, public_units=0, public_by="nobody")
    setup: Any = SimpleNamespace(
        plan=world.plan,
        execution=SimpleNamespace(device=torch.device("cpu")),
        server=SimpleNamespace(
            server_momentum=0.0, server_averaging=0.0, early_stopping=SimpleNamespace(patience=None, every=1)
        ),
        first_weights=lambda: (torch.zeros(2),),
        without_noise=lambda weights: weights,
        make_normaliser=lambda public, answers: SimpleNamespace(to=lambda device: none),
        queries=lambda answers: {
            SCALES: SimpleNamespace(total=lambda source: world.compute("the query") or torch.zeros(2).long())
        },
    )
    architecture: Any = SimpleNamespace(initial_weights=lambda seed: (torch.zeros(2),))
    store = Store(Tracker(world), "fake")  # type: ignore[arg-type]
    run = StageRun(store, "run", Log(store, "pipeline"), first=False)
    request = Request(VERSION, "data", "train_model", identity, world.plan.event, DELTA, None, "run")
    begin, restore = TrainingState.begin(setup.first_weights()), partial(TrainingState.restore, architecture)
    with work.paid_work(params, run, request, begin, restore) as paid:
        charge = world.charge = paid.payment.charge.id
        must(not world.lost, f"charge {charge} was granted although the ledger has lost charges")
        world.granted.add(charge)

        def save(state: TrainingState) -> None:
            paid.payment.save_checkpoint(state)
            world.announced = state.started

        source: Any = None if paid.payment.finished else SimpleNamespace(units=UNITS)
        trained = training.train(
            setup,
            source,
            None,
            state=paid.payment.state,
            save_checkpoint=save,
            on_round=lambda started, _: run.metric("round", started),
        )
        model, partitions = PaidModel(setup, trained, ENGINE_VERSION, paid), SimpleNamespace(manifest=manifest)
        with _released(MODEL, params, partitions, model, run, ["weights.safetensors"]) as fresh:  # type: ignore[arg-type]
            (fresh / "weights.safetensors").write_bytes(trained.weights[0].numpy().tobytes())
    run.end("FINISHED")
    content = held(MODEL)
    assert isinstance(content, dict)
    weights = content["weights.safetensors"]
    must(world.outputs.setdefault(charge, weights) == weights, f"charge {charge} made two different models")


@contextmanager
def in_world(world: World) -> Iterator[None]:
    """Send every write of a process through `World.at`, and give it the world's clock, names and process id."""
    full = lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: E731
    broken = lambda: OSError(errno.EIO, os.strerror(errno.EIO))  # noqa: E731
    real = SimpleNamespace(**{name: getattr(os, name) for name in ("open", "replace", "unlink", "fsync", "mkdir")})
    write_bytes, swap, now = Path.write_bytes, files._swap, time.time
    commit = DefaultDialect.do_commit

    def lasting(path: Path) -> bool:
        return not any(".new-" in part for part in path.parts) and path.suffix != ".lock"

    def open_(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        act = lambda: real.open(path, flags, *rest, **named)  # noqa: E731
        return world.at("create", path, act, full) if flags & os.O_CREAT else act()

    def mkdir(path: Any, *mode: Any, **named: Any) -> None:
        act = lambda: real.mkdir(path, *mode, **named)  # noqa: E731
        act() if os.path.isdir(path) else world.at("mkdir", path, act, full)

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

        path = world.path(os.readlink(f"/proc/self/fd/{handle}"))
        world.at("fsync", path, act, broken)

    def executing(execute: Callable[..., None]) -> Callable[..., None]:
        def executed(self: DefaultDialect, cursor: Any, statement: str, *rest: Any) -> None:
            act = lambda: execute(self, cursor, statement, *rest)  # noqa: E731
            if statement.split()[0].upper() not in ("INSERT", "UPDATE", "CREATE"):
                return act()
            error = lambda: self.loaded_dbapi.OperationalError("disk I/O error")  # noqa: E731
            world.at("statement", statement.partition("(")[0].strip(), act, error)
            world.database_written()  # SQLite commits CREATE by itself

        return executed

    def committed(self: DefaultDialect, connection: Any) -> None:
        def act() -> None:
            commit(self, connection)
            world.database_written()

        world.at("COMMIT", "", act, lambda: self.loaded_dbapi.OperationalError("connection lost"))

    class Clock(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> Any:
            return datetime.fromtimestamp(now() + world.clock, zone)

    names = map(str, itertools.count())
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
            (tempfile, "_name_sequence", names),
            (DefaultDialect, "do_execute", executing(DefaultDialect.do_execute)),
            (DefaultDialect, "do_executemany", executing(DefaultDialect.do_executemany)),
            (DefaultDialect, "do_commit", committed),
            (time, "time", lambda: now() + world.clock),
            (time, "sleep", lambda seconds: None),
            (ledgers, "datetime", Clock),
            (ledgers.secrets, "token_hex", lambda size: world.rng.randbytes(size).hex()),
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
    except DiedError:
        said = "died"
    except (PipelineError, OSError) as refused:
        said = str(refused)
    except (BrokenPromiseError, KeyboardInterrupt):
        raise
    except BaseException as unexpected:
        must(False, f"{type(unexpected).__name__}: {unexpected}")
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
    back = [path for path in world.fallen if device_of(path) in (DB, CHECKPOINT, HEAD)]
    for path in back:
        world.put(path, world.newest[path])
        world.track(path, world.newest[path], durable=True)
    world.fallen.clear()
    world.check_losses()
    return bool(back)


@contextmanager
def opened(world: World, kind: type[L]) -> Iterator[L]:
    """Open the world's ledger, undisturbed."""
    world.begin_life(last=True)
    url = world.url or f"sqlite:///{LEDGER}"
    with in_world(world), closing(kind.open(url, secret=SECRET_BYTES, anchor=LEDGER_HEAD)) as book:
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


SECRET_BYTES = b"s" * 32
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
    SECRET.write_bytes(SECRET_BYTES)
    MODEL.parent.mkdir()
    world = World(seed, folder, server, trace)
    identities = ["one", "two"] if world.rng.random() < 0.25 else ["one"]
    world.say(f"{world.crashes} crashes, queries: {len(world.plan.queries)}, lies: {', '.join(world.lies) or 'none'}")
    try:
        for _ in range(world.crashes):
            live(world, world.rng.choice(identities))
        refused = judge(world, identities)
    except BrokenPromiseError as broken:
        if not world.limit:
            raise BrokenPromiseError(f"seed {seed}: {broken}") from None
        world.hits["not noticed"] += 1
        refused = ""
    for connection in world.connections:
        psycopg.Connection.close(connection)
    world.hits["refused"] += bool(refused)
    world.hits["both"] += world.limit and world.hits["lost"] > 0
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
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--postgresql", type=int, default=1000, help="schedules on a PostgreSQL server")
    parser.add_argument("--minutes", type=float, default=60, help="of the schedules on SQLite, at most")
    parser.add_argument("--seed", type=int, help="replay this schedule, on PostgreSQL with --schedules 0")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = "python -m benchmarks.privacy.crash_schedules"
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name).resolve() / "world"
        if arguments.seed is not None:
            with nullcontext() if arguments.schedules else postgresql.server() as server:
                simulate(arguments.seed, folder, server, trace=True)
            return 0
        rows = many(command, "SQLite", range(arguments.schedules), folder, None, arguments.minutes)
        with postgresql.server() as server:
            rows += many(command, "PostgreSQL", range(arguments.postgresql), folder, server, arguments.minutes)
        for fault in PLANTED:
            caught = first_caught(fault, folder, 1000)
            rows.append(
                row(command, f"planted, {fault.name}: schedules until caught", caught, None, None, None, "schedules")
            )
        os.chdir(ROOT)
    write("crash_schedules", rows)
    return int(any(str(found["what"]).endswith("(must be 0)") and found["ours"] for found in rows))


def many(
    command: str, database: str, seeds: range, folder: Path, server: "postgresql.Server | None", minutes: float
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
    return [row(command, f"{database}: {what}", found, None, None, None, unit) for what, found, unit in figures]


if __name__ == "__main__":
    sys.exit(main())
