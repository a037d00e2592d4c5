"""A sweep trains on partitions of the data as they are now, or not at all."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from primorl.config.params import Params
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

    Path(".dvc").mkdir()
    monkeypatch.setattr(freshness, "run_dvc", run)
    return asked


@pytest.mark.parametrize(
    ("status", "named"),
    [
        ({"ingest": [{"changed deps": {"data/withdrawals": "modified"}}]}, "data/withdrawals"),
        ({"partition": [{"changed deps": {"params.yaml": {"partition": "modified"}}}]}, "params.yaml: partition"),
        ({"partition": [{"changed outs": {"data/partitions/private": "modified"}}]}, "data/partitions/private"),
    ],
)
def test_what_changed_is_named_and_nothing_is_run(
    project: Params, monkeypatch: pytest.MonkeyPatch, status: Any, named: str
) -> None:
    """A withdrawal after the partition would otherwise be trained on."""
    says(monkeypatch, status)
    with pytest.raises(PipelineError, match=f"after they were made: {named}; run `dvc repro partition` first"):
        run_sweep(sweep_of({"grid": {"seed": [0]}}), workers=1, start=Forked)
    assert ran() == []


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"partition": [{"changed deps": {"primorl/trajectories": "modified", "pipeline/partition.py": "modified"}}]},
        {"collect": [{"changed outs": {"metrics/seconds/collect.json": "deleted"}}, "always changed"]},
    ],
)
def test_code_is_no_reason(project: Params, monkeypatch: pytest.MonkeyPatch, status: Any) -> None:
    asked = says(monkeypatch, status)
    check_fresh()
    assert asked == [("status", "--json", "collect", "ingest", "partition")]


def test_what_dvc_cannot_say_is_an_error(project: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, {}, code=255)
    with pytest.raises(PipelineError, match="dvc status: ERROR: it is locked"):
        check_fresh()
