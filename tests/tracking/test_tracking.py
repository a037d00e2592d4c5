"""A result is one run, with all that it is given and nothing else; a store that cannot be used is
one line without credentials.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from sqlalchemy import create_engine

from primorl import tracking
from primorl.base import PipelineError
from primorl.base.reporting import RunContent
from primorl.config.params import Params
from primorl.privacy.ledger.store import Store
from primorl.tracking import RESULT_TAG, check_store, log_run, results, store_uri
from tests.privacy.ledger.ledgers import at_once
from tests.projects import from_plain, project_settings


def logged(project: Path) -> tuple[MlflowClient, list[Any]]:
    store = MlflowClient(f"sqlite:///{project}/mlflow.db")
    experiments = [found.experiment_id for found in store.search_experiments()]
    return store, store.search_runs(experiments, order_by=["attributes.start_time ASC"])


def test_a_result_is_one_run_with_its_choices_and_what_it_is_given(
    project: Path, chosen: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials in values are cut out, and no commit is told: it digests rows by dvc.lock."""
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", "0badcafe")
    figure = project / "plots" / "return.png"
    figure.parent.mkdir()
    figure.write_bytes(b"png")
    content = RunContent(
        params={"deep": {"sizes": [1, 2]}, "uri": "postgresql://ana:hu/sh@db.example.org/mlflow"},
        tags={"store": "http://ana:hush@example.org"},
        metrics=[("loss", step / 2, step) for step in range(2500)],  # more than one batch
    )
    log_run(chosen, content, [figure.relative_to(project)])
    store, (run,) = logged(project)
    assert (run.info.run_name, run.info.status) == ("pendulum-replay/private", "FINISHED")
    assert run.data.params["deep.sizes"] == "[1, 2]"
    assert run.data.params["uri"] == "postgresql://db.example.org/mlflow"
    assert run.data.params["privacy.target_epsilon"] == str(chosen.privacy.target_epsilon)
    assert run.data.tags["store"] == "http://example.org"
    assert not [key for key in run.data.tags if "git" in key or "BASELINE" in key]
    history = store.get_metric_history(run.info.run_id, "loss")
    assert sorted((point.step, point.value) for point in history) == [
        (step, step / 2) for step in range(2500)
    ]
    artifact = project / "mlruns" / run.info.run_id / "artifacts" / "plots" / "return.png"
    assert artifact.read_bytes() == b"png"


def test_a_result_that_is_there_is_not_logged_again(
    project: Path, chosen: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    def log(*results: str) -> int:
        for result in results:
            log_run(chosen, RunContent({}, {RESULT_TAG: result} if result else {}, []), [])
        return len(logged(project)[1])

    assert log("a", "a", "b", "a") == 2
    assert capsys.readouterr().err.count("has this result already: pendulum-replay/private a") == 2
    store, (run, _) = logged(project)
    store.delete_run(run.info.run_id)
    assert log("a") == 2, "one that was deleted is"
    assert log("", "") == 4, "what is no result always is"


def test_columns_have_metrics_of_their_own_whatever_their_names(
    project: Path, chosen: Params
) -> None:
    names = ["ward=A", "glucose (mmol/l)", "Blutdruck, systolisch", "../SpO₂ %", "a//b", "ä\tb"]
    names += ["a/b", "a?b", "c" * 300 + "1", "c" * 300 + "2"]
    numbers = [(f"explained.{name}", float(at), 0) for at, name in enumerate(names)]
    log_run(chosen, RunContent({}, {}, numbers), [])
    _, (run,) = logged(project)
    assert sorted(run.data.metrics.values()) == [float(at) for at in range(len(names))]


def test_results_that_are_there_at_once_make_one_experiment(project: Path, chosen: Params) -> None:
    assert at_once(*[lambda: log_run(chosen, RunContent({}, {}, []), [])] * 2) == [None] * 2
    _, runs = logged(project)
    assert len(runs) == 2
    assert len({run.info.experiment_id for run in runs}) == 1


pytestmark = pytest.mark.usefixtures("project")


def with_uri(chosen: Params, uri: str) -> Params:
    return replace(chosen, tracking=replace(chosen.tracking, uri=uri))


UNUSABLE = (
    ("http://ana:hush@127.0.0.1:9", r"the MLflow store 127\.0\.0\.1:9 cannot be used"),
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
    with pytest.raises(PipelineError, match="experiments restore"):
        results(with_uri(chosen, "sqlite:///mlflow.db"))


REMEDIES = {
    "an older schema": ("Detected out-of-date database schema", "mlflow db upgrade"),
    "a folder": ("The `mlflow migrate-filestore` tool migrates", r"a server is http://HOST:PORT"),
    "no driver": ("No module named 'psycopg2'", "driver"),
    "a server's own words": ("PERMISSION_DENIED: hush", "a log-in or a proxy"),
    "a log-in": ("endpoint /x failed with error code 401 != 200", r"\(HTTP 401\); a log-in or a"),
    "anything else": ("hush", "check that it is up"),
}


@pytest.mark.parametrize("what", REMEDIES)
def test_a_store_that_fails_names_the_remedy(what: str) -> None:
    said, remedy = REMEDIES[what]
    with pytest.raises(PipelineError, match=remedy), tracking._connected("sqlite:///x"):
        raise OSError(said)


def test_files_of_a_project_that_was_moved_are_not_written_where_it_was(
    project: Path, chosen: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow keeps the whole path of an experiment's files; nor are those of a copy."""
    log_run(chosen, RunContent({}, {}, []), [])
    shutil.copytree(project, project.with_name("copy"))
    monkeypatch.chdir(project.with_name("copy"))
    said = "keeps its files in .*; else name another"
    with pytest.raises(PipelineError, match=said):
        log_run(chosen, RunContent({}, {}, []), [])
    with pytest.raises(PipelineError, match=said):
        check_store(chosen)
    moved = project.rename(project.with_name("moved"))
    monkeypatch.chdir(moved)
    with pytest.raises(PipelineError, match=f"tracking.experiment: .* `ln -s {moved} {project}`"):
        log_run(chosen, RunContent({}, {}, []), [])
    project.symlink_to(moved)
    log_run(chosen, RunContent({}, {}, []), [])
    assert len(logged(moved)[1]) == 2


@pytest.mark.parametrize("name", ["a%20b", "100% why?#b"])
def test_the_store_lies_in_the_project_whatever_its_name(
    project: Path, chosen: Params, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A home that no shell filled in is found too, of the ledger as well."""
    folder, me = project / name, project / "me"
    for each in (folder, me):
        each.mkdir()
    (folder / "params.yaml").touch()
    monkeypatch.setenv("HOME", str(me))
    monkeypatch.chdir(folder)
    own, shared = (with_uri(chosen, f"sqlite:///{path}own.db") for path in ("", "~/"))
    Store("sqlite:///~/ledger.db")
    assert (me / "ledger.db").exists()
    for uri, file in (
        (store_uri(chosen), folder / "mlflow.db"),
        (store_uri(own), folder / "own.db"),
        (store_uri(shared), me / "own.db"),
    ):
        create_engine(uri).connect().close()
        assert file.exists()


@pytest.fixture
def chosen() -> Params:
    return from_plain(project_settings())


@pytest.fixture
def project(folder_with_store: Path) -> Path:
    return folder_with_store
