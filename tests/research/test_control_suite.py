"""The cart-pole here is dm_control's."""

import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation

from primorl.simulators.environments import make
from research.control_suite import TASKS


@pytest.mark.parametrize("task", TASKS)
def test_an_episode_and_the_next_first_state_are_those_of_dm_control(task: str) -> None:
    ours = make(f"research.control_suite:primorl/cartpole-{task}-v0")
    theirs = make(f"dm_control/cartpole-{task}-v0")
    assert isinstance(theirs, FlattenObservation)
    assert ours.observation_space.shape == theirs.observation_space.shape
    draws = np.random.default_rng(0)
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    for step in range(1, 1001):
        action = draws.uniform(-1, 1, 1).astype(np.float32)
        found, expected = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(found[0], expected[0])
        assert float(found[1]) == pytest.approx(float(expected[1]), abs=1e-15)
        assert found[2:4] == expected[2:4] == (False, step == 1000)
    np.testing.assert_array_equal(ours.reset()[0], theirs.reset()[0])
