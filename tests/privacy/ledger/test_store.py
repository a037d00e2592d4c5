"""Rows get in whole and durably or not at all, and no error tells a password."""

import multiprocessing
import os
import sqlite3
import stat
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import sqlalchemy as sa

from primorl.privacy.ledger import store as ledger_store
from primorl.privacy.ledger.chain import Record
from primorl.privacy.ledger.store import Packed, Store
from primorl.project.errors import PipelineError
from tests.privacy.ledger.ledgers import execute, opened, request, version
from tests.privacy.ledger.postgresql import Server

ANA = "ana:hush"  # a constant: tracebacks quote the lines of this file


def records(*sequences: int) -> list[Record]:
    return [Record(sequence, f"body {sequence}", "previous", "hash") for sequence in sequences]


def refused(action: Callable[[], object]) -> str:
    """What the user is told; nothing secret, also not to who asks for a traceback."""
    with pytest.raises(PipelineError) as wrong:
        action()
    said = str(wrong.value)
    assert "\n" not in said
    told = said + "".join(traceback.format_exception(wrong.value))
    assert "hush" not in told
    assert "ana" not in said
    return said


def test_rows_come_back_as_they_went_in(ledger_url: str) -> None:
    with closing(Store(ledger_url)) as store:
        assert store.read() == store.versions() == []
        assert store.append(records(1, 2), {1: Packed(b"\0members\xff", {("private", 1): b"\xff"})})
        assert store.append(records(3), {})
    with closing(Store(ledger_url)) as store:
        assert store.read() == records(1, 2, 3)
        assert store.read(2) == records(2, 3)
        assert store.versions() == [1]
        assert store.segment(1) == b"\0members\xff"
        assert store.bits(1) == {("private", 1): b"\xff"}
        assert (store.segment(2), store.bits(2)) == (None, {})


def test_who_comes_second_writes_nothing_at_all(ledger_url: str) -> None:
    with closing(Store(ledger_url)) as store:
        assert store.append(records(1), {})
        assert not store.append(records(1), {})
        assert not store.append(records(2, 1), {2: Packed(b"members", {})})
        assert store.read() == records(1)
        assert store.versions() == []


def _begin(url: str, together: Barrier) -> None:
    together.wait(60)
    Store(url).close()


def test_processes_that_begin_at_once_share_the_tables(ledger_url: str) -> None:
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(4)
    processes = [fork.Process(target=_begin, args=(ledger_url, together)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert Store(ledger_url).append(records(1), {})


# SQLite


def test_only_the_owner_reads_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Store(f"sqlite:///{tmp_path / 'own' / 'ledger.db'}").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "own" / "ledger.db").stat().st_mode) == 0o600


def test_a_commit_survives_power_loss(tmp_path: Path) -> None:
    """EXTRA (3) with the rollback journal: also the journal's deletion is synced."""
    store = Store(f"sqlite:///{tmp_path / 'ledger.db'}")
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"


@contextmanager
def pragma(statement: str) -> Iterator[None]:
    """Every new SQLite connection begins with this."""

    def apply(connection: sqlite3.Connection, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute(f"PRAGMA {statement}")

    sa.event.listen(sa.Engine, "connect", apply)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "connect", apply)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("query_only = ON", "attempt to write a readonly database"),
        ("max_page_count = 1", "database or disk is full"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_and_stays_whole(tmp_path: Path, trouble: str, said: str) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    opened(url, tmp_path).reserve(request(version("ab")), None)
    many = version([str(unit) for unit in range(1000)])
    with pragma(trouble):
        ledger = opened(url, tmp_path)
        assert ledger.verify() == 2  # it can still be read
        assert refused(lambda: ledger.reserve(request(many), None)) == (
            f"ledger {tmp_path / 'ledger.db'}: cannot be used: {said}"
        )
    assert opened(url, tmp_path).verify() == 2


def test_a_lock_that_is_never_let_go_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_store, "_WAIT_SECONDS", 0.05)
    store = Store(f"sqlite:///{tmp_path / 'ledger.db'}")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert "cannot be used: database is locked" in refused(lambda: store.append(records(1), {}))
    assert store.append(records(1), {})


