"""Trials are submitted as jobs, here to an executor of submitit that runs them on this machine."""

import json
from pathlib import Path

import pytest

from primorl.config.params import Params
from primorl.sweeps.slurm import slurm_start
from primorl.sweeps.trials import Trial
from tests.sweeps.conftest import job_of

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
