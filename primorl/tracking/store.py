"""The MLflow store, and a run in it to write to. Only values that are handed over are logged.

A lost log must not cost a training run after its privacy budget is spent. When the store fails in
the middle of a stage, or a server does not answer, the stage goes on without it after one warning.

MLflow's own asynchronous logging is not used: its ten threads send batches out of order, log errors
with the message of the exception (which names the server with its credentials), and wait for a dead
server at the end once per batch. Here metrics wait in one list, which `Log.flush` sends as one
batch.
"""

import fcntl
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf, isnan, nan
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from primorl.base.errors import PipelineError
from primorl.base.files import home
from primorl.config.params import Params

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


T = TypeVar("T")

_FLUSH_SECONDS = 5.0
_MLFLOW = {
    # MLflow's own defaults (120 s, 7 retries) hold a stage for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # a stage has a bar of its own
}
_METRICS_PER_BATCH, _PARAMS_PER_BATCH = 1000, 100  # MLflow's limits
_KIND = {
    "mlflow.experimentKind": "custom_model_development"
}  # MLflow's UI then shows runs and models first
_DIGEST = 32  # characters of a dataset's digest; MLflow allows 36
_CREDENTIALS = re.compile(r"(?<=://)\S*@")


class Store:
    """The MLflow store that all runs of a stage write to.

    After its first failure nothing more is sent.
    """

    def __init__(self, client: "MlflowClient | None", name: str):
        self.client = client
        self.name = name

    def send(self, call: "Callable[[MlflowClient], object]") -> None:
        """Call ``call(client)``, unless the store has failed."""
        if self.client is None:
            return
        try:
            call(self.client)
        except _store_errors() as broken:
            self.lose(f"failed ({type(broken).__name__})", "the rest of this run is not logged")

    def lose(self, what: str, consequence: str) -> None:
        """Stop using the store, with one warning."""
        self.client = None
        print(f"warning: MLflow store {self.name} {what}; {consequence}", file=sys.stderr)


