"""MLflow: one run per pipeline run, one nested run per stage. Only what is handed over is logged.

A lost log must not cost a training run whose privacy budget is spent. When the store fails in the middle of a stage,
or a server does not answer, the stage goes on without it after one warning.

MLflow's own asynchronous logging is not used: its ten threads send batches out of order, log errors with the message of
the exception (which names the server with its credentials), and wait for a dead server at the end once per batch. Here
metrics wait in one list, which `Log.flush` sends as one batch.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import psutil

from primorl.config.params import Params, load
from primorl.privacy.accounting.rounding import at_least, at_most
from primorl.project.errors import PipelineError
from primorl.project.files import HOST, home, workspace
from primorl.project.git import git_tags
from primorl.project.paths import PARAMS
from primorl.project.processes import is_alive, mark

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

PIPELINE_TAG, PROCESS_TAG = "primorl.pipeline", "primorl.process"
RUN_TAGS = "PRIMORL_RUN_TAGS"  # environment variable: further tags of the pipeline's run, as JSON
_FLUSH_SECONDS = 5.0
_HTTP = {  # MLflow's own defaults (120 s, 7 retries) hold a stage for minutes when a server hangs
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}
_METRICS_PER_BATCH, _PARAMS_PER_BATCH = 1000, 100  # MLflow's limits
_CLOCK_SLACK_MS = 5000  # two processes may compute the start of a third a little differently
_CREDENTIALS = re.compile(r"(?<=://)\S*@")


class Store:
    """The MLflow store that all runs of a stage write to. After its first failure nothing more is sent."""

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
        self._store = store
        self._waiting: list[tuple[str, float, int, int]] = []
        self._flushed = time.monotonic()

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters; nested mappings become dotted keys."""
        from mlflow.entities import Param

        for part in _chunks([Param(key, text) for key, text in _flatten(values)], _PARAMS_PER_BATCH):
            self._store.send(methodcaller("log_batch", self.run_id, params=part))

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Log one number. Numbers are sent together, every few seconds and at the end."""
        self._waiting.append((name, float(value), int(time.time() * 1000), step or 0))
        if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def artifact(self, path: Path) -> None:
        """Copy a file (or a folder) to the run.

        Raises:
            FileNotFoundError: if there is nothing at ``path``.
        """
        if not path.exists():
            raise FileNotFoundError(path)
        self._store.send(methodcaller("log_artifact", self.run_id, str(path)))

    def tag(self, name: str, value: object) -> None:
        """Set one tag."""
        self._store.send(methodcaller("set_tag", self.run_id, name, _redact(str(value))))

    def flush(self) -> None:
        """Send the metrics that wait."""
        from mlflow.entities import Metric

        waiting, self._waiting = self._waiting, []
        for part in _chunks([Metric(*entry) for entry in waiting], _METRICS_PER_BATCH):
            self._store.send(methodcaller("log_batch", self.run_id, metrics=part))
        self._flushed = time.monotonic()

    def resume(self) -> None:
        """Mark the run as running again, unless it has failed."""
        self._store.send(lambda client: self._move_to(client, "RUNNING"))

    def end(self, status: str) -> None:
        """Send what waits and end the run. A run that has failed stays failed."""
        self.flush()
        self._store.send(lambda client: self._move_to(client, status))

    def _move_to(self, client: "MlflowClient", status: str) -> None:
        if client.get_run(self.run_id).info.status == "FAILED":
            return
        if status == "RUNNING":
            client.update_run(self.run_id, status)
        else:
            client.set_terminated(self.run_id, status)


class StageRun(Log):
    """A stage's MLflow run; ``pipeline`` is the run of the whole pipeline, which it is nested in."""

    def __init__(self, store: Store, run_id: str, pipeline: Log):
        super().__init__(store, run_id)
        self.pipeline = pipeline

    @contextmanager
    def nested(self, name: str) -> Iterator[Log]:
        """A run inside the stage's run. It ends with the block."""
        log = Log(self._store, self._started(name))
        try:
            yield log
        except BaseException:
            log.end("FAILED")
            raise
        log.end("FINISHED")

    def _started(self, name: str) -> str:
        """The id of a new run; empty if the store has failed."""
        created: list[str] = []

        def create(client: "MlflowClient") -> None:
            experiment = client.get_run(self.run_id).info.experiment_id
            tags = {"mlflow.parentRunId": self.run_id, PROCESS_TAG: mark(psutil.Process())}
            created.append(client.create_run(experiment, tags=tags, run_name=name).info.run_id)

        self._store.send(create)
        return created[0] if created else ""


