"""A sweep runs what is missing, goes on after a kill, and keeps what failed."""

import csv
import json
import os
import shutil
import signal
import time
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from primorl.config.params import Params
from primorl.project.dvc import run_dvc
from primorl.project.errors import PipelineError
from primorl.sweeps import sweeping
from primorl.sweeps.file import Trial, expand
from primorl.sweeps.processes import run_trials, share_cores, slurm_start
from primorl.sweeps.rows import finished_rows
from primorl.sweeps.sweeping import TABLE, Done, check_fresh, check_trials, run_sweep
from primorl.sweeps.trial import Job
from primorl.tracking import RUN_TAGS, stage_run
from tests.sweeps.conftest import Forked, NoRun, job_of, ran, sweep_of
from tests.sweeps.stages import BAD_SEED, HOLD, RAN

FOLDER = Path(".primorl/sweeps/tiny")
SWEEP_RUN = sweeping._SweepRun


def swept(seeds: list[int], workers: int = 2) -> Done:
    return run_sweep(sweep_of({"grid": {"seed": seeds}}), workers=workers, start=Forked)  # type: ignore[arg-type]


def until(there: str) -> None:
    end = time.monotonic() + 30
    while there not in ran():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_is_missing_is_run_and_what_failed_is_run_again(
    project: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    done = swept([0, BAD_SEED])
    assert [row.status for row in done.rows] == ["finished", "failed"]
    assert NoRun.ended == [False]
    assert "tiny: 2 of 2: seed " in capsys.readouterr().err
    done = swept([0, 2, BAD_SEED])
    assert [row.status for row in done.rows] == ["finished", "finished", "failed"]
    assert [ran().count(f"evaluate {seed}") for seed in (0, 2, BAD_SEED)] == [1, 1, 2]
    assert ran().count(f"train {BAD_SEED}") == 1
    assert len((FOLDER / TABLE).read_text().splitlines()) == 3


def test_a_sweep_that_was_killed_goes_on(project: Params) -> None:
    """Kill -9 of the sweep and of its trial, in the middle of the second: the first is not run again."""
    HOLD.touch()
    command = os.fork()
    if command == 0:
        try:
            swept([0, 1, 2], workers=1)
        finally:
            os._exit(1)
    until("evaluate 1")
    os.kill(command, signal.SIGKILL)
    os.waitpid(command, 0)
    os.kill(int(RAN.read_text().split()[-1]), signal.SIGKILL)
    assert {row.settings["seed"] for row in finished_rows(FOLDER)} == {0}
    HOLD.unlink()
    done = swept([0, 1, 2])
    assert [row.summary["return_mean"] for row in done.rows] == [0, -1, -2]
    assert ran().count("train 1") == ran().count("evaluate 0") == ran().count("evaluate 2") == 1
    assert ran().count("evaluate 1") == 2
    assert NoRun.ended == [True]


def test_a_killed_trial_is_kept_as_failed_and_a_finished_row_whatever_its_status(project: Params) -> None:
    """A job of Slurm does not tell that another command had the trial."""
    HOLD.touch()

    class Lost(Forked):
        def __init__(self, job: Job) -> None:
            super().__init__(job)
            if job.trial.settings["seed"] == 1:
                until("evaluate 1")
                os.kill(self.pid, signal.SIGKILL)

        def poll(self) -> int | None:
            return None if super().poll() is None else self.status or 70

    done = run_sweep(sweep_of({"grid": {"seed": [1, 2]}}), workers=1, start=Lost)  # type: ignore[arg-type]
    assert [(row.status, row.error) for row in done.rows] == [
        ("failed", "its process was killed by signal 9"),
        ("finished", None),
    ]


def test_an_interrupt_ends_all_processes(project: Params) -> None:
    HOLD.touch()
    begun: list[Forked] = []

    def begin(job: Job) -> Any:
        if begun:
            raise KeyboardInterrupt
        begun.append(Forked(job))
        return begun[0]

    trials = iter(expand(sweep_of({"grid": {"seed": [1, 2]}})))
    with pytest.raises(KeyboardInterrupt):
        run_trials(lambda: next(trials), job_of, lambda *_: None, workers=2, start=begin)
    assert begun[0].status not in (None, 0)


def test_what_does_not_fit_is_refused_before_the_first_trial(project: Params) -> None:
    """Twin: what params.yaml has is no reason to refuse."""
    Path("datasets/other.yaml").write_bytes(Path("datasets/small.yaml").read_bytes())
    share = project.partition.public_fraction
    for content, said in (
        ({"grid": {"policy.horizon": [3, -1]}}, r"tiny\.yaml: policy\.horizon -1: params\.yaml: policy\.horizon"),
        ({"settings": {"dataset": "other"}}, r"data/partitions: found dataset .*, and the sweep is of 'other'"),
        ({"partition": {"public_fraction": 0.77}}, rf"partition\.public_fraction: found {share}, and .* is for 0\.77"),
        ({"partition": {"fraction": 0.1}}, r"tiny\.yaml: partition\.fraction: unknown key; allowed are public_frac"),
    ):
        with pytest.raises(PipelineError, match=said):
            run_sweep(sweep_of(content), workers=1, start=Forked)  # type: ignore[arg-type]
    assert ran() == []
    check_trials(sweep_of({"partition": {"public_fraction": share}}), [Trial({})])


def test_rows_of_other_settings_are_kept_with_a_warning(project: Params) -> None:
    def stale() -> list[str]:
        return [line["stale"] for line in csv.DictReader((FOLDER / TABLE).open())]

    assert swept([0]).warnings == []
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("  epochs:", "  epochs: 77 #"))
    (warning,) = swept([0]).warnings
    assert "before these changed: policy; they are kept" in warning
    assert stale() == ["policy"]
    Path("params.yaml").write_text(text)
    assert swept([0]).warnings == []
    Path("datasets/other.yaml").write_text("source: minari\n")
    manifest = Path("data/partitions/manifest.json").read_text()
    Path("data/partitions/manifest.json").write_text(manifest.replace('"private_units": 2', '"private_units": 1'))
    own = Path("datasets/small.yaml")
    own.write_text(own.read_text() + "# changed\n")
    swept([0])
    assert stale() == ["datasets/small.yaml, data/partitions"]
    assert ran() == ["train 0", "evaluate 0"]


