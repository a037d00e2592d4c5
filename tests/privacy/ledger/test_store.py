"""Rows get in whole and durably or not at all, and no error tells a password."""

import os
import stat
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from primorl.base.errors import PipelineError
from primorl.privacy.ledger.history import Record
from primorl.privacy.ledger.store import Store
from tests.privacy.ledger.ledgers import at_once, execute, opened, request, version
from tests.privacy.ledger.postgresql import Server

ANA = "ana:hush"  # a constant: tracebacks quote the lines of this file


def records(*sequences: int) -> list[Record]:
    return [Record(sequence, f"body {sequence}", "previous", "hash") for sequence in sequences]


def refused(action: Callable[[], object]) -> str:
    """The one line that the user is told; nothing secret, also not to who asks for a traceback."""
    with pytest.raises(PipelineError, match=r"\A.*\Z") as wrong:
        action()
    assert "hush" not in "".join(traceback.format_exception(wrong.value))
    assert "ana" not in str(wrong.value)
    return str(wrong.value)


def test_who_comes_second_writes_nothing_at_all(ledger_url: str) -> None:
    assert sum(at_once(*[lambda: Store(ledger_url).append(records(1), {})] * 4)) == 1
    with closing(Store(ledger_url)) as store:
        assert not store.append(records(2, 1), {2: {"private": b"members"}})
        assert store.read() == records(1)
        assert store.members(2) == {}


def test_the_file_is_its_owners_alone_and_a_commit_survives_power_loss(tmp_path: Path) -> None:
    file, before = tmp_path / "own" / "ledger.db", os.umask(0)
    store = Store(f"sqlite:///{file}")
    os.umask(before)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"


@pytest.mark.parametrize("trouble", ["query_only = ON", "max_page_count = 1"])
def test_a_file_that_cannot_be_written_is_named_and_stays_whole(
    tmp_path: Path, trouble: str
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    opened(url, tmp_path).reserve(request(version("ab")), None)
    many, ledger = version([str(unit) for unit in range(1000)]), opened(url, tmp_path)
    sa.event.listen(
        ledger._store._engine, "connect", lambda made, _: made.execute(f"PRAGMA {trouble}")
    )
    assert ledger.verify() == 2  # it can still be read
    said = refused(lambda: ledger.reserve(request(many), None))
    assert said.startswith(f"ledger {tmp_path / 'ledger.db'}: cannot be used: ")
    assert said.endswith((": attempt to write a readonly database", ": database or disk is full"))
    assert opened(url, tmp_path).verify() == 2


def test_a_server_that_may_forget_its_last_commits_is_overruled(postgresql_server: Server) -> None:
    store = Store(f"{postgresql_server.new_url()}%20-csynchronous_commit%3Doff")
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
    assert store.append(records(1), {})


def test_a_role_that_may_only_read_and_add_is_enough(postgresql_server: Server) -> None:
    url = postgresql_server.new_url()
    Store(url).close()
    schema = url.rpartition("search_path%3D")[2]
    grants = (f"USAGE ON SCHEMA {schema}", f"SELECT, INSERT ON ALL TABLES IN SCHEMA {schema}")
    execute(url, "CREATE ROLE clerk LOGIN", *(f"GRANT {grant} TO clerk" for grant in grants))
    theirs = url.replace("primorl@", "clerk@")
    assert Store(theirs).append(records(1), {1: {"private": b"members"}})
    with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
        execute(theirs, "UPDATE ledger_records SET body = 'other'")
    execute(url, "DROP TABLE ledger_members")
    assert "its tables cannot be created" in refused(lambda: Store(theirs))


SERVER = (
    "ledger postgresql://127.0.0.1:9/x: cannot be used: OperationalError; check that the server "
    "is up, "
)
ALLOWED = "; allowed are sqlite:///FILE and postgresql+psycopg://"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"postgresql+psycopg://127.0.0.1:9/x?user=ana&password={ANA}", SERVER),
        ("postgresql+psycopg://ana:hush@host:port/x", f"ledger.url: not a database's URL{ALLOWED}"),
        (
            "postgresql+psycopg2://ana:hush@host/x",
            f"ledger.url: found a URL of postgresql+psycopg2{ALLOWED}",
        ),
        ("sqlite://", f"ledger.url: names no plain file for SQLite{ALLOWED}"),
    ],
)
def test_other_urls_are_refused_without_quoting_them(url: str, said: str) -> None:
    assert refused(lambda: Store(url)).startswith(said)
