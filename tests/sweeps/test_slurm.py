"""Trials are submitted as jobs, here to an executor of submitit that runs them on this machine."""

import json
from pathlib import Path

import pytest

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.sweeps.slurm import slurm_start
from primorl.sweeps.sweeping import run_sweep
from primorl.sweeps.trials import Trial
from tests.sweeps.conftest import job_of, sweep_of

submitit = pytest.importorskip("submitit")


def test_a_job_is_a_trial_of_its_own_in_the_projects_folder(project: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's command leaves what it was asked for, and its status is the trial's."""
    python = Path("python")
    python.write_text(
        '#!/bin/sh\ntest "$1 $2" = "-m primorl.sweeps.trial" && echo "$3" >> asked && ! grep -q 13 asked\n'
    )
    python.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(python.resolve()))
    start = slurm_start("gpu", Path("sweep"), 2, cluster="debug")
    jobs = [job_of(Trial({"seed": seed})) for seed in (1, 13)]
    assert [start(job).wait() for job in jobs] == [0, 70]
    asked = [json.loads(line)["trial"]["settings"] for line in Path("asked").read_text().splitlines()]
    assert asked == [{"seed": 1}, {"seed": 13}]


@pytest.mark.parametrize(("partition", "said"), [(" ", "empty name"), ("gpu", "sbatch is not on the PATH")])
def test_a_sweep_that_cannot_submit_says_so_before_the_first_trial(
    project: Params, monkeypatch: pytest.MonkeyPatch, partition: str, said: str
) -> None:
    """Without Slurm, submitit would run the trials here."""
    monkeypatch.setenv("PATH", str(Path.cwd()))
    monkeypatch.setattr("primorl.sweeps.sweeping.SweepRun", None)
    with pytest.raises(PipelineError, match=f"^--slurm: .*{said}"):
        run_sweep(sweep_of({"grid": {"seed": [0]}}), workers=1, slurm=partition)
    assert not Path(".primorl/sweeps/tiny").exists()