@pytest.mark.parametrize(
    ("workers", "threads", "trials", "expected"),
    [(None, None, 9, (8, 1)), (None, 2, 9, (4, 2)), (None, None, 2, (2, 4)), (3, 8, 9, (3, 2)), (None, 16, 9, (1, 8))],
)
def test_workers_and_threads_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, threads: int | None, trials: int, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr("primorl.sweeps.processes.cores", lambda: 8)
    assert share_cores(workers, threads, trials) == expected


STATUSES = (
    ({"ingest": [{"changed deps": {"data/withdrawals": "modified"}}]}, "data/withdrawals (modified)"),
    ({"partition": [{"changed deps": {"params.yaml": {"partition": "new"}}}]}, "params.yaml: partition (new)"),
    ({"partition": [{"changed outs": {"data/partitions/private": "modified"}}]}, "data/partitions/private (modified)"),
    ({"partition": [{"changed deps": {"primorl/trajectories": "modified", "pipeline/partition.py": "new"}}]}, None),
    ({"collect": [{"changed outs": {"metrics/seconds/collect.json": "deleted"}}, "always changed"]}, None),
    (
        {
            "collect": [{"changed outs": {"data/raw": "deleted"}}],
            "ingest": [{"changed deps": {"data/raw": "deleted"}}],
            "partition": [{"changed outs": {"data/partitions/private": "not in cache"}}],
        },
        None,
    ),
)


