"""envpool's environments against Gymnasium's: an id may stand in ``ENVPOOL`` only if this passes."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import scipy.stats

from primorl.project.errors import PipelineError
from primorl.simulators.environments import make
from primorl.trajectories.sources.replay.backends import ENVPOOL, EnvpoolBackend

STEPS = 150
STARTS = 200


def put_pendulum(env: Any, seen: Any) -> None:
    env.unwrapped.state = np.array([np.arctan2(seen[1], seen[0]), seen[2]])


def put_cartpole(env: Any, seen: Any) -> None:
    env.unwrapped.state = np.array(seen, dtype=np.float64)


def put_mujoco(env: Any, seen: Any) -> None:
    """The forward position is not observed, and nothing depends on it."""
    inside = env.unwrapped
    inside.set_state(np.concatenate([[0.0], seen[: inside.model.nq - 1]]), seen[inside.model.nq - 1 :])


def put_suite(env: Any, seen: Any) -> None:
    physics = env.unwrapped._env.physics
    with physics.reset_context():
        physics.data.qpos[:] = seen[0], np.arctan2(seen[2], seen[1])
        physics.data.qvel[:] = seen[3:]


PUT: dict[str, tuple[Callable[[Any, Any], None], str, float]] = {
    "CartPole-v1": (put_cartpole, "gymnasium", 1e-5),
    "HalfCheetah-v5": (put_mujoco, "mujoco", 2e-3),
    "Hopper-v5": (put_mujoco, "mujoco", 2e-3),
    "Pendulum-v1": (put_pendulum, "gymnasium", 1e-4),
    "dm_control/cartpole-balance-v0": (put_suite, "dm_control", 1e-4),
    "dm_control/cartpole-swingup-v0": (put_suite, "dm_control", 1e-4),
}


def test_every_id_of_the_map_is_compared() -> None:
    assert PUT.keys() == ENVPOOL.keys()


def disagreements(environment: str) -> list[str]:
    """Step envpool; put the reference into each of its states, and see whether the same action does the same."""
    put, _, tolerance = PUT[environment]
    reference = make(environment)
    pool = EnvpoolBackend(environment, reference.unwrapped.observation_space, 1)
    rng = np.random.default_rng(0)
    space = reference.action_space
    seen = pool.reset([3])
    found = []
    for _ in range(STEPS):
        discrete = isinstance(space, gymnasium.spaces.Discrete)
        actions = rng.integers(space.n, size=1) if discrete else rng.uniform(space.low, space.high, (1, *space.shape))
        after, rewards, terminated, _, last = pool.step(actions if discrete else actions.astype(space.dtype))
        reference.reset(seed=0)
        put(reference, seen[0].astype(np.float64))
        expected, reward, ended, _, _ = reference.step(actions[0])
        if not np.allclose(last[0], expected, atol=tolerance, rtol=tolerance):
            found.append("observation")
        if not np.allclose(rewards[0], reward, atol=tolerance, rtol=tolerance):
            found.append("reward")
        if terminated[0] != ended:
            found.append("end")
        seen = after
    pool.close()
    reference.close()
    return found


@pytest.mark.parametrize("environment", sorted(ENVPOOL))
def test_envpool_steps_as_gymnasium_does(environment: str) -> None:
    """From the same state by the same action: the same observation, reward and end, at every step of envpool's run."""
    pytest.importorskip("envpool")
    pytest.importorskip(PUT[environment][1])
    assert disagreements(environment) == []


def test_the_comparison_tells_a_near_relative_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hopper-v4 differs from v5 in nothing but the reward of the step on which it falls."""
    pytest.importorskip("envpool")
    pytest.importorskip("mujoco")
    monkeypatch.setitem(ENVPOOL, "Hopper-v5", "Hopper-v4")
    assert set(disagreements("Hopper-v5")) == {"reward"}


@pytest.mark.parametrize("environment", sorted(ENVPOOL))
def test_envpool_starts_where_gymnasium_does_and_has_its_limit(environment: str) -> None:
    envpool = pytest.importorskip("envpool")
    pytest.importorskip(PUT[environment][1])
    reference = make(environment)
    pool = EnvpoolBackend(environment, reference.unwrapped.observation_space, 2)
    theirs = [pool.reset([0, 1])]  # from here by hand: each building of the suite takes a tenth of a second
    theirs = np.concatenate(theirs + [pool._flat(pool._envs.reset()[0]) for _ in range(STARTS // 2)])
    reference.reset(seed=0)
    ours = np.stack([reference.reset()[0] for _ in range(STARTS)])
    for dimension in range(ours.shape[1]):
        assert scipy.stats.ks_2samp(ours[:, dimension], theirs[:, dimension]).pvalue > 1e-4
    limit = envpool.make_spec(ENVPOOL[environment]).config.max_episode_steps
    assert limit == (1000 if environment.startswith("dm_control") else reference.spec.max_episode_steps)


@pytest.mark.parametrize(("environment", "limit"), [("Pendulum-v1", 200), ("dm_control/cartpole-swingup-v0", 1000)])
def test_envpool_ends_at_the_same_limit_and_starts_again_at_once(environment: str, limit: int) -> None:
    pytest.importorskip("envpool")
    if environment.startswith("dm_control"):
        pytest.importorskip("dm_control")
    reference = make(environment)
    pool = EnvpoolBackend(environment, reference.unwrapped.observation_space, 3)
    pool.reset([0, 1, 2])
    action = np.zeros((3, 1), dtype=np.float32)
    for step in range(1, 2 * limit + 1):
        after, _, terminated, truncated, last = pool.step(action)
        assert not terminated.any()
        assert truncated.all() == truncated.any() == (step % limit == 0)
        assert np.array_equal(after, last) == (step % limit != 0)
    reference.reset(seed=0)
    truncations = [reference.step(action[0])[3] for _ in range(limit)]
    assert truncations == [False] * (limit - 1) + [True]


def test_an_environment_that_was_never_compared_is_refused() -> None:
    with pytest.raises(PipelineError, match="found envpool for 'Acrobot-v1', which is not known to be the same there"):
        EnvpoolBackend("Acrobot-v1", gymnasium.make("Acrobot-v1").observation_space, 2)
