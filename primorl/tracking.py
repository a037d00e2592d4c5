"""MLflow: one run per pipeline run, one nested run per stage; nothing is logged but what is handed over."""

import fcntl
import hashlib
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import psutil

from primorl.config.params import Params, load
from primorl.project.errors import PipelineError
from primorl.project.files import HOST, home, workspace

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

PIPELINE_TAG, PROCESS_TAG = "primorl.pipeline", "primorl.process"
_FLUSH_SECONDS = 5.0
_METRICS_PER_BATCH, _PARAMS_PER_BATCH = 1000, 100  # MLflow's limits
_CLOCK_SLACK_MS = 5000  # two processes may compute the start of a third a little differently
_CREDENTIALS = re.compile(r"(?<=://)\S*@")


class Log:
    """One MLflow run to write to.

    When the store fails in the middle of a run, the rest is dropped with one warning: a lost log must
    not cost a training run whose privacy budget is spent.
    """

    def __init__(self, client: "MlflowClient", run_id: str, store: str):
        self.run_id = run_id
        self._client = client
        self._store = store
        self._waiting: list[tuple[str, float, int, int]] = []
        self._flushed = time.monotonic()
        self._lost = False

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters; nested mappings become dotted keys."""
        from mlflow.entities import Param

        for part in _chunks([Param(key, text) for key, text in _flatten(values)], _PARAMS_PER_BATCH):
            self._send(self._client.log_batch, self.run_id, params=part)

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Log one number; it is sent together with others, every few seconds and at the end."""
        self._waiting.append((name, float(value), int(time.time() * 1000), step or 0))
        if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def artifact(self, path: Path) -> None:
        """Copy a file (or a folder) to the run.

        Raises:
            FileNotFoundError: nothing is at ``path``.
        """
        if not path.exists():
            raise FileNotFoundError(path)
        self._send(self._client.log_artifact, self.run_id, str(path))

    def tag(self, name: str, value: object) -> None:
        """Set one tag."""
        self._send(self._client.set_tag, self.run_id, name, _redact(str(value)))

    def flush(self) -> None:
        """Send the metrics that wait."""
        from mlflow.entities import Metric

        waiting, self._waiting = self._waiting, []
        for part in _chunks([Metric(*entry) for entry in waiting], _METRICS_PER_BATCH):
            self._send(self._client.log_batch, self.run_id, metrics=part)
        self._flushed = time.monotonic()

    def resume(self) -> None:
        """Mark the run as running again, unless it has failed."""
        self._send(self._move_to, "RUNNING")

    def end(self, status: str) -> None:
        """Send what waits and end the run; a run that has failed stays failed."""
        self.flush()
        self._send(self._move_to, status)

    def _move_to(self, status: str) -> None:
        if self._client.get_run(self.run_id).info.status == "FAILED":
            return
        if status == "RUNNING":
            self._client.update_run(self.run_id, status)
        else:
            self._client.set_terminated(self.run_id, status)

    def _send(self, call: Callable[..., object], *arguments: object, **named: object) -> None:
        if self._lost:
            return
        try:
            call(*arguments, **named)
        except _store_errors() as broken:
            self._lost = True
            reason = f"MLflow store {self._store} failed ({type(broken).__name__})"
            print(f"warning: {reason}; the rest of this run is not logged", file=sys.stderr)


class StageRun(Log):
    """A stage's MLflow run; ``pipeline`` is the run of the whole pipeline, which it is nested in."""

    def __init__(self, client: "MlflowClient", run_id: str, store: str, pipeline: Log):
        super().__init__(client, run_id, store)
        self.pipeline = pipeline

    @contextmanager
    def nested(self, name: str) -> Iterator[Log]:
        """A run of its own inside the stage's; it ends with the block, as the stage's does."""
        log = Log(self._client, self._started(name), self._store)
        log._lost = self._lost or not log.run_id
        try:
            yield log
        except BaseException:
            log.end("FAILED")
            raise
        log.end("FINISHED")

    def _started(self, name: str) -> str:
        """The id of a new run; none where the store has failed, and the run's log is lost."""
        created: list[str] = []

        def create() -> None:
            experiment = self._client.get_run(self.run_id).info.experiment_id
            tags = {"mlflow.parentRunId": self.run_id, PROCESS_TAG: _mark(psutil.Process())}
            created.append(self._client.create_run(experiment, tags=tags, run_name=name).info.run_id)

        self._send(create)
        return created[0] if created else ""


