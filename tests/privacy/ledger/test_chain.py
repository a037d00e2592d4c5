"""What is forged behind the ledger's back is found and named; rows get in whole and durably or
not at all, and no error tells a password.
"""

import functools
import itertools
import json
import os
import re
import shutil
import sqlite3
import stat
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from primorl.base import PipelineError
from primorl.privacy.ledger.history import Anchor, Budget, Chain, Head, Record
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.ledger.store import Store
from tests.privacy.ledger.ledgers import (
    DELTA,
    INSERT,
    SECRET,
    at_once,
    execute,
    opened,
    request,
    version,
)
from tests.privacy.ledger.postgresql import Server

KINDS = ["version", "reserved", "reserved", "committed"]
KINDS += ["version", "reserved", "committed", "reserved"]
EDITED = "missing, edited or moved, or .primorl/secret is not that"
CUT = "missing, or not as {head} says"
NO_TEXT = "UPDATE ledger_records SET hash = CAST(x'ff00' AS TEXT)"
USES: Any = (Ledger.verify, Ledger.charges, lambda it: it.reserve(request(version("n")), None))
MEMBERS = "the members of this version were removed or edited"


class Book:
    """A ledger of eight records in a folder, its anchor, and ways to change its rows."""

    def __init__(self, folder: Path):
        self.url, self.folder = f"sqlite:///{folder / 'ledger.db'}", folder

    @functools.cached_property
    def records(self) -> list[Record]:
        return Store(self.url).read()

    def opened(self) -> Ledger:
        return opened(self.url, self.folder)

    def set(self, at: int, /, **columns: Any) -> None:
        for column, value in columns.items():
            change = f"UPDATE ledger_records SET {column} = :value WHERE sequence = :at"
            execute(self.url, change, at=at, value=value)
            at = value if column == "sequence" else at

    def insert(self, record: Record) -> None:
        execute(self.url, INSERT, **vars(record))

    def remove(self, at: int) -> None:
        execute(self.url, "DELETE FROM ledger_records WHERE sequence = :at", at=at)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    book = Book(tmp_path_factory.mktemp("book"))
    ledger, wanted = book.opened(), request(version("ab"))
    first = ledger.reserve(wanted, None, "0" * 16)  # with a mark of progress
    ledger.reserve(wanted, None)
    ledger.commit(first.id)
    ledger.commit(ledger.reserve(request(version("xy")), None).id)
    ledger.reserve(wanted, None)
    assert [json.loads(record.body)["kind"] for record in book.records] == KINDS
    return book.folder


@pytest.fixture
def book(kept: Path, tmp_path: Path) -> Book:
    book = Book(shutil.copytree(kept, tmp_path / "book"))
    assert len(book.records) == len(KINDS)
    return book


def following(book: Book, place: int, secret: bytes) -> Record:
    chain = Chain(secret, "forged")
    chain.hashes = [record.hash for record in book.records[: place - 1]]
    charge = json.loads(book.records[1].body)["charge"]
    return chain.following([{"kind": "committed", "charge": charge}])[0]


def forged(book: Book, place: int) -> None:
    for sequence in range(len(KINDS), place - 1, -1):
        book.set(sequence, sequence=sequence + 1)
    book.insert(following(book, place, b"?" * 32))


def charged_anew(book: Book) -> None:
    """Even the owner of the secret cannot go back: what the anchor knows must be there."""
    book.remove(8)
    book.insert(following(book, 8, SECRET))


def of_a_later_program(book: Book) -> None:
    chain = Chain(SECRET, "later")
    chain.extend(book.records)
    book.insert(chain.following([{"kind": "refunded"}])[0])


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        # SQLite does not check types: bytes where text was, and text that is no UTF-8.
        (lambda book: book.set(2, body=b"\xff\0"), f"record 2: {EDITED}"),
        (lambda book: execute(book.url, f"{NO_TEXT} WHERE sequence = 2"), f"record 2: {EDITED}"),
        (lambda book: book.remove(8), f"record 8: {CUT}"),
        (lambda book: forged(book, 1), f"record 1: {EDITED}"),
        (charged_anew, f"record 8: {CUT}"),
        (of_a_later_program, "record 9: of kind 'refunded', which this version does not know"),
    ],
)
def test_a_cheat_is_found_and_the_first_broken_record_named(
    book: Book, edit: Any, said: str
) -> None:
    """Who only reads or charges is told the same as who verifies, and cannot go on."""
    edit(book)
    expected = re.escape(f": {said.format(head=book.folder / 'ledger.head')}")
    for use in USES:
        with pytest.raises(PipelineError, match=rf"\A.*{expected}.*\Z"):
            use(book.opened())


Row = tuple[Any, ...]


def changed(value: Any) -> Any:
    if isinstance(value, int):
        return value + 1
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1])
    digits = re.sub(r"\d(?=\D*$)", lambda last: str((int(last[0]) + 1) % 10), value)
    return digits if digits != value else f"{value}_"  # what is JSON stays JSON


def cheats(rows: list[Row]) -> Iterator[list[Row]]:
    """The rows without each, with each of their values changed, and with contents exchanged."""
    for at, row in enumerate(rows):
        before, after = rows[:at], rows[at + 1 :]
        yield [*before, *after]
        for column, value in enumerate(row):
            yield [*before, (*row[:column], changed(value), *row[column + 1 :]), *after]
        if at:
            last = rows[at - 1]
            yield [*before[:-1], (last[0], *row[1:]), (row[0], *last[1:]), *after]


