"""The head of the chain is remembered outside the database, only forwards, whole or not at all."""

import json
import multiprocessing
from pathlib import Path

import pytest

from primorl.privacy.ledger.anchor import Anchor, Head
from primorl.project.errors import PipelineError
from tests.privacy.ledger.ledgers import opened, request, version


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
        json.dumps({"sequence": 0, "hash": "0" * 64}),
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
    assert json.loads(path.read_text())["sequence"] == 3  # what was verified is remembered


def test_a_ledger_seen_for_the_first_time_is_taken_as_it_is(tmp_path: Path) -> None:
    """Another machine on one PostgreSQL has an anchor of its own, and none at first."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    opened(url, tmp_path).reserve(request(version("ab")), None)
    elsewhere = tmp_path / "elsewhere"
    assert len(opened(url, elsewhere).charges()) == 1
    assert not elsewhere.exists()  # reading writes nothing
    assert opened(url, elsewhere).verify() == 2
    assert (elsewhere / "ledger.head").exists()


def test_a_head_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.head").mkdir()
    with pytest.raises(PipelineError, match=r"ledger\.head: the ledger's head cannot be read \(Is a directory\)"):
        Anchor(tmp_path / "ledger.head").read()
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=r"ledger\.head: the ledger's head cannot be written \(.*\)"):
        Anchor(tmp_path / "file" / "ledger.head").advance(head(1))
