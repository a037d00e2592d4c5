"""Returns equal the obvious loop, and intervals are Student's."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from primorl.base import PipelineError
from primorl.evaluate import returns
from primorl.evaluate.returns import episode_returns
from primorl.evaluate.summary import Estimate
from primorl.policy.exported import DeterministicPolicy
from tests.evaluate.conftest import random_policy

Vector = npt.NDArray[np.float32]


class Endless(gymnasium.Env[Vector, Vector]):
    """Pays 1 on every step."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, dtype=np.float32), 1.0, False, False, {}


gymnasium.register("Endless-v0", lambda **_: Endless())


def one_by_one(
    environment: str, policy: DeterministicPolicy, episodes: int, seed: int
) -> npt.NDArray[np.float64]:
    """The obvious way: one environment, one policy, one episode at a time."""
    env = gymnasium.make(environment)
    totals = np.zeros((policy.policies, episodes))
    for p in range(policy.policies):
        for e, start in enumerate(np.random.SeedSequence(seed).generate_state(episodes).tolist()):
            observation, _ = env.reset(seed=start)
            ended = False
            while not ended:
                action = policy.act(torch.as_tensor(observation).expand(policy.policies, 1, -1))[
                    p, 0
                ].numpy()
                chosen = int(action.argmax()) if policy.discrete_actions else action
                observation, reward, terminated, truncated, _ = env.step(chosen)
                totals[p, e] += float(reward)
                ended = terminated or truncated
    return totals


def discrete_policy(policies: int, observation_size: int, actions: int) -> DeterministicPolicy:
    continuous = random_policy(policies, observation_size, 1.0)
    last = torch.randn(policies, actions, 8, generator=torch.Generator().manual_seed(3))
    layers = (*continuous.layers[:-2], last, torch.zeros(policies, 1, actions))
    scale = torch.full((observation_size,), 0.02)
    return DeterministicPolicy(
        layers, 0 * scale, scale, torch.zeros(actions), torch.ones(actions), True
    )


@pytest.mark.parametrize(
    ("environment", "policy", "at_once", "tolerance"),
    [
        ("Pendulum-v1", random_policy(2, 3, 2.0), 256, 1e-3),
        # Episodes that end early: less than one of each policy; uneven; all.
        *(("CartPole-v1", discrete_policy(3, 4, 2), at_once, 0.0) for at_once in (1, 7, 256)),
    ],
)
def test_returns_equal_the_obvious_loop_however_they_are_batched(
    environment: str,
    policy: DeterministicPolicy,
    at_once: int,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(returns, "_ENVIRONMENTS_AT_ONCE", at_once)
    found = episode_returns(environment, policy, 4, seed=5)
    np.testing.assert_allclose(found, one_by_one(environment, policy, 4, seed=5), rtol=tolerance)
    assert len(np.unique(found)) > 2
    np.testing.assert_array_equal(episode_returns(environment, policy, 2, seed=5), found[:, :2])
    assert not np.array_equal(found, episode_returns(environment, policy, 4, seed=2))
    same = episode_returns(environment, DeterministicPolicy.stack([policy.one(0)] * 2), 4, seed=0)
    np.testing.assert_allclose(same[0], same[1], rtol=1e-6)  # policies meet the same starts


@pytest.mark.parametrize(
    ("environment", "policy", "says"),
    [
        ("Pendulum-v1", random_policy(1, 2, 2.0), r"found \(2, 1, False\), allowed is \(3, 1, "),
        ("CartPole-v1", random_policy(1, 4, 1.0), r"found \(4, 1, False\), allowed is \(4, 2, "),
        ("CartPole-v1", discrete_policy(1, 4, 3), r"found \(4, 3, True\)"),
        ("Endless-v0", random_policy(1, 2, 1.0), "its episodes have no step limit"),
    ],
)
def test_what_does_not_fit_or_never_ends_is_refused(
    environment: str, policy: DeterministicPolicy, says: str
) -> None:
    with pytest.raises(PipelineError, match=says):
        episode_returns(environment, policy, 2, seed=0)
    assert episode_returns(
        "Endless-v0", random_policy(1, 2, 1.0), 3, seed=0, limit=17
    ).tolist() == [[17.0] * 3]


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=50))
def test_the_interval_is_student_ts(values: list[float]) -> None:
    sample = np.array(values)
    found = Estimate.of(sample)
    assert found.mean == pytest.approx(sample.mean())
    assert found.low <= found.mean <= found.high
    error = stats.sem(sample)
    if error > 1e-9 * np.abs(sample).max():
        low, high = stats.t.interval(0.95, len(values) - 1, loc=sample.mean(), scale=error)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)
    with pytest.raises(ValueError, match="at least 2 values, found 1"):
        Estimate.of(sample[:1])
