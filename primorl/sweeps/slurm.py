"""Trials as jobs of Slurm, through submitit. Needs a file system that all nodes share, with locks."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primorl.project.errors import PipelineError
from primorl.sweeps.running import Start
from primorl.sweeps.trial import Job

if TYPE_CHECKING:
    import submitit

LOGS = Path("slurm")
_LOST = 70  # a job that ended without an exit status of its own
_DAYS = 2
_SLURM = "slurm"


class SlurmProcess:
    """A submitted job, in the place of a process."""

    def __init__(self, job: "submitit.Job[Any]") -> None:
        self._job = job

    def poll(self) -> int | None:
        """The exit status of the trial's process; None while it waits or runs."""
        return self.wait() if self._job.done() else None

    def terminate(self) -> None:
        """Cancel the job."""
        self._job.cancel()

    kill = terminate

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once there is one. A cancelled job is not waited for."""
        error = self._job.exception()
        return 0 if error is None else _LOST


def slurm_start(partition: str, folder: Path, threads: int, cluster: str = _SLURM) -> Start:
    """What submits a trial as a job.

    Args:
        partition: Slurm's.
        folder: of the sweep; logs of the jobs go below it.
        threads: cores of a job.
        cluster: submitit's name of an executor.

    Raises:
        PipelineError: the partition has no name, or submitit or Slurm is not installed.
    """
    if not partition.strip():
        raise PipelineError("--slurm: found an empty name; allowed is a partition of Slurm (`sinfo` lists them)")
    try:
        import submitit
    except ImportError:
        raise PipelineError(
            "--slurm: needs submitit, which is not installed; run `pip install 'primorl[slurm]'`"
        ) from None
    missing = [program for program in ("sbatch", "srun") if cluster == _SLURM and shutil.which(program) is None]
    if missing:
        raise PipelineError(
            f"--slurm: {missing[0]} is not on the PATH; run this where jobs of Slurm can be submitted, or without "
            "--slurm"
        )
    executor = submitit.AutoExecutor(folder=folder / LOGS, cluster=cluster)
    executor.update_parameters(
        name="primorl", slurm_partition=partition, cpus_per_task=threads, timeout_min=_DAYS * 24 * 60
    )

    def start(job: Job) -> SlurmProcess:
        command = [sys.executable, "-m", "primorl.sweeps.trial", job.to_json()]
        return SlurmProcess(executor.submit(submitit.helpers.CommandFunction(command, cwd=Path.cwd())))

    return start