@pytest.mark.parametrize("table", ["ledger_records", "ledger_members", "ledger_progress"])
def test_every_value_row_and_order_of_the_ledger_is_guarded(book: Book, table: str) -> None:
    """Twin: the rows as they were."""
    with closing(sqlite3.connect(book.folder / "ledger.db")) as database:

        def write(rows: list[Row]) -> None:
            with database:
                database.execute(f"DELETE FROM {table}")
                for row in rows:
                    marks = ", ".join("?" * len(row))
                    database.execute(f"INSERT INTO {table} VALUES ({marks})", row)

        sound = database.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
        taken = 0
        for rows in cheats(sound):
            with suppress(sqlite3.IntegrityError):  # two rows of one key
                write(rows)
                taken += 1
                with pytest.raises(PipelineError):
                    book.opened().verify()
        write(sound)
        assert taken > 3
        assert book.opened().verify() == len(KINDS)


def test_a_record_of_another_future_of_the_same_secret_is_found() -> None:
    """Whole records with the right numbers and hashes, of two chains that parted after the first
    record.
    """
    (first, second, third), (_, apart, _) = (
        Chain(SECRET, "one").following([{"kind": kind} for kind in kinds])
        for kinds in ("abc", "azc")
    )
    with pytest.raises(PipelineError, match=f"record 3: {EDITED}"):
        Chain(SECRET, "mixed").extend([first, apart, third])
    assert len(Chain(SECRET, "sound").extend([first, second, third])) == 3


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ("UPDATE ledger_members SET content = 'text'", 1),
        ("UPDATE ledger_members SET content = x'0102030405060708' WHERE version = 1", 1),
        ("DELETE FROM ledger_members WHERE version = 5", 5),
        # A private unit marked public would hide what was spent.
        ("UPDATE ledger_members SET side = side || '_' WHERE version = 1", 1),
    ],
)
def test_edited_members_are_found_before_they_let_anyone_through(
    book: Book, change: str, at: int
) -> None:
    """With other members, a version would no longer share what was spent on its people."""
    execute(book.url, change)
    with pytest.raises(PipelineError, match=f": record {at}: {MEMBERS}"):
        book.opened().reserve(request(version("bc")), Budget(9.0, DELTA))


def head(sequence: int) -> Head:
    return Head(sequence, f"{sequence:064x}")


def test_it_only_moves_forwards(tmp_path: Path) -> None:
    """Also where several processes write at once.

    It is whole at any time, and its owner's alone.
    """
    anchor = Anchor(tmp_path / "new" / "ledger.head")
    assert anchor.read() is None

    def advance_all(first: int) -> None:
        for step in range(first, 61, 4):
            anchor.advance(head(step))
            assert (anchor.read() or head(0)).sequence >= step

    assert at_once(*(lambda first=first: advance_all(first) for first in range(1, 5))) == [None] * 4
    anchor.advance(head(5))
    assert anchor.read() == head(60)
    names = sorted(file.name for file in anchor.path.parent.iterdir())
    assert names == ["ledger.head", "ledger.head.lock"]
    modes = [each.stat().st_mode & 0o777 for each in (anchor.path, anchor.path.parent)]
    assert modes == [0o600, 0o700]


def test_a_damaged_file_is_named_and_nothing_is_granted(book: Book) -> None:
    path, ledger = book.folder / "ledger.head", book.opened()
    for content, use in itertools.product(("", '{"sequence": 7}', "\udcff", "[]"), USES):
        path.write_text(content, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(PipelineError, match=f"^{path}: found no ledger's head"):
            use(ledger)


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
    store = Store(ledger_url)
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
    assert "readonly database; end what holds" in said or "disk is full; end what holds" in said
    assert opened(url, tmp_path).verify() == 2


def test_a_server_that_may_forget_its_last_commits_is_overruled(postgresql_server: Server) -> None:
    store = Store(f"{postgresql_server.new_url()}%20-csynchronous_commit%3Doff")
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
    assert store.append(records(1), {})


def test_a_role_that_may_only_read_and_add_is_enough(postgresql_server: Server) -> None:
    url = postgresql_server.new_url()
    Store(url)
    schema = url.rpartition("search_path%3D")[2]
    grants = (f"USAGE ON SCHEMA {schema}", f"SELECT, INSERT ON ALL TABLES IN SCHEMA {schema}")
    execute(url, "CREATE ROLE clerk LOGIN", *(f"GRANT {grant} TO clerk" for grant in grants))
    theirs = url.replace("primorl@", "clerk@")
    assert Store(theirs).append(records(1), {1: {"private": b"members"}})
    with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
        execute(theirs, "UPDATE ledger_records SET body = 'other'")
    execute(url, "DROP TABLE ledger_members")
    assert "its tables cannot be created" in refused(lambda: Store(theirs))


@pytest.mark.parametrize(
    ("said", "does"),
    [("database is locked", "end what holds it, and run again"), ("disk I/O error", "free space")],
)
def test_a_database_that_is_only_locked_needs_no_backup(said: str, does: str) -> None:
    """An older one would lose charges."""
    store = object.__new__(Store)
    store._engine = sa.create_engine("sqlite://")
    reason = store._reason(sa.exc.OperationalError("", {}, OSError(said)))
    assert does in reason
    assert ("backup" in reason) is ("locked" not in said)


SERVER = "ledger postgresql://127.0.0.1:9/x: cannot be used: OperationalError; see that the server"
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
        ("postgresql+psycopg://ana:old@hush@host/x", "ledger.url: found an @ in its password"),
        ("sqlite://", f"ledger.url: names no plain file for SQLite{ALLOWED}"),
    ],
)
def test_other_urls_are_refused_without_quoting_them(url: str, said: str) -> None:
    assert refused(lambda: Store(url)).startswith(said)