@contextmanager
def stage_run(stage: str, params: Params) -> Iterator[StageRun]:
    """Open a stage's MLflow run inside the pipeline's; both end as FINISHED, or FAILED on an exception.

    The exception itself is never logged: its message may quote private values.

    Raises:
        PipelineError: the store cannot be used; the message names it without its credentials.
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
    """The MLflow store: ``tracking.uri``, or the project's own SQLite file (relative paths start at the project)."""
    uri = params.tracking.uri
    if uri is None:
        return f"sqlite:///{home() / 'mlflow.db'}"
    scheme, separator, path = uri.partition(":///")
    if separator and scheme.startswith("sqlite"):
        return f"{scheme}:///{home() / path}"
    return uri


def _open(stage: str, params: Params) -> StageRun:
    uri = store_uri(params)
    shown = _without_credentials(uri)
    try:
        with _one_at_a_time():
            client = _connect(uri)
            experiment = _experiment(client, uri, params.tracking.experiment)
            _close_the_dead(client, experiment)
            pipeline = Log(client, _pipeline_run(client, experiment, params), shown)
        nested = {"mlflow.parentRunId": pipeline.run_id, "stage": stage, PROCESS_TAG: _mark(psutil.Process())}
        run_id = client.create_run(experiment, tags=nested, run_name=stage).info.run_id
    except _store_errors() as broken:
        raise PipelineError(
            f"tracking.uri: the MLflow store {shown} cannot be used ({type(broken).__name__}); "
            "check that it is up and lets you in, or set tracking.uri to null for a store in this project"
        ) from None
    pipeline.resume()
    return StageRun(client, run_id, shown, pipeline)


def _without_credentials(uri: str) -> str:
    """The store as errors may name it: a SQLite file, or the host alone."""
    if uri.startswith("sqlite"):
        return uri.partition("?")[0]
    try:
        return urlsplit(uri).hostname or "it names"
    except ValueError:
        raise PipelineError("tracking.uri: not a URI; allowed is an MLflow store's, or null") from None


def _connect(uri: str) -> "MlflowClient":
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # MLflow reads it when it is imported
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its own 7 wait for minutes on a dead server
    from mlflow.tracking import MlflowClient

    for noisy in ("alembic", "mlflow", "urllib3.connectionpool"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)


def _store_errors() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError, ImportError  # ImportError: a database's driver is missing


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two stages that start at once must not both create the database, the experiment or the pipeline's run."""
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
    """A killed stage could not end its run: whoever comes next on this machine says that it failed."""
    running = client.search_runs(
        [experiment], f"attributes.status = 'RUNNING' and tags.`{PROCESS_TAG}` LIKE '{HOST}:%'"
    )
    for run in running:
        if _is_alive(run.data.tags[PROCESS_TAG]):
            continue
        for dead in (run.info.run_id, run.data.tags["mlflow.parentRunId"]):
            if client.get_run(dead).info.status == "RUNNING":
                client.set_terminated(dead, "FAILED")


def _mark(process: psutil.Process) -> str:
    """A process by machine, number and start: numbers come back."""
    return f"{HOST}:{process.pid}:{process.create_time():.2f}"


def _is_alive(mark: str) -> bool:
    try:
        return _mark(psutil.Process(int(mark.split(":")[1]))) == mark
    except (psutil.Error, ValueError):
        return False


def _pipeline_run(client: "MlflowClient", experiment: str, params: Params) -> str:
    """Find the run of the pipeline this stage belongs to, or create it."""
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
    tags = {PIPELINE_TAG: mark, "dataset": params.dataset, "variant": params.dynamics.variant, **_git_tags()}
    tags |= {key: os.environ[key] for key in ("DVC_EXP_NAME", "DVC_EXP_BASELINE_REV") if os.environ.get(key)}
    return str(client.create_run(experiment, tags=tags, run_name=experiment_name or _name(params)).info.run_id)


def _enclosing_process() -> psutil.Process:
    """The ``dvc`` process that runs this stage; without one, the stage's own process."""
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
        return f"{name}/ε={params.privacy.target_epsilon:g}"
    return f"{name}/z={params.privacy.noise_multiplier:g}"


def git_commit() -> str | None:
    """The commit that is checked out; None outside a repository."""
    return _git("rev-parse", "HEAD")


def _git_tags() -> dict[str, str]:
    commit = git_commit()
    if commit is None:
        return {}
    # DVC itself rewrites dvc.lock after every stage
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock")
    return {"mlflow.source.git.commit": commit, "git_dirty": str(bool(changed)).lower()}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=workspace(), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


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
    print(store_uri(load(Path("params.yaml"))))
