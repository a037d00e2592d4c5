"""Environments as every room sees them: any registered id, or a module of the project that
registers one.
"""

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from primorl.base import PipelineError
from primorl.simulators.environments import GymBatch, make

OWN = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
gymnasium.register("own/Ward-v0", f"{__name__}:CartPoleEnv", max_episode_steps=7)
"""


def test_a_module_of_the_project_registers_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_ward.py").write_text(OWN)
    env = make("own_ward:own/Ward-v0")
    assert env.spec is not None
    assert env.spec.max_episode_steps == 7
    for unknown in ("own_ward:own/Other-v0", "no_such_module:x/Y-v0", "Pendulum-v77"):
        with pytest.raises(PipelineError, match=f"environment '{unknown}'"):
            make(unknown)


def test_a_batch_goes_the_ways_of_its_environments() -> None:
    ours, seeds = GymBatch("CartPole-v1"), np.random.SeedSequence(3).generate_state(4).tolist()
    envs: list[gymnasium.Env[Any, Any]] = [gymnasium.make("CartPole-v1") for _ in range(4)]
    first = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    np.testing.assert_array_equal(ours.reset(4, 3), first)
    over = np.zeros(4, bool)
    while not over.all():
        seen, rewards, terminated, truncated = ours.step(np.ones(4, int))
        for at in np.flatnonzero(~over):
            expected = envs[at].step(1)
            np.testing.assert_array_equal(seen[at], expected[0])
            assert (rewards[at], terminated[at], truncated[at]) == expected[1:4]
        over |= terminated | truncated
    again = ours.restart(np.array([True, False, False, False]))
    assert (again[0] != seen[0]).any()
    np.testing.assert_array_equal(again[1:], seen[1:])
