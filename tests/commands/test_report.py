"""`primorl report`: what all charges come to, whose results stand on the page, and where it is written."""

import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from primorl.config import params
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.ledger.ledger import Ledger
from primorl.project.files import read_json, write_json
from primorl.setup.accounts import open_ledger
from tests.commands.charging import data, primorl
from tests.pipeline.test_evaluate import chosen, project, run
from tests.pipeline.tiny_policy import write_model, write_partitions
from tests.privacy.ledger.ledgers import request
from tests.projects import write_settings
from tests.statements import OF_TRAINING
from tests.trajectories.builders import INFO, episode, episodes, table

__all__ = ["project"]

LATEST = Path("reports/latest.html")


@pytest.fixture
def evaluated(project: Path) -> dict[str, Any]:
    """A run of a model that the ledger's one charge paid for; returns its settings."""
    content = settings()
    write_settings(content)
    shutil.rmtree("data/partitions")
    others = [episode(length, seed=100 + length) for length in (4, 6, 7)]  # the ledger knows rows again
    write_partitions(table(episodes(9)), table(others, names=["p0", "p1", "p2"]))
    charge = charged(event_from_json(OF_TRAINING.event), "mine")
    place(OF_TRAINING.to_json() | {"dataset_fingerprint": INFO.dataset_fingerprint, "charge": charge})
    run(chosen())
    return content


def place(statement: dict[str, Any]) -> None:
    """A model and its policy with this statement."""
    write_model(statement)
    write_json(Path("models/policy/privacy.json"), statement)


def settings(**tracking: str) -> dict[str, Any]:
    content = params.plain(chosen())
    content["tracking"] |= tracking
    return content


def charged(event: Any, identity: str) -> str:
    with closing(open_ledger(params.load(), Ledger, read_only=False)) as ledger:
        charge = ledger.reserve(request(data(), event, identity=identity), None)
        ledger.commit(charge.id)
    return charge.id


def reported(capsys: pytest.CaptureFixture[str]) -> str:
    """The page without what Plotly brings along."""
    status, out, err = primorl(capsys, "report")
    assert (status, out.strip()) == (0, str(LATEST)), err
    own = re.sub(r"(?s)<script>.*?</script>", "", LATEST.read_text(encoding="utf-8"))
    assert "right in at most" in own
    return own


def chance(page: str) -> float:
    """In percent, how often a guess is right at most."""
    (found,) = re.findall(r"is right in at most ([\d.]+)%", page)
    return float(found)


def test_the_bound_counts_every_charge_on_the_people_of_the_page(
    evaluated: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other results of other charges are shown there; one that is void leaves no bound to the page."""
    before = reported(capsys)
    assert "Other results" not in before
    assert "`mlflow ui --backend-store-uri sqlite:///mlflow.db` shows MLflow." in before
    LATEST.unlink()
    write_settings(evaluated | {"dataset": "ward"})
    status, _, err = primorl(capsys, "report")
    assert status == 1
    assert err.splitlines()[-1].startswith("error: params.yaml: dataset: found 'ward', and metrics/summary.json has")
    assert not LATEST.exists()
    write_settings(evaluated)
    charged(Training(0.5, 2.0, 150).event, "other")
    monkeypatch.setenv("DVC_EXP_NAME", "other")
    run(chosen())
    after = reported(capsys)
    assert "Whoever has the results of all charges on these trajectories in the ledger is right" in after
    assert "the bound at the top of the page counts them all" in after
    assert chance(after) > chance(before)
    sound = read_json(Path("models/policy/privacy.json"))
    for name, statement in (("void", sound | {"void": ["noise is seeded"]}), ("sound again", sound)):
        place(statement)
        monkeypatch.setenv("DVC_EXP_NAME", name)
        run(chosen())
    assert primorl(capsys, "report")[0] == 0
    page = LATEST.read_text(encoding="utf-8")
    assert "No bound holds for the results of all charges" in page
    assert "is right in at most" not in page


@pytest.mark.usefixtures("evaluated")
def test_the_page_names_the_store_without_credentials_and_lies_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A relative path starts where it was typed, the default in the project."""
    write_settings(settings(uri="http://ana:p@ss@127.0.0.1:9"))
    inside = Path("notes/board").resolve()
    inside.mkdir(parents=True)
    Path("dvc.yaml").touch()
    monkeypatch.chdir(inside)
    assert primorl(capsys, "report", "--out", "board.txt")[2].startswith("error: --out: found ")
    assert primorl(capsys, "report", "--out", "board.html")[0] == 0
    page = Path("board.html").read_text(encoding="utf-8")
    assert "MLflow&#39;s store is 127.0.0.1." in page
    assert "p@ss" not in page
    assert primorl(capsys, "report")[0] == 0
    assert [file.name for file in inside.iterdir()] == ["board.html"]
    assert (inside.parents[1] / LATEST).exists()
