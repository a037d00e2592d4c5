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

from primorl.base.errors import PipelineError
from primorl.config.params import Params
from primorl.sweeps import sweeping
from primorl.sweeps.file import Trial
from primorl.sweeps.sweeping import TABLE, check_fresh, check_trials, run_sweep
from primorl.sweeps.trial import Job, Row, finished_rows
from primorl.tracking import RUN_TAGS, stage_run
from tests.sweeps.conftest import Forked, NoRun, ran, sweep_of
from tests.sweeps.stages import BAD_SEED, HOLD, RAN

FOLDER = Path(".primorl/sweeps/tiny")
SWEEP_RUN, START = sweeping._sweep_run, sweeping.start_trial


def swept(*seeds: int, workers: int = 2) -> list[Row]:
    return run_sweep(sweep_of({"grid": {"seed": list(seeds)}}), workers=workers)


def until(there: str) -> None:
    end = time.monotonic() + 30
    while there not in ran():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_sweep_that_was_killed_runs_what_is_missing_or_failed(project: Params) -> None:
    """Kill -9 of the sweep and of its trial, in the middle of the second: the first is not run again."""
    HOLD.touch()
    command = os.fork()
    if command == 0:
        try:
            swept(0, 1, BAD_SEED, workers=1)
        finally:
            os._exit(1)
    until("evaluate 1")
    os.kill(command, signal.SIGKILL)
    os.waitpid(command, 0)
    os.kill(int(RAN.read_text().split()[-1]), signal.SIGKILL)
    assert {row.settings["seed"] for row in finished_rows(FOLDER)} == {0}
    HOLD.unlink()
    for _ in range(2):
        done = swept(0, 1, BAD_SEED)
        assert [row.status for row in done] == ["finished", "finished", "failed"]
        assert NoRun.status == "KILLED"
    swept(0, 1)
    assert NoRun.status == "FINISHED"
    assert [ran().count(f"train {seed}") for seed in (0, 1, BAD_SEED)] == [1, 1, 1]
    assert [ran().count(f"evaluate {seed}") for seed in (0, 1, BAD_SEED)] == [1, 2, 2]
    assert len((FOLDER / TABLE).read_text().splitlines()) == 3