@contextmanager
def stage_run(stage: str, params: Params) -> Iterator[StageRun]:
    """Open a stage's MLflow run inside the pipeline's. Both end as FINISHED, or as FAILED on an exception.

    The exception itself is never logged: its message may quote private values. A server that accepts connections and
    does not answer costs the log, with one warning, and not the stage.

    Raises:
        PipelineError: if the store cannot be used; the message names it without its credentials.
    """
    run = _open(stage, params)
    try:
        yield run
    except BaseException:
        run.end("FAILED")
        run.pipeline.end("FAILED")
        raise
    run.end("FINISHED")
    run.pipeline.end("FINISHED")


def store_uri(params: Params) -> str:
    """The MLflow store: ``tracking.uri``, or the project's own SQLite file. Relative paths start at the project."""
    uri = params.tracking.uri
    if uri is None:
        return f"sqlite:///{home() / 'mlflow.db'}"
    scheme, separator, path = uri.partition(":///")
    if separator and scheme.startswith("sqlite"):
        return f"{scheme}:///{home() / path}"
    return uri


def open_store(params: Params, begin: "Callable[[MlflowClient, str], T]") -> tuple[Store, T | None]:
    """Open the store and begin runs in it, one process at a time.

    Args:
        params: name the store and the experiment.
        begin: creates the runs, with the client and the experiment's id.

    Returns:
        The store and what ``begin`` returned; None if the server does not answer, which costs a warning.

    Raises:
        PipelineError: the store cannot be used; the message names it without its credentials.
    """
    uri = store_uri(params)
    store = Store(None, _without_credentials(uri))
    try:
        with _one_at_a_time():
            client = _connect(uri)
            begun = begin(client, _experiment(client, uri, params.tracking.experiment))
    except _store_errors() as broken:
        if _timed_out(broken):
            store.lose("does not answer", "this run is not logged")
            return store, None
        raise PipelineError(
            f"tracking.uri: the MLflow store {store.name} cannot be used ({type(broken).__name__}); "
            "check that it is up and lets you in, or set tracking.uri to null for a store in this project"
        ) from None
    store.client = client
    return store, begun


def _open(stage: str, params: Params) -> StageRun:
    def begin(client: "MlflowClient", experiment: str) -> tuple[str, str]:
        _close_the_dead(client, experiment)
        pipeline = _pipeline_run(client, experiment, params)
        nested = {"mlflow.parentRunId": pipeline, "stage": stage, PROCESS_TAG: mark(psutil.Process())}
        return pipeline, str(client.create_run(experiment, tags=nested, run_name=stage).info.run_id)

    store, begun = open_store(params, begin)
    pipeline_id, run_id = begun or ("", "")
    pipeline = Log(store, pipeline_id)
    pipeline.resume()
    return StageRun(store, run_id, pipeline)


def _timed_out(error: BaseException) -> bool:
    """Whether a server accepted the connection and did not answer in time. MLflow wraps the reason several times."""
    from requests.exceptions import ReadTimeout
    from urllib3.exceptions import ReadTimeoutError

    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, ReadTimeout | ReadTimeoutError):
            return True
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            waiting += [found.__cause__, found.__context__, getattr(found, "reason", None), *found.args]
    return False


