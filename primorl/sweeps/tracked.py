"""The sweep's MLflow run, which the runs of its trials are nested in."""

import hashlib
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primorl.config.params import Params
from primorl.project.files import home
from primorl.sweeps.rows import Row
from primorl.sweeps.trials import Trial
from primorl.tracking.store import Log, open_store

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SWEEP_TAG = "primorl.sweep"
_LONGEST = 500  # characters of a tag


class SweepRun:
    """One MLflow run a sweep and project: the same command goes on with the same run."""

    def __init__(self, name: str, params: Params) -> None:
        """Find the sweep's run, or create it.

        Raises:
            PipelineError: the store cannot be used.
        """
        mark = hashlib.sha256("\0".join([socket.gethostname(), str(home()), name]).encode()).hexdigest()[:16]

        def begin(client: "MlflowClient", experiment: str) -> str:
            known = client.search_runs([experiment], f"tags.`{SWEEP_TAG}` = '{mark}'", max_results=1)
            if known:
                return str(known[0].info.run_id)
            tags = {SWEEP_TAG: mark, "sweep": name, "dataset": params.dataset}
            return str(client.create_run(experiment, tags=tags, run_name=f"sweep {name}").info.run_id)

        store, run_id = open_store(params, begin)
        self._log = Log(store, run_id or "")
        self._log.resume()

    def tags(self, sweep: str, trial: Trial, keys: Sequence[str]) -> dict[str, str]:
        """Tags of a trial's pipeline run.

        Args:
            sweep: its name.
            trial: the trial.
            keys: that vary.
        """
        own: dict[str, Any] = {"sweep": sweep, "trial": trial.name}
        if trial.case is not None:
            own["case"] = trial.case
        own |= {key: json.dumps(trial.settings[key])[:_LONGEST] for key in keys if key in trial.settings}
        return own | ({"mlflow.parentRunId": self._log.run_id} if self._log.run_id else {})

    def end(self, rows: Sequence[Row], best: float | None, table: Path, *, complete: bool) -> None:
        """Log what there is, and end the run: as killed where trials are missing, which the next command resumes."""
        self._log.metric("finished", sum(row.finished for row in rows))
        if best is not None:
            self._log.metric("best", best)
        if table.exists():
            self._log.artifact(table)
        self._log.end("FINISHED" if complete else "KILLED")
