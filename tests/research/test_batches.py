"""Environments of the research are those whose names they have, many at once."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation
from numpy.typing import NDArray

from primorl.simulators.environments import make
from research.classic_control import AcrobotBatch, CartPoleBatch
from research.control_suite import TASKS


def _same(environment: str, ours: Any, state: NDArray[np.float64]) -> None:
    """Step both from the same states ``[S, n]`` with the same actions until all have ended."""
    count = state.shape[1]
    envs: list[Any] = [gymnasium.make(environment) for _ in range(count)]
    for env, own in zip(envs, np.split(state, count, axis=1), strict=True):
        env.reset(seed=0)
        env.unwrapped.state = own[:, 0]
    rng, running = np.random.default_rng(1), np.ones(count, bool)
    for _ in range(501):
        actions: Any = rng.integers(len(ours.action_low), size=count)
        seen, rewards, terminated, truncated = ours.step(actions)
        for at in np.flatnonzero(running):
            expected = envs[at].step(actions[at])
            np.testing.assert_allclose(seen[at], expected[0], atol=2e-4)
            assert rewards[at] == pytest.approx(expected[1], abs=2e-4)
            assert (terminated[at], truncated[at]) == expected[2:4]
        running &= ~(terminated | truncated)
    assert not running.any()


KINDS = {"CartPole-v1": CartPoleBatch, "Acrobot-v1": AcrobotBatch}


@pytest.mark.parametrize(("environment", "count"), list(zip(KINDS, (8, 2), strict=True)))
def test_a_batch_steps_as_gymnasium(environment: str, count: int) -> None:
    ours: Any = KINDS[environment]()
    ours.reset(count, seed=3)
    if environment == "Acrobot-v1":
        ours._state[:, 1] = 2.4, 0.3, 2.0, 1.0  # high up and swinging: soon at the bar
    _same(environment, ours, ours._state)


@pytest.mark.parametrize("task", TASKS)
def test_an_episode_and_the_next_first_state_are_those_of_dm_control(task: str) -> None:
    ours = make(f"research.control_suite:primorl/cartpole-{task}-v0")
    theirs = make(f"shimmy:dm_control/cartpole-{task}-v0")
    assert isinstance(theirs, FlattenObservation)
    assert ours.observation_space.shape == theirs.observation_space.shape
    draws = np.random.default_rng(0)
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    for step in range(1, 1001):
        action = draws.uniform(-1, 1, 1).astype(np.float32)
        found, expected = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(found[0], expected[0])
        assert float(found[1]) == pytest.approx(float(expected[1]), abs=1e-12)
        assert found[2:4] == expected[2:4] == (False, step == 1000)
    np.testing.assert_array_equal(ours.reset()[0], theirs.reset()[0])
