"""A checkpoint without a charge: deleted once its process is dead, unless the ledger has lost the charge."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from primorl.privacy.ledger.checkpoint import write_checkpoint
from primorl.privacy.ledger.ledger import Ledger, new_charge_id
from primorl.privacy.ledger.requests import BudgetExceeded
from primorl.project.files import locked
from tests.privacy.ledger.interrupted import DATA, Place, Running, refusal
from tests.privacy.ledger.ledgers import opened, request


@pytest.fixture
def one_file(tmp_path: Path) -> Place:
    return Place(f"sqlite:///{tmp_path}/ledger.db", tmp_path)


def orphan(place: Place, saves: int = 0) -> Path:
    file = place.checkpoints / f"{new_charge_id()}.safetensors"
    write_checkpoint(file, Running(torch.zeros(2)), charge=file.stem, saves=saves)
    return file


def test_a_checkpoint_without_a_charge_is_deleted_once_its_process_is_dead(one_file: Place) -> None:
    first, alive = orphan(one_file), orphan(one_file)
    other = one_file.checkpoints / "notes.safetensors"
    other.write_text("not a charge's")
    with locked(alive.with_suffix(".lock")):
        one_file.work()
        assert not first.exists()
        assert alive.exists()
    one_file.work()
    assert alive.exists(), "a restored result pays for nothing"
    with pytest.raises(BudgetExceeded):
        one_file.work(identity="another")
    assert alive.exists(), "a refused one neither"
    assert other.exists()


def test_work_under_a_charge_that_the_ledger_lost_stops_the_next_payment(one_file: Place) -> None:
    file = orphan(one_file, saves=1)
    said = refusal(one_file)
    assert f"{file.name}: work was done under charge {file.stem}, which the ledger does not hold" in said
    assert "restore its database from the backup" in said
    assert file.exists()
    assert one_file.charged == []
    file.write_bytes(b"damaged")
    assert "work was done under charge" in refusal(one_file)
    file.unlink()
    one_file.work()


def test_a_checkpoint_whose_charge_comes_in_meanwhile_is_kept(one_file: Place) -> None:
    """Its process died after it had asked, and the server commits late: just before the next payment's record."""
    file = orphan(one_file)
    append = Ledger._append

    def late(self: Ledger, *arguments: Any) -> bool:
        Ledger._append = append  # type: ignore[method-assign]
        with closing(opened(one_file.url, one_file.folder)) as other:
            other.reserve(request(DATA, identity="late"), None, file.stem)
        return self._append(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "_append", late)
        patched.setattr("tests.privacy.ledger.interrupted.ONE_RUN", None)
        one_file.work()
    assert file.exists()


def test_a_refusal_leaves_no_checkpoint(one_file: Place) -> None:
    one_file.work(identity="another")
    before = sorted(one_file.checkpoints.iterdir())
    with pytest.raises(BudgetExceeded):
        one_file.work()
    assert sorted(one_file.checkpoints.iterdir()) == before