def _without_credentials(uri: str) -> str:
    """The store's name in messages: a SQLite file, or the host alone."""
    if uri.startswith("sqlite"):
        return uri.partition("?")[0]
    try:
        return urlsplit(uri).hostname or "it names"
    except ValueError:
        raise PipelineError("tracking.uri: not a URI; allowed is an MLflow store's, or null") from None


def _connect(uri: str) -> "MlflowClient":
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # MLflow reads it when it is imported
    for name, value in _HTTP.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    for noisy in ("alembic", "mlflow", "sqlalchemy", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # they print tracebacks of errors that are handled here
    return MlflowClient(tracking_uri=uri)


def _store_errors() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError, ImportError  # ImportError: a database's driver is missing


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """A lock: two stages that start at once must not both create the database, the experiment or the pipeline's run."""
    with (home() / "mlflow.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _experiment(client: "MlflowClient", uri: str, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise PipelineError(
            f"tracking.experiment: {name!r} was deleted in MLflow; "
            f"bring it back with `mlflow experiments restore -x {found.experiment_id}`, or choose another name"
        )
    if found is not None:
        return str(found.experiment_id)
    server = urlsplit(uri).scheme in ("http", "https")  # a server knows where its artifacts go
    return str(client.create_experiment(name, artifact_location=None if server else (home() / "mlruns").as_uri()))


def _close_the_dead(client: "MlflowClient", experiment: str) -> None:
    """Mark the runs of killed stages of this machine as failed: a killed stage could not do it."""
    running = client.search_runs(
        [experiment], f"attributes.status = 'RUNNING' and tags.`{PROCESS_TAG}` LIKE '{HOST}:%'"
    )
    for run in running:
        if is_alive(run.data.tags[PROCESS_TAG]):
            continue
        for dead in (run.info.run_id, run.data.tags["mlflow.parentRunId"]):
            if client.get_run(dead).info.status == "RUNNING":
                client.set_terminated(dead, "FAILED")


def _pipeline_run(client: "MlflowClient", experiment: str, params: Params) -> str:
    """Find the run of the pipeline that this stage belongs to, or create it."""
    process = _enclosing_process()
    experiment_name = os.environ.get("DVC_EXP_NAME", "")
    identity = [socket.gethostname(), str(process.pid), str(workspace()), experiment_name]
    mark = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    since = int(process.create_time() * 1000) - _CLOCK_SLACK_MS  # a process id may have been another's before
    known = client.search_runs(
        [experiment],
        f"tags.`{PIPELINE_TAG}` = '{mark}' and attributes.start_time >= {since}",
        order_by=["attributes.start_time DESC"],
        max_results=1,
    )
    if known:
        return str(known[0].info.run_id)
    tags = {PIPELINE_TAG: mark, "dataset": params.dataset, "variant": params.dynamics.variant, **git_tags()}
    tags |= json.loads(os.environ.get(RUN_TAGS, "{}"))
    tags |= {key: os.environ[key] for key in ("DVC_EXP_NAME", "DVC_EXP_BASELINE_REV") if os.environ.get(key)}
    return str(client.create_run(experiment, tags=tags, run_name=experiment_name or _name(params)).info.run_id)


def _enclosing_process() -> psutil.Process:
    """The ``dvc`` process that runs this stage, or else the stage's own process."""
    own = psutil.Process()
    if "DVC_ROOT" not in os.environ:
        return own
    try:
        for parent in own.parents():
            if any(Path(word).name in ("dvc", "dvc.exe") for word in parent.cmdline()[:3]):  # also `python -m dvc`
                return parent
    except psutil.Error:
        pass
    return own


def _name(params: Params) -> str:
    name = f"{params.dataset}/{params.dynamics.variant}"
    if params.dynamics.variant != "private":
        return name
    if params.privacy.target_epsilon is not None:
        return f"{name}/ε={at_most(params.privacy.target_epsilon, 6)}"
    return f"{name}/z={at_least(params.privacy.noise_multiplier or 0.0, 6)}"


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


if __name__ == "__main__":  # for `make ui`
    print(store_uri(load(PARAMS)))
