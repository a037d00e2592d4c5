"""What every stage does before and after its work."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import runner
from primorl.config.params import Params
from primorl.project import files
from primorl.project.errors import PipelineError
from primorl.tracking import StageRun

PIPELINE = """
stages:
  collect:
    cmd: python -m pipeline.collect
    outs:
      - data/raw: {push: false}
      - metrics/seconds/collect.json
    metrics:
      - metrics/summary.json: {cache: false}
"""


@pytest.fixture
def project(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.setattr(sys, "argv", ["collect"])
    Path("dvc.yaml").write_text(PIPELINE)
    return small


def ran(name: str = "collect") -> tuple[int, list[str]]:
    called: list[str] = []

    def body(params: Params, run: StageRun) -> None:
        called.append(params.dataset)

    return runner.run_stage(name, "a stage", body), called


def leftover() -> Path:
    dead = subprocess.Popen(["true"])
    dead.wait()
    folder = Path(f"data/partitions/.private.new-{files.HOST}-{dead.pid}-x")
    folder.mkdir(parents=True)
    (folder / "rows").write_text("private")
    return folder


def test_any_stage_deletes_what_any_killed_stage_left(project: Params) -> None:
    rows = leftover()
    assert ran() == (0, ["pendulum-replay"])
    assert not rows.exists()
    assert Path("metrics/seconds/collect.json").exists()


def test_leftovers_go_even_if_params_are_broken(project: Params, capsys: pytest.CaptureFixture[str]) -> None:
    rows = leftover()
    Path("params.yaml").write_text("dataset: [")
    assert ran() == (1, [])
    assert not rows.exists()
    assert capsys.readouterr().err.startswith("error: params.yaml")


def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    project: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []

    def refuse(paths: list[Path], bytes_needed: int) -> None:
        asked.extend(paths)
        raise PipelineError("data: no file can be written there")

    monkeypatch.setattr(runner, "check_writable", refuse)
    assert ran() == (1, [])
    assert capsys.readouterr().err == "error: data: no file can be written there\n"
    assert {Path("data/raw"), Path("metrics/seconds/collect.json"), Path("metrics/summary.json")} < set(asked)
    assert any(path.parent.name == "checkpoints" for path in asked)


def test_a_stage_that_fails_says_how_to_get_lost_outputs_back(
    project: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "hint", lambda stage: f"missing: of others than {stage}")
    assert ran()[0] == 0
    assert capsys.readouterr().err == ""

    def fail(params: Params, run: StageRun) -> None:
        raise PipelineError("no")

    assert runner.run_stage("collect", "a stage", fail) == 1
    assert capsys.readouterr().err == "error: no\nmissing: of others than collect\n"
