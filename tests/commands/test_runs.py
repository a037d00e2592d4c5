"""`primorl runs`: every result once, the best first, within the ε that is asked for."""

import json
import shutil
from pathlib import Path

import pytest

from primorl.config import params
from primorl.project.files import write_json
from primorl.tracking import RUN_TAGS, stage_run
from tests.commands.charging import primorl

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    shutil.copy(REPOSITORY / "params.yaml", tmp_path)
    shutil.copytree(REPOSITORY / "datasets", tmp_path / "datasets")
    (tmp_path / ".dvc").mkdir()
    return tmp_path


def result(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    metrics: dict[str, float],
    tags: dict[str, str] | None = None,
    *,
    delta: float = 1e-5,
    unit: str = "trajectory",
) -> None:
    monkeypatch.setenv("DVC_EXP_NAME", name)
    monkeypatch.setenv(RUN_TAGS, json.dumps(tags or {}))
    with stage_run("evaluate", params.load()) as run:
        private = "epsilon" in metrics
        run.pipeline.params({"private": private, "delta": delta if private else None, "unit": unit})
        for key, value in metrics.items():
            run.pipeline.metric(key, value)


def test_each_result_is_listed_once_and_the_best_that_compares_first(
    project: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured returns first, then what units and models say."""
    shutil.copy(empty_store, project)
    measured = {"return_low": -9.0, "return_high": 1.0, "epsilon_spent_on_dataset": 2.5}
    result(monkeypatch, "baseline", {"return_mean": -80.0})
    result(monkeypatch, "small", {"epsilon": 0.5, "return_mean": -200.0, **measured})
    result(monkeypatch, "good", {"epsilon": 1.0, "return_mean": -150.0, **measured})
    result(monkeypatch, "large", {"epsilon": 5.0, "return_mean": -100.0, **measured})
    result(monkeypatch, "weak", {"epsilon": 0.5, "return_mean": -95.0}, delta=1e-3)
    result(monkeypatch, "visits", {"epsilon": 0.5, "return_mean": -90.0}, unit="visit")
    result(monkeypatch, "trial", {"epsilon": 0.1, "return_mean": -50.0}, {"sweep": "tiny"})
    asked = {"private_value": 3.0, "private_value_low": 2.0, "private_value_high": 4.0}
    of_model = {"model_value": 99.0, "model_low": 98.0, "model_high": 100.0, "private.policy.model": 98.5}
    result(monkeypatch, "modelled", {"epsilon": 0.5, **of_model})
    result(monkeypatch, "asked", {"epsilon": 0.5, "model_value": 99.0, "private.policy.model": 98.5, **asked})
    monkeypatch.setenv("DVC_EXP_NAME", "old")
    with stage_run("evaluate", params.load()) as run:
        run.pipeline.params({"private": True})
        run.pipeline.metric("epsilon", 0.5)
    monkeypatch.setenv("DVC_EXP_NAME", "training")
    with stage_run("train_model", params.load()):
        pass

    def listed(*words: str) -> list[str]:
        status, out, err = primorl(capsys, "runs", *words)
        assert (status, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 100
        return [line.split()[0] for line in out.splitlines()[1:]]

    others = ["asked", "modelled"]
    assert listed() == ["baseline", "visits", "weak", "large", "good", "small", *others, "old"]
    assert listed("--max-epsilon", "1") == ["good", "small", *others], "another unit, δ, or none said"
    assert listed("--sweeps", "--max-epsilon", "1") == ["trial", "good", "small", *others]
    _, out, _ = primorl(capsys, "runs", "--json", "--max-epsilon", "0.5")
    found = [(each["name"], each["spent"], each["by"], each["value"], each["low"]) for each in json.loads(out)]
    assert found == [
        ("small", 2.5, "simulator", -200.0, -9.0),
        ("asked", None, "private units", 3.0, 2.0),
        ("modelled", None, "model", 99.0, 98.0),
    ]


def test_what_cannot_be_listed_is_one_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in ("inf", "-1"):
        refused = f"error: --max-epsilon: found {number}; allowed is a finite number from 0; give one\n"
        assert primorl(capsys, "runs", "--max-epsilon", number) == (1, "", refused)
    status, out, err = primorl(capsys, "runs", "--max-epsilon", "0")
    assert (status, out) == (1, "")
    assert err.startswith("error: mlflow.db: not there")
    assert not Path("mlflow.db").exists()
    write_json(project / "mlflow.db", {"not": "a database"})
    status, _, err = primorl(capsys, "runs")
    assert status == 1
    assert err.startswith("error: tracking.uri: the MLflow store")
    assert len(err.splitlines()) == 1
