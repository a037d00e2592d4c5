"""The ledger's tables, in a SQLite file or on a PostgreSQL server.

The progress of every charge is counted there too, so that an old copy of a checkpoint is detected.
"""

import hashlib
import hmac
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

from primorl.base import Busy, PipelineError
from primorl.base.files import LEDGER, home
from primorl.privacy.ledger.history import Record, canonical

Side = Literal["private", "public"]
SIDES: tuple[Side, Side] = ("private", "public")

_ALLOWED = "allowed are sqlite:///FILE and postgresql+psycopg://USER:PASSWORD@HOST/NAME"
_WAIT_SECONDS = 60  # for another process's transaction, which takes milliseconds
_CONNECT_SECONDS = 10
_CREATE_ATTEMPTS = 20
_PROGRESS = b"primorl ledger progress 1"  # the secret keys other things as well


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)


def _text(name: str, *, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, primary_key=key)


_tables = sa.MetaData()
_records = sa.Table(
    "ledger_records", _tables, _number("sequence"), _text("body"), _text("previous"), _text("hash")
)
_content = sa.Column("content", sa.LargeBinary, nullable=False)
_members = sa.Table(
    "ledger_members", _tables, _number("version"), _text("side", key=True), _content
)
_progress = sa.Table(
    "ledger_progress",
    _tables,
    sa.Column("charge", sa.String, primary_key=True),
    _text("owner"),
    sa.Column("saves", sa.Integer, nullable=False),
    _text("mac"),
)


_MOVED = "_moved"  # behind the names of tables whose rows went to another database


@dataclass(frozen=True)
class Mark:
    """Row of ``ledger_progress``, the only table with rows that are replaced: the mark of a
    charge.
    """

    charge: str
    owner: str
    saves: int
    mac: str


