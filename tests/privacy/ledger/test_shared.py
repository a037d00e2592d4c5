"""One ledger of several clones: each has the secret and a head of its own before it charges."""

import shutil
from pathlib import Path

import pytest

from primorl.base.errors import PipelineError
from primorl.config.params import Params
from primorl.work.data import open_to_charge
from tests.data.builders import snapshot
from tests.hostile.project import primorl
from tests.privacy.ledger.ledgers import execute, request, version
from tests.projects import project_settings, write_settings

HEAD = Path(".primorl/ledger.head")


@pytest.fixture
def chosen(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    raw = project_settings()
    raw["ledger"]["url"] = ledger_url
    for name in ("other", "one"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        chosen = write_settings(raw)
    return chosen


def charge(chosen: Params) -> str:
    return open_to_charge(chosen).reserve(request(version("ab")), None).id


def test_a_clone_joins_with_secret_and_head_of_another(
    chosen: Params, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(chosen)
    Path("../other/.primorl").mkdir(mode=0o700)
    shutil.copy(".primorl/secret", "../other/.primorl")  # teams share it
    monkeypatch.chdir("../other")
    before = snapshot(Path())
    assert f"{HEAD.absolute()}: not there" in primorl("ledger", "verify")[2]
    with pytest.raises(PipelineError, match=r"ledger\.head: not there"):
        open_to_charge(chosen)
    assert snapshot(Path()) == before
    shutil.copy(f"../one/{HEAD}", HEAD)
    for folder in ("../one", "../other"):
        monkeypatch.chdir(folder)
        charge(chosen)
        assert primorl("ledger", "verify")[0] == 0
    execute(ledger_url, "DELETE FROM ledger_records WHERE sequence > 3")
    assert "missing, or not the one" in primorl("ledger", "verify")[2]


def test_a_lost_ledger_does_not_begin_again_where_a_model_was_trained(chosen: Params) -> None:
    """DVC deletes the model before it trains another: dvc.lock alone tells of the first."""
    trained = "stages: {train_model: {outs: [{path: models/dynamics}]}}"
    Path("dvc.lock").write_text(trained)
    with pytest.raises(PipelineError, match=r"dvc\.lock"):
        open_to_charge(chosen)
    assert not Path(".primorl").exists()
    Path("dvc.lock").write_text(trained.replace("train_model", "collect"))
    charge(chosen)  # the twin
    Path("dvc.lock").write_text(trained)
    charge(chosen)  # and where the ledger is still there
