"""``primorl summary``, ``runs`` and ``report``: what is shown of results, and what all charges come to."""

import hashlib
import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from primorl.commands.doctor import examine
from primorl.config import params
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.ledger.ledger import Ledger
from primorl.project.files import write_json
from primorl.setup.accounts import open_ledger
from primorl.tracking import RUN_TAGS, stage_run
from tests.commands.charging import data
from tests.commands.conftest import Call
from tests.pipeline.test_evaluate import chosen, project, run
from tests.pipeline.tiny_policy import write_model, write_partitions
from tests.privacy.ledger.ledgers import request
from tests.projects import project_settings, write_settings
from tests.statements import OF_TRAINING
from tests.trajectories.builders import INFO, episode, episodes, table

__all__ = ["project"]

EPSILONS = {"epsilon": 0.4998, "epsilon_rdp": 0.55, "delta": 1e-5}
SUMMARY: dict[str, Any] = {"format": 5, "dataset": "small", "variant": "private", "private": True, "unit": "trajectory"}
SUMMARY |= EPSILONS | {"spent_on_dataset": EPSILONS | {"epsilon_fixed": 0.4998, "charges": 1}, "units": 9, "void": []}
SUMMARY |= {"env_id": "Pendulum-v1", "return_mean": -143.52, "return_ci95": [-161.6, -125.4], "episodes": 100}
SUMMARY |= {"normalized_score": None, "seed": 0, "policy_sha256": "0" * 64, "seconds": {"ingest": 3.0}}


def test_it_prints_a_table_or_the_file_and_says_whether_they_are_of_an_earlier_run(primorl: Call) -> None:
    """After a run that failed on the way, the advice is about a model that is not there any more."""
    for content in ("model", "policy"):
        file = Path("models", {"model": "dynamics"}.get(content, content), f"{content}.safetensors")
        file.parent.mkdir(parents=True)
        file.write_text(content)
    digests = {f"{name}_sha256": hashlib.sha256(name.encode()).hexdigest() for name in ("model", "policy")}
    write_json(Path("metrics/summary.json"), SUMMARY | digests)
    status, out, err = primorl("summary")
    assert (status, err) == (0, "")
    assert "privacy  of the policy: ε = 0.5, δ = 1e-05 per trajectory\n" in out
    (healthy,) = (finding for finding in examine() if finding.what == "summary")
    assert healthy.state == "ok"
    Path("models/dynamics/model.safetensors").write_bytes(b"another")
    Path("models/policy/policy.safetensors").unlink()
    said = "another models/dynamics is there now, models/policy is gone; run `dvc repro evaluate`"
    status, out, err = primorl("summary", "--json")
    assert (status, json.loads(out)) == (0, SUMMARY | digests)
    assert err == f"warning: metrics/summary.json: these results are of an earlier run: {said}\n"
    (stale,) = (finding for finding in examine() if finding.what == "summary")
    assert stale.state == "problem"
    assert said in stale.says


MEASURED = {"return_low": -9.0, "return_high": 1.0, "epsilon_spent_on_dataset": 2.5}
ASKED = {"private_value": 3.0, "private_value_low": 2.0, "private_value_high": 4.0}
OF_MODEL = {"model_value": 99.0, "model_low": 98.0, "model_high": 100.0, "private.policy.model": 98.5}


def test_each_result_is_listed_once_and_the_best_that_compares_first(
    folder: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Measured returns first, then what units and models say. What cannot be listed is one line."""
    monkeypatch.setenv("DVC_ROOT", str(folder))
    write_settings(project_settings())
    for number in ("inf", "-1"):
        refused = f"error: --max-epsilon: found {number}; allowed is a finite number from 0; give one\n"
        assert primorl("runs", "--max-epsilon", number) == (1, "", refused)
    assert primorl("runs", "--max-epsilon", "0")[2].startswith("error: mlflow.db: not there")
    assert not Path("mlflow.db").exists()
    write_json(Path("mlflow.db"), {"not": "a database"})
    status, _, err = primorl("runs")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith("error: tracking.uri: the MLflow store")
    shutil.copy(empty_store, "mlflow.db")

    def result(name: str, stated: dict[str, Any], **metrics: float) -> None:
        monkeypatch.setenv("DVC_EXP_NAME", name)
        monkeypatch.setenv(RUN_TAGS, json.dumps({"sweep": "tiny"} if name == "trial" else {}))
        with stage_run("evaluate" if metrics else "train_model", params.load()) as run:
            run.pipeline.params({"private": "epsilon" in metrics} | stated if metrics else {})
            for key, value in metrics.items():
                run.pipeline.metric(key, value)

    usual = {"delta": 1e-5, "unit": "trajectory"}
    result("baseline", usual | {"delta": None}, return_mean=-80.0)
    result("small", usual, epsilon=0.5, return_mean=-200.0, **MEASURED)
    result("good", usual, epsilon=1.0, return_mean=-150.0, **MEASURED)
    result("large", usual, epsilon=5.0, return_mean=-100.0, **MEASURED)
    result("weak", usual | {"delta": 1e-3}, epsilon=0.5, return_mean=-95.0)
    result("visits", usual | {"unit": "visit"}, epsilon=0.5, return_mean=-90.0)
    result("trial", usual, epsilon=0.1, return_mean=-50.0)
    result("modelled", usual, epsilon=0.5, **OF_MODEL)
    result("asked", usual, epsilon=0.5, model_value=99.0, **{"private.policy.model": 98.5}, **ASKED)
    result("old", {}, epsilon=0.5)
    result("training", {})

    def listed(*words: str) -> list[str]:
        status, out, err = primorl("runs", *words)
        assert (status, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 100
        return [line.split()[0] for line in out.splitlines()[1:]]

    others = ["asked", "modelled"]
    assert listed() == ["baseline", "visits", "weak", "large", "good", "small", *others, "old"]
    assert listed("--max-epsilon", "1") == ["good", "small", *others], "another unit, δ, or none said"
    assert listed("--sweeps", "--max-epsilon", "1") == ["trial", "good", "small", *others]
    found = json.loads(primorl("runs", "--json", "--max-epsilon", "0.5")[1])
    assert [(each["name"], each["spent"], each["by"], each["value"], each["low"]) for each in found] == [
        ("small", 2.5, "simulator", -200.0, -9.0),
        ("asked", None, "private units", 3.0, 2.0),
        ("modelled", None, "model", 99.0, 98.0),
    ]


LATEST = Path("reports/latest.html")


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
    """Other results of other charges are shown there.

    The page names the store without credentials. A relative path starts where it was typed, the default in the project.
    """
    content = params.plain(chosen())
    write_settings(content)
    shutil.rmtree("data/partitions")
    others = [episode(length, seed=100 + length) for length in (4, 6, 7)]  # the ledger knows rows again
    write_partitions(table(episodes(9)), table(others, names=["p0", "p1", "p2"]))
    charge = charged(event_from_json(OF_TRAINING.event), "mine")
    sound = OF_TRAINING.to_json() | {"dataset_fingerprint": INFO.dataset_fingerprint, "charge": charge}
    write_model(sound)
    write_json(Path("models/policy/privacy.json"), sound)
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
