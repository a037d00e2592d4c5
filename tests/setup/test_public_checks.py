"""Declared facts are held against the public split before anything is charged, and against nothing private."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.project.paths import MANIFEST, PUBLIC
from primorl.setup.public_checks import Objections, check_public, objections
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore
from tests.pipeline.training_project import charged, trained, watch_private, with_changes, write_partitions
from tests.trajectories.builders import episode


def rewarded(reward: np.ndarray[Any, Any], terminated: bool = False) -> None:
    shutil.rmtree("data", ignore_errors=True)
    public = [replace(episode(len(reward), 100 + i, terminated), rewards=reward) for i in range(2)]
    write_partitions([episode(5, i) for i in range(3)], public)


def found(small: Params, **blocks: Any) -> Objections:
    params = with_changes(small, dynamics={"train_anyway": False}, **{"chosen": bounds(), **blocks})
    return objections(params, Manifest.load(MANIFEST), UnitStore.open(PUBLIC))


def bounds(**changes: Any) -> dict[str, Any]:
    return {"bounds": {"observation": "space", "reward": "public"} | changes}


@pytest.mark.parametrize(
    ("reward", "terminated", "stopped"),
    [(0.0, False, True), (0.0, True, True), (1.0, False, True), (1.0, True, False)],
)
def test_equal_rewards_stop_unless_a_longer_episode_earns_more(
    small: Params, reward: float, terminated: bool, stopped: bool
) -> None:
    rewarded(np.full(20, reward), terminated)
    assert bool(found(small).stops) is stopped
    rewarded(np.append(np.full(19, reward), 5.0), terminated)
    assert not found(small).stops


@pytest.mark.parametrize(("beyond", "kind"), [(0, None), (1, "warnings"), (8, "warnings"), (9, "stops")])
def test_values_outside_declared_bounds_are_warned_of_and_from_a_fifth_on_stop(
    small: Params, beyond: int, kind: str | None
) -> None:
    reward = np.linspace(-1, 0, 40)
    reward[:beyond] = 3.0
    rewarded(reward)
    said = found(small, chosen=bounds(reward=[-1.0, 0.0]))
    assert len(said.stops) == (kind == "stops")
    assert len(said.warnings) == (kind == "warnings")
    if kind is not None:
        (line,) = said.stops + said.warnings
        share = f"{100 * beyond / 40:.3g}%"
        assert f"bounds.reward: {share} of the public values of 'reward' lie outside its bounds [-1, 0]" in line
        assert "maximum 3)" in line


def test_training_refuses_before_anything_is_charged_or_opened_unless_told_to_train_anyway(
    small: Params, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rewarded(np.zeros(20))
    params = with_changes(small, dynamics={"train_anyway": False})
    with monkeypatch.context() as watched:
        watch_private(watched, lambda: pytest.fail("private rows were opened"))
        with pytest.raises(PipelineError, match=r"every public reward is 0.*train_anyway"):
            trained(params)
    assert charged(params) == []
    check_public(with_changes(small), Manifest.load(MANIFEST), UnitStore.open(PUBLIC))
    assert "train_model: warning: " in capfd.readouterr().err


def test_private_rows_are_not_looked_at(small: Params, tmp_path: Path) -> None:
    write_partitions(
        [replace(episode(20, i), rewards=np.full(20, 99.0)) for i in range(3)], [episode(20, 100 + i) for i in range(2)]
    )
    assert found(small, chosen=bounds(reward=[-16.0, 0.0])) == Objections((), ())
