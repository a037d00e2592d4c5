"""A store that cannot be used, breaks, or hangs: one line, no credentials, and the stage goes on where it can."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from primorl import tracking
from primorl.config import params
from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.tracking import stage_run

REPOSITORY = Path(__file__).resolve().parents[2]


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


def test_an_unreachable_store_is_one_clear_error_without_credentials(
    chosen: Params, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(PipelineError) as raised,
        stage_run("train_model", with_uri(chosen, "http://ana:hush/hush@127.0.0.1:9")),
    ):
        pytest.fail("the body must not run")
    assert str(raised.value).startswith("tracking.uri: the MLflow store ")
    assert "set tracking.uri to null" in str(raised.value)
    with (
        pytest.raises(PipelineError, match=r"the MLflow store 127\.0\.0\.1 cannot be used"),
        stage_run("train_model", with_uri(chosen, "http://ana:hush@127.0.0.1:9")),
    ):
        pytest.fail("the body must not run")
    assert "hush" not in str(raised.value) + "".join(capfd.readouterr())


@pytest.mark.parametrize("uri", ["nonsense", "ftp://ana:hush@host/x", "http://[ana:hush@broken"])
def test_a_uri_that_names_no_store_is_one_clear_error(chosen: Params, uri: str) -> None:
    with pytest.raises(PipelineError, match=r"^tracking\.uri") as raised, stage_run("x", with_uri(chosen, uri)):
        pytest.fail("the body must not run")
    assert "hush" not in str(raised.value)


def test_a_deleted_experiment_is_one_clear_error(project: Path, chosen: Params) -> None:
    with stage_run("ingest", chosen):
        pass
    store = MlflowClient(f"sqlite:///{project}/mlflow.db")
    experiment = store.get_experiment_by_name("pendulum-replay")
    assert experiment is not None
    store.delete_experiment(experiment.experiment_id)
    with pytest.raises(PipelineError, match="experiments restore"), stage_run("ingest", chosen):
        pytest.fail("the body must not run")


def test_a_store_that_fails_midway_costs_the_log_and_not_the_stage(
    chosen: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ConnectionError("http://ana:hush@host")

    finished = False
    with stage_run("train_model", chosen) as run:
        monkeypatch.setattr(MlflowClient, "log_batch", broken)
        run.params({"seed": 1})
        run.metric("loss", 1.0)
        run.tag("unit", "trajectory")
        finished = True
    assert finished
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert warnings[0].endswith("failed (ConnectionError); the rest of this run is not logged")


SPOILED = """
import os, resource, signal, sys
from pathlib import Path
from primorl.config import params
from primorl.tracking import stage_run, store
with stage_run("train_model", params.load(Path(sys.argv[2]))) as run:
    run.metric("loss", 1.0)
    run.flush()
    size = os.path.getsize("mlflow.db")
    if sys.argv[1] == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    with run.nested("seed 0") as inner:
        for step in range(5000):
            run.metric("loss", 1.0, step)
            inner.metric("loss", 1.0, step)
        run.flush()
        run.pipeline.tag("unit", "trajectory" * 400)
print("finished")
"""


@pytest.mark.parametrize("how", ["full", "healthy"])
def test_a_store_that_is_spoiled_costs_one_line_and_not_the_stage(project: Path, how: str) -> None:
    """No traceback of the database's library, and one warning for all runs of the stage; the twin prints nothing."""
    command = [sys.executable, "-c", SPOILED, how, str(REPOSITORY / "params.yaml")]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "finished\n")
    lines = done.stderr.splitlines()
    assert len(lines) == (how != "healthy"), done.stderr
    assert all(line.startswith("warning: MLflow store sqlite:///") for line in lines)


class Silent:
    """A server on the loopback interface that accepts every connection and never answers."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://ana:hush@127.0.0.1:{self._server.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self.connections.append(self._server.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._server.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    server = Silent()
    yield server
    server.close()


def log_everything(run: tracking.StageRun) -> None:
    run.params({"seed": 1})
    for step in range(3):
        run.metric("loss", 1.0, step)
        run.flush()
    with run.nested("seed 0") as inner:
        inner.metric("loss", 1.0)
    run.pipeline.tag("unit", "trajectory")
    run.artifact(Path("mlflow.db"))


def test_a_server_that_hangs_from_the_start_is_gone_on_without(
    silent: Silent, chosen: Params, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    with stage_run("train_model", with_uri(chosen, silent.uri)) as run:
        log_everything(run)
    assert time.monotonic() - started < 10
    assert run.run_id == ""
    assert capfd.readouterr().err == "warning: MLflow store 127.0.0.1 does not answer; this run is not logged\n"
    assert silent.connections


def test_a_server_that_begins_to_hang_is_waited_for_once(
    silent: Silent, chosen: Params, capfd: pytest.CaptureFixture[str]
) -> None:
    """One wait and one warning for a whole stage, however much it logs."""
    with stage_run("train_model", chosen) as run:
        run._store.client = MlflowClient(silent.uri)
        started = time.monotonic()
        log_everything(run)
    assert time.monotonic() - started < 10
    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.endswith("failed (MlflowException); the rest of this run is not logged")
    assert len(silent.connections) == 2, "the request and its one repetition"


def test_mlflows_own_patience_is_cut_short_unless_the_user_says_otherwise(
    chosen: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its 120 seconds and seven repetitions held a stage of ten seconds for twelve minutes."""
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    with stage_run("train_model", chosen):
        pass
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "10"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "5"
