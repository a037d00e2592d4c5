"""MLflow: one run for each result.

Stages keep their curves in a `StageLog`, in a file beside their outputs, so that DVC restores both
together. Whoever has the result logs all of it at once; a store that fails then has cost no run.

Only values that are handed over are logged.
"""

import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from math import inf, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from primorl.base import PipelineError, say
from primorl.base.files import home
from primorl.base.reporting import RunContent
from primorl.config.params import Params

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

_GIVEN_TAG = "primorl.given"
RESULT_TAG = "primorl.result"
"""Tells a result from others; one that is in the store is not logged again."""
_NOT_IN_NAMES = re.compile(r"[^\w. :-]")  # of metrics; MLflow takes a slash for a folder
_SHORT = 6  # digits of a result's digest, which tell names apart
_LONGEST_NAME = 200  # MLflow refuses more than 250
_MLFLOW = {
    # MLflow's own defaults (120 s, 7 retries) hold a stage for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # a stage has a bar of its own
}
_MOST_RUNS = 50_000  # that MLflow gives in one answer
# MLflow's UI then shows runs and models first
_KIND = {"mlflow.experimentKind": "custom_model_development"}
_CREDENTIALS = re.compile(r"(?<=://)\S*@")


def log_run(params: Params, content: RunContent, files: Sequence[Path], of: str = "") -> None:
    """Log a result as a run of its own, unless one of the same `RESULT_TAG` is there.

    Its parameters come last: `results` lists runs that have them.

    Args:
        params: name the store, and are logged.
        content: what to log.
        files: to be copied to the run.
        of: a word for the run's name; empty: it is the pipeline's.

    Raises:
        PipelineError: the store cannot be used; the message names it without its credentials.
    """
    from mlflow.entities import Metric, Param, RunTag

    now = int(time.time() * 1000)
    experiment_name = os.environ.get("DVC_EXP_NAME", "")
    name = f"{params.dataset}/{of or params.dynamics.variant}"
    result = content.tags.get(RESULT_TAG, "")
    name += f" {result[:_SHORT]}" if result else ""
    name += f" ({experiment_name})" if experiment_name else ""
    # No commit: it digests dvc.lock, which digests rows without the project's secret.
    tags = {"dataset": params.dataset, "variant": params.dynamics.variant}
    tags[_GIVEN_TAG] = json.dumps(params.list_given())
    tags |= {"DVC_EXP_NAME": experiment_name} if experiment_name else {}
    tags |= content.tags
    values = {**params.choices(), **content.params}
    logged = [Param(*pair) for pair in dict(_flatten(values)).items()]
    names = dict.fromkeys(name for name, _, _ in content.metrics)
    allowed = _allowed_names(names)
    metrics = [Metric(allowed[name], value, now, step) for name, value, step in content.metrics]
    with _opened(params) as (client, experiment):
        same = f"tags.`{RESULT_TAG}` = '{result}' and status = 'FINISHED'"
        if result and (known := client.search_runs([experiment], same, max_results=1)):
            say(f"MLflow has this result already: {known[0].info.run_name}")
            return
        run = str(client.create_run(experiment, run_name=name).info.run_id)
        for file in files:
            client.log_artifact(run, str(file), file.parent.as_posix())
        words = [RunTag(key, _redact(text)) for key, text in tags.items()]
        client.log_batch(run, metrics=metrics, tags=words)
        client.log_batch(run, params=logged)
        client.set_terminated(run, "FINISHED")


def _allowed_names(names: Iterable[str]) -> dict[str, str]:
    """Give each name one that MLflow takes; a number tells those apart that would be alike."""
    given: dict[str, str] = {}
    for number, name in enumerate(names):
        short = _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME]
        given[name] = f"{short}_{number}" if short in given.values() else short
    return given


def check_store(params: Params) -> None:
    """Check that the store that ``tracking`` names can be used, before a run that is paid for.

    One of the project's own that is not there is made by the first result.

    Raises:
        PipelineError: it cannot; see `log_run`.
    """
    if params.tracking.uri is not None or (home() / "mlflow.db").exists():
        with _opened(params):
            pass


