"""One ledger of several clones: each reads and verifies it, and begins its own head before it charges."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.setup.accounts import begun_ledger, project_ledger
from tests.hostile.project import primorl
from tests.privacy.ledger.ledgers import execute, request, version
from tests.projects import project_settings, write_settings
from tests.trajectories.builders import snapshot

HEAD = Path(".primorl/ledger.head")


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_ROOT", raising=False)


def settings(folder: Path, url: str) -> Params:
    folder.mkdir()
    raw = project_settings()
    raw["ledger"]["url"] = url
    return write_settings(raw, folder)


def charge(chosen: Params) -> str:
    with closing(project_ledger(chosen)) as ledger:
        return ledger.reserve(request(version("ab")), None).id


def test_a_clone_that_has_not_charged_verifies_the_shared_ledger(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: "not there … put it back from its backup", though it never had one."""
    one, other = ((folder, settings(folder, ledger_url)) for folder in (tmp_path / "one", tmp_path / "other"))
    monkeypatch.chdir(one[0])
    charge(one[1])
    (other[0] / ".primorl").mkdir(mode=0o700)
    shutil.copy(".primorl/secret", other[0] / ".primorl")  # teams share it
    monkeypatch.chdir(other[0])
    before = snapshot(Path())
    status, out, err = primorl("ledger", "verify")
    assert (status, err) == (0, "")
    first, second = out.splitlines()
    assert first == "2 records, each as it was written"
    assert second.startswith(f"{HEAD.absolute()}: this project has none yet, so a cut at the end")
    assert "`primorl ledger repair` begins it" in second
    assert len(json.loads(primorl("ledger", "show", "--json")[1])) == 1
    with pytest.raises(PipelineError, match=r"ledger\.head: not there"):
        project_ledger(other[1])
    assert snapshot(Path()) == before
    status, out, _ = primorl("ledger", "repair")
    assert (status, "2 records, each as it was written; the last is of 2" in out) == (0, True)
    for folder, chosen in (one, other):
        monkeypatch.chdir(folder)
        charge(chosen)
        assert primorl("ledger", "verify")[0] == 0
    execute(ledger_url, "DELETE FROM ledger_records WHERE sequence > 4")
    assert "missing, but" in primorl("ledger", "verify")[2]


def test_to_look_creates_nothing_in_the_database(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the tables: an auditor may have no right to."""
    chosen = settings(tmp_path / "one", ledger_url)
    monkeypatch.chdir(tmp_path / "one")
    assert begun_ledger(chosen) is None
    assert primorl("ledger", "show")[:2] == (0, "the ledger is empty: nothing was charged yet\n")
    assert not Path(".primorl").exists()
    with pytest.raises((sa.exc.OperationalError, sa.exc.ProgrammingError)):
        execute(ledger_url, "SELECT 1 FROM ledger_records")
    made, reading = charge(chosen), begun_ledger(chosen)
    assert reading is not None
    with closing(reading), pytest.raises(PipelineError, match="cannot be used"):
        reading.commit(made)
    with closing(project_ledger(chosen)) as ledger:
        assert [each.state for each in ledger.charges()] == ["reserved"]
