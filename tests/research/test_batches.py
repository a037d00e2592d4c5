"""The batches of environments are the environments whose names they have, many at once."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from primorl.simulators.environments import make
from research import dosing
from research.classic_control import AcrobotBatch, CartPoleBatch, batch

OWN = tuple(dosing.ENVIRONMENTS.values())


def _same(environment: str, ours: Any, state: NDArray[np.float64]) -> None:
    """Step both from the same states ``[S, n]`` with the same actions until all have ended."""
    count = state.shape[1]
    envs = [gymnasium.make(environment) for _ in range(count)]
    for env, own in zip(envs, np.split(state, count, axis=1), strict=True):
        env.reset(seed=0)
        env.unwrapped.state = own[:, 0]  # type: ignore[attr-defined]
    rng, running = np.random.default_rng(1), np.ones(count, bool)
    for _ in range(501):
        actions = rng.integers(len(ours.action_low), size=count)
        seen, rewards, terminated, truncated = ours.step(actions)
        for at in np.flatnonzero(running):
            expected = envs[at].step(int(actions[at]))
            np.testing.assert_allclose(seen[at], expected[0], atol=2e-4)
            assert rewards[at] == pytest.approx(expected[1], abs=2e-4)
            assert (terminated[at], truncated[at]) == expected[2:4]
        running &= ~(terminated | truncated)
    assert not running.any()


KINDS = {"CartPole-v1": CartPoleBatch, "Acrobot-v1": AcrobotBatch}


@pytest.mark.parametrize(("environment", "count"), zip(KINDS, (8, 2), strict=True))
def test_a_batch_steps_as_gymnasium(environment: str, count: int) -> None:
    ours: Any = KINDS[environment]()
    ours.reset(count, seed=3)
    if environment == "Acrobot-v1":
        ours._state[:, 1] = 2.4, 0.3, 2.0, 1.0  # high up and swinging: soon at the bar
    _same(environment, ours, ours._state)


@pytest.mark.parametrize("environment", OWN)
def test_the_single_environment_is_a_batch_of_one(environment: str) -> None:
    env, ours = make(environment), batch(environment)
    first, _ = env.reset(seed=5)
    inner = int(np.random.Generator(np.random.PCG64(5)).integers(2**63))
    np.testing.assert_array_equal(first, ours.reset(1, inner)[0])
    env.action_space.seed(0)
    for step in range(1, (ours.step_limit or 0) + 1):
        action = env.action_space.sample()
        seen, reward, terminated, truncated, _ = env.step(action)
        expected = ours.step(np.asarray(action)[None])
        np.testing.assert_array_equal(seen, expected[0][0])
        assert (reward, terminated, truncated) == (expected[1][0], False, step == ours.step_limit)
        assert env.observation_space.contains(seen)
