"""Whatever is done to the database behind the ledger's back, `verify` finds it and names the first broken record."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from primorl.privacy.ledger.chain import Chain, Record
from primorl.privacy.ledger.ledger import Budget
from primorl.project.errors import PipelineError
from tests.privacy.ledger.ledgers import DELTA, SECRET, execute, opened, request, version

RECORDS = 8
KINDS = ["version", "reserved", "reserved", "committed", "version", "reserved", "aborted", "reserved"]
_TABLES = ("ledger_records", "ledger_segments", "ledger_bits")
_INSERT = "INSERT INTO ledger_records (sequence, body, previous, hash) VALUES (:sequence, :body, :previous, :hash)"


class Book:
    """A ledger of eight records, its anchor, and ways to change its rows; it can be put back as it was."""

    def __init__(self, url: str, folder: Path):
        self.url, self.folder = url, folder
        ledger = opened(url, folder)
        first = ledger.reserve(request(version("ab")), None)
        second = ledger.reserve(request(version("ab")), None)
        ledger.commit(first.id)
        third = ledger.reserve(request(version("xy")), None)
        ledger.abort(third.id, "diverged")
        ledger.reserve(request(version("ab")), None)
        assert second.state == "reserved"
        self.records = [Record(**record) for record in ledger.export()]
        assert [json.loads(record.body)["kind"] for record in self.records] == KINDS
        self._rows = {table: self.rows(table) for table in _TABLES}
        shutil.copy(folder / "ledger.head", folder / "kept")

    def rows(self, table: str) -> list[dict[str, Any]]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM {table}")).mappings()]

    def put_back(self) -> None:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            for table, rows in self._rows.items():
                connection.execute(sa.text(f"DELETE FROM {table}"))
                connection.execute(sa.insert(sa.table(table, *map(sa.column, rows[0]))), rows)
        shutil.copy(self.folder / "kept", self.folder / "ledger.head")

    def set(self, at: int, /, **columns: Any) -> None:
        settings = ", ".join(f"{column} = :new_{column}" for column in columns)
        values = {f"new_{column}": value for column, value in columns.items()}
        execute(self.url, f"UPDATE ledger_records SET {settings} WHERE sequence = :at", at=at, **values)

    def shift(self, first: int, by: int) -> None:
        """Renumber the records from ``first`` on."""
        execute(
            self.url,
            "UPDATE ledger_records SET sequence = -(sequence + :by) WHERE sequence >= :first",
            "UPDATE ledger_records SET sequence = -sequence WHERE sequence < 0",
            first=first,
            by=by,
        )

    def insert(self, record: Record) -> None:
        execute(self.url, _INSERT, **asdict(record))

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


def refusal(book: Book) -> str:
    """What `verify` says; and who only reads or charges is told the same, and cannot go on."""
    with pytest.raises(PipelineError) as found:
        book.verify()
    for use in (lambda ledger: ledger.charges(), lambda ledger: ledger.reserve(request(version("new")), None)):
        with pytest.raises(PipelineError) as met:
            use(opened(book.url, book.folder))
        assert str(met.value) == str(found.value)
    assert "\n" not in str(found.value)
    return str(found.value)


def forged(book: Book, follows: int, **content: Any) -> Record:
    """A record that would fit after another, by somebody who knows everything but the secret."""
    stranger = Chain(b"?" * 32, "forged")
    stranger.hashes = [record.hash for record in book.records[:follows]]
    return stranger.following([content])[0]


@pytest.mark.parametrize("sequence", range(1, RECORDS + 1))
@pytest.mark.parametrize("column", ["body", "previous", "hash", "sequence"])
def test_every_edit_is_found(book: Book, sequence: int, column: str) -> None:
    record = book.records[sequence - 1]
    if column == "sequence":
        book.set(sequence, sequence=sequence + 100)
        assert f": record {sequence}: missing" in refusal(book)
        return
    edited = {
        "body": record.body.replace('"time":"2', '"time":"1'),
        "previous": book.records[sequence - 2].previous if sequence > 1 else "0" * 64,
        "hash": book.records[sequence - 2].hash,
    }[column]
    assert edited != getattr(record, column)
    book.set(sequence, **{column: edited})
    assert f": record {sequence}: its content, its link or its hash was edited" in refusal(book)


@pytest.mark.parametrize("sequence", range(1, RECORDS + 1))
def test_a_removed_record_is_missed(book: Book, sequence: int) -> None:
    """At the tail only the anchor knows."""
    book.remove(sequence)
    said = refusal(book)
    assert f": record {sequence}: missing" in said
    assert (f"{book.folder / 'ledger.head'} knows of 8 records" in said) == (sequence == RECORDS)


@pytest.mark.parametrize("last", [5, 0])
def test_a_tail_cut_off_is_missed(book: Book, last: int) -> None:
    book.remove(*range(last + 1, RECORDS + 1))
    assert f": record {last + 1}: missing, but {book.folder / 'ledger.head'} knows of 8 records" in refusal(book)


@pytest.mark.parametrize(("one", "other"), [(1, 2), (3, 6), (7, 8)])
def test_two_swapped_records_are_found(book: Book, one: int, other: int) -> None:
    for place, record in ((one, book.records[other - 1]), (other, book.records[one - 1])):
        book.set(place, body=record.body, previous=record.previous, hash=record.hash)
    assert f": record {one}: was written as record {other}" in refusal(book)


@pytest.mark.parametrize("place", [1, 4, 9])
def test_a_record_forged_under_another_key_is_found(book: Book, place: int) -> None:
    book.shift(place, by=1)
    book.insert(forged(book, place - 1, kind="committed", charge=json.loads(book.records[1].body)["charge"]))
    assert f": record {place}: its content, its link or its hash was edited" in refusal(book)


@pytest.mark.parametrize("place", [0, -3])
def test_nothing_can_stand_before_the_first(book: Book, place: int) -> None:
    record = book.records[0]
    book.insert(Record(place, record.body, record.previous, record.hash))
    assert f": record {place}: inserted before the first" in refusal(book)


def test_a_record_of_another_future_of_the_same_secret_is_found() -> None:
    """Whole records with the right numbers and hashes, of two chains that parted after the first record."""
    chain, other = Chain(SECRET, "one"), Chain(SECRET, "other")
    first, second, third = chain.following([{"kind": "a"}, {"kind": "b"}, {"kind": "c"}])
    _, apart, _ = other.following([{"kind": "a"}, {"kind": "z"}, {"kind": "c"}])
    with pytest.raises(PipelineError, match="record 3: does not follow the record 2"):
        Chain(SECRET, "mixed").extend([first, apart, third])
    assert len(Chain(SECRET, "sound").extend([first, second, third])) == 3


def test_an_older_state_with_a_new_future_is_found(book: Book) -> None:
    """Even the owner of the secret cannot go back and charge anew: what the anchor knows must be there."""
    chain = Chain(SECRET, "again")
    chain.extend(book.records[:7])
    (other,) = chain.following([{"kind": "committed", "charge": json.loads(book.records[1].body)["charge"]}])
    book.remove(8)
    book.insert(other)
    assert f": record 8: not the one that {book.folder / 'ledger.head'} knows" in refusal(book)


@pytest.mark.parametrize("table", ["ledger_segments", "ledger_bits"])
def test_edited_members_are_found_before_they_let_anyone_through(book: Book, table: str) -> None:
    """With other members, a version would no longer share what was spent on its people."""
    other = next(row["content"] for row in book.rows(table) if row["version"] == 5)
    execute(book.url, f"UPDATE {table} SET content = :other WHERE version = 1", other=bytes(other)[::-1])
    for use in (
        lambda: book.verify(),
        lambda: opened(book.url, book.folder).reserve(request(version("bc")), Budget(9.0, DELTA)),
    ):
        with pytest.raises(PipelineError, match=r": record 1: the members of this dataset version were removed or ed"):
            use()


@pytest.mark.parametrize("table", ["ledger_segments", "ledger_bits"])
def test_removed_and_swapped_members_are_found(book: Book, table: str) -> None:
    execute(book.url, f"UPDATE {table} SET version = -version", f"UPDATE {table} SET version = 6 + version")
    with pytest.raises(PipelineError, match=r": record 1: the members of this dataset version were removed or edited"):
        book.verify()
    book.put_back()
    execute(book.url, f"DELETE FROM {table} WHERE version = 5")
    with pytest.raises(PipelineError, match=r": record 5: the members of this dataset version were removed or edited"):
        book.verify()
    with pytest.raises(PipelineError, match=r": record 5: the members of this dataset version were removed or edited"):
        opened(book.url, book.folder).reserve(request(version("bc")), Budget(9.0, DELTA))
    book.put_back()
    execute(book.url, "INSERT INTO ledger_segments (version, content) VALUES (4, :members)", members=b"m" * 16)
    with pytest.raises(PipelineError, match=r": record 4: has members, but is no dataset version"):
        book.verify()


def test_a_bit_on_the_other_side_or_of_another_segment_is_found(book: Book) -> None:
    """A private unit marked public, or bits moved to another segment, would hide what was spent."""
    for change in ("side = 'public'", "segment = 5"):
        execute(book.url, f"UPDATE ledger_bits SET {change} WHERE version = 1")
        with pytest.raises(PipelineError, match=r": record 1: the members of this dataset version were removed or ed"):
            book.verify()
        book.put_back()


def test_another_secret_is_not_mistaken_for_an_edit(book: Book) -> None:
    with pytest.raises(PipelineError, match=r"written under another secret than this project's \.primorl/secret"):
        opened(book.url, book.folder, b"t" * 32).charges()
    book.set(1, hash="0" * 64)
    with pytest.raises(PipelineError, match="record 1: its content"):
        book.verify()


def test_an_object_that_has_read_them_notices_changed_records(book: Book) -> None:
    ledger = opened(book.url, book.folder)
    assert len(ledger.charges()) == 4
    book.set(RECORDS, body="{}")
    with pytest.raises(PipelineError, match="record 8: edited or removed since it was last read"):
        ledger.charges()
    book.put_back()
    assert len(ledger.charges()) == 4
    book.set(3, body="{}")  # what it has read it remembers; `verify` looks again
    assert len(ledger.charges()) == 4
    with pytest.raises(PipelineError, match="record 3: its content"):
        ledger.verify()


def test_records_of_a_later_program_are_refused_not_ignored(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = opened(url, tmp_path)
    ledger.reserve(request(version("ab")), None)
    chain = Chain(SECRET, "later")
    chain.extend([Record(**record) for record in ledger.export()])
    (later,) = chain.following([{"kind": "refunded"}])
    execute(url, _INSERT, **asdict(later))
    with pytest.raises(PipelineError, match="record 3: of kind 'refunded', which this version does not know"):
        ledger.charges()


@pytest.mark.parametrize("column", ["body", "previous", "hash"])
def test_sqlite_may_hold_anything_in_any_column(tmp_path: Path, column: str) -> None:
    """SQLite does not check types: bytes where text was, and text that is no UTF-8."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    opened(url, tmp_path).reserve(request(version("ab")), None)
    for value in ("x'ff00'", "CAST(x'ff00' AS TEXT)", "7"):
        execute(url, f"UPDATE ledger_records SET {column} = {value} WHERE sequence = 2")
        with pytest.raises(PipelineError, match="record 2: its content, its link or its hash was edited"):
            opened(url, tmp_path).verify()


def test_sqlite_members_of_another_type_are_gone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    opened(url, tmp_path).reserve(request(version("ab")), None)
    for table in ("ledger_segments", "ledger_bits"):
        execute(url, f"UPDATE {table} SET content = 'text'")
        with pytest.raises(PipelineError, match="record 1: the members of this dataset version were removed"):
            opened(url, tmp_path).verify()
