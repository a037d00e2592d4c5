"""A store that cannot be used, breaks, or hangs: one line, no credentials, and the stage goes on
where it can.
"""

import socket
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from sqlalchemy import create_engine

from primorl import tracking
from primorl.base.errors import PipelineError
from primorl.config.params import Params
from primorl.tracking import stage_run, store_uri

pytestmark = pytest.mark.usefixtures("project")


def with_uri(chosen: Params, uri: str) -> Params:
    return replace(chosen, tracking=replace(chosen.tracking, uri=uri))


UNUSABLE = (
    ("http://ana:hush@127.0.0.1:9", r"the MLflow store 127\.0\.0\.1 cannot be used"),
    ("http://ana:hush/hush@127.0.0.1:9", "the MLflow store .* set tracking.uri to null"),
    ("ftp://ana:hush@host/x", "the MLflow store host cannot be used"),
    ("http://[ana:hush@broken", "not a URI"),
    ("sqlite:///mlflow.db", r"'pendulum-replay' was deleted .* experiments restore"),
)


def test_a_store_that_cannot_be_used_is_one_clear_error_without_credentials(
    chosen: Params, capfd: Any
) -> None:
    store = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    store.delete_experiment(store.create_experiment("pendulum-replay"))
    for uri, said in UNUSABLE:
        refused = pytest.raises(PipelineError, match=rf"^tracking\.\w+: .*{said}")
        with refused as raised, stage_run("x", with_uri(chosen, uri)):
            pytest.fail("the body must not run")
        assert "hush" not in str(raised.value) + "".join(capfd.readouterr())


REMEDIES = {
    "an older schema": ("Detected out-of-date database schema", "mlflow db upgrade"),
    "a folder": ("The `mlflow migrate-filestore` tool migrates", "it is a folder"),
    "no driver": ("No module named 'psycopg2'", "driver"),
    "no place": ("unable to open database file", "its folder is not there"),
    "another's file": ("attempt to write a readonly database", "this user"),
    "anything else": ("hush", "check that it is up"),
}


@pytest.mark.parametrize("what", REMEDIES)
def test_a_store_that_fails_names_the_remedy(what: str) -> None:
    said, remedy = REMEDIES[what]
    with pytest.raises(PipelineError, match=remedy), tracking._naming_errors("sqlite:///x"):
        raise OSError(said)


@pytest.mark.parametrize("name", ["a%20b", "100% why?#b"])
def test_the_store_lies_in_the_project_whatever_its_name(
    project: Path, chosen: Params, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = project / name
    folder.mkdir()
    (folder / "params.yaml").touch()
    monkeypatch.chdir(folder)
    own = store_uri(with_uri(chosen, "sqlite:///own.db"))
    for uri, file in ((store_uri(chosen), "mlflow.db"), (own, "own.db")):
        create_engine(uri).connect().close()
        assert (folder / file).exists()


def log_everything(run: tracking.StageRun) -> None:
    run.params({"seed": 1})
    for step in range(3):
        run.metric("loss", 1.0, step)
        run.flush()
    run.pipeline.tag("unit", "trajectory")
    run.artifact(Path("mlflow.db"))


def test_a_store_that_fails_midway_costs_one_line_and_not_the_stage(
    chosen: Params, capfd: pytest.CaptureFixture[str]
) -> None:
    """No traceback of the database's library, and one warning for all runs of the stage."""
    with stage_run("train_model", chosen) as run:
        with sqlite3.connect("mlflow.db") as database:
            database.execute("DROP TABLE params")
        log_everything(run)
    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.startswith("warning: MLflow store sqlite:///")
    assert warning.endswith("; the rest of this run is not logged")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server on the loopback interface that takes every connection and never answers."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def test_a_server_that_hangs_is_waited_for_once(
    silent: socket.socket, chosen: Params, capfd: Any
) -> None:
    """In the middle of a stage: one wait and one warning, however much it logs."""
    uri = f"http://ana:hush@127.0.0.1:{silent.getsockname()[1]}"
    with stage_run("train_model", chosen) as run:
        run._store.client = MlflowClient(uri)
        log_everything(run)
    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.endswith("failed (MlflowException); the rest of this run is not logged")
    for _ in range(2):  # the request and its one repetition
        silent.accept()[0].close()
    with pytest.raises(BlockingIOError):
        silent.accept()
