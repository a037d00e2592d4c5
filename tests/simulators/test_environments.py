"""Environments as every room sees them: any registered id, or a module of the project that
registers one. tests/evaluate/test_returns.py compares batches with the obvious loop.
"""

import sys
from pathlib import Path

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


def test_episodes_that_did_not_end_go_on() -> None:
    batch = GymBatch("CartPole-v1")
    batch.reset(4, seed=3)
    seen, *_ = batch.step(np.ones(4, int))
    again = batch.restart(np.array([True, False, False, False]))
    assert (again[0] != seen[0]).any()
    np.testing.assert_array_equal(again[1:], seen[1:])
