import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from primorl import tracking
from primorl.config import params
from primorl.config.params import Params
from primorl.project.git import git_tags
from primorl.tracking import stage_run
from primorl.tracking.store import store_uri

REPOSITORY = Path(__file__).resolve().parents[2]
PARENT_TAG = "mlflow.parentRunId"


@pytest.fixture
def chosen() -> Params:
    return params.load(REPOSITORY / "params.yaml")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Path:
    for name in ("DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path)
    return tmp_path


def with_uri(chosen: Params, uri: str) -> Params:
    return replace(chosen, tracking=replace(chosen.tracking, uri=uri))


def client(project: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{project}/mlflow.db")


def runs(project: Path) -> tuple[list[Run], list[Run]]:
    """Pipeline runs and stage runs, oldest first."""
    store = client(project)
    everything = store.search_runs(
        [found.experiment_id for found in store.search_experiments()], order_by=["attributes.start_time ASC"]
    )
    return (
        [run for run in everything if PARENT_TAG not in run.data.tags],
        [run for run in everything if PARENT_TAG in run.data.tags],
    )


def test_a_stage_is_nested_in_its_pipeline_and_logs_what_it_is_given(project: Path, chosen: Params) -> None:
    figure = project / "return.png"
    figure.write_bytes(b"png")
    with stage_run("train_model", chosen) as run:
        run.params({"seed": 3, "privacy": {"delta": 1e-5, "deep": {"sizes": [1, 2]}}, "absent": None})
        for step in range(2500):  # more than one batch
            run.metric("loss", step / 2, step)
        run.metric("final", 7)
        run.tag("unit", "trajectory")
        run.artifact(figure)
        run.pipeline.metric("return_mean", -150.5)
        run.pipeline.params({"dataset": "pendulum"})

    (pipeline,), (stage,) = runs(project)
    assert stage.data.tags[PARENT_TAG] == pipeline.info.run_id
    assert (stage.info.run_name, stage.info.status) == ("train_model", "FINISHED")
    assert (pipeline.info.run_name, pipeline.info.status) == (tracking._name(chosen), "FINISHED")
    assert stage.data.params == {
        "seed": "3",
        "privacy.delta": "1e-05",
        "privacy.deep.sizes": "[1, 2]",
        "absent": "None",
    }
    history = client(project).get_metric_history(stage.info.run_id, "loss")
    assert sorted((point.step, point.value) for point in history) == [(step, step / 2) for step in range(2500)]
    assert stage.data.metrics["final"] == 7
    assert stage.data.tags["unit"] == "trajectory"
    assert pipeline.data.metrics == {"return_mean": -150.5}
    assert pipeline.data.params == {"dataset": "pendulum"}
    assert pipeline.data.tags["variant"] == "private"
    assert [file.path for file in client(project).list_artifacts(stage.info.run_id)] == ["return.png"]
    assert (project / "mlruns" / stage.info.run_id / "artifacts" / "return.png").read_bytes() == b"png"


def test_a_failure_marks_stage_and_pipeline_and_keeps_its_message_out(project: Path, chosen: Params) -> None:
    def fail() -> None:
        with stage_run("train_model", chosen) as run:
            run.metric("loss", 1.0)
            raise ValueError("PRIVATE-42")

    with pytest.raises(ValueError, match="PRIVATE-42"):
        fail()
    with stage_run("ingest", chosen):  # a later stage of the same pipeline does not make it good
        pass

    (pipeline,), (failed, fine) = runs(project)
    assert (pipeline.info.status, failed.info.status, fine.info.status) == ("FAILED", "FAILED", "FINISHED")
    assert failed.data.metrics == {"loss": 1.0}
    assert all(b"PRIVATE-42" not in file.read_bytes() for file in project.rglob("*") if file.is_file())


KILLED = """
import os, signal, sys
from pathlib import Path
from primorl.config import params
from primorl.tracking import stage_run
with stage_run("train_model", params.load(Path(sys.argv[1]))) as run:
    run.metric("loss", 1.0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_runs_of_a_killed_stage_are_closed_as_failed_by_the_next_one(project: Path, chosen: Params) -> None:
    """Nothing that died goes on "running" in MLflow; what really runs does."""
    command = [sys.executable, "-c", KILLED, str(REPOSITORY / "params.yaml")]
    killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [run.info.status for some in runs(project) for run in some] == ["RUNNING", "RUNNING"]
    with stage_run("collect", chosen), stage_run("ingest", chosen):
        (dead_pipeline, alive), stages = runs(project)
        assert (dead_pipeline.info.status, alive.info.status) == ("FAILED", "RUNNING")
        assert [stage.info.status for stage in stages] == ["FAILED", "RUNNING", "RUNNING"]


def test_metrics_wait_and_are_sent_every_few_seconds(
    project: Path, chosen: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking.store, "_FLUSH_SECONDS", 3600.0)
    with stage_run("train_model", chosen) as run:
        run.metric("loss", 1.0)
        assert runs(project)[1][0].data.metrics == {}
        monkeypatch.setattr(tracking.store, "_FLUSH_SECONDS", 0.0)
        run.metric("loss", 2.0, 1)
        assert runs(project)[1][0].data.metrics == {"loss": 2.0}


def test_a_nested_run_ends_with_its_block(project: Path, chosen: Params) -> None:
    """Inside the stage's run, with metrics of its own; it fails with the stage."""
    with suppress(RuntimeError), stage_run("train_model", chosen) as stage:
        with stage.nested("first") as log:
            log.metric("loss", 0.5)
        with stage.nested("second"):
            raise RuntimeError
    found = {run.info.run_name: run for run in runs(project)[1]}
    assert found["first"].data.metrics == {"loss": 0.5}
    assert [found[name].info.status for name in ("first", "second", "train_model")] == ["FINISHED", "FAILED", "FAILED"]
    for name in ("first", "second"):
        assert found[name].data.tags[PARENT_TAG] == stage.run_id


def test_experiments_in_dvcs_temporary_copies_log_to_the_project(
    project: Path, chosen: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = project / ".dvc" / "tmp" / "exps" / "standalone" / "tmpabc"
    copy.mkdir(parents=True)
    monkeypatch.setenv("DVC_ROOT", str(copy))
    monkeypatch.setenv("DVC_EXP_NAME", "hazel-newt")
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", "c0ffee")
    (copy / "note.txt").write_text("x")
    with stage_run("train_model", chosen) as run:
        run.artifact(copy / "note.txt")

    (pipeline,), (stage,) = runs(project)
    assert pipeline.info.run_name == f"{tracking._name(chosen)} (hazel-newt)"
    assert pipeline.data.tags["DVC_EXP_NAME"] == "hazel-newt"
    assert pipeline.data.tags["DVC_EXP_BASELINE_REV"] == "c0ffee"
    assert (project / "mlruns" / stage.info.run_id / "artifacts" / "note.txt").exists()
    assert [entry.name for entry in copy.iterdir()] == ["note.txt"]


def test_parallel_experiments_have_pipelines_of_their_own(
    project: Path, chosen: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        monkeypatch.setenv("DVC_EXP_NAME", name)
        with stage_run("train_model", chosen):
            pass
    pipelines, stages = runs(project)
    assert [run.data.tags[PARENT_TAG] for run in stages] == [run.info.run_id for run in pipelines]


STAGE = """
import sys
from pathlib import Path
from primorl.config import params
from primorl.tracking import stage_run
with stage_run(sys.argv[1], params.load(Path(sys.argv[2]))) as run:
    run.metric("one", 1.0)
"""
DVC = """
import subprocess, sys
stages = [subprocess.Popen([sys.executable, "stage.py", name, sys.argv[1]]) for name in sys.argv[2:]]
sys.exit(max(stage.wait() for stage in stages))
"""


def test_stages_of_one_dvc_process_share_a_pipeline_even_when_they_create_the_store_at_once(project: Path) -> None:
    (project / "mlflow.db").unlink()
    (project / "stage.py").write_text(STAGE)
    (project / "dvc").write_text(DVC)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for stages in (("collect", "ingest"), ("evaluate",)):
        command = [sys.executable, "dvc", str(REPOSITORY / "params.yaml"), *stages]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    (first, second), stages_logged = runs(project)
    parents = {run.info.run_name: run.data.tags[PARENT_TAG] for run in stages_logged}
    assert parents == {"collect": first.info.run_id, "ingest": first.info.run_id, "evaluate": second.info.run_id}
    assert {run.info.status for run in (first, second, *stages_logged)} == {"FINISHED"}
    assert [run.data.metrics for run in stages_logged] == [{"one": 1.0}] * 3


def test_the_pipeline_names_its_commit(project: Path, chosen: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=project, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    for name in ("params.yaml", "dvc.lock"):
        (project / name).write_text("1")
    git("add", "params.yaml", "dvc.lock")
    git("commit", "--quiet", "-m", "first")
    (project / "dvc.lock").write_text("2")  # which DVC itself rewrites
    assert git_tags() == {"mlflow.source.git.commit": git("rev-parse", "HEAD"), "git_dirty": "false"}
    (project / "params.yaml").write_text("2")
    assert git_tags()["git_dirty"] == "true"
    trial = project / ".primorl/sweeps/one/abc"  # which git ignores
    trial.mkdir(parents=True)
    monkeypatch.chdir(trial)
    assert git_tags()["git_dirty"] == "true"


def test_credentials_in_logged_values_are_cut_out(project: Path, chosen: Params) -> None:
    with stage_run("ingest", chosen) as run:
        run.params({"tracking": {"uri": "postgresql://ana:hu/sh@db.example.org/mlflow"}})
        run.tag("store", "http://ana:hush@example.org")
    (stage,) = runs(project)[1]
    assert stage.data.params == {"tracking.uri": "postgresql://db.example.org/mlflow"}
    assert stage.data.tags["store"] == "http://example.org"


def test_the_store_is_the_projects_wherever_the_stage_runs(
    project: Path, chosen: Params, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert store_uri(chosen) == f"sqlite:///{project}/mlflow.db"
    assert store_uri(with_uri(chosen, "sqlite:///runs/all.db")) == f"sqlite:///{project}/runs/all.db"
    for absolute in ("sqlite:////srv/all.db", "postgresql://db/mlflow", "https://mlflow.example.org"):
        assert store_uri(with_uri(chosen, absolute)) == absolute


def test_names_say_what_a_pipeline_trained(chosen: Params) -> None:
    budget = replace(chosen.privacy, target_epsilon=1.5, noise_multiplier=None)
    assert tracking._name(replace(chosen, privacy=budget)) == "pendulum-replay/private/ε=1.5"
    noise = replace(chosen.privacy, target_epsilon=None, noise_multiplier=2.0)
    assert tracking._name(replace(chosen, privacy=noise)) == "pendulum-replay/private/z=2"
    mopo = replace(chosen.dynamics, variant="mopo")
    assert tracking._name(replace(chosen, dynamics=mopo)) == "pendulum-replay/mopo"