def test_partitions_of_data_that_changed_are_not_trained_on(project: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """A withdrawal after the partition would otherwise be trained on. Code and deleted steps are no reason."""
    answer: dict[str, Any] = {"returncode": 0, "stderr": "ERROR: it is locked"}
    Path(".dvc").mkdir()
    monkeypatch.setattr(sweeping, "run_dvc", lambda *words: CompletedProcess(words, **answer))
    for status, named in STATUSES:
        answer["stdout"] = json.dumps(status)
        if named is None:
            check_fresh(project)
            continue
        with pytest.raises(PipelineError) as refused:
            swept([0])
        assert f"before these changed: {named}; run `dvc repro partition` first" in str(refused.value)
    assert ran() == []
    answer["returncode"] = 255
    with pytest.raises(PipelineError, match="dvc status: ERROR: it is locked"):
        check_fresh(project)
    Path("datasets/other.yaml").write_bytes(Path("datasets/small.yaml").read_bytes())
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("dataset: small", "dataset: other"))
    with pytest.raises(PipelineError, match=r"params\.yaml: dataset: found 'other'.* set dataset: small"):
        run_sweep(sweep_of({"settings": {"dataset": "small"}}), workers=1, start=Forked)  # type: ignore[arg-type]


def test_dvc_is_asked(project: Params) -> None:
    stages = "partition: {cmd: 'true', deps: [data/withdrawals], outs: [data/partitions/manifest.json]}"
    Path("dvc.yaml").write_text(f"stages: {{{stages}}}")
    Path("data/withdrawals").mkdir()
    Path("data/withdrawals/ids.txt").write_text("a\n")
    for words in (["init", "--no-scm", "--quiet"], ["commit", "--force", "--quiet"]):
        assert run_dvc(Path(), *words).returncode == 0
    check_fresh(project)
    Path("data/withdrawals/ids.txt").write_text("a\nb\n")
    with pytest.raises(PipelineError, match=r"data/withdrawals \(modified\); run `dvc repro partition` first"):
        check_fresh(project)


def test_a_job_of_slurm_is_a_trial_in_the_projects_folder(project: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by submitit on this machine. The job's command leaves what it was asked for; its status is the trial's."""
    pytest.importorskip("submitit")
    python = Path("python")
    python.write_text(
        '#!/bin/sh\ntest "$1 $2" = "-m primorl.sweeps.trial" && echo "$3" >> asked && ! grep -q 13 asked\n'
    )
    python.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(python.resolve()))
    start = slurm_start("gpu", Path("sweep"), 2, cluster="debug")
    jobs = [job_of(Trial({"seed": seed})) for seed in (1, 13)]
    assert [start(job).wait() for job in jobs] == [0, 70]
    asked = [Job.from_json(line) for line in Path("asked").read_text().splitlines()]
    assert asked == jobs
    monkeypatch.setenv("PATH", str(Path.cwd()))  # without Slurm, submitit would run the trials here
    for partition, said in ((" ", "empty name"), ("gpu", "sbatch is not on the PATH")):
        with pytest.raises(PipelineError, match=f"^--slurm: .*{said}"):
            run_sweep(sweep_of({"grid": {"seed": [0]}}), workers=1, slurm=partition)
    assert not FOLDER.exists()


def test_trials_are_nested_in_one_run_that_the_same_command_resumes(
    project: Params, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = swept([1]).rows
    shutil.copy(empty_store, "mlflow.db")
    first = SWEEP_RUN("tiny", project)
    tags = first.tags("tiny", Trial({"seed": 1, "policy.epochs": 2}, "A"), ["seed"])
    first.end([row], None, Path("none.csv"), complete=False)
    SWEEP_RUN("tiny", project).end([row, row], -3.5, FOLDER / TABLE, complete=True)
    monkeypatch.setenv(RUN_TAGS, json.dumps(tags))
    with stage_run("evaluate", project):
        pass
    client = MlflowClient(f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    (experiment,) = [found for found in client.search_experiments() if found.name == "small"]
    stage, trial, sweep = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
    assert (sweep.info.run_name, sweep.info.status) == ("sweep tiny", "FINISHED")
    assert sweep.data.metrics == {"finished": 2, "best": -3.5}
    assert [file.path for file in client.list_artifacts(sweep.info.run_id)] == ["rows.csv"]
    assert trial.data.tags["mlflow.parentRunId"] == sweep.info.run_id
    found = [trial.data.tags.get(key) for key in ("sweep", "case", "seed", "policy.epochs")]
    assert found == ["tiny", "A", "1", None]
    assert stage.data.tags["mlflow.parentRunId"] == trial.info.run_id