class Store:
    """Database that reads and appends rows without interpreting them.

    Every call opens a connection of its own, so none idles through hours of training or crosses a
    fork. Missing tables (and a SQLite file, mode 0600) are created. With ``read_only`` nothing is
    created or changed, and a missing ledger is empty.

    Args:
        url: SQLAlchemy's; None: the project's own SQLite file. A relative path of a file starts at
            the project, also inside DVC's temporary copies.
        read_only: see above.

    Raises:
        PipelineError: the database cannot be used; no message holds user or password.
    """

    def __init__(self, url: str | None, *, read_only: bool = False):
        parsed = _parse(url)
        self.shown = _without_credentials(parsed)
        file = Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None
        if file is not None and not read_only:
            _make_file(file)
        self._engine = _engine(parsed, self.shown, read_only)
        self.begun = file is None or file.exists()
        """Whether there is anything to read: False only with ``read_only``."""
        with self._clear_errors():
            if file is not None and self.begun and self._has(f"{_records.name}{_MOVED}"):
                raise PipelineError(
                    f"ledger {self.shown}: its charges were moved to another database; set "
                    "ledger.url to that one"
                )
            if not read_only:
                self._create_tables()
            else:
                self.begun = self.begun and self._has(_records.name)

    def read(self, since: int = 0) -> list[Record]:
        """Read the records from sequence ``since`` on (0: all of them), in order."""
        query = sa.select(_records).order_by(_records.c.sequence)
        if since:
            query = query.where(_records.c.sequence >= since)
        return [Record(*row) for row in self._rows(query)]

    def append(
        self,
        records: Sequence[Record],
        members: Mapping[int, Mapping[Side, bytes]],
        mark: Mark | None = None,
    ) -> bool:
        """Add all records, members by the sequence of their version's record and by side, and a
        mark, durably; or nothing.

        Return False if another process has used one of the sequences first.
        """
        rows = [
            {"version": v, "side": side, "content": c}
            for v, sides in members.items()
            for side, c in sides.items()
        ]
        with self._clear_errors():
            try:
                with self._engine.begin() as connection:
                    connection.execute(sa.insert(_records), [asdict(record) for record in records])
                    if rows:
                        connection.execute(sa.insert(_members), rows)
                    if mark is not None:
                        connection.execute(sa.insert(_progress), asdict(mark))
            except IntegrityError:
                return False
        return True

    def members(self, version: int) -> dict[Side, bytes]:
        """Read the members of a version by side; those of another type are left out."""
        # As text: a typed column would fail on what somebody put into SQLite.
        query = sa.text("SELECT side, content FROM ledger_members WHERE version = :version")
        rows = self._rows(query.bindparams(version=version))
        return {side: bytes(content) for side, content in rows if not isinstance(content, str)}

    def progress(self, charge: str) -> Mark | None:
        """Read the mark of a charge; None if there is none."""
        rows = self._rows(sa.select(_progress).where(_progress.c.charge == charge))
        return Mark(*rows[0]) if rows else None

    def marks(self) -> list[Mark]:
        """Read the marks of all charges."""
        return [Mark(*row) for row in self._rows(sa.select(_progress))]

    def _rows(self, query: sa.Executable) -> Sequence[Any]:
        """Run a query; without rows where no ledger was begun."""
        if not self.begun:
            return []
        with self._clear_errors(), self._engine.connect() as connection:
            return connection.execute(query).all()

    def replace_progress(self, before: Mark | None, after: Mark) -> bool:
        """Replace the mark ``before`` (None: no mark) by ``after``, durably; False if another one
        is there.
        """
        values = asdict(after)
        change: sa.Executable = sa.insert(_progress).values(values)
        if before is not None:
            was = [_progress.c[name] == value for name, value in asdict(before).items()]
            change = sa.update(_progress).where(*was).values(values)
        with self._clear_errors():
            try:
                with self._engine.begin() as connection:
                    return connection.execute(change).rowcount == 1
            except IntegrityError:
                return False

    def move(self, target: "Store") -> None:
        """Move a SQLite file's rows to another database, which is empty, or has them already.

        The target gets all of them or none. Then the file's tables are renamed, so that nobody is
        charged there any more, also not by a process that runs now. After a kill in between both
        have the rows; call it again.

        Raises:
            PipelineError: this is no SQLite file, or the target has other rows.
        """
        if self._engine.dialect.name != "sqlite" or target.shown == self.shown:
            raise PipelineError(
                f"ledger {self.shown}: a SQLite file can be moved to another database; name one"
            )
        with self._clear_errors(), self._engine.connect() as old:
            old.exec_driver_sql("BEGIN EXCLUSIVE")
            rows = {table: _all_rows(old, table) for table in _tables.sorted_tables}
            with target._clear_errors(), target._engine.begin() as new:
                for table, content in rows.items():
                    if content and not _all_rows(new, table):
                        new.execute(sa.insert(table), content)
                    if _all_rows(new, table) != content:
                        raise PipelineError(
                            f"ledger {target.shown}: found other records there; name an empty one"
                        )
            self._retire(old)
            old.commit()

    def _has(self, table: str) -> bool:
        return sa.inspect(self._engine).has_table(table)

    def _retire(self, connection: sa.Connection) -> None:
        """Rename the tables, so that no open connection finds them, and no `Store` opens them."""
        for table in _tables.sorted_tables:
            connection.exec_driver_sql(f"ALTER TABLE {table.name} RENAME TO {table.name}{_MOVED}")

    def _create_tables(self) -> None:
        for _ in range(_CREATE_ATTEMPTS):
            # Two processes may begin at once: the server then fails one of them.
            with suppress(IntegrityError, ProgrammingError), self._engine.begin() as connection:
                for table in _tables.sorted_tables:
                    if not sa.inspect(connection).has_table(table.name):
                        connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
                return
            time.sleep(random.SystemRandom().uniform(0, 0.05))
        raise PipelineError(
            f"ledger {self.shown}: its tables cannot be created; give its user the right to do so"
        )

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as failed:
            raise PipelineError(
                f"ledger {self.shown}: cannot be used: {self._reason(failed)}"
            ) from None

    def _reason(self, failed: SQLAlchemyError) -> str:
        cause = getattr(failed, "orig", None) or failed
        if self._engine.dialect.name == "sqlite":
            if "locked" in str(cause):  # whole: an older backup would lose charges
                return f"{cause}; end what holds it, and run again"
            return f"{cause}; end what holds it, free space, or restore its backup"
        # the server's own words may name users, so they are not shown
        remedy = "see that the server is up, can be written, has the database, its tables and you"
        return f"{type(cause).__name__}; {remedy} (~/.pgpass, mode 600), or correct ledger.url"


