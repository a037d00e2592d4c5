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
from primorl.project.files import write_json
from primorl.setup.accounts import open_ledger
from tests.commands.charging import data
from tests.commands.conftest import Call
from tests.pipeline.test_evaluate import chosen, project, run
from tests.pipeline.tiny_policy import write_model, write_partitions
from tests.privacy.ledger.ledgers import request
from tests.projects import write_settings
from tests.statements import OF_TRAINING
from tests.trajectories.builders import INFO, episode, episodes, table

__all__ = ["project"]

LATEST = Path("reports/latest.html")


def place(statement: dict[str, Any]) -> None:
    """A model and its policy with this statement."""
    write_model(statement)
    write_json(Path("models/policy/privacy.json"), statement)


def charged(event: Any, identity: str) -> str:
    with closing(open_ledger(params.load(), Ledger, read_only=False)) as ledger:
        charge = ledger.reserve(request(data(), event, identity=identity), None)
        ledger.commit(charge.id)
    return charge.id


def reported(primorl: Call) -> str:
    """The page without what Plotly brings along."""
    status, out, err = primorl("report")
    assert (status, out.strip()) == (0, str(LATEST)), err
    return re.sub(r"(?s)<script>.*?</script>", "", LATEST.read_text(encoding="utf-8"))


def chance(page: str) -> float:
    """In percent, how often a guess is right at most."""
    (found,) = re.findall(r"is right in at most ([\d.]+)%", page)
    return float(found)


@pytest.mark.usefixtures("project")
def test_the_bound_counts_every_charge_on_the_people_of_the_page(
    monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Other results of other charges are shown there; one that is void leaves no bound to the page.

    The page names the store without credentials. A relative path starts where it was typed, the default in the project.
    """
    content = params.plain(chosen())
    write_settings(content)
    shutil.rmtree("data/partitions")
    others = [episode(length, seed=100 + length) for length in (4, 6, 7)]  # the ledger knows rows again
    write_partitions(table(episodes(9)), table(others, names=["p0", "p1", "p2"]))
    charge = charged(event_from_json(OF_TRAINING.event), "mine")
    sound = OF_TRAINING.to_json() | {"dataset_fingerprint": INFO.dataset_fingerprint, "charge": charge}
    place(sound)
    run(chosen())
    before = reported(primorl)
    assert "Other results" not in before
    assert "`mlflow ui --backend-store-uri sqlite:///mlflow.db` shows MLflow." in before
    LATEST.unlink()
    write_settings(content | {"dataset": "ward"})
    refused = primorl("report")[2].splitlines()[-1]
    assert refused.startswith("error: params.yaml: dataset: found 'ward', and metrics/summary.json has")
    assert not LATEST.exists()
    write_settings(content)
    charged(Training(0.5, 2.0, 150).event, "other")
    monkeypatch.setenv("DVC_EXP_NAME", "other")
    run(chosen())
    after = reported(primorl)
    assert "Whoever has the results of all charges on these trajectories in the ledger is right" in after
    assert "the bound at the top of the page counts them all" in after
    assert chance(after) > chance(before)
    for name, statement in (("void", sound | {"void": ["noise is seeded"]}), ("sound again", sound)):
        place(statement)
        monkeypatch.setenv("DVC_EXP_NAME", name)
        run(chosen())
    page = reported(primorl)
    assert "No bound holds for the results of all charges" in page
    assert "is right in at most" not in page
    write_settings(content | {"tracking": content["tracking"] | {"uri": "http://ana:p@ss@127.0.0.1:9"}})
    inside = Path("notes/board").resolve()
    inside.mkdir(parents=True)
    Path("dvc.yaml").touch()
    monkeypatch.chdir(inside)
    assert primorl("report", "--out", "board.txt")[2].startswith("error: --out: found ")
    assert primorl("report", "--out", "board.html")[0] == 0
    assert [file.name for file in inside.iterdir()] == ["board.html"]
    page = Path("board.html").read_text(encoding="utf-8")
    assert "MLflow&#39;s store is 127.0.0.1." in page
    assert "p@ss" not in page
