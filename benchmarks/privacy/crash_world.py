"""The world of a crash schedule: a folder and a database in memory, with what is durable and the
faults to come.

At every write the schedule may kill the process, stop it by a signal, cut the power, fail the
write, lose the connection before or after COMMIT, or move the clock. After a power cut a file has
one of its states since its folder's last fsync; content that was renamed before its own fsync is
torn. A disk that *lies* may go back beyond that. The books of the judge lie outside the world: what
was computed, which charges were granted, which models were made.
"""

import errno
import itertools
import json
import os
import random
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace as Stub
from typing import Any, TypeVar
from unittest.mock import patch

import psycopg
import sqlalchemy as sa
from psycopg.errors import UndefinedTable
from sqlalchemy.engine.default import DefaultDialect

from primorl.base import files
from primorl.base.files import CHECKPOINTS, LEDGER, LEDGER_HEAD, MODEL
from primorl.engine.heads import LENGTHS, SCALES
from primorl.privacy.ledger import ledger as ledgers
from primorl.privacy.ledger import store
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import GaussianQuery, Mechanism
from tests.privacy.ledger import postgresql

T = TypeVar("T")
Content = bytes | dict[str, bytes] | None
"""Of a file, or of the files of a folder; None: there is nothing."""
ROUNDS, UNITS, DELTA = 3, 4, 1e-5
MOMENTS = 120  # writes of an undisturbed run, about
DB, HEAD, CHECKPOINT, OUTPUT = "database", "head", "checkpoint", "output"
LIARS = [
    (),
    (DB,),
    (HEAD,),
    (CHECKPOINT,),
    (OUTPUT,),
    (DB, HEAD),
    (HEAD, CHECKPOINT),
    (DB, HEAD, CHECKPOINT),
]
WEIGHTS = "weights.safetensors"


class Memory(sqlite3.Connection):
    """SQLite's database in memory. All processes of a world are given this connection."""

    def close(self) -> None:
        """End a process's connection: what was not committed is lost."""
        self.rollback()


class Server(psycopg.Connection[Any]):
    """A connection to PostgreSQL that all processes of a world are given, since to begin one takes
    long.
    """

    close = Memory.close


class DiedError(BaseException):
    """The process is gone: no handler sees it, and nothing is written any more."""


class StoppedError(KeyboardInterrupt):
    """SIGTERM or Ctrl-C."""


