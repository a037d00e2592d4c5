"""A sweep has one MLflow run, in which the runs of its trials lie."""

import json
import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from primorl.config.params import Params
from primorl.sweeps.tracked import SweepRun
from primorl.sweeps.trials import Trial
from primorl.tracking import RUN_TAGS, stage_run
from tests.sweeps.test_rows import row


def test_trials_are_nested_in_one_run_that_the_same_command_resumes(
    project: Params, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(empty_store, "mlflow.db")
    first = SweepRun("tiny", project)
    tags = first.tags("tiny", Trial({"seed": 1, "policy.epochs": 2}, "A"), ["seed"])
    first.end([row()], None, Path("rows.csv"), complete=False)
    Path("rows.csv").write_text("sweep\n")
    SweepRun("tiny", project).end([row(), row()], -3.5, Path("rows.csv"), complete=True)
    monkeypatch.setenv(RUN_TAGS, json.dumps(tags))
    with stage_run("evaluate", project):
        pass
    client = MlflowClient(f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    (experiment,) = [found for found in client.search_experiments() if found.name == "small"]
    stage, trial, sweep = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
    assert (sweep.info.run_name, sweep.info.status) == ("sweep tiny", "FINISHED")
    assert sweep.data.metrics == {"finished": 2, "best": -3.5}
    assert [file.path for file in client.list_artifacts(sweep.info.run_id)] == ["rows.csv"]
    assert trial.data.tags["mlflow.parentRunId"] == sweep.info.run_id
    assert {key: trial.data.tags.get(key) for key in ("sweep", "case", "seed", "policy.epochs")} == {
        "sweep": "tiny",
        "case": "A",
        "seed": "1",
        "policy.epochs": None,
    }
    assert stage.data.tags["mlflow.parentRunId"] == trial.info.run_id
