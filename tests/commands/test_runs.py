"""`primorl runs`: every result once, the best first, within the ε that is asked for."""

import json
import shutil
from pathlib import Path

import pytest

from primorl.config import params
from primorl.project.files import write_json
from primorl.tracking import RUN_TAGS, stage_run
from tests.commands.test_sweep import primorl

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


def test_each_result_is_listed_once_and_the_best_within_epsilon_first(
    project: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twin: without the bound a better policy of a larger ε stands first; a run without results is not listed."""
    shutil.copy(empty_store, project)
    measured = {"return_low": -9.0, "return_high": 1.0, "epsilon_spent_on_dataset": 2.5}
    result(monkeypatch, "small", {"epsilon": 0.5, "return_mean": -200.0, **measured})
    result(monkeypatch, "good", {"epsilon": 1.0, "return_mean": -150.0, **measured})
    result(monkeypatch, "large", {"epsilon": 5.0, "return_mean": -100.0, **measured})
    result(monkeypatch, "baseline", {"return_mean": -90.0})
    result(monkeypatch, "trial", {"epsilon": 0.1, "return_mean": -50.0}, {"sweep": "tiny"})
    monkeypatch.setenv("DVC_EXP_NAME", "training")
    with stage_run("train_model", params.load()):
        pass

    def listed(*words: str) -> list[str]:
        status, out, err = primorl(capsys, "runs", *words)
        assert (status, err) == (0, "")
        return [line.split()[0] for line in out.splitlines()[1:]]

    assert listed() == ["baseline", "large", "good", "small"]
    assert listed("--max-epsilon", "1") == ["good", "small"]
    assert listed("--sweeps", "--max-epsilon", "1") == ["trial", "good", "small"]
    _, out, _ = primorl(capsys, "runs", "--json", "--max-epsilon", "0.5")
    (found,) = json.loads(out)
    assert (found["name"], found["spent"], found["by"]) == ("small", 2.5, "simulator")
    _, out, _ = primorl(capsys, "runs")
    assert max(map(len, out.splitlines())) <= 80


def test_an_epsilon_at_another_delta_or_of_another_unit_does_not_compare(
    project: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does one of a run that says neither. Twin: without --max-epsilon all are listed, with their δ."""
    shutil.copy(empty_store, project)
    result(monkeypatch, "good", {"epsilon": 0.5, "return_mean": -150.0})
    result(monkeypatch, "smaller", {"epsilon": 0.5, "return_mean": -160.0}, delta=1e-6)
    result(monkeypatch, "larger", {"epsilon": 0.5, "return_mean": -100.0}, delta=1e-3)
    result(monkeypatch, "visits", {"epsilon": 0.5, "return_mean": -90.0}, unit="visit")
    monkeypatch.setenv("DVC_EXP_NAME", "old")
    with stage_run("evaluate", params.load()) as run:
        run.pipeline.params({"private": True})
        run.pipeline.metric("epsilon", 0.5)
    _, out, _ = primorl(capsys, "runs", "--json", "--max-epsilon", "1")
    assert [each["name"] for each in json.loads(out)] == ["good", "smaller"]
    _, out, _ = primorl(capsys, "runs", "--json")
    assert {each["name"]: (each["delta"], each["unit"]) for each in json.loads(out)} == {
        "good": (1e-5, "trajectory"),
        "smaller": (1e-6, "trajectory"),
        "larger": (1e-3, "trajectory"),
        "visits": (1e-5, "visit"),
        "old": (None, None),
    }
    _, out, _ = primorl(capsys, "runs")
    head, *lines = (line.split() for line in out.splitlines())
    assert head[:3] == ["result", "ε", "δ"]
    assert {line[0]: line[2] for line in lines}["larger"] == "0.001"


@pytest.mark.parametrize("number", ["inf", "nan", "-1"])
def test_an_epsilon_that_is_no_bound_is_refused_before_the_store_is_asked(
    project: Path, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twin: a number is looked for in the store, which is not there."""
    status, out, err = primorl(capsys, "runs", "--max-epsilon", number)
    assert (status, out) == (1, "")
    assert err == f"error: --max-epsilon: found {number}; allowed is a finite number from 0; give one\n"
    assert "mlflow.db: not there" in primorl(capsys, "runs", "--max-epsilon", "0")[2]


def test_a_measured_return_stands_before_what_units_and_models_say(
    project: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(empty_store, project)
    asked = {"private_value": 3.0, "private_value_low": 2.0, "private_value_high": 4.0}
    of_model = {"model_value": 99.0, "model_low": 98.0, "model_high": 100.0, "private.policy.model": 98.5}
    result(monkeypatch, "modelled", {"epsilon": 0.5, **of_model})
    result(monkeypatch, "asked", {"epsilon": 0.5, "model_value": 99.0, "private.policy.model": 98.5, **asked})
    result(monkeypatch, "measured", {"epsilon": 0.5, "return_mean": -1.0})
    _, out, _ = primorl(capsys, "runs", "--json")
    found = [(each["name"], each["by"], each["value"], each["low"]) for each in json.loads(out)]
    assert found == [
        ("measured", "simulator", -1.0, None),
        ("asked", "private units", 3.0, 2.0),
        ("modelled", "model", 99.0, 98.0),
    ]


@pytest.mark.usefixtures("project")
def test_without_a_store_one_line_says_so_and_none_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = primorl(capsys, "runs")
    assert (status, out) == (1, "")
    assert err.startswith("error: mlflow.db: not there")
    assert not Path("mlflow.db").exists()


def test_a_store_that_is_broken_is_one_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(project / "mlflow.db", {"not": "a database"})
    status, _, err = primorl(capsys, "runs")
    assert status == 1
    assert err.startswith("error: tracking.uri: the MLflow store")
    assert len(err.splitlines()) == 1