@contextmanager
def _opened(params: Params) -> Iterator[tuple["MlflowClient", str]]:
    """Give the store's client and the id of the experiment, which is made where it is not there."""
    uri = store_uri(params)
    with _connected(uri) as client:
        # Two runs that end at once must not both create the database or the experiment.
        with (home() / "mlflow.db.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            experiment = _experiment(client, uri, params.tracking.experiment or params.dataset)
        yield client, experiment


# The store


def store_uri(params: Params) -> str:
    """Return the MLflow store: ``tracking.uri``, or the project's own SQLite file.

    Relative paths start at the project.
    """
    uri = params.tracking.uri
    if uri is None:
        return f"sqlite:///{quote(str(home() / 'mlflow.db'))}"
    scheme, separator, path = uri.partition(":///")
    if separator and scheme.startswith("sqlite"):
        return f"{scheme}:///{Path(quote(str(home()))) / Path(path).expanduser()}"
    return uri


def without_credentials(uri: str) -> str:
    """Name a store in messages: a SQLite file, or the host with its port."""
    if uri.startswith("sqlite"):
        return uri.partition("?")[0]
    try:
        urlsplit(uri)  # does it parse?
        # A password may have a slash: what urlsplit takes for the host is its begin then.
        return urlsplit("//" + uri.rpartition("@")[2].rpartition("://")[2]).netloc or "it names"
    except ValueError:
        raise PipelineError("tracking.uri: not a URI; allowed: MLflow's, or null") from None


_NOT_LET_IN = "a log-in or a proxy said no: check the name and the password in tracking.uri"
_REMEDIES = {
    **dict.fromkeys(("error code 401", "error code 403", "error code 407"), _NOT_LET_IN),
    **dict.fromkeys(("UNAUTHENTICATED: ", "PERMISSION_DENIED: "), _NOT_LET_IN),
    "out-of-date database": "an older MLflow made it; keep a copy, then run `mlflow db upgrade`",
    "migrate-filestore": "a server is http://HOST:PORT, a database sqlite:///FILE",
    "No module named": "the driver of its database is not installed",
    "database is locked": "another program holds it; end that, or wait, and try again",
}
"""What to do, by a part of the store's own words."""
_OTHERWISE = (
    "check that it is up and lets you in, or set tracking.uri to null for a store in this project"
)


@contextmanager
def _connected(uri: str) -> Iterator["MlflowClient"]:
    """Connect to a store; its errors, which may quote its credentials, become one line."""
    name = without_credentials(uri)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # MLflow reads it when it is imported
    for key, value in _MLFLOW.items():
        os.environ.setdefault(key, value)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    for noisy in ("alembic", "mlflow", "sqlalchemy", "urllib3"):
        # they print tracebacks of errors that are handled here
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    try:
        yield MlflowClient(tracking_uri=uri)
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as broken:  # or no driver
        said, kind = str(broken), type(broken).__name__
        remedy = next((remedy for word, remedy in _REMEDIES.items() if word in said), _OTHERWISE)
        if status := re.search(r"error code (\d{3})", said):
            kind = f"HTTP {status[1]}"
        raise PipelineError(
            f"tracking.uri: the MLflow store {name} cannot be used ({kind}); {remedy}"
        ) from None


def _find_experiment(client: "MlflowClient", name: str) -> "Experiment | None":
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        remedy = f"run `mlflow experiments restore -x {found.experiment_id}`, or choose another"
        raise PipelineError(f"tracking.experiment: {name!r} was deleted in MLflow; {remedy}")
    return found


def _experiment(client: "MlflowClient", uri: str, name: str) -> str:
    server = urlsplit(uri).scheme in ("http", "https")  # a server knows where its artifacts go
    if (found := _find_experiment(client, name)) is not None:
        address, ours = urlsplit(found.artifact_location), home() / "mlruns"
        files = Path(unquote(address.path))
        own_store = Path(unquote(uri.partition(":///")[2])).parent == home()
        elsewhere = own_store and files.name == ours.name and files.resolve() != ours.resolve()
        if address.scheme == "file" and not server and (elsewhere or not files.parent.is_dir()):
            raise PipelineError(
                f"tracking.experiment: {name!r} keeps its files in {files.parent}; if the project "
                f"was moved from there, run `ln -s {home()} {files.parent}`; else name another"
            )
        return str(found.experiment_id)
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


# What the store has


def viewer(params: Params) -> str:
    """Give the command that shows a store on this machine; empty: it is elsewhere."""
    uri = params.tracking.uri or "sqlite:///mlflow.db"
    uri = uri.replace("///~/", f"///{Path.home()}/")  # MLflow has no ~
    if not uri.startswith("sqlite"):
        return ""
    return f"mlflow ui --backend-store-uri {without_credentials(uri)}"


def _read(run: "Run") -> dict[str, Any]:
    """Read a result from MLflow's run; see `results`."""
    metrics, given, tags, info = run.data.metrics, run.data.params, run.data.tags, run.info
    by, mean, ends = "simulator", metrics.get("return_mean"), "return"
    if mean is None:
        mean, ends = metrics.get("gain_over_today"), "gain_over_today"
        by = "nobody" if mean is None else "model"
    epsilon = metrics.get("epsilon")
    finished = datetime.fromtimestamp((info.end_time or info.start_time) / 1000)
    return {
        "run": info.run_id,
        "name": tags.get("DVC_EXP_NAME") or info.run_name or info.run_id,
        "data": tags.get("dataset_fingerprint", "")[:6],
        "units": int(given["units"]) if given.get("units", "").isdigit() else None,
        "given": json.loads(tags.get(_GIVEN_TAG, "{}")),
        "epsilon": epsilon,
        "delta": None if epsilon is None or "delta" not in given else float(given["delta"]),
        "unit": given.get("unit"),
        "spent": metrics.get("epsilon_spent_on_dataset"),
        "value": mean,
        "low": metrics.get(f"{ends}_low"),
        "high": metrics.get(f"{ends}_high"),
        "by": by,
        "finished": finished.isoformat(timespec="seconds"),
        "advice": tags.get("recommendation"),
    }


def results(params: Params) -> list[dict[str, Any]]:
    """List the results on the dataset that params.yaml names, best first: by the simulator; then
    the rest.

    Those that a model alone judges, or nothing, are not compared: the newest stands first.

    Args:
        params: name the store, the experiment and the dataset.

    Returns:
        Of each run, None being unknown or none: ``run``, ``name``; ``data``, the
        begin of their keyed fingerprint; ``units``; ``given``, the settings that a person wrote;
        ``epsilon``, ``delta`` and ``unit`` of the policy; ``spent``, ε of all charges on the same
        units then; ``value``, the mean return in the simulator or the gain by the model, with the
        interval's ends ``low`` and ``high``; ``by``, who judged it; ``finished``; ``advice``.

    Raises:
        PipelineError: there is no store, or it cannot be used.
    """
    uri = store_uri(params)
    scheme, _, path = uri.partition(":///")
    file = Path(unquote(path.partition("?")[0]))  # as SQLAlchemy reads it
    if scheme.startswith("sqlite") and not file.exists():
        named = "" if params.tracking.uri is None else "tracking.uri: "
        raise PipelineError(
            f"{named}{file}: not there; run `primorl run`, which says first what it charges, or, "
            "in a clone, set tracking.uri to the owner's (sqlite:////PATH/mlflow.db)"
        )
    runs: Sequence[Run] = ()
    with _connected(uri) as client:
        experiment = _find_experiment(client, params.tracking.experiment or params.dataset)
        if experiment is not None:
            wanted = f"tags.dataset = '{params.dataset}'"
            runs = client.search_runs([experiment.experiment_id], wanted, max_results=_MOST_RUNS)
    return [_read(run) for run in sorted(runs, key=_rank) if run.data.params.get("private")]


def _rank(run: "Run") -> tuple[float, ...]:
    """Rank a run: the best in the simulator first, those without a number last, then the newest
    first.
    """
    value = run.data.metrics.get("return_mean", nan)
    return inf if isnan(value) else -value, -run.info.start_time