class Progress:
    """One mark for each charge, outside the chain: its owner, and how often its state was saved.

    Formal property: whatever copies of its checkpoints are put back, and whatever processes run,
    die or are killed, no save of a charge is followed by two releases. Every save has a number, one
    more than the save that it continues. A process makes a release only after it advanced the mark
    to the number of the save that announced it. The advance is a compare-and-swap, so one process
    succeeds. A process begins by writing its own name into the mark (`claim`), which is refused if
    the mark has a higher number than the checkpoint; the previous owner can advance no more. A
    mark's number never falls. So no number is reached twice, and rounds compute on private data at
    most as often as rounds are announced along one line of saves: T times.

    | case | what happens |
    |-----------------------------------------------|-----------------------------------------------------------|
    | killed between a checkpoint and its mark | it goes on, a round is lost |
    | an older copy of the checkpoint | its number is behind the mark: refused |
    | a copy resumes beside the living original | the original stops before its next release |
    | the mark was edited | its keyed digest does not hold: refused |
    | the mark was removed | it is written with the reservation: refused |
    | an old database and an old checkpoint | not noticed, as with an old database and head |

    Args:
        store: holds the marks.
        secret: of the project; the key of the marks is derived from it.
        marked: tells whether a charge's mark was written with its reservation. Work without a
            guarantee has none.
    """

    def __init__(self, store: Store, secret: bytes, marked: Callable[[str], bool]):
        self._store = store
        self._marked = marked
        self._key = hmac.digest(secret, _PROGRESS, hashlib.sha256)

    def first(self, charge: str) -> Mark:
        """Make the mark of a new charge, without an owner, to be written with its reservation."""
        return self._mark(charge, "", 0)

    def check(self, charges: Iterable[str]) -> None:
        """Check all marks.

        Raise PipelineError if one was edited, or the mark of one of ``charges`` was removed.
        """
        marks = {mark.charge: mark for mark in self._store.marks()}
        for mark in marks.values():
            self._check(mark)
        for charge in charges:
            if self._marked(charge) and charge not in marks:
                raise self._broken(charge, "removed")

    def behind(self, charge: str, saves: int) -> bool:
        """Tell whether a checkpoint with this number of saves is an old copy.

        Raise if the mark was edited.
        """
        mark = self._read(charge)
        return mark is not None and mark.saves > saves

    def claim(self, charge: str, owner: str, saves: int) -> Mark | None:
        """Write a new owner (a random name) into a charge's mark, to go on from a checkpoint with
        ``saves`` saves.

        Returns:
            The mark; None if the checkpoint is an old copy.

        Raises:
            PipelineError: the mark was edited or removed.
            Busy: another process claims it now.
        """
        before, after = self._read(charge), self._mark(charge, owner, saves)
        if before is not None and before.saves > saves:
            return None
        if not self._store.replace_progress(before, after):
            raise Busy(f"charge {charge}: another process works on it; try again later")
        return after

    def advance(self, mark: Mark) -> Mark:
        """Count one more save, durably.

        Call it after the checkpoint is on the disk and before the release.

        Raises:
            PipelineError: another process has resumed the charge from a copy; this one must release
                nothing more.
        """
        after = self._mark(mark.charge, mark.owner, mark.saves + 1)
        if (
            not self._store.replace_progress(mark, after)
            and self._store.progress(mark.charge) != after
        ):
            raise PipelineError(
                f"charge {mark.charge}: another process has resumed it from a copy of its "
                "checkpoint; this one stops before it reads or spends more"
            )
        return after

    def _read(self, charge: str) -> Mark | None:
        mark = self._store.progress(charge)
        if mark is None and self._marked(charge):
            raise self._broken(charge, "removed")
        return None if mark is None else self._check(mark)

    def _check(self, mark: Mark) -> Mark:
        if type(mark.saves) is not int or mark != self._mark(
            mark.charge, str(mark.owner), mark.saves
        ):
            raise self._broken(mark.charge, "edited")
        return mark

    def _mark(self, charge: str, owner: str, saves: int) -> Mark:
        content = canonical({"charge": charge, "owner": owner, "saves": saves})
        return Mark(
            charge, owner, saves, hmac.new(self._key, content.encode(), hashlib.sha256).hexdigest()
        )

    def _broken(self, charge: str, what: str) -> PipelineError:
        return PipelineError(
            f"ledger {self._store.shown}: ledger_progress: the row of charge {charge} was {what}, "
            "so no checkpoint can be trusted; restore the database; the charge stays spent"
        )


