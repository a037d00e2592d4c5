"""One ledger of several clones: each reads and verifies it, and begins its own head before it charges."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from primorl.commands import main as cli
from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.setup.accounts import begun_ledger, project_ledger
from tests.privacy.ledger.ledgers import execute, request, version
from tests.projects import project_settings, write_settings
from tests.trajectories.builders import snapshot

HEAD = Path(".primorl/ledger.head")


def settings(folder: Path, url: str) -> Params:
    folder.mkdir()
    raw = project_settings()
    raw["ledger"]["url"] = url
    return write_settings(raw, folder)


def primorl(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main(list(words))
    told = capsys.readouterr()
    return status, told.out, told.err


def test_a_clone_that_has_not_charged_verifies_the_shared_ledger(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before: "not there … put it back from its backup", though it never had one."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    one, other = ((folder, settings(folder, ledger_url)) for folder in (tmp_path / "one", tmp_path / "other"))
    monkeypatch.chdir(one[0])
    with closing(project_ledger(one[1])) as ledger:
        ledger.reserve(request(version("ab")), None)
    (other[0] / ".primorl").mkdir(mode=0o700)
    shutil.copy(".primorl/secret", other[0] / ".primorl")  # teams share it
    monkeypatch.chdir(other[0])
    before = snapshot(Path())
    status, out, err = primorl(capsys, "ledger", "verify")
    assert (status, err) == (0, "")
    first, second = out.splitlines()
    assert first == "2 records, each as it was written"
    assert second.startswith(f"{HEAD.absolute()}: this project has none yet, so a cut at the end")
    assert "`primorl ledger repair` begins it" in second
    assert len(json.loads(primorl(capsys, "ledger", "show", "--json")[1])) == 1
    with pytest.raises(PipelineError, match=r"ledger\.head: not there"):
        project_ledger(other[1])
    assert snapshot(Path()) == before
    status, out, _ = primorl(capsys, "ledger", "repair")
    assert status == 0
    assert "2 records, each as it was written; the last is of 2" in out
    for folder, chosen in (one, other, one):
        monkeypatch.chdir(folder)
        with closing(project_ledger(chosen)) as ledger:
            ledger.reserve(request(version("ab")), None)
        assert primorl(capsys, "ledger", "verify")[0] == 0
    monkeypatch.chdir(other[0])
    execute(ledger_url, "DELETE FROM ledger_records WHERE sequence > 4")
    assert "missing, but" in primorl(capsys, "ledger", "verify")[2]


def test_to_look_creates_nothing_in_the_database(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even the tables: an auditor may have no right to."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    chosen = settings(tmp_path / "one", ledger_url)
    monkeypatch.chdir(tmp_path / "one")
    assert begun_ledger(chosen) is None
    assert primorl(capsys, "ledger", "show")[:2] == (0, "the ledger is empty: nothing was charged yet\n")
    assert not Path(".primorl").exists()
    with pytest.raises((sa.exc.OperationalError, sa.exc.ProgrammingError)):
        execute(ledger_url, "SELECT 1 FROM ledger_records")
    with closing(project_ledger(chosen)) as ledger:
        charge = ledger.reserve(request(version("ab")), None)
    reading = begun_ledger(chosen)
    assert reading is not None
    with closing(reading), pytest.raises(PipelineError, match="cannot be used"):
        reading.commit(charge.id)
    with closing(project_ledger(chosen)) as ledger:
        assert [each.state for each in ledger.charges()] == ["reserved"]
