"""What every stage does before and after its work, also in DVC's queue; the stages before
training say nothing of the rows.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import collect, ingest, partition, runner
from primorl.base import PipelineError, files
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.data.identity.membership import project_secret
from primorl.stages.splitting import confirm
from tests.data.builders import episodes, snapshot, write_raw
from tests.data.sources.tabular_builders import entry, row, write

PIPELINE = """
stages:
  collect:
    cmd: python -m pipeline.collect
    outs: [{data/raw: {push: false}}, metrics/stages/collect.json]
    metrics: [{metrics/summary.json: {cache: false}}]
"""


@pytest.fixture
def project(small: Params, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Params:
    monkeypatch.setattr(sys, "argv", ["collect"])
    Path("mlflow.db").write_bytes(empty_store.read_bytes())
    Path("dvc.yaml").write_text(PIPELINE)
    return small


def ran() -> tuple[int, list[str]]:
    called: list[str] = []

    def body(params: Params, log: StageLog) -> None:
        called.append(params.dataset)

    return runner.run_stage("collect", "a stage", body), called


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("path", "mode"), [(".primorl", 0o750), (".primorl/secret", 0o644)])
def test_a_state_that_others_may_read_stops_every_stage(path: str, mode: int) -> None:
    """Twin: the run before."""
    project_secret()
    assert ran()[0] == 0
    Path(path).chmod(mode)
    assert ran() == (1, [])


def leftover() -> Path:
    """Private rows of a process that is gone."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    folder = Path(f"data/partitions/.private.new-{files.HOST}-{dead.pid}-x")
    folder.mkdir(parents=True)
    (folder / "rows").write_text("private")
    return folder


def test_only_the_training_of_the_model_runs_in_several_processes(
    project: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, called = ran()
    assert status != 0
    assert called == []
    assert "without torchrun" in capsys.readouterr().err


def test_any_stage_deletes_what_was_left(
    project: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = leftover()
    assert ran() == (0, ["pendulum-replay"])
    assert not rows.exists()
    assert Path("metrics/stages/collect.json").exists()
    assert capsys.readouterr().err == ""
    rows = leftover()
    Path("params.yaml").write_text("dataset: [")
    assert ran() == (1, [])
    assert not rows.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "error: params.yaml, line 1: not valid YAML"
    monkeypatch.setattr(sys, "argv", ["collect", "--debug"])
    assert ran() == (1, [])
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.splitlines()[-1] == line


EDITS = {
    "a setting": ("params.yaml", "seed: 0", "seed: 1", "params.yaml: seed"),
    "of the entry": (
        "datasets/pendulum-replay.yaml",
        "population: ",
        "population: x",
        "population",
    ),
    "an entry as a whole": ("datasets/whole.yaml", "", "card: {}", "datasets/whole.yaml"),
    "who withdrew": ("data/withdrawals/w.txt", "", "17", "data/withdrawals/w.txt"),
    "another stage's": ("params.yaml", "epochs: ", "epochs: 1", ""),
}


@pytest.mark.parametrize("what", EDITS)
def test_what_is_edited_while_a_stage_runs_that_follows_it_is_not_taken_for_done(
    project: Params, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """DVC would record the edited values as those that the stage ran with."""
    file, before, after, says = EDITS[what]
    followed = "[dataset, seed, {'datasets/${dataset}.yaml': [population, score]}]"
    deps = "[data/withdrawals, datasets/whole.yaml]"
    listed = f"collect:\n    params: {followed}\n    deps: {deps}"
    Path("dvc.yaml").write_text(PIPELINE.replace("collect:", listed))
    Path("data/withdrawals").mkdir(parents=True)
    for path in ("data/withdrawals/w.txt", "datasets/whole.yaml"):
        Path(path).touch()

    def edit(params: Params, log: StageLog) -> None:
        text = Path(file).read_text()
        assert before in text
        Path(file).write_text(text.replace(before, after, 1))

    assert runner.run_stage("collect", "a stage", edit) == bool(says)
    assert Path("metrics/stages/collect.json").exists() != bool(says), "DVC runs it again without"
    said = capsys.readouterr().err
    assert said == "" if not says else f"{says}: edited while collect ran; run `dvc repro`" in said


def test_an_output_that_cannot_be_written_is_refused(
    project: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def refuse(paths: list[Path], bytes_needed: int) -> None:
        asked.extend(map(str, paths))
        raise PipelineError("data: no file can be written there")

    monkeypatch.setattr(runner, "check_writable", refuse)
    monkeypatch.setattr(runner, "hint", lambda: "missing: some")
    assert ran() == (1, [])
    said = "error: data: no file can be written there\nmissing: some\n"
    assert capsys.readouterr().err == said
    assert {"data/raw", "metrics/stages/collect.json", "metrics/summary.json"} < {*asked}
    assert any("/checkpoints/" in path for path in asked)


def test_people_become_public_by_a_word(small: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is charged. Twin: trajectories of a simulator may be drawn anew."""
    write_raw(Path("data/raw"), episodes(6))
    ingest.body(small, StageLog())
    for salt in (b"other", b"7:primorl"):
        monkeypatch.setattr("primorl.data.identity.membership._SALT", salt)
        partition.body(small, StageLog())
    write(
        [
            row(user, 0, time, x=float(user), left=time == 2)
            for user in range(20)
            for time in range(3)
        ]
    )
    people = replace(
        small, dataset="log", chosen=entry(), policy=replace(small.policy, starts="public")
    )
    shutil.rmtree("data/raw")
    collect.body(people, StageLog())
    ingest.body(people, StageLog())

    def drawn(fraction: float) -> Params:
        return replace(people, partition=replace(people.partition, public_fraction=fraction))

    def split(fraction: float) -> None:
        partition.body(drawn(fraction), StageLog())

    split(0.2)
    before = snapshot(Path("data/partitions"))
    with pytest.raises(PipelineError, match="ledger publish p") as refused:
        split(0.6)
    assert snapshot(Path("data/partitions")) == before
    (word,) = re.findall(r"ledger publish (p\w{8})`", str(refused.value))
    confirm(drawn(0.6), word)
    assert snapshot(Path("data/partitions")) == before
    split(0.6)
    assert snapshot(Path("data/partitions")) != before
