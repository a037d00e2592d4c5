"""The head of the chain is remembered outside the database, only forwards, whole or not at all."""

import json
from pathlib import Path

import pytest

from primorl.privacy.ledger.anchor import Anchor, Head
from primorl.privacy.ledger.ledger import BrokenLedger, Disagreement
from primorl.project.errors import PipelineError
from tests.privacy.ledger.ledgers import SECRET, at_once, execute, opened, request, version


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.head"


def head(sequence: int) -> Head:
    return Head(sequence, f"{sequence:064x}")


def test_it_only_moves_forwards(tmp_path: Path) -> None:
    """Also where several processes write at once. It is whole at any time, and its owner's alone."""
    anchor = Anchor(tmp_path / "new" / "ledger.head")
    assert anchor.read() is None

    def advance_all(first: int) -> None:
        for step in range(first, 61, 4):
            anchor.advance(head(step))
            assert (anchor.read() or head(0)).sequence >= step

    assert at_once(*(lambda first=first: advance_all(first) for first in range(1, 5))) == [None] * 4
    anchor.advance(head(5))
    assert anchor.read() == head(60)
    assert sorted(file.name for file in anchor.path.parent.iterdir()) == ["ledger.head", "ledger.head.lock"]
    assert anchor.path.stat().st_mode & 0o777 == 0o600
    assert anchor.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"sequence": 7}',
        json.dumps({"sequence": "7", "hash": "0" * 64}),
        json.dumps({"sequence": -1, "hash": "0" * 64}),
        json.dumps({"sequence": True, "hash": "0" * 64}),
        json.dumps({"sequence": 7, "hash": "0" * 62}),
        json.dumps({"sequence": 7, "hash": "x" * 64}),
        json.dumps({"sequence": 7, "hash": 7}),
        "\udcff",
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_granted(url: str, path: Path, content: str) -> None:
    ledger = opened(url, path.parent)
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    for use in (ledger.charges, ledger.verify, lambda: ledger.reserve(request(version("ab")), None)):
        with pytest.raises(PipelineError) as found:
            use()
        assert str(found.value).startswith(f"{path}: damaged; expected one line of JSON")


def test_records_without_a_head_are_added_to_by_nobody_until_a_repair(url: str, path: Path) -> None:
    """So for another clone of one database, whose head is its own and not there at first. Reading heals nothing."""
    ledger = opened(url, path.parent)
    charge = ledger.reserve(request(version("ab")), None)
    elsewhere = path.parent / "elsewhere"
    path.unlink()
    for write in (
        lambda it: it.reserve(request(version("xy")), None),
        lambda it: it.take(charge.id, "0", "token"),
        lambda it: it.commit(charge.id),
        lambda it: it.abort(charge.id, "diverged"),
    ):
        for it in (ledger, opened(url, path.parent), opened(url, elsewhere)):
            assert it.verify() == len(it.export()) == 2
            assert [each.id for each in it.charges()] == [charge.id]
            with pytest.raises(PipelineError, match=r"ledger\.head: not there, .* `primorl ledger repair`"):
                write(it)
    assert not path.exists()
    assert not elsewhere.exists()
    joining = BrokenLedger.open(url, secret=SECRET, anchor=elsewhere / "ledger.head")
    assert joining.disagreement() == Disagreement("not there", records_lost=False)
    assert joining.renew_head() is None
    joining.record_repair({"lost": []})
    opened(url, elsewhere).reserve(request(version("ab")), None)
    assert opened(url, path.parent).verify() == 4


def test_a_repair_names_what_the_head_knows_and_keeps_it(url: str, path: Path) -> None:
    ledger = opened(url, path.parent)
    ledger.commit(ledger.reserve(request(version("ab")), None).id)
    before = path.read_bytes()
    execute(url, "DELETE FROM ledger_records WHERE sequence = 3")
    broken = BrokenLedger.open(url, secret=SECRET, anchor=path)
    lost = "knows of 3 records, of which the last 1 are lost"
    assert broken.disagreement() == Disagreement(lost, records_lost=True)
    assert ": 2 records, each as it was written; the last is of 2" in broken.describe()
    assert path.read_bytes() == before
    kept = broken.renew_head()
    assert kept is not None
    assert kept.read_bytes() == before
    assert broken.disagreement() is None
    broken.record_repair({"lost": [{"charge": "feedbeef"}]})
    assert opened(url, path.parent).lost().keys() == {"feedbeef"}
    assert opened(url, path.parent).verify() == 3
    path.write_text(json.dumps({"sequence": 2, "hash": "a" * 64}))
    other = "knows another record 2, of another ledger or of another past of this one"
    assert broken.disagreement() == Disagreement(other, records_lost=True)
    path.write_text("torn")
    assert broken.disagreement() == Disagreement("damaged", records_lost=False)
    execute(url, "UPDATE ledger_records SET body = '{}' WHERE sequence = 2")
    with pytest.raises(PipelineError, match="record 2: its content"):
        BrokenLedger.open(url, secret=SECRET, anchor=path).renew_head()


def test_a_head_that_cannot_be_read_or_written_is_named(path: Path) -> None:
    path.mkdir()
    with pytest.raises(PipelineError, match=r"ledger\.head: the ledger's head cannot be read \(Is a directory\)"):
        Anchor(path).read()
    (path / "file").touch()
    with pytest.raises(PipelineError, match=r"ledger\.head: the ledger's head cannot be written \(.*\)"):
        Anchor(path / "file" / "ledger.head").advance(head(1))