class Log:
    """One MLflow run to write to. Nothing it does raises an error of the store."""

    def __init__(self, store: Store, run_id: str):
        self.run_id = run_id
        self.send = store.send
        self._store = store
        self._waiting: list[tuple[str, float, int, int]] = []
        self._flushed = time.monotonic()

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters, after the numbers that wait; nested mappings become dotted keys."""
        from mlflow.entities import Param

        self.flush()
        for part in _chunks(
            [Param(key, text) for key, text in _flatten(values)], _PARAMS_PER_BATCH
        ):
            self.send(methodcaller("log_batch", self.run_id, params=part))

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Log one number. Numbers are sent together, every few seconds and at the end."""
        self._waiting.append((name, float(value), int(time.time() * 1000), step or 0))
        if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def artifact(self, path: Path) -> None:
        """Copy a file (or a folder) to the run."""
        if not path.exists():
            raise FileNotFoundError(path)
        self.send(methodcaller("log_artifact", self.run_id, str(path)))

    def tag(self, name: str, value: object) -> None:
        """Set one tag."""
        self.send(methodcaller("set_tag", self.run_id, name, _redact(str(value))))

    def note(self, text: str) -> None:
        """Describe the run, in Markdown."""
        self.tag("mlflow.note.content", text)

    def dataset(self, name: str, fingerprint: str, facts: Mapping[str, Any]) -> None:
        """Name the dataset that the run learned from: its keyed fingerprint and public facts, and
        no row of it.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = json.dumps({"fingerprint": fingerprint})
        data = Dataset(
            name, fingerprint[:_DIGEST], "primorl", source, profile=json.dumps(dict(facts))
        )
        given = DatasetInput(data, tags=[InputTag("mlflow.data.context", "training")])
        self.send(methodcaller("log_inputs", self.run_id, datasets=[given]))

    def flush(self) -> None:
        """Send the metrics that wait."""
        from mlflow.entities import Metric

        waiting, self._waiting = self._waiting, []
        for part in _chunks([Metric(*entry) for entry in waiting], _METRICS_PER_BATCH):
            self.send(methodcaller("log_batch", self.run_id, metrics=part))
        self._flushed = time.monotonic()

    def resume(self) -> None:
        """Mark the run as running again, unless it has failed."""
        self.send(lambda client: self._move_to(client, "RUNNING"))

    def end(self, status: str) -> None:
        """Send waiting entries and end the run. A run that has failed stays failed."""
        self.flush()
        self.send(lambda client: self._move_to(client, status))

    def _move_to(self, client: "MlflowClient", status: str) -> None:
        if client.get_run(self.run_id).info.status == "FAILED":
            return
        if status == "RUNNING":
            client.update_run(self.run_id, status)
        else:
            client.set_terminated(self.run_id, status)


def store_uri(params: Params) -> str:
    """The MLflow store: ``tracking.uri``, or the project's own SQLite file.

    Relative paths start at the project.
    """
    uri = params.tracking.uri
    if uri is None:
        return f"sqlite:///{home() / 'mlflow.db'}"
    scheme, separator, path = uri.partition(":///")
    if separator and scheme.startswith("sqlite"):
        return f"{scheme}:///{home() / path}"
    return uri


def viewer(params: Params) -> str:
    """Give the command that shows a store on this machine; empty: it is elsewhere."""
    uri = params.tracking.uri or "sqlite:///mlflow.db"
    if not uri.startswith("sqlite"):
        return ""
    return (
        "make ui"
        if Path("Makefile").exists()
        else f"mlflow ui --backend-store-uri {without_credentials(uri)}"
    )


def link(params: Params) -> str:
    """Where the `viewer`, or the server that ``tracking.uri`` names, shows the newest result;
    empty: there is none.

    MLflow may open runs in a mode for language models unless the address asks for the view of
    trainings.
    """
    uri = store_uri(params)
    server = "http://127.0.0.1:5000"
    if uri.startswith(("http://", "https://")):
        server = without_credentials(uri)
    try:
        run = max(results(params, most_epsilon=None), key=lambda each: each.finished).run
        with connected(uri) as client:
            experiment = client.get_run(run).info.experiment_id
    except (PipelineError, ValueError):  # ValueError: no results
        return ""
    return f"{server}/#/experiments/{experiment}/runs/{run}?workflowType=machine_learning"


def open_store(params: Params, begin: "Callable[[MlflowClient, str], T]") -> tuple[Store, T | None]:
    """Open the store and begin runs in it, one process at a time.

    ``begin`` creates the runs, with the client and the experiment's id. If the server does not
    answer, there is a warning, and None in the place of the result of ``begin``.

    Raises:
        PipelineError: the store cannot be used; the message names it without its credentials.
    """
    uri = store_uri(params)
    store = Store(None, without_credentials(uri))
    with _errors_named(uri):
        try:
            with one_at_a_time():
                client = _connect(uri)
                begun = begin(
                    client, _experiment(client, uri, params.tracking.experiment or params.dataset)
                )
        except _store_errors() as broken:
            if "Read timed out" not in str(broken):
                raise
            store.lose("does not answer", "this run is not logged")
            return store, None
    store.client = client
    return store, begun


@contextmanager
def connected(uri: str) -> "Iterator[MlflowClient]":
    """A client of the store, to read from; its errors are one line."""
    with _errors_named(uri):
        yield _connect(uri)


@contextmanager
def _errors_named(uri: str) -> Iterator[None]:
    """Turn errors of the store, which may quote its credentials, into one line."""
    try:
        yield
    except _store_errors() as broken:
        raise PipelineError(
            f"tracking.uri: the MLflow store {without_credentials(uri)} cannot be used "
            f"({type(broken).__name__}); check that it is up and lets you in, or set tracking.uri "
            "to null for a store in this project"
        ) from None


def without_credentials(uri: str) -> str:
    """The store's name in messages: a SQLite file, or the host alone."""
    if uri.startswith("sqlite"):
        return uri.partition("?")[0]
    try:
        return urlsplit(uri).hostname or "it names"
    except ValueError:
        raise PipelineError(
            "tracking.uri: not a URI; allowed is an MLflow store's, or null"
        ) from None


def _connect(uri: str) -> "MlflowClient":
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # MLflow reads it when it is imported
    for name, value in _MLFLOW.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    for noisy in ("alembic", "mlflow", "sqlalchemy", "urllib3"):
        # they print tracebacks of errors that are handled here
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    return MlflowClient(tracking_uri=uri)


def _store_errors() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (
        MlflowException,
        SQLAlchemyError,
        OSError,
        ImportError,
    )  # ImportError: a database's driver is missing


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """A lock: two stages that start at once must not both create the database, the experiment or
    the pipeline's run.
    """
    with (home() / "mlflow.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _experiment(client: "MlflowClient", uri: str, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise PipelineError(
            f"tracking.experiment: {name!r} was deleted in MLflow; bring it back with `mlflow "
            f"experiments restore -x {found.experiment_id}`, or choose another name"
        )
    if found is not None:
        return str(found.experiment_id)
    server = urlsplit(uri).scheme in ("http", "https")  # a server knows where its artifacts go
    place = None if server else (home() / "mlruns").as_uri()
    return str(client.create_experiment(name, artifact_location=place, tags=_KIND))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _redact(str(value))


def _redact(text: str) -> str:
    return _CREDENTIALS.sub("", text)


