"""Whatever is done to the database behind the ledger's back, `verify` finds it and names the first broken record.

`tests/hostile/test_cheats.py` changes, removes and exchanges every value and row; here are forgeries, and what is said.
"""

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primorl.privacy.ledger.chain import Chain, Record
from primorl.privacy.ledger.ledger import Budget, Ledger
from primorl.project.errors import PipelineError
from tests.privacy.ledger.ledgers import DELTA, INSERT, SECRET, execute, opened, request, version

KINDS = ["version", "reserved", "reserved", "committed", "version", "reserved", "aborted", "reserved"]
EDITED = "its content, its link or its hash was edited"
NO_TEXT = "UPDATE ledger_records SET hash = CAST(x'ff00' AS TEXT)"
MEMBERS = "the members of this dataset version were removed or edited"


class Book:
    """A ledger of eight records in a folder, its anchor, and ways to change its rows."""

    def __init__(self, folder: Path):
        self.url, self.folder = f"sqlite:///{folder / 'ledger.db'}", folder

    @functools.cached_property
    def records(self) -> list[Record]:
        return [Record(**record) for record in self.opened().export()]

    def opened(self) -> Ledger:
        return opened(self.url, self.folder)

    def set(self, at: int, /, **columns: Any) -> None:
        settings = ", ".join(f"{column} = :new_{column}" for column in columns)
        values = {f"new_{column}": value for column, value in columns.items()}
        execute(self.url, f"UPDATE ledger_records SET {settings} WHERE sequence = :at", at=at, **values)

    def insert(self, record: Record) -> None:
        execute(self.url, INSERT, **vars(record))

    def remove(self, first: int, last: int) -> None:
        execute(self.url, "DELETE FROM ledger_records WHERE sequence BETWEEN :first AND :last", first=first, last=last)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    book = Book(tmp_path_factory.mktemp("book"))
    ledger = book.opened()
    first = ledger.reserve(request(version("ab")), None)
    ledger.reserve(request(version("ab")), None)
    ledger.commit(first.id)
    third = ledger.reserve(request(version("xy")), None)
    ledger.abort(third.id, "diverged")
    ledger.reserve(request(version("ab")), None)
    assert [json.loads(record.body)["kind"] for record in book.records] == KINDS
    return book.folder


@pytest.fixture
def book(kept: Path, tmp_path: Path) -> Book:
    book = Book(shutil.copytree(kept, tmp_path / "book"))
    assert len(book.records) == len(KINDS)
    return book


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
    for sequence in range(len(KINDS), place - 1, -1):
        book.set(sequence, sequence=sequence + 1)
    book.insert(following(book, place, b"?" * 32))


def charged_anew(book: Book) -> None:
    """Even the owner of the secret cannot go back: what the anchor knows must be there."""
    book.remove(8, 8)
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
        # SQLite does not check types: bytes where text was, and text that is no UTF-8.
        (lambda book: book.set(2, body=b"\xff\0"), f"record 2: {EDITED}"),
        (lambda book: execute(book.url, f"{NO_TEXT} WHERE sequence = 2"), f"record 2: {EDITED}"),
        (lambda book: book.set(2, previous=7), f"record 2: {EDITED}"),
        (lambda book: book.set(5, sequence=105), "record 5: missing"),
        (lambda book: book.remove(1, 1), "record 1: missing"),
        (lambda book: book.remove(4, 4), "record 4: missing"),
        (lambda book: book.remove(8, 8), "record 8: missing, but {head} knows of 8 records"),
        (lambda book: book.remove(6, 8), "record 6: missing, but {head} knows of 8 records"),
        (lambda book: book.remove(1, 8), "record 1: missing, but {head} knows of 8 records"),
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
        book.opened().verify()
    assert f": {said.format(head=book.folder / 'ledger.head')}" in str(found.value)
    assert "\n" not in str(found.value)
    for use in (lambda ledger: ledger.charges(), lambda ledger: ledger.reserve(request(version("new")), None)):
        with pytest.raises(PipelineError) as met:
            use(book.opened())
        assert str(met.value) == str(found.value)


def test_a_record_of_another_future_of_the_same_secret_is_found() -> None:
    """Whole records with the right numbers and hashes, of two chains that parted after the first record."""
    first, second, third = Chain(SECRET, "one").following([{"kind": "a"}, {"kind": "b"}, {"kind": "c"}])
    _, apart, _ = Chain(SECRET, "other").following([{"kind": "a"}, {"kind": "z"}, {"kind": "c"}])
    with pytest.raises(PipelineError, match="record 3: does not follow the record 2"):
        Chain(SECRET, "mixed").extend([first, apart, third])
    assert len(Chain(SECRET, "sound").extend([first, second, third])) == 3


@pytest.mark.parametrize(
    ("change", "record"),
    [
        ("UPDATE {table} SET content = ZEROBLOB(LENGTH(content)) WHERE version = 1", 1),
        ("UPDATE {table} SET content = 'text'", 1),
        ("DELETE FROM {table} WHERE version = 5", 5),
        # A private unit marked public, or bits moved to another segment, would hide what was spent.
        ("UPDATE ledger_bits SET side = 'public' WHERE version = 1", 1),
        ("UPDATE ledger_bits SET segment = 5 WHERE version = 1", 1),
        ("INSERT INTO ledger_segments (version, content) VALUES (4, x'ff')", 4),
    ],
)
@pytest.mark.parametrize("table", ["ledger_segments", "ledger_bits"])
def test_edited_members_are_found_before_they_let_anyone_through(
    book: Book, table: str, change: str, record: int
) -> None:
    """With other members, a version would no longer share what was spent on its people."""
    execute(book.url, change.format(table=table))
    said = "has members, but is no dataset version" if record == 4 else MEMBERS
    with pytest.raises(PipelineError, match=f": record {record}: {said}"):
        book.opened().verify()
    if record != 4:
        with pytest.raises(PipelineError, match=f": record {record}: {MEMBERS}"):
            book.opened().reserve(request(version("bc")), Budget(9.0, DELTA))


def test_another_secret_is_not_mistaken_for_an_edit(book: Book) -> None:
    with pytest.raises(PipelineError, match=r"written under another secret than this project's \.primorl/secret"):
        opened(book.url, book.folder, b"t" * 32).charges()


def test_an_object_that_has_read_them_notices_changed_records(book: Book) -> None:
    """What it has read it remembers; `verify` looks again."""
    ledger = book.opened()
    assert len(ledger.charges()) == 4
    book.set(3, body="{}")
    assert len(ledger.charges()) == 4
    with pytest.raises(PipelineError, match="record 3: its content"):
        ledger.verify()
    book.set(8, body="{}")
    with pytest.raises(PipelineError, match="record 8: edited or removed since it was last read"):
        ledger.charges()