def test_what_is_no_ledger_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, but long enough to look at " * 10)
    assert refused(lambda: Store(f"sqlite:///{tmp_path / 'text'}")) == (
        f"ledger {tmp_path / 'text'}: cannot be used: file is not a database"
    )
    assert (tmp_path / "text").read_text().startswith("not a database")
    assert "cannot be used: unable to open database file" in refused(lambda: Store(f"sqlite:///{tmp_path}"))
    inside = f"sqlite:///{tmp_path / 'text' / 'ledger.db'}"
    assert "ledger.db: cannot be created (" in refused(lambda: Store(inside))


# PostgreSQL


def test_a_server_that_may_forget_its_last_commits_is_overruled(postgresql_server: Server) -> None:
    store = Store(f"{postgresql_server.new_url()}%20-csynchronous_commit%3Doff")
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
    assert store.append(records(1), {})


def test_a_role_that_may_only_read_and_add_is_enough(postgresql_server: Server) -> None:
    """So that the server itself keeps the ledger append-only."""
    url = postgresql_server.new_url()
    Store(url).close()
    schema = url.rpartition("search_path%3D")[2]
    execute(
        url,
        "CREATE ROLE clerk LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO clerk",
        f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {schema} TO clerk",
    )
    theirs = url.replace("primorl@", "clerk@")
    assert Store(theirs).append(records(1), {1: Packed(b"members", {})})
    with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
        execute(theirs, "UPDATE ledger_records SET body = 'other'")
    execute(url, "DROP TABLE ledger_segments")
    assert "its tables cannot be created" in refused(lambda: Store(theirs))


def test_a_server_that_is_not_there_or_not_ours_is_named_without_credentials(postgresql_server: Server) -> None:
    unreachable = f"postgresql+psycopg://{ANA}@127.0.0.1:9/spending"
    assert refused(lambda: Store(unreachable)) == (
        "ledger postgresql://127.0.0.1:9/spending: cannot be used: OperationalError; check that the server is up, "
        "has the database and lets you in, or ledger.url"
    )
    assert "ledger postgresql://127.0.0.1:9/spending: cannot be used" in refused(
        lambda: Store(f"postgresql+psycopg://127.0.0.1:9/spending?user=ana&password={ANA}")
    )
    nothing = postgresql_server.new_url().replace("primorl@/postgres", f"{ANA}@/nothing")
    assert "/nothing: cannot be used: OperationalError" in refused(lambda: Store(nothing))


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert refused(lambda: Store(f"postgresql+psycopg://{ANA}@host/spending")) == (
        'ledger postgresql://host/spending: the driver for PostgreSQL is missing; pip install "primorl[postgresql]"'
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ana hush", "ledger.url: not a database's URL; allowed are sqlite:///FILE and postgresql+psycopg://"),
        ("postgresql+psycopg://ana:hush@host:port/x", "ledger.url: not a database's URL; allowed are"),
        ("mysql://ana:hush@host/x", "ledger.url: found a URL of mysql; allowed are"),
        ("postgresql+psycopg2://ana:hush@host/x", "ledger.url: found a URL of postgresql+psycopg2; allowed are"),
        ("sqlite://", "ledger.url: names no plain file for SQLite; allowed are"),
        ("sqlite:///:memory:", "ledger.url: names no plain file for SQLite; allowed are"),
        ("sqlite:///file:hush?mode=ro&uri=true", "ledger.url: names no plain file for SQLite; allowed are"),
    ],
)
def test_other_urls_are_refused_without_quoting_them(url: str, said: str) -> None:
    assert refused(lambda: Store(url)).startswith(said)
