"""A sweep runs what is missing, goes on after a kill, and keeps what failed."""

import csv
import os
import signal
import time
from pathlib import Path

import pytest

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.sweeps.folders import trial_folder
from primorl.sweeps.rows import read_rows
from primorl.sweeps.running import Grid, run_trials, shares
from primorl.sweeps.sweeping import TABLE, Done, checked, run_sweep
from primorl.sweeps.trial import BUSY, Job, run
from primorl.sweeps.trials import Trial, expand
from tests.sweeps.conftest import Forked, NoRun, granted, job_of, ran, sweep_of
from tests.sweeps.places import BAD_SEED, HOLD, RAN

FOLDER = Path(".primorl/sweeps/tiny")


def swept(seeds: list[int], workers: int = 2) -> Done:
    return run_sweep(sweep_of({"grid": {"seed": seeds}}), workers=workers, start=Forked)


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
    sweeping = os.fork()
    if sweeping == 0:
        try:
            swept([0, 1, 2], workers=1)
        finally:
            os._exit(1)
    until("evaluate 1")
    os.kill(sweeping, signal.SIGKILL)
    os.waitpid(sweeping, 0)
    os.kill(int(RAN.read_text().split()[-1]), signal.SIGKILL)
    assert {row.settings["seed"] for row in read_rows(FOLDER)} == {0}
    HOLD.unlink()
    done = swept([0, 1, 2])
    assert [row.summary["return_mean"] for row in done.rows] == [0, -1, -2]
    assert ran().count("train 1") == ran().count("evaluate 0") == ran().count("evaluate 2") == 1
    assert ran().count("evaluate 1") == 2
    assert NoRun.ended == [True]


def test_a_killed_trial_is_kept_as_failed_and_the_others_go_on(project: Params) -> None:
    HOLD.touch()

    def begin(job: Job) -> Forked:
        started = Forked(job)
        if job.trial.settings["seed"] == 1:
            until("evaluate 1")
            os.kill(started.pid, signal.SIGKILL)
        return started

    done = run_sweep(sweep_of({"grid": {"seed": [1, 2]}}), workers=1, start=begin)
    assert [(row.status, row.error) for row in done.rows] == [
        ("failed", "its process was killed by signal 9"),
        ("finished", None),
    ]


def test_a_trial_of_another_process_is_waited_for_and_not_run_twice(project: Params) -> None:
    HOLD.touch()
    other = Forked(job_of(Trial({"seed": 1})))
    until("evaluate 1")
    statuses = []

    def begin(job: Job) -> Forked:
        started = Forked(job)
        statuses.append(started.wait())
        HOLD.unlink()
        return started

    done = run_sweep(
        sweep_of({"grid": {"seed": [1]}}), workers=1, start=lambda job: begin(job) if not statuses else Forked(job)
    )
    assert statuses == [BUSY]
    assert other.wait() == 0
    assert done.rows[0].finished
    assert ran() == ["train 1", "evaluate 1"]


