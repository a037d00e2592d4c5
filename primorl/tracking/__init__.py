"""MLflow: a run for each run of the pipeline."""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from primorl.base.files import HOST, workspace
from primorl.base.processes import git_tags, is_alive, mark
from primorl.config.params import Params
from primorl.privacy.accounting.rounding import at_least, at_most
from primorl.tracking.store import Log, Store, open_store

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PIPELINE_TAG, PROCESS_TAG = "primorl.pipeline", "primorl.process"
_CLOCK_SLACK_MS = 5000  # two processes may compute the start of a third a little differently


class StageRun(Log):
    """A stage's MLflow run.

    Attributes:
        pipeline: the run of the whole pipeline, which it is nested in.
        first: whether no stage of this pipeline had a run before.
    """

    def __init__(self, store: Store, run_id: str, pipeline: Log, *, first: bool):
        super().__init__(store, run_id)
        self.pipeline = pipeline
        self.first = first

    @contextmanager
    def nested(self, name: str) -> Iterator[Log]:
        """A run inside the stage's run. It ends with the block."""
        log = Log(self._store, "")

        def create(client: "MlflowClient") -> None:
            experiment = client.get_run(self.run_id).info.experiment_id
            log.run_id = _begin(client, experiment, self.run_id, name)

        self.send(create)
        with _ended(log):
            yield log


@contextmanager
def stage_run(stage: str, params: Params) -> Iterator[StageRun]:
    """Open a stage's MLflow run inside the pipeline's.

    Both end as FINISHED, or as FAILED on an exception.

    The exception itself is never logged: its message may quote private values. A server that
    accepts connections and does not answer costs the log, with one warning, and not the stage.

    Raises:
        PipelineError: if the store cannot be used; the message names it without its credentials.
    """

    def begin(client: "MlflowClient", experiment: str) -> tuple[str, str, bool]:
        _close_the_dead(client, experiment)
        pipeline, first = _pipeline_run(client, experiment, params)
        return pipeline, _begin(client, experiment, pipeline, stage, stage=stage), first

    store, begun = open_store(params, begin)
    pipeline_id, run_id, first = begun or ("", "", True)
    pipeline = Log(store, pipeline_id)
    pipeline.resume()
    run = StageRun(store, run_id, pipeline, first=first)
    with _ended(run, pipeline):
        yield run


def _begin(client: "MlflowClient", experiment: str, parent: str, name: str, **tags: str) -> str:
    """Create a run of this process inside another one; return its id."""
    own = {"mlflow.parentRunId": parent, PROCESS_TAG: mark(psutil.Process()), **tags}
    return str(client.create_run(experiment, tags=own, run_name=name).info.run_id)


@contextmanager
def _ended(*runs: Log) -> Iterator[None]:
    """End runs with the block: as FINISHED, or as FAILED on an exception."""
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    finally:
        for run in runs:
            run.end(status)


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


def _pipeline_run(client: "MlflowClient", experiment: str, params: Params) -> tuple[str, bool]:
    """Find the run of the pipeline that this stage belongs to, or create it; and whether it
    is new.
    """
    process = _enclosing_process()
    experiment_name = os.environ.get("DVC_EXP_NAME", "")
    identity = [socket.gethostname(), str(process.pid), str(workspace()), experiment_name]
    pipeline = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    # a process id may have been another's before
    since = int(process.create_time() * 1000) - _CLOCK_SLACK_MS
    known = client.search_runs(
        [experiment],
        f"tags.`{PIPELINE_TAG}` = '{pipeline}' and attributes.start_time >= {since}",
        order_by=["attributes.start_time DESC"],
        max_results=1,
    )
    if known:
        return str(known[0].info.run_id), False
    tags = {
        PIPELINE_TAG: pipeline,
        "dataset": params.dataset,
        "variant": params.dynamics.variant,
        **git_tags(),
    }
    tags |= {
        key: os.environ[key]
        for key in ("DVC_EXP_NAME", "DVC_EXP_BASELINE_REV")
        if os.environ.get(key)
    }
    name = _name(params) + (f" ({experiment_name})" if experiment_name else "")
    return str(client.create_run(experiment, tags=tags, run_name=name).info.run_id), True


def _enclosing_process() -> psutil.Process:
    """The ``dvc`` process that runs this stage, or else the stage's own process."""
    own = psutil.Process()
    if "DVC_ROOT" not in os.environ:
        return own
    try:
        for parent in own.parents():
            # also `python -m dvc`
            if any(Path(word).name in ("dvc", "dvc.exe") for word in parent.cmdline()[:3]):
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
