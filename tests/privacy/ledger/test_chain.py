"""Whatever is done to the database behind the ledger's back, `verify` finds it and names the first broken record.

`tests/hostile/test_cheats.py` changes, removes and exchanges every value and row; here are forgeries, and what is said.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from primorl.privacy.ledger.chain import Chain, Record
from primorl.privacy.ledger.ledger import Budget
from primorl.project.errors import PipelineError
from tests.privacy.ledger.ledgers import DELTA, INSERT, SECRET, execute, opened, request, version

KINDS = ["version", "reserved", "reserved", "committed", "version", "reserved", "aborted", "reserved"]
RECORDS = len(KINDS)
_TABLES = ("ledger_records", "ledger_segments", "ledger_bits")
EDITED = "its content, its link or its hash was edited"
MEMBERS = "the members of this dataset version were removed or edited"


class Book:
    """A ledger of eight records, its anchor, and ways to change its rows; it can be put back as it was."""

    def __init__(self, url: str, folder: Path):
        self.url, self.folder = url, folder
        ledger = opened(url, folder)
        first = ledger.reserve(request(version("ab")), None)
        ledger.reserve(request(version("ab")), None)
        ledger.commit(first.id)
        third = ledger.reserve(request(version("xy")), None)
        ledger.abort(third.id, "diverged")
        ledger.reserve(request(version("ab")), None)
        self.records = [Record(**record) for record in ledger.export()]
        assert [json.loads(record.body)["kind"] for record in self.records] == KINDS
        self._rows = {table: self.rows(table) for table in _TABLES}

    def rows(self, table: str) -> list[dict[str, Any]]:
        with sa.create_engine(self.url, poolclass=sa.NullPool).connect() as connection:
            return [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM {table}")).mappings()]

    def put_back(self) -> None:
        with sa.create_engine(self.url, poolclass=sa.NullPool).begin() as connection:
            for table, rows in self._rows.items():
                connection.execute(sa.text(f"DELETE FROM {table}"))
                connection.execute(sa.insert(sa.table(table, *map(sa.column, rows[0]))), rows)

    def set(self, at: int, /, **columns: Any) -> None:
        settings = ", ".join(f"{column} = :new_{column}" for column in columns)
        values = {f"new_{column}": value for column, value in columns.items()}
        execute(self.url, f"UPDATE ledger_records SET {settings} WHERE sequence = :at", at=at, **values)

    def insert(self, record: Record) -> None:
        execute(self.url, INSERT, **asdict(record))

    def remove(self, *sequences: int) -> None:
        for sequence in sequences:
            execute(self.url, "DELETE FROM ledger_records WHERE sequence = :at", at=sequence)

    def verify(self) -> int:
        return opened(self.url, self.folder).verify()


@pytest.fixture(scope="module")
def kept_book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    folder = tmp_path_factory.mktemp("book")
    return Book(f"sqlite:///{folder / 'ledger.db'}", folder)


@pytest.fixture
def book(kept_book: Book) -> Iterator[Book]:
    yield kept_book
    kept_book.put_back()


def earlier_time(book: Book) -> None:
    book.set(4, body=book.records[3].body.replace('"time":"2', '"time":"1'))


def exchanged(book: Book) -> None:
    for place, record in ((3, book.records[5]), (6, book.records[2])):
        book.set(place, body=record.body, previous=record.previous, hash=record.hash)


def following(book: Book, place: int, secret: bytes) -> Record:
    """A record that fits there, of a chain of this secret."""
    chain = Chain(secret, "forged")
    chain.hashes = [record.hash for record in book.records[: place - 1]]
    return chain.following([{"kind": "committed", "charge": json.loads(book.records[1].body)["charge"]}])[0]


def forged(book: Book, place: int) -> None:
    """By somebody who knows everything but the secret."""
    for sequence in range(RECORDS, place - 1, -1):
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
        (earlier_time, f"record 4: {EDITED}"),
        (lambda book: book.set(1, previous="0" * 64), f"record 1: {EDITED}"),
        (lambda book: book.set(8, hash=book.records[6].hash), f"record 8: {EDITED}"),
        (lambda book: book.set(5, sequence=105), "record 5: missing"),
        (lambda book: book.remove(1), "record 1: missing"),
        (lambda book: book.remove(4), "record 4: missing"),
        (lambda book: book.remove(8), "record 8: missing, but {head} knows of 8 records"),
        (lambda book: book.remove(6, 7, 8), "record 6: missing, but {head} knows of 8 records"),
        (lambda book: book.remove(*range(1, 9)), "record 1: missing, but {head} knows of 8 records"),
        (exchanged, "record 3: was written as record 6"),
        (lambda book: book.insert(replace(book.records[0], sequence=-3)), "record -3: inserted before the first"),
        (lambda book: forged(book, 1), f"record 1: {EDITED}"),
        (lambda book: forged(book, 4), f"record 4: {EDITED}"),
        (lambda book: forged(book, 9), f"record 9: {EDITED}"),
        (charged_anew, "record 8: not the one that {head} knows"),
        (of_a_later_program, "record 9: of kind 'refunded', which this version does not know"),
    ],
)
def test_a_cheat_is_found_and_the_first_broken_record_named(
    book: Book, edit: Callable[[Book], None], said: str
) -> None:
    """Who only reads or charges is told the same as who verifies, and cannot go on."""
    edit(book)
    with pytest.raises(PipelineError) as found:
        book.verify()
    assert f": {said.format(head=book.folder / 'ledger.head')}" in str(found.value)
    assert "\n" not in str(found.value)
    for use in (lambda ledger: ledger.charges(), lambda ledger: ledger.reserve(request(version("new")), None)):
        with pytest.raises(PipelineError) as met:
            use(opened(book.url, book.folder))
        assert str(met.value) == str(found.value)


def test_a_record_of_another_future_of_the_same_secret_is_found() -> None:
    """Whole records with the right numbers and hashes, of two chains that parted after the first record."""
    first, second, third = Chain(SECRET, "one").following([{"kind": "a"}, {"kind": "b"}, {"kind": "c"}])
    _, apart, _ = Chain(SECRET, "other").following([{"kind": "a"}, {"kind": "z"}, {"kind": "c"}])
    with pytest.raises(PipelineError, match="record 3: does not follow the record 2"):
        Chain(SECRET, "mixed").extend([first, apart, third])
    assert len(Chain(SECRET, "sound").extend([first, second, third])) == 3


def _reversed_members(book: Book, table: str) -> None:
    other = next(row["content"] for row in book.rows(table) if row["version"] == 5)
    execute(book.url, f"UPDATE {table} SET content = :other WHERE version = 1", other=bytes(other)[::-1])


@pytest.mark.parametrize("table", ["ledger_segments", "ledger_bits"])
@pytest.mark.parametrize(
    ("edit", "record"),
    [
        (_reversed_members, 1),
        (lambda book, table: execute(book.url, f"UPDATE {table} SET content = 'text'"), 1),
        (lambda book, table: execute(book.url, f"DELETE FROM {table} WHERE version = 5"), 5),
        # A private unit marked public, or bits moved to another segment, would hide what was spent.
        (lambda book, table: execute(book.url, "UPDATE ledger_bits SET side = 'public' WHERE version = 1"), 1),
        (lambda book, table: execute(book.url, "UPDATE ledger_bits SET segment = 5 WHERE version = 1"), 1),
    ],
)
def test_edited_members_are_found_before_they_let_anyone_through(
    book: Book, table: str, edit: Callable[[Book, str], None], record: int
) -> None:
    """With other members, a version would no longer share what was spent on its people."""
    edit(book, table)
    for use in (
        book.verify,
        lambda: opened(book.url, book.folder).reserve(request(version("bc")), Budget(9.0, DELTA)),
    ):
        with pytest.raises(PipelineError, match=f": record {record}: {MEMBERS}"):
            use()
    book.put_back()
    execute(book.url, "INSERT INTO ledger_segments (version, content) VALUES (4, :members)", members=b"m" * 16)
    with pytest.raises(PipelineError, match=r": record 4: has members, but is no dataset version"):
        book.verify()


def test_another_secret_is_not_mistaken_for_an_edit(book: Book) -> None:
    with pytest.raises(PipelineError, match=r"written under another secret than this project's \.primorl/secret"):
        opened(book.url, book.folder, b"t" * 32).charges()


def test_an_object_that_has_read_them_notices_changed_records(book: Book) -> None:
    ledger = opened(book.url, book.folder)
    assert len(ledger.charges()) == 4
    book.set(RECORDS, body="{}")
    with pytest.raises(PipelineError, match="record 8: edited or removed since it was last read"):
        ledger.charges()
    book.put_back()
    book.set(3, body="{}")  # what it has read it remembers; `verify` looks again
    assert len(ledger.charges()) == 4
    with pytest.raises(PipelineError, match="record 3: its content"):
        ledger.verify()


@pytest.mark.parametrize("column", ["body", "previous", "hash"])
def test_sqlite_may_hold_anything_in_any_column(book: Book, column: str) -> None:
    """SQLite does not check types: bytes where text was, and text that is no UTF-8."""
    for value in ("x'ff00'", "CAST(x'ff00' AS TEXT)", "7"):
        execute(book.url, f"UPDATE ledger_records SET {column} = {value} WHERE sequence = 2")
        with pytest.raises(PipelineError, match=f"record 2: {EDITED}"):
            book.verify()
