"""The ledger's two tables, in a SQLite file or on a PostgreSQL server."""

import os
import random
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

from primorl.privacy.ledger.chain import Record
from primorl.project.errors import PipelineError

_ALLOWED = "allowed are sqlite:///FILE and postgresql+psycopg://USER:PASSWORD@HOST/NAME"
_WAIT_SECONDS = 60  # for another process's transaction, which takes milliseconds
_CONNECT_SECONDS = 10
_CREATE_ATTEMPTS = 20

_tables = sa.MetaData()
_records = sa.Table(
    "ledger_records",
    _tables,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("previous", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)
_members = sa.Table(
    "ledger_members",
    _tables,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),  # sequence of the version's record
    sa.Column("content", sa.LargeBinary, nullable=False),
)


class Store:
    """Reads and appends rows; what they mean is none of its business.

    Every call opens a connection of its own, so none idles through hours of training or crosses a fork.

    Args:
        url: SQLAlchemy's; the tables (and a SQLite file, mode 0600) are made where they are missing.
        read_only: make and change nothing; what was not begun is empty.

    Raises:
        PipelineError: the database cannot be used; no message holds user or password.
    """

    def __init__(self, url: str, *, read_only: bool = False):
        parsed = _parsed(url)
        self.shown = _without_credentials(parsed)
        file = Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None
        if file is not None and not read_only:
            _make_file(file)
        self._engine = _engine(parsed, self.shown, read_only)
        self.begun = file is None or file.exists()
        """Whether there is anything to read: False only with ``read_only``."""
        with self._clear_errors():
            if not read_only:
                self._create_tables()
            elif self.begun:
                self.begun = all(sa.inspect(self._engine).has_table(table.name) for table in _tables.sorted_tables)

    def read(self, since: int = 0) -> list[Record]:
        """The records from sequence ``since`` on (0: all, whatever their sequence), in order."""
        if not self.begun:
            return []
        query = sa.select(_records).order_by(_records.c.sequence)
        if since:
            query = query.where(_records.c.sequence >= since)
        with self._clear_errors(), self._engine.connect() as connection:
            return [Record(*row) for row in connection.execute(query)]

    def append(self, records: Sequence[Record], members: Mapping[int, bytes]) -> bool:
        """Add all records, and members by the sequence of their version's record, durably; or nothing.

        Returns:
            False if another process has used one of the sequences first.
        """
        blobs = [{"version": version, "content": content} for version, content in members.items()]
        with self._clear_errors():
            try:
                with self._engine.begin() as connection:
                    connection.execute(sa.insert(_records), [asdict(record) for record in records])
                    if blobs:
                        connection.execute(sa.insert(_members), blobs)
            except IntegrityError:
                return False
        return True

    def members(self, version: int) -> bytes | None:
        """The members of the version whose record has this sequence; None if they are gone or of another type."""
        # A literal column keeps what SQLite holds, of whatever type somebody made it.
        query: sa.Select[Any] = (
            sa.select(sa.literal_column("content")).select_from(_members).where(_members.c.version == version)
        )
        with self._clear_errors(), self._engine.connect() as connection:
            content = connection.execute(query).scalar()
        return content if isinstance(content, bytes) else None

    def versions(self) -> list[int]:
        """The versions that have members, by the sequence of their record."""
        if not self.begun:
            return []
        query = sa.select(_members.c.version).order_by(_members.c.version)
        with self._clear_errors(), self._engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def close(self) -> None:
        """Let the database go."""
        self._engine.dispose()

    def _create_tables(self) -> None:
        for _ in range(_CREATE_ATTEMPTS):
            inspector = sa.inspect(self._engine)
            missing = [table for table in _tables.sorted_tables if not inspector.has_table(table.name)]
            if not missing:
                return
            # Two processes may begin at once: PostgreSQL then fails one of them in spite of IF NOT EXISTS.
            with suppress(IntegrityError, ProgrammingError), self._engine.begin() as connection:
                for table in missing:
                    connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
            time.sleep(random.SystemRandom().uniform(0, 0.05))
        raise PipelineError(
            f"ledger {self.shown}: its tables cannot be created; the user needs the right to create them"
        )

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as failed:
            raise PipelineError(f"ledger {self.shown}: cannot be used: {self._reason(failed)}") from None

    def _reason(self, failed: SQLAlchemyError) -> str:
        cause = getattr(failed, "orig", None) or failed
        if self._engine.dialect.name == "sqlite":
            return str(cause)
        # A server's own words may name its users.
        return f"{type(cause).__name__}; check that the server is up, has the database and lets you in, or ledger.url"


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise PipelineError(f"ledger.url: not a database's URL; {_ALLOWED}") from None
    if parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise PipelineError(f"ledger.url: found a URL of {parsed.drivername}; {_ALLOWED}")
    if parsed.get_backend_name() == "sqlite" and (
        parsed.database in (None, "", ":memory:") or parsed.query or str(parsed.database).startswith("file:")
    ):
        raise PipelineError(f"ledger.url: names no plain file for SQLite; {_ALLOWED}")
    return parsed


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
        raise PipelineError(f"ledger {file}: cannot be created ({refused.strerror})") from None


