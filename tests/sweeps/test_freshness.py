"""A sweep trains on partitions of the data as they are now, or not at all."""

import json
import re
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from primorl.config.params import Params
from primorl.project.dvc import run_dvc
from primorl.project.errors import PipelineError
from primorl.sweeps import freshness
from primorl.sweeps.freshness import check_fresh
from primorl.sweeps.sweeping import run_sweep
from tests.sweeps.conftest import Forked, ran, sweep_of


def says(monkeypatch: pytest.MonkeyPatch, status: Any, code: int = 0) -> list[tuple[str, ...]]:
    """A project that DVC keeps, and what ``dvc status`` says of it."""
    asked = []

    def run(folder: Path, *words: str) -> "CompletedProcess[str]":
        asked.append(words)
        return CompletedProcess(words, code, json.dumps(status), "ERROR: it is locked")

    Path(".dvc").mkdir(exist_ok=True)
    monkeypatch.setattr(freshness, "run_dvc", run)
    return asked


@pytest.mark.parametrize(
    ("status", "named"),
    [
        ({"ingest": [{"changed deps": {"data/withdrawals": "modified"}}]}, "data/withdrawals (modified)"),
        ({"ingest": [{"changed deps": {"data/withdrawals": "deleted"}}]}, "data/withdrawals (deleted)"),
        ({"partition": [{"changed deps": {"params.yaml": {"partition": "new"}}}]}, "params.yaml: partition (new)"),
        ({"partition": [{"changed outs": {"data/partitions/private": "modified"}}]}, "data/partitions/private (mod"),
    ],
)
def test_what_changed_is_named_and_nothing_is_run(
    project: Params, monkeypatch: pytest.MonkeyPatch, status: Any, named: str
) -> None:
    """A withdrawal after the partition would otherwise be trained on."""
    says(monkeypatch, status)
    sweep = sweep_of({"grid": {"seed": [0]}})
    with pytest.raises(PipelineError, match=f"before these changed: {re.escape(named)}.*; run `dvc repro partition`"):
        run_sweep(sweep, workers=1, start=Forked)
    assert ran() == []
    says(monkeypatch, {})
    assert run_sweep(sweep, workers=1, start=Forked).rows[0].finished
    says(monkeypatch, status)
    run_sweep(sweep, workers=1, start=Forked)  # nothing is left to run: the table is shown


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"partition": [{"changed deps": {"primorl/trajectories": "modified", "pipeline/partition.py": "modified"}}]},
        {"collect": [{"changed outs": {"metrics/seconds/collect.json": "deleted"}}, "always changed"]},
        {
            "collect": [{"changed outs": {"data/raw": "deleted"}}],
            "ingest": [{"changed deps": {"data/raw": "deleted"}}],
            "partition": [{"changed outs": {"data/partitions/private": "not in cache"}}],
        },
    ],
)
def test_code_and_deleted_steps_are_no_reason(project: Params, monkeypatch: pytest.MonkeyPatch, status: Any) -> None:
    asked = says(monkeypatch, status)
    check_fresh(project)
    assert asked == [("status", "--json", "partition")]


def test_what_dvc_cannot_say_is_an_error(project: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, {}, code=255)
    with pytest.raises(PipelineError, match="dvc status: ERROR: it is locked"):
        check_fresh(project)


def test_the_dataset_of_the_project_must_be_that_of_the_partitions(
    project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC would compare the partitions with the inputs of another dataset."""
    asked = says(monkeypatch, {})
    Path("datasets/other.yaml").write_bytes(Path("datasets/small.yaml").read_bytes())
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("dataset: small", "dataset: other"))
    with pytest.raises(PipelineError, match=r"params\.yaml: dataset: found 'other'.* set dataset: small"):
        run_sweep(sweep_of({"settings": {"dataset": "small"}}), workers=1, start=Forked)
    assert asked == []


def test_dvc_is_asked(project: Params) -> None:
    """What it says is read as it says it."""
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