def test_a_killed_trial_is_kept_as_failed_and_an_interrupt_ends_all_processes(
    project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOLD.touch()
    begun: list[Forked] = []

    def start(job: Job) -> Forked:
        if begun:
            raise KeyboardInterrupt
        begun.append(Forked(job))
        return begun[0]

    monkeypatch.setattr(sweeping, "start_trial", start)
    with pytest.raises(KeyboardInterrupt):
        swept(1, 2)
    assert begun[0].poll() in (-signal.SIGTERM, -signal.SIGKILL)

    def kill(job: Job) -> Forked:
        process = Forked(job)
        process.kill()
        return process

    monkeypatch.setattr(sweeping, "start_trial", kill)
    (row,) = swept(1)
    assert (row.status, row.error) == ("failed", "its process was killed by signal 9")


def test_what_does_not_fit_is_refused_before_the_first_trial(project: Params) -> None:
    """Twin: what params.yaml has is no reason to refuse."""
    Path("datasets/other.yaml").write_bytes(Path("datasets/small.yaml").read_bytes())
    share = project.partition.public_fraction
    for content, said in (
        (
            {"grid": {"policy.horizon": [3, -1]}},
            r"tiny\.yaml: policy\.horizon -1: params\.yaml: policy\.horizon",
        ),
        (
            {"settings": {"dataset": "other"}},
            r"data/partitions: found dataset .*, and the sweep is of 'other'",
        ),
        (
            {"partition": {"public_fraction": 0.77}},
            rf"partition\.public_fraction: found {share}, and .* is for 0\.77",
        ),
        (
            {"partition": {"fraction": 0.1}},
            r"tiny\.yaml: partition\.fraction: unknown key; allowed are public_frac",
        ),
    ):
        with pytest.raises(PipelineError, match=said):
            run_sweep(sweep_of(content), workers=1)
    check_trials(sweep_of({"partition": {"public_fraction": share}}), [Trial({})])
    Path("dvc.yaml").write_text("stages: {partition: {cmd: a}, other: {cmd: rm -r x}}")
    with pytest.raises(PipelineError, match=r"stages\.other\.cmd"):
        swept(0)
    assert ran() == []


def test_rows_of_other_settings_are_kept_with_a_warning(
    project: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    swept(0)
    assert "warning" not in capsys.readouterr().err
    edits = (
        ("params.yaml", "  epochs:", "  epochs: 77 #"),
        ("datasets/small.yaml", "source", "#\nsource"),
    )
    for file, old, new in edits:
        Path(file).write_text(Path(file).read_text().replace(old, new))
    swept(0)
    assert (
        "before these changed: datasets/small.yaml, policy; they are kept"
        in capsys.readouterr().err
    )
    assert [line["stale"] for line in csv.DictReader((FOLDER / TABLE).open())] == [
        "policy, datasets/small.yaml"
    ]
    assert ran() == ["train 0", "evaluate 0"]


GONE = {
    "collect": [{"changed outs": {"data/raw": "deleted"}}],
    "ingest": [{"changed deps": {"data/raw": "deleted"}}],
}
STATUSES = (
    (
        {"ingest": [{"changed deps": {"data/withdrawals": "modified"}}]},
        "data/withdrawals (modified)",
    ),
    (
        {"partition": [{"changed deps": {"params.yaml": {"partition": "new"}}}]},
        "params.yaml: partition (new)",
    ),
    (
        {"partition": [{"changed outs": {"data/partitions/private": "modified"}}]},
        "data/partitions/private (modified)",
    ),
    (
        {
            "partition": [
                {"changed deps": {"primorl/data": "modified", "pipeline/partition.py": "new"}}
            ]
        },
        None,
    ),
    (
        {
            "collect": [
                {"changed outs": {"metrics/seconds/collect.json": "deleted"}},
                "always changed",
            ]
        },
        None,
    ),
    ({**GONE, "partition": [{"changed outs": {"data/partitions/private": "not in cache"}}]}, None),
)


def test_partitions_of_data_that_changed_are_not_trained_on(
    project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            swept(0)
        assert f"before these changed: {named}; run `dvc repro partition` first" in str(
            refused.value
        )
    assert ran() == []
    answer["returncode"] = 255
    with pytest.raises(PipelineError, match="dvc status: ERROR: it is locked"):
        check_fresh(project)
    Path("datasets/other.yaml").write_bytes(Path("datasets/small.yaml").read_bytes())
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("dataset: small", "dataset: other"))
    with pytest.raises(
        PipelineError, match=r"params\.yaml: dataset: found 'other'.* set dataset: small"
    ):
        run_sweep(sweep_of({"settings": {"dataset": "small"}}), workers=1)


def test_trials_are_nested_in_one_run_that_the_same_command_resumes(
    project: Params, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(empty_store, "mlflow.db")
    first = SWEEP_RUN("tiny", project)
    first.end("KILLED")
    again = SWEEP_RUN("tiny", project)
    again.end("FINISHED")
    assert again.run_id == first.run_id
    sweep = sweep_of({"cases": {"A": {"policy.epochs": 2}}, "grid": {"seed": [1]}})
    tags = sweeping._tags(again, sweep, Trial({"seed": 1, "policy.epochs": 2}, "A"))
    monkeypatch.setenv(RUN_TAGS, json.dumps(tags))
    with stage_run("evaluate", project):
        pass
    client = MlflowClient(f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    (experiment,) = [found for found in client.search_experiments() if found.name == "small"]
    stage, trial, run = client.search_runs(
        [experiment.experiment_id], order_by=["attributes.start_time DESC"]
    )
    assert (run.info.run_name, run.info.status) == ("sweep tiny", "FINISHED")
    assert trial.data.tags["mlflow.parentRunId"] == run.info.run_id
    assert [trial.data.tags.get(key) for key in ("sweep", "case", "seed", "policy.epochs")] == [
        "tiny",
        "A",
        "1",
        None,
    ]
    assert stage.data.tags["mlflow.parentRunId"] == trial.info.run_id
