"""Returns in the environment are those of the obvious loop, and what does not fit is refused."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from primorl.evaluation import returns
from primorl.evaluation.returns import episode_returns
from primorl.policy.exported import DeterministicPolicy
from primorl.project.errors import PipelineError
from tests.evaluation.conftest import Countdown, Vector, random_policy


def one_by_one(environment: str, policy: DeterministicPolicy, episodes: int, seed: int) -> npt.NDArray[np.float64]:
    """The obvious way: one environment, one policy, one episode at a time."""
    env = gymnasium.make(environment)
    totals = np.zeros((policy.policies, episodes))
    for p in range(policy.policies):
        for e, start in enumerate(np.random.SeedSequence(seed).generate_state(episodes).tolist()):
            observation, _ = env.reset(seed=start)
            ended = False
            while not ended:
                action = policy.act(torch.as_tensor(observation).expand(policy.policies, 1, -1))[p, 0].numpy()
                chosen = int(action.argmax()) if policy.discrete_actions else action
                observation, reward, terminated, truncated, _ = env.step(chosen)
                totals[p, e] += float(reward)
                ended = terminated or truncated
    return totals


def discrete_policy(policies: int, observation_size: int, actions: int) -> DeterministicPolicy:
    continuous = random_policy(policies, observation_size, 1.0)
    *hidden, _, _ = continuous.layers
    generator = torch.Generator().manual_seed(3)
    last = (torch.randn(policies, actions, 8, generator=generator), torch.zeros(policies, 1, actions))
    return dataclasses.replace(
        continuous,
        layers=(*hidden, *last),
        observation_scale=torch.full((observation_size,), 0.02),
        action_low=torch.zeros(actions),
        action_high=torch.ones(actions),
        discrete_actions=True,
    )


@pytest.mark.parametrize(
    ("environment", "policy", "tolerance"),
    [("Pendulum-v1", random_policy(2, 3, 2.0), 1e-3), ("CartPole-v1", discrete_policy(3, 4, 2), 0.0)],
)
def test_returns_equal_the_obvious_loop(environment: str, policy: DeterministicPolicy, tolerance: float) -> None:
    found = episode_returns(environment, policy, 4, seed=5)
    np.testing.assert_allclose(found, one_by_one(environment, policy, 4, seed=5), rtol=tolerance)
    assert len(np.unique(found)) > 2
    alike = DeterministicPolicy.stacked([policy.one(0)] * 2)
    same = episode_returns(environment, alike, 4, seed=0)
    np.testing.assert_allclose(same[0], same[1], rtol=1e-6)  # policies meet the same starts


@pytest.mark.parametrize("at_once", [1, 7, 256])  # less than one episode of each policy; uneven; everything
def test_episodes_that_end_early_count_once_however_they_are_batched(
    countdown: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returns, "_ENVIRONMENTS_AT_ONCE", at_once)
    policy = random_policy(3, 2, 1.0)
    found = episode_returns(countdown, policy, 10, seed=4)
    np.testing.assert_allclose(found, one_by_one(countdown, policy, 10, seed=4), rtol=1e-5)
    assert len(np.unique(np.round(found[0]))) > 2  # episodes of several lengths took part
    np.testing.assert_array_equal(episode_returns(countdown, policy, 5, seed=4), found[:, :5])
    assert not np.array_equal(found, episode_returns(countdown, policy, 10, seed=2))


@pytest.mark.parametrize(
    ("environment", "policy", "says"),
    [
        ("Pendulums-v1", random_policy(1, 3, 2.0), r"environment 'Pendulums-v1': Gymnasium cannot build it"),
        ("Pendulum-v1", random_policy(1, 2, 2.0), r"shape \(3,\) and actions of shape \(1,\), the .* shape \(2,\)"),
        ("CartPole-v1", random_policy(1, 4, 1.0), r"2 discrete actions, the policy .* actions of shape \(1,\)"),
        ("CartPole-v1", discrete_policy(1, 4, 3), "2 discrete actions, the policy .* 3 discrete actions"),
        ("Pendulum-v1", discrete_policy(1, 3, 2), r"actions of shape \(1,\), the policy .* 2 discrete actions"),
    ],
)
def test_a_policy_of_another_environment_is_refused(environment: str, policy: DeterministicPolicy, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        episode_returns(environment, policy, 2, seed=0)


class Endless(Countdown):
    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._observation(), 1.0, False, False, {}


class Parts(Countdown):
    """A dict observation, which is flattened in the order of the space's keys."""

    observation_space = Dict(b=Box(-np.inf, np.inf, (1,), np.float32), a=Discrete(3))  # type: ignore[assignment]

    def _observation(self) -> dict[str, Any]:  # type: ignore[override]
        return {"a": 1, "b": np.array([self.time], dtype=np.float32)}


@pytest.fixture
def registered() -> Iterator[Callable[..., str]]:
    def register(kind: type, **settings: Any) -> str:
        gymnasium.register("Odd-v0", kind, **settings)
        return "Odd-v0"

    yield register
    del gymnasium.registry["Odd-v0"]


def test_an_environment_without_an_end_takes_the_datasets_horizon_or_is_refused(registered: Callable[..., str]) -> None:
    endless, policy = registered(Endless), random_policy(1, 2, 1.0)
    assert episode_returns(endless, policy, 3, seed=0, limit=17).tolist() == [[17.0] * 3]
    with pytest.raises(PipelineError, match=r"'Odd-v0': its episodes have no step limit.*horizon"):
        episode_returns(endless, policy, 3, seed=0)


def test_a_dict_observation_is_flattened_as_the_data_were(registered: Callable[..., str]) -> None:
    parts = registered(Parts, max_episode_steps=5)
    assert episode_returns(parts, random_policy(1, 4, 1.0), 2, seed=0).shape == (1, 2)
