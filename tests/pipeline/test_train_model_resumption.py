"""How `train_model` goes on after a kill: with the same charge, from the newest checkpoint, and no round twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from primorl.config.params import Params
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.mechanism.plan import Plan
from primorl.project.errors import PipelineError
from tests.pipeline.training_project import (
    OUTPUT,
    charged,
    statement,
    trained,
    watch_private,
    with_changes,
)
from tests.trajectories.builders import snapshot


class KilledError(BaseException):
    """Stands for a kill: no handler of the stage may see it."""


def dying(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    release, count = Plan.release, 0

    def once(self: Plan, total: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise KilledError
        return release(self, total)

    monkeypatch.setattr(Plan, "release", once)


def test_a_killed_run_is_taken_up_and_costs_nothing_more(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    dying(monkeypatch, 3)
    with pytest.raises(KilledError):
        trained(data)
    assert [charge.state for charge in charged(data)] == ["reserved"]
    assert not OUTPUT.exists()
    run = trained(data)
    (charge,) = charged(data)
    assert charge.state == "committed"
    assert statement()["epsilon"] == pytest.approx(charge.epsilon, rel=1e-3)
    assert statement()["rounds"] == 4
    assert json.loads((OUTPUT / "config.json").read_text())["rounds"] == 3
    assert run.logged["epsilon_so_far"] == pytest.approx(statement()["epsilon"])


def test_a_kill_between_output_and_commit_is_mended_for_free(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Any, charge: str, made: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", killed)
        with pytest.raises(KilledError):
            trained(data)
    first = snapshot(Path("models"))
    trained(data)
    assert snapshot(Path("models")) == first
    assert [charge.state for charge in charged(data)] == ["committed"]


def test_a_damaged_checkpoint_is_named_and_nothing_is_charged(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        dying(patched, 2)
        with pytest.raises(KilledError):
            trained(data)
    (file,) = Path(".primorl/checkpoints").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PipelineError, match=rf"{file.name}: not a checkpoint of this run, or damaged; .* privacy.draw"):
        trained(data)
    assert len(charged(data)) == 1
    file.unlink()
    with pytest.raises(PipelineError, match=rf"{file.name}: not there, and charge .* privacy.draw"):
        trained(data)
    assert len(charged(data)) == 1
    trained(with_changes(data, privacy={"draw": 1}))
    assert [charge.state for charge in charged(data)] == ["reserved", "committed"]
    assert statement()["spent_on_dataset"]["charges"] == 2


def test_a_checkpoint_from_a_backup_runs_no_round_twice(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    release = Plan.release

    def backed_up(self: Plan, total: Any) -> Any:
        (file,) = Path(".primorl/checkpoints").glob("*.safetensors")
        copies.append((file, file.read_bytes()))
        if len(copies) == 3:
            raise KilledError
        return release(self, total)

    with monkeypatch.context() as patched:
        patched.setattr(Plan, "release", backed_up)
        with pytest.raises(KilledError):
            trained(data)
    watched: list[str] = []
    watch_private(monkeypatch, lambda: watched.append("opened"))
    for file, copy in copies[:2]:
        file.write_bytes(copy)
        with pytest.raises(PipelineError, match=rf"{file.name}: an old copy, and charge .* privacy.draw"):
            trained(data)
    assert watched == []
    file, newest = copies[2]
    file.write_bytes(newest)
    trained(data)
    assert [charge.state for charge in charged(data)] == ["committed"]
    assert json.loads((OUTPUT / "config.json").read_text())["rounds"] == 3
