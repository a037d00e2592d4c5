"""Declared facts are held against the public split before anything is charged, and against nothing
private.
"""

import shutil
from dataclasses import replace
from typing import Any

import numpy as np

from primorl.base.paths import MANIFEST, PUBLIC
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.work.objections import Objections, find_objections
from tests.data.builders import episode
from tests.pipeline.training_project import (
    with_changes,
    write_partitions,
)


def rewarded(reward: np.ndarray[Any, Any], terminated: bool = False, private: float = 0.0) -> None:
    shutil.rmtree("data", ignore_errors=True)
    public = [replace(episode(len(reward), 100 + i, terminated), rewards=reward) for i in range(2)]
    write_partitions(
        [replace(episode(5, i), rewards=np.full(5, private)) for i in range(3)], public
    )


def found(small: Params, reward: list[float] | str = "public") -> Objections:
    bounds = {"bounds": {"observation": "space", "reward": reward}}
    params = with_changes(small, dynamics={"train_anyway": False}, chosen=bounds)
    return find_objections(params, Manifest.load(MANIFEST), UnitStore.open(PUBLIC))


def test_equal_rewards_stop_unless_a_longer_episode_earns_more(small: Params) -> None:
    for reward, terminated, stopped in ((0, False, 1), (0, True, 1), (1, False, 1), (1, True, 0)):
        rewarded(np.full(20, reward), terminated)
        assert len(found(small).stops) == stopped
        rewarded(np.append(np.full(19, reward), 5.0), terminated)
        assert not found(small).stops


def test_public_values_outside_declared_bounds_are_warned_of_and_from_a_fifth_on_stop(
    small: Params,
) -> None:
    for beyond, warned, stopped in ((0, 0, 0), (1, 1, 0), (8, 1, 0), (9, 0, 1)):
        reward = np.linspace(-1, 0, 40)
        reward[:beyond] = 3.0
        rewarded(reward, private=99.0)
        said = found(small, [-1.0, 0.0])
        assert (len(said.warnings), len(said.stops)) == (warned, stopped)
        for line in said.stops + said.warnings:
            share = f"{100 * beyond / 40:.3g}%"
            assert f"bounds.reward: {share} of the public values of 'reward' lie outside" in line
            assert "maximum 3)" in line
