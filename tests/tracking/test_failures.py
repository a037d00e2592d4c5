"""A store that cannot be used: one line, and no credentials."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from sqlalchemy import create_engine

from primorl import tracking
from primorl.base.errors import PipelineError
from primorl.base.reporting import RunContent
from primorl.config.params import Params
from primorl.tracking import log_run, store_uri

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
        with refused as raised:
            log_run(with_uri(chosen, uri), RunContent({}, {}, []), [])
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
