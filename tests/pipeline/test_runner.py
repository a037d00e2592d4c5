"""What every stage does before and after its work."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import runner
from primorl.base import files
from primorl.base.errors import PipelineError
from primorl.base.reporting import StageLog
from primorl.config.params import Params

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


def test_an_output_that_cannot_be_written_is_refused(
    project: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []

    def refuse(paths: list[Path], bytes_needed: int) -> None:
        asked.extend(paths)
        raise PipelineError("data: no file can be written there")

    monkeypatch.setattr(runner, "check_writable", refuse)
    monkeypatch.setattr(runner, "hint", lambda: "missing: some")
    assert ran() == (1, [])
    said = "error: data: no file can be written there\nmissing: some\n"
    assert capsys.readouterr().err == said
    assert {
        Path("data/raw"),
        Path("metrics/stages/collect.json"),
        Path("metrics/summary.json"),
    } < set(asked)
    assert any(path.parent.name == "checkpoints" for path in asked)
