"""Nothing is released on the word of a ledger that has lost its head, or that was cut."""

from contextlib import closing
from pathlib import Path

import pytest

from primorl.commands import main as cli
from primorl.config import params
from primorl.project.files import read_json
from primorl.release.contents import LEDGER
from primorl.setup.accounts import dataset_version, project_ledger
from primorl.trajectories.storage.manifest import Manifest
from tests.privacy.ledger.ledgers import GAUSSIAN, execute, request
from tests.trajectories.builders import snapshot

HEAD = Path(".primorl/ledger.head")


def charge_again() -> int:
    """Another charge on the same units, after the model's; return how many records there were before it."""
    chosen = params.load(Path("params.yaml"))
    units = dataset_version(Manifest.load(Path("data/partitions/manifest.json")), Path("data/partitions"))
    with closing(project_ledger(chosen)) as ledger:
        before = ledger.verify()
        ledger.reserve(request(units, GAUSSIAN), None)
    return before


@pytest.mark.usefixtures("project")
def test_a_cut_ledger_without_its_head_releases_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Before: a new head was written, `verify` called the ledger whole, and the bundle stated one charge of two."""
    before = charge_again()
    assert cli.main(["release", "sound"]) == 0
    assert read_json(Path("sound") / LEDGER)["charges"] == 2
    execute("sqlite:///.primorl/ledger.db", "DELETE FROM ledger_records WHERE sequence > :before", before=before)
    HEAD.unlink()
    state = snapshot(Path(".primorl"))
    for _ in range(2):
        capsys.readouterr()
        assert cli.main(["release", "out"]) == 1
        assert "ledger.head: not there, so nobody can tell" in capsys.readouterr().err
        assert cli.main(["ledger", "verify"]) == 1
    assert not Path("out").exists()
    assert snapshot(Path(".primorl")) == state


@pytest.mark.usefixtures("project")
def test_a_release_leaves_ledger_and_head_as_they_are() -> None:
    """Also a head that lags behind, as after a kill: only who writes a record moves it."""
    charge_again()
    state = snapshot(Path(".primorl"))
    assert cli.main(["release", "out"]) == 0
    assert snapshot(Path(".primorl")) == state
