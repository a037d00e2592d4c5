"""`primorl runs`: every result once, the best first, within the ε that is asked for."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from primorl.config import params
from primorl.project.files import write_json
from primorl.tracking import RUN_TAGS, stage_run
from tests.commands.conftest import Call
from tests.projects import ROOT

MEASURED = {"return_low": -9.0, "return_high": 1.0, "epsilon_spent_on_dataset": 2.5}
ASKED = {"private_value": 3.0, "private_value_low": 2.0, "private_value_high": 4.0}
OF_MODEL = {"model_value": 99.0, "model_low": 98.0, "model_high": 100.0, "private.policy.model": 98.5}


@pytest.fixture(autouse=True)
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DVC_ROOT", str(folder))
    shutil.copy(ROOT / "params.yaml", folder)
    shutil.copytree(ROOT / "datasets", folder / "datasets")
    return folder


def test_each_result_is_listed_once_and_the_best_that_compares_first(
    project: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Measured returns first, then what units and models say."""
    shutil.copy(empty_store, project)

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


def test_what_cannot_be_listed_is_one_line(project: Path, primorl: Call) -> None:
    for number in ("inf", "-1"):
        refused = f"error: --max-epsilon: found {number}; allowed is a finite number from 0; give one\n"
        assert primorl("runs", "--max-epsilon", number) == (1, "", refused)
    assert primorl("runs", "--max-epsilon", "0")[2].startswith("error: mlflow.db: not there")
    assert not Path("mlflow.db").exists()
    write_json(project / "mlflow.db", {"not": "a database"})
    status, _, err = primorl("runs")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith("error: tracking.uri: the MLflow store")