class Endless:
    """A process that runs until it is told to end."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def poll(self) -> int | None:
        return None

    def terminate(self) -> None:
        self.told.append("terminate")

    kill = terminate

    def wait(self, timeout: float | None = None) -> int:
        self.told.append("wait")
        return 130


def test_an_interrupt_ends_all_processes(project: Params) -> None:
    process = Endless()

    def begin(job: Job) -> Endless:
        if job.trial.settings["seed"] == 1:
            raise KeyboardInterrupt
        return process

    trials = expand(sweep_of({"grid": {"seed": [0, 1]}}))
    with pytest.raises(KeyboardInterrupt):
        run_trials(Grid(trials), job_of, workers=2, start=begin, on_row=lambda *_: None)
    assert process.told == ["terminate", "wait"]


def test_a_deleted_trial_is_run_again(project: Params) -> None:
    swept([0])
    for file in trial_folder("tiny", Trial({"seed": 0})).glob("*.json"):
        file.unlink()
    assert swept([0]).rows[0].finished
    assert ran().count("evaluate 0") == 2


def test_wrong_settings_are_refused_before_the_first_trial(project: Params) -> None:
    with pytest.raises(PipelineError, match=r"tiny\.yaml: policy\.horizon -1: params\.yaml: policy\.horizon"):
        run_sweep(sweep_of({"grid": {"seed": [1], "policy.horizon": [3, -1]}}), workers=1, start=Forked)
    assert ran() == []


def test_the_partitions_must_be_of_the_sweeps_dataset(project: Params) -> None:
    Path("datasets/other.yaml").write_bytes(Path("datasets/small.yaml").read_bytes())
    with pytest.raises(PipelineError, match=r"data/partitions: found dataset .*, and the sweep is of 'other'"):
        run_sweep(sweep_of({"settings": {"dataset": "other"}}), workers=1, start=Forked)


def test_the_partitions_must_be_those_that_the_sweep_asks_for(project: Params) -> None:
    """Twin: what params.yaml has is no reason to refuse."""
    share = project.partition.public_fraction
    for wanted, said in (
        (
            {"public_fraction": 0.77},
            rf"params\.yaml: partition\.public_fraction: found {share}, and .*tiny\.yaml is for 0\.77",
        ),
        ({"fraction": 0.1}, r"tiny\.yaml: partition\.fraction: unknown key; allowed are public_fraction"),
        ({"public_fraction": "auto"}, r"tiny\.yaml: partition\.public_fraction: "),
    ):
        with pytest.raises(PipelineError, match=said):
            run_sweep(sweep_of({"partition": wanted}), workers=1, start=Forked)
    assert ran() == []
    checked(sweep_of({"partition": {"public_fraction": share}}), [Trial({})])


def test_rows_of_other_settings_are_kept_with_a_warning(project: Params) -> None:
    trial = Trial({"seed": 0})
    assert run(job_of(trial), granted) == 0
    assert swept([0]).warnings == []
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("  epochs:", "  epochs: 77 #"))
    (warning,) = swept([0]).warnings
    assert "before these changed: policy.epochs; they are kept" in warning
    assert stale() == ["policy.epochs"]
    Path("params.yaml").write_text(text)
    assert swept([0]).warnings == []
    assert stale() == [""]
    Path("datasets/other.yaml").write_text("source: minari\n")
    manifest = Path("data/partitions/manifest.json").read_text()
    Path("data/partitions/manifest.json").write_text(manifest.replace('"private_units": 2', '"private_units": 1'))
    own = Path("datasets/small.yaml")
    own.write_text(own.read_text() + "# changed\n")
    swept([0])
    assert stale() == ["datasets/small.yaml, data/partitions"]


def stale() -> list[str]:
    return [line["stale"] for line in csv.DictReader((FOLDER / TABLE).open())]


def test_what_failed_in_another_command_is_not_run_a_second_time(project: Params) -> None:
    HOLD.touch()
    other = Forked(job_of(Trial({"seed": BAD_SEED})))
    until(f"evaluate {BAD_SEED}")
    statuses = []

    def begin(job: Job) -> Forked:
        started = Forked(job)
        statuses.append(started.wait())
        HOLD.unlink()
        other.wait()
        return started

    done = run_sweep(sweep_of({"grid": {"seed": [BAD_SEED]}}), workers=1, start=begin)
    assert statuses == [BUSY]
    assert done.rows[0].error == "a stage says why"
    assert ran() == [f"train {BAD_SEED}", f"evaluate {BAD_SEED}"]


def test_a_finished_row_is_kept_whatever_the_status_of_its_process(project: Params) -> None:
    """A job of Slurm does not tell that another command had the trial."""

    class Lost(Forked):
        def poll(self) -> int | None:
            return None if super().poll() is None else 70

    done = run_sweep(sweep_of({"grid": {"seed": [2]}}), workers=1, start=Lost)
    assert done.rows[0].finished


@pytest.mark.parametrize(
    ("workers", "threads", "trials", "expected"),
    [(None, None, 9, (8, 1)), (None, 2, 9, (4, 2)), (None, None, 2, (2, 4)), (3, 8, 9, (3, 2)), (None, 16, 9, (1, 8))],
)
def test_workers_and_threads_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, threads: int | None, trials: int, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr("primorl.sweeps.running.cores", lambda: 8)
    assert shares(workers, threads, trials) == expected