def _all_rows(connection: sa.Connection, table: sa.Table) -> list[dict[str, Any]]:
    """Read a table whole, in an order that does not depend on the database."""
    rows = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
    return sorted(rows, key=lambda row: [str(row[key.name]) for key in table.primary_key])


def _parse(url: str | None) -> sa.URL:
    if url is None:
        return sa.URL.create("sqlite", database=str(home() / LEDGER))
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise PipelineError(f"ledger.url: not a database's URL; {_ALLOWED}") from None
    if "@" in (parsed.host or ""):  # the rest of a password, which no message may show
        raise PipelineError("ledger.url: found an @ in its password; leave it to ~/.pgpass, or %40")
    if parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise PipelineError(f"ledger.url: found a URL of {parsed.drivername}; {_ALLOWED}")
    if parsed.get_backend_name() != "sqlite":
        return parsed
    file = parsed.database or ""
    if file in ("", ":memory:") or file.startswith("file:") or parsed.query:
        raise PipelineError(f"ledger.url: names no plain file for SQLite; {_ALLOWED}")
    return parsed.set(database=str(home() / Path(file).expanduser()))


def _without_credentials(url: sa.URL) -> str:
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    host = url.host or url.query.get("host") or "localhost"
    return f"postgresql://{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"


def _make_file(file: Path) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as refused:
        found = f"cannot be created ({refused.strerror}); let this user write its folder"
        raise PipelineError(f"ledger {file}: {found}, or set another ledger.url") from None


def _engine(url: sa.URL, shown: str, read_only: bool) -> sa.Engine:
    sqlite = url.get_backend_name() == "sqlite"
    patience = (
        {"timeout": str(_WAIT_SECONDS)} if sqlite else {"connect_timeout": str(_CONNECT_SECONDS)}
    )
    own: dict[str, Any] = {}
    if sqlite and read_only:  # a file that is there; where it may not be written, SQLite reads it
        there = f"file:{quote(str(url.database))}?mode=rw"
        own["creator"] = partial(sqlite3.connect, there, uri=True, timeout=_WAIT_SECONDS)
    try:
        engine = sa.create_engine(
            url.set(query={**patience, **url.query}),
            poolclass=sa.NullPool,
            hide_parameters=True,
            **own,
        )
    except ImportError:
        raise PipelineError(
            f"ledger {shown}: no driver for PostgreSQL; pip install 'primorl[postgresql]'"
        ) from None
    sa.event.listen(engine, "connect", _sqlite_settings if sqlite else _postgresql_settings)
    if read_only:
        sa.event.listen(engine, "connect", _sqlite_reads if sqlite else _postgresql_reads)
    return engine


def _sqlite_reads(connection: Any, _: object) -> None:
    connection.execute("PRAGMA query_only = ON")


def _sqlite_settings(connection: Any, _: object) -> None:
    # A commit must survive kill -9 and power loss: a charge that vanishes after its run is an
    # overspent budget. With the rollback journal (the default: one plain file at rest, no shared
    # memory) FULL may still lose the last commit, as the deletion of the journal is not synced;
    # EXTRA syncs it. fullfsync is for macOS, whose fsync stops short.
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute("PRAGMA fullfsync = ON")
    # Bytes that are no UTF-8 would otherwise end in an exception that does not say which record
    # holds them.
    connection.text_factory = lambda raw: raw.decode(errors="replace")


def _postgresql_reads(connection: Any, _: object) -> None:
    connection.autocommit = True
    connection.execute("SET default_transaction_read_only = on")
    connection.autocommit = False


def _postgresql_settings(connection: Any, _: object) -> None:
    # READ COMMITTED, so that a lost race is a unique violation; a server set to lose its last
    # commits in a crash is overruled; a client that hangs in the middle frees the others.
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'read committed'")
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE "
            "current_setting('synchronous_commit') = 'off'"
        )
        cursor.execute(f"SET lock_timeout = '{_WAIT_SECONDS}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{_WAIT_SECONDS}s'")
    connection.autocommit = False