def _engine(url: sa.URL, shown: str, read_only: bool) -> sa.Engine:
    sqlite = url.get_backend_name() == "sqlite"
    patience = {"timeout": str(_WAIT_SECONDS)} if sqlite else {"connect_timeout": str(_CONNECT_SECONDS)}
    own = {"creator": partial(_read_sqlite, Path(url.database or ""))} if sqlite and read_only else {}
    try:
        engine = sa.create_engine(
            url.set(query={**patience, **url.query}), poolclass=sa.NullPool, hide_parameters=True, **own
        )
    except ImportError:
        raise PipelineError(
            f'ledger {shown}: the driver for PostgreSQL is missing; pip install "primorl[postgresql]"'
        ) from None
    sa.event.listen(engine, "connect", _sqlite_settings if sqlite else _postgresql_settings)
    if read_only and not sqlite:
        sa.event.listen(engine, "connect", _postgresql_reads)
    return engine


def _read_sqlite(file: Path) -> sqlite3.Connection:
    """A connection that creates and changes nothing, so that read access to file and folder is enough.

    A process that was killed in the middle of a write leaves a journal beside the file, without which the file is not
    to be read. Only who may write can put things right; for them that happens here.
    """
    place = f"file:{quote(str(file.absolute()))}?mode="
    opened = sqlite3.connect(f"{place}ro", uri=True, timeout=_WAIT_SECONDS)
    try:
        opened.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        if not file.with_name(f"{file.name}-journal").exists():
            raise
        opened.close()
        opened = sqlite3.connect(f"{place}rw", uri=True, timeout=_WAIT_SECONDS)
    return opened


def _sqlite_settings(connection: Any, _: object) -> None:
    # A commit must survive kill -9 and power loss: a charge that vanishes after its run is an overspent budget. With
    # the rollback journal (the default: one plain file at rest, no shared memory) FULL may still lose the last commit,
    # as the deletion of the journal is not synced; EXTRA syncs it. fullfsync is for macOS, whose fsync stops short.
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute("PRAGMA fullfsync = ON")
    # Bytes that are no UTF-8 would otherwise end in an exception that does not say which record holds them.
    connection.text_factory = lambda raw: raw.decode(errors="replace")


def _postgresql_reads(connection: Any, _: object) -> None:
    connection.autocommit = True
    connection.execute("SET default_transaction_read_only = on")
    connection.autocommit = False


def _postgresql_settings(connection: Any, _: object) -> None:
    # READ COMMITTED, so that a lost race is a unique violation; a server set to lose its last commits in a crash is
    # overruled; a client that hangs in the middle frees the others.
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'read committed'")
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        cursor.execute(f"SET lock_timeout = '{_WAIT_SECONDS}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{_WAIT_SECONDS}s'")
    connection.autocommit = False