class World:
    """One schedule: what is durable, the faults to come, and the judge's books."""

    def __init__(
        self, seed: int, folder: Path, server: "postgresql.Server | None", trace: bool = False
    ):
        self.rng, self.folder, self.trace = random.Random(seed), folder, trace
        self.url = None if server is None else server.new_url()
        self.mechanism = mechanism_of(self.rng.random() < 0.5)
        on_disk = server is None  # a server's disk is not simulated
        self.lies = self.rng.choices(LIARS, [10, on_disk, 1, 3, 1, on_disk, 1, on_disk])[0]
        self.all_may_be_lost = {DB, CHECKPOINT} <= set(self.lies)
        self.crashes, self.clock, self.life = (
            self.rng.choices([1, 2, 3, 4], [4, 3, 2, 1])[0],
            0.0,
            0,
        )
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
        self.life, self.moments, self.dead, self.charge, self.announced = (
            self.life + 1,
            0,
            False,
            "",
            0,
        )
        rng, self.faults = self.rng, {}
        if not last:
            for kind in (
                rng.choice(["die", "die", "die", "fail", "stop"]),
                rng.choice(["fail", "clock", "clock"]),
            ):
                self.faults[1 + int(MOMENTS * rng.random() ** 2)] = (
                    kind,
                    rng.choice(["before", "half", "after"]),
                )

    def at(
        self,
        what: str,
        path: Any,
        act: Callable[[], T],
        error: Exception,
        half: Callable[[], object] = lambda: None,
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
        # database and head of the same old moment, so that neither betrays the other
        begun_anew = {DB, HEAD} <= set(self.lies) and self.rng.random() < 0.5
        for path, states in self.history.items():
            last, least = len(states) - 1, self.durable[path]
            if device_of(path) in self.lies:
                least = max(0, least - self.rng.randint(0, far))
            chosen = self.rng.randint(least, last)
            if begun_anew and device_of(path) in (DB, HEAD):
                chosen = 0
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
        """Return state and identity of each charge in the database, read past the project's
        code.
        """
        select, bodies = "SELECT body FROM ledger_records ORDER BY sequence", []
        if self.url is not None:
            with suppress(UndefinedTable), self.connections[True].transaction():
                bodies = self.connections[True].execute(select).fetchall()
        else:
            there = self.memory.execute(
                "SELECT 1 FROM sqlite_master WHERE name = 'ledger_records'"
            ).fetchall()
            bodies = self.memory.execute(select).fetchall() if there else []
        found: dict[str, tuple[str, str]] = {}
        for (body,) in bodies:
            record = json.loads(body)
            if record["kind"] in ("reserved", "committed"):
                _, identity = found.get(record["charge"], ("", record.get("identity")))
                found[record["charge"]] = (record["kind"], identity)
        return found

    def check_losses(self) -> None:
        """Note whether charges are gone under which something was computed; check the model that is
        there.
        """
        there = self.charges()
        self.lost = any(charge not in there for charge, _ in self.computed)
        must(not self.lost or DB in self.lies, "the ledger has lost charges")
        if MODEL.exists() and not {DB, OUTPUT} & set(self.lies):
            content = held(MODEL)
            assert isinstance(content, dict)
            stated = json.loads(content.get("privacy.json", b"{}"))
            must(
                WEIGHTS in content and stated.get("charge") in there,
                "the model is not whole, or unpaid",
            )

    def compute(self, what: str) -> None:
        """Count a look at private rows; its charge must be there, and not have paid for it
        before.
        """
        must(
            self.charge in self.charges(),
            f"{what} was computed under charge {self.charge}, which is not there",
        )
        must(
            (self.charge, what) not in self.computed,
            f"{what} was computed twice under charge {self.charge}",
        )
        must(not self.lost, f"{what} was computed although the ledger has lost charges")
        self.computed.append((self.charge, what))
        self.say(f"computes {what} under {self.charge}")


def device_of(path: Path) -> str:
    """Tell what a file is part of."""
    return {LEDGER: DB, LEDGER_HEAD: HEAD}.get(
        path, CHECKPOINT if path.parent == CHECKPOINTS else OUTPUT
    )


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
def mechanism_of(queries: bool) -> Mechanism:
    """A mechanism with a query before and one after its rounds, or without."""
    asked = (GaussianQuery(SCALES, 1.0, 20.0), GaussianQuery(LENGTHS, 1.0, 20.0)) if queries else ()
    return Mechanism(UNITS, "trajectory", 0.5, L2Clip(1.0), 20.0, ROUNDS, DELTA, asked)


@contextmanager
def in_world(world: World) -> Iterator[None]:
    """Send every write of a process through `World.at`, and give it the world's clock, names and
    process id.
    """
    full, broken = (OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.EIO))
    real: Any = Stub(
        **{name: getattr(os, name) for name in ("open", "replace", "unlink", "fsync", "mkdir")}
    )
    write_bytes, now = Path.write_bytes, time.time
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

        return world.at(
            "write", path, lambda: act(content), full, lambda: act(content[: len(content) // 2])
        )

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
            (store, "_engine", partial(engine_of, world)),
        ):
            patched.enter_context(patch.object(owner, name, new))
        yield


CONNECTIONS: dict[bool, Any] = {}  # of the present world: to write, and to read only


@cache
def _engine(sqlite: bool, read_only: bool) -> sa.Engine:
    """An engine whose pool is one connection, that of the world; it compiles each statement
    once.
    """
    kind = "sqlite://" if sqlite else "postgresql+psycopg://"
    engine = sa.create_engine(kind, creator=lambda: CONNECTIONS[read_only], poolclass=sa.StaticPool)
    sa.event.listen(
        engine, "connect", store._sqlite_settings if sqlite else store._postgresql_settings
    )
    if read_only and not sqlite:
        sa.event.listen(engine, "connect", store._postgresql_reads)
    return engine


def engine_of(world: World, url: sa.URL, shown: str, read_only: bool) -> sa.Engine:
    """In the place of `store._engine`."""
    engine = _engine(world.url is None, read_only)
    engine.dispose()  # the pool's connection may be another world's
    CONNECTIONS[read_only] = world.memory if world.url is None else world.connections[read_only]
    return engine
