"""The head of the chain is remembered outside the database, only forwards, whole or not at all."""

import json
import multiprocessing
from pathlib import Path

import pytest

from primorl.privacy.ledger.anchor import Anchor, Head
from primorl.privacy.ledger.repairing import BrokenLedger, Disagreement
from primorl.project.errors import PipelineError
from tests.privacy.ledger.ledgers import SECRET, execute, opened, request, version


def head(sequence: int) -> Head:
    return Head(sequence, f"{sequence:064x}")


def test_it_only_moves_forwards(tmp_path: Path) -> None:
    anchor = Anchor(tmp_path / "new" / "ledger.head")
    assert anchor.read() is None
    for step in (3, 7, 5, 7):
        anchor.advance(head(step))
    assert anchor.read() == head(7)
    assert anchor.path.stat().st_mode & 0o777 == 0o600
    assert anchor.path.parent.stat().st_mode & 0o777 == 0o700


def _advance_all(path: Path, steps: range) -> None:
    for step in steps:
        Anchor(path).advance(head(step))
        assert (Anchor(path).read() or head(0)).sequence >= step


def test_processes_that_write_at_once_leave_the_furthest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.head"
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_advance_all, args=(path, range(start, 61, 4))) for start in range(1, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert Anchor(path).read() == head(60)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ledger.head", "ledger.head.lock"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "7",
        "[]",
        "{",
        '{"sequence": 7}',
        json.dumps({"sequence": "7", "hash": "0" * 64}),
        json.dumps({"sequence": -1, "hash": "0" * 64}),
        json.dumps({"sequence": True, "hash": "0" * 64}),
        json.dumps({"sequence": 7, "hash": "0" * 62}),
        json.dumps({"sequence": 7, "hash": "x" * 64}),
        json.dumps({"sequence": 7, "hash": 7}),
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_granted(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "ledger.head"
    ledger = opened(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for use in (ledger.charges, ledger.verify, lambda: ledger.reserve(request(version("ab")), None)):
        with pytest.raises(PipelineError) as found:
            use()
        assert str(found.value).startswith(f"{path}: damaged; expected one line of JSON")


def test_it_may_lag_behind_after_a_crash_but_is_never_ahead(tmp_path: Path) -> None:
    """A kill between the database's commit and the anchor's leaves an older head, which is still in the chain."""
    url, path = f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "ledger.head"
    ledger = opened(url, tmp_path)
    charge = ledger.reserve(request(version("ab")), None)
    before = path.read_bytes()
    ledger.commit(charge.id)
    path.write_bytes(before)
    assert opened(url, tmp_path).charges()[0].state == "committed"
    assert opened(url, tmp_path).verify() == 3
    assert path.read_bytes() == before  # who only reads writes nothing
    opened(url, tmp_path).reserve(request(version("xy")), None)
    assert json.loads(path.read_text())["sequence"] == 5


class KilledError(BaseException):
    """Stands for a kill: no handler sees it."""


@pytest.mark.parametrize("place", ["before the database has it", "before the head is moved"])
def test_a_kill_in_the_very_first_charge_leaves_nothing_to_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The head begins before the first record, so records without a head are always a loss."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = opened(url, tmp_path)

    def killed(*_: object) -> None:
        raise KilledError

    if place == "before the head is moved":
        monkeypatch.setattr(ledger, "_remember", killed)
    else:
        monkeypatch.setattr(ledger._store, "append", killed)
    with pytest.raises(KilledError):
        ledger.reserve(request(version("ab")), None)
    found = opened(url, tmp_path).verify()
    assert found == (2 if place == "before the head is moved" else 0)
    opened(url, tmp_path).reserve(request(version("ab"), identity="next"), None)
    assert len(opened(url, tmp_path).charges()) == found // 2 + 1


def test_records_without_a_head_are_read_and_added_to_by_nobody(tmp_path: Path) -> None:
    """Nothing heals it: not reading, and none of the things that write."""
    url, path = f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "ledger.head"
    ledger = opened(url, tmp_path)
    charge = ledger.reserve(request(version("ab")), None)
    path.unlink()
    assert opened(url, tmp_path).verify() == 2
    assert [each.id for each in opened(url, tmp_path).charges()] == [charge.id]
    assert len(opened(url, tmp_path).export()) == 2
    for write in (
        lambda it: it.reserve(request(version("xy")), None),
        lambda it: it.take(charge.id, "0", "token"),
        lambda it: it.commit(charge.id),
        lambda it: it.abort(charge.id, "diverged"),
    ):
        for it in (ledger, opened(url, tmp_path)):
            with pytest.raises(PipelineError, match=r"ledger\.head: not there, .* `primorl ledger repair`"):
                write(it)
    assert not path.exists()
    assert len(opened(url, tmp_path).export()) == 2


def test_a_ledger_that_others_share_is_joined_by_a_repair(tmp_path: Path) -> None:
    """Another clone of one database has a head of its own, and none at first."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    opened(url, tmp_path).reserve(request(version("ab")), None)
    elsewhere = tmp_path / "elsewhere"
    assert opened(url, elsewhere).verify() == 2
    assert not elsewhere.exists()  # reading writes nothing
    with pytest.raises(PipelineError, match="`primorl ledger repair`"):
        opened(url, elsewhere).reserve(request(version("ab")), None)
    joining = BrokenLedger.open(url, secret=SECRET, anchor=elsewhere / "ledger.head")
    assert joining.disagreement() == Disagreement("not there", records_lost=False)
    assert joining.renew_head() is None
    joining.record_repair({"lost": []})
    opened(url, elsewhere).reserve(request(version("ab")), None)
    assert opened(url, tmp_path).verify() == 4


def test_a_repair_names_what_the_head_knows_and_keeps_it(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "ledger.head"
    ledger = opened(url, tmp_path)
    charge = ledger.reserve(request(version("ab")), None)
    ledger.commit(charge.id)
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
    assert opened(url, tmp_path).lost().keys() == {"feedbeef"}
    assert opened(url, tmp_path).verify() == 3
    path.write_text(json.dumps({"sequence": 2, "hash": "a" * 64}))
    other = broken.disagreement()
    assert other is not None
    assert other.says.startswith("knows another record 2")
    assert other.records_lost
    path.write_text("torn")
    assert broken.disagreement() == Disagreement("damaged", records_lost=False)
    execute(url, "UPDATE ledger_records SET body = '{}' WHERE sequence = 2")
    with pytest.raises(PipelineError, match="record 2: its content"):
        BrokenLedger.open(url, secret=SECRET, anchor=path).renew_head()


def test_a_head_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.head").mkdir()
    with pytest.raises(PipelineError, match=r"ledger\.head: the ledger's head cannot be read \(Is a directory\)"):
        Anchor(tmp_path / "ledger.head").read()
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=r"ledger\.head: the ledger's head cannot be written \(.*\)"):
        Anchor(tmp_path / "file" / "ledger.head").advance(head(1))