def _chunks(entries: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


_MOST_RUNS = 50_000  # that MLflow gives in one answer
_JUDGES = {
    "simulator": ("return_mean", "return_low", "return_high"),
    "model": ("model_value", "", ""),
    "nobody": ("", "", ""),
}
"""By judge, the metrics of a result's value and its interval.

What members of a model say is no interval.
"""


@dataclass(frozen=True)
class Result:
    """A pipeline's run.

    Attributes:
        run: its id.
        name: its name.
        epsilon: ε of its policy; None: no guarantee, or a void one.
        delta: δ of its ε; None: no guarantee.
        unit: unit of its ε; None: a run of before this was logged.
        spent: ε of all charges on the same units at that time; None: no guarantee was left.
        value: mean return in the simulator, or by the model; None: neither of them.
        low: lower end of its interval; None: unknown.
        high: upper end.
        by: judge of the value: `simulator`, `model`, or none.
        finished: when.
        advice: what was recommended: `trial`, `keep`, `more_data`; None: a simulator measured it.
        settings: those of ``params.yaml`` that are not the same in all results that were asked for,
            by dotted key.
    """

    run: str
    name: str
    epsilon: float | None
    delta: float | None
    unit: str | None
    spent: float | None
    value: float | None
    low: float | None
    high: float | None
    by: str
    finished: datetime
    advice: str | None
    settings: dict[str, str]


def results(params: Params, *, most_epsilon: float | None) -> list[Result]:
    """Results on the dataset that params.yaml names, best first: by the simulator; then the rest.

    Those that a model alone judges, or nothing, are not compared: the newest stands first.

    Args:
        params: name the store, the experiment and the dataset.
        most_epsilon: the greatest ε, of the dataset's unit at a δ of at most
            ``privacy.budget.delta``; None: also runs without a guarantee, of other units and at
            other δ.

    Raises:
        PipelineError: there is no store, or it cannot be used.
    """
    uri = store_uri(params)
    scheme, _, path = uri.partition(":///")
    if scheme.startswith("sqlite"):
        file = Path(unquote(path.partition("?")[0]))  # as SQLAlchemy reads it
        if not file.exists():
            named = "" if params.tracking.uri is None else "tracking.uri: "
            raise PipelineError(f"{named}{file}: not there: nothing was run yet; run `dvc repro`")
    with connected(uri) as client:
        experiment = client.get_experiment_by_name(params.tracking.experiment or params.dataset)
        wanted, of = (
            f"tags.dataset = '{params.dataset}'",
            [] if experiment is None else [experiment],
        )
        ids = [each.experiment_id for each in of]
        runs = client.search_runs(ids, wanted, max_results=_MOST_RUNS) if ids else []
    found = [_result(run) for run in sorted(runs, key=_rank) if run.data.params.get("private")]
    if most_epsilon is not None:
        most_delta = params.privacy.budget.delta
        found = [
            each
            for each in found
            if each.unit == params.chosen.unit
            and (each.delta or inf) <= most_delta
            and each.epsilon is not None
            and each.epsilon <= most_epsilon
        ]
    values: dict[str, list[str]] = {}
    for each in found:
        for key, value in each.settings.items():
            values.setdefault(key, []).append(value)
    # A setting that a rule chose is logged by the run that chose it, and not by those that restore
    # what it paid for.
    differ = {key for key, said in values.items() if len(said) == len(found) and len(set(said)) > 1}
    return [
        replace(each, settings={key: each.settings[key] for key in sorted(differ)})
        for each in found
    ]


def _rank(run: "Run") -> tuple[float, ...]:
    """Sort key: the best in the simulator first, those without a number last, then the newest
    first.
    """
    value = run.data.metrics.get("return_mean", nan)
    return inf if isnan(value) else -value, -run.info.start_time


def _result(run: "Run") -> Result:
    metrics, given, tags, info = run.data.metrics, run.data.params, run.data.tags, run.info
    epsilon = metrics.get("epsilon")
    by = next(judge for judge, names in _JUDGES.items() if names[0] in metrics or judge == "nobody")
    value, low, high = (metrics.get(name) for name in _JUDGES[by])
    return Result(
        run=info.run_id,
        name=tags.get("DVC_EXP_NAME") or info.run_name or info.run_id,
        epsilon=epsilon,
        delta=None if epsilon is None or "delta" not in given else float(given["delta"]),
        unit=given.get("unit"),
        spent=metrics.get("epsilon_spent_on_dataset"),
        value=value,
        low=low,
        high=high,
        by=by,
        finished=datetime.fromtimestamp((info.end_time or info.start_time) / 1000),
        advice=tags.get("recommendation"),
        settings={key: given[key] for key in given if "." in key or key == "seed"},
    )
