import os
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from primorl.base.processes import git_tags
from primorl.config.params import Params
from primorl.tracking import stage_run

PARENT_TAG = "mlflow.parentRunId"


def client(project: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{project}/mlflow.db")


def runs(project: Path) -> tuple[list[Run], list[Run]]:
    """Pipeline runs and stage runs, oldest first."""
    store = client(project)
    experiments = [found.experiment_id for found in store.search_experiments()]
    found = store.search_runs(experiments, order_by=["attributes.start_time ASC"])
    nested = [run for run in found if PARENT_TAG in run.data.tags]
    return [run for run in found if run not in nested], nested


def test_a_stage_is_nested_in_its_pipeline_and_logs_what_it_is_given(
    project: Path, chosen: Params
) -> None:
    """Credentials in values are cut out."""
    figure = project / "return.png"
    figure.write_bytes(b"png")
    with stage_run("train_model", chosen) as run:
        run.params({"seed": 3, "privacy": {"deep": {"sizes": [1, 2]}}, "absent": None})
        run.params({"tracking": {"uri": "postgresql://ana:hu/sh@db.example.org/mlflow"}})
        for step in range(2500):  # more than one batch
            run.metric("loss", step / 2, step)
        run.tag("store", "http://ana:hush@example.org")
        run.artifact(figure)
        with pytest.raises(FileNotFoundError):
            run.artifact(project / "missing")
        run.pipeline.metric("return_mean", -150.5)
        assert runs(project)[0][0].info.status == "RUNNING"
    (pipeline,), (stage,) = runs(project)
    assert stage.data.tags[PARENT_TAG] == pipeline.info.run_id
    assert (stage.info.run_name, stage.info.status) == ("train_model", "FINISHED")
    found = pipeline.info.run_name, pipeline.info.status
    assert found == ("pendulum-replay/private", "FINISHED")
    assert stage.data.params == {
        "seed": "3",
        "privacy.deep.sizes": "[1, 2]",
        "absent": "None",
        "tracking.uri": "postgresql://db.example.org/mlflow",
    }
    history = client(project).get_metric_history(stage.info.run_id, "loss")
    assert sorted((point.step, point.value) for point in history) == [
        (step, step / 2) for step in range(2500)
    ]
    assert stage.data.tags["store"] == "http://example.org"
    assert pipeline.data.metrics == {"return_mean": -150.5}
    assert pipeline.data.tags["variant"] == "private"
    artifact = project / "mlruns" / stage.info.run_id / "artifacts" / "return.png"
    assert artifact.read_bytes() == b"png"


def test_a_failure_marks_stage_and_pipeline_and_keeps_its_message_out(
    project: Path, chosen: Params
) -> None:
    """A later stage does not make it good."""
    with suppress(ValueError), stage_run("train_model", chosen):
        raise ValueError("PRIVATE-42")
    with stage_run("ingest", chosen):
        pass
    pipelines, stages = runs(project)
    assert [run.info.status for run in pipelines] == ["FAILED", "FINISHED"]
    found = {run.info.run_name: run.info.status for run in stages}
    assert found == {"train_model": "FAILED", "ingest": "FINISHED"}
    assert all(
        b"PRIVATE-42" not in file.read_bytes() for file in project.rglob("*") if file.is_file()
    )


def test_a_killed_stage_is_marked_when_it_runs_again(project: Path, chosen: Params) -> None:
    """Its pipeline too. Twin: another stage of it, which may still run, is left alone."""
    for stage in ("train_model", "ingest"):
        child = os.fork()
        if child == 0:
            with stage_run(stage, chosen):
                os._exit(0)
        os.waitpid(child, 0)
    with stage_run("train_model", chosen):
        pass
    pipelines, stages = runs(project)
    assert [run.info.status for run in pipelines] == ["KILLED", "FINISHED"]
    assert [run.info.status for run in stages] == ["KILLED", "RUNNING", "FINISHED"]


def test_experiments_in_dvcs_copies_log_to_the_project(
    project: Path, chosen: Params, monkeypatch: Any
) -> None:
    """Each has a pipeline of its own."""
    copy = project / ".dvc" / "tmp" / "exps" / "standalone" / "tmpabc"
    copy.mkdir(parents=True)
    monkeypatch.setenv("DVC_ROOT", str(copy))
    (copy / "note.txt").write_text("x")
    for name in ("hazel-newt", "other"):
        monkeypatch.setenv("DVC_EXP_NAME", name)
        with stage_run("train_model", chosen) as run:
            run.artifact(copy / "note.txt")
    pipelines, stages = runs(project)
    assert [run.data.tags[PARENT_TAG] for run in stages] == [run.info.run_id for run in pipelines]
    assert pipelines[0].data.tags["DVC_EXP_NAME"] == "hazel-newt"
    assert (project / "mlruns" / stages[0].info.run_id / "artifacts" / "note.txt").exists()
    assert [entry.name for entry in copy.iterdir()] == ["note.txt"]


def test_stages_share_a_pipeline_even_when_they_begin_at_once(
    project: Path, chosen: Params
) -> None:
    stages, children = ("collect", "ingest"), []
    for stage in stages:
        children.append(os.fork())
        if children[-1] == 0:
            with stage_run(stage, chosen):
                pass
            os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    (pipeline,), found = runs(project)
    assert {run.info.run_name for run in found} == {*stages}
    assert {run.data.tags[PARENT_TAG] for run in found} == {pipeline.info.run_id}


@pytest.mark.parametrize(
    ("stages", "change", "pipelines"),
    [
        (["plan", "evaluate"], {}, 1),
        (["plan", "evaluate", "report", "report"], {}, 1),
        (["plan", "evaluate", "evaluate"], {}, 2),
        (["plan", "plan", "evaluate"], {}, 2),
        (["plan", "evaluate"], {"seed": 1}, 2),
        (["plan", "failing", "evaluate"], {}, 2),
    ],
)
def test_a_result_has_one_run_however_often_dvc_is_called(
    project: Path,
    chosen: Params,
    stages: list[str],
    change: dict[str, Any],
    pipelines: int,
) -> None:
    """`primorl run` calls it twice."""
    for number, stage in enumerate(stages):
        settings = replace(chosen, **change) if number else chosen
        with suppress(RuntimeError), stage_run(stage, settings):
            if stage == "failing":
                raise RuntimeError
    found, nested = runs(project)
    assert (len(found), len(nested)) == (pipelines, len(stages))


def test_the_pipeline_names_its_commit(project: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.check_output([*identity, *arguments], cwd=project, text=True).strip()

    git("init", "--quiet")
    for name in ("params.yaml", "dvc.lock"):
        (project / name).write_text("1")
    git("add", "params.yaml", "dvc.lock")
    git("commit", "--quiet", "-m", "first")
    (project / "dvc.lock").write_text("2")  # which DVC itself rewrites
    commit = {"mlflow.source.git.commit": git("rev-parse", "HEAD")}
    assert git_tags() == commit | {"git_dirty": "false"}
    (project / "params.yaml").write_text("2")
    assert git_tags()["git_dirty"] == "true"
