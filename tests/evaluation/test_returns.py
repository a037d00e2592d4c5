import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
import torch

from pipeline.errors import PipelineError
from pipeline.evaluation import returns
from pipeline.evaluation.returns import episode_returns
from pipeline.policy.exported import DeterministicPolicy
from tests.evaluation.conftest import random_policy


def one_by_one(environment: str, policy: DeterministicPolicy, episodes: int, seed: int) -> npt.NDArray[np.float64]:
    """The obvious way: one environment, one policy, one episode at a time."""
    env = gymnasium.make(environment)
    totals = np.zeros((policy.policies, episodes))
    for p in range(policy.policies):
        for e, start in enumerate(np.random.SeedSequence(seed).generate_state(episodes).tolist()):
            observation, _ = env.reset(seed=start)
            ended = False
            while not ended:
                everyone = torch.as_tensor(observation).expand(policy.policies, 1, -1)
                observation, reward, terminated, truncated, _ = env.step(policy.act(everyone)[p, 0].numpy())
                totals[p, e] += float(reward)
                ended = terminated or truncated
    return totals


def test_time_limited_episodes_equal_the_obvious_loop() -> None:
    policy = random_policy(2, 3, 2.0)
    found = episode_returns("Pendulum-v1", policy, 3, seed=11)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found, one_by_one("Pendulum-v1", policy, 3, seed=11), rtol=1e-3)


@pytest.mark.parametrize(
    "at_once", [1, 6, 7, 256]
)  # less than one episode of each policy; all of one; uneven; everything
def test_episodes_that_end_early_count_once_however_they_are_batched(
    countdown: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returns, "_ENVIRONMENTS_AT_ONCE", at_once)
    policy = random_policy(3, 2, 1.0)
    found = episode_returns(countdown, policy, 10, seed=4)
    np.testing.assert_allclose(found, one_by_one(countdown, policy, 10, seed=4), rtol=1e-5)
    assert len(np.unique(np.round(found[0]))) > 2  # episodes of several lengths took part


def test_policies_meet_the_same_starts_and_episodes_meet_different_ones() -> None:
    alike = DeterministicPolicy.stacked([random_policy(1, 3, 2.0)] * 2)
    found = episode_returns("Pendulum-v1", alike, 4, seed=0)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    assert len(np.unique(found[0])) == 4


def test_the_seed_fixes_the_starts_and_more_episodes_keep_the_first(countdown: str) -> None:
    policy = random_policy(1, 2, 1.0)
    few, many = (episode_returns(countdown, policy, episodes, seed=1) for episodes in (5, 40))
    np.testing.assert_array_equal(few, many[:, :5])
    assert not np.array_equal(many, episode_returns(countdown, policy, 40, seed=2))


def test_an_unknown_environment_is_named() -> None:
    with pytest.raises(PipelineError, match=r"environment 'Pendulums-v1': Gymnasium cannot build it"):
        episode_returns("Pendulums-v1", random_policy(1, 3, 2.0), 2, seed=0)


def test_a_policy_for_other_spaces_is_refused(countdown: str) -> None:
    with pytest.raises(PipelineError, match=r"shapes \(2,\) and \(1,\), the policy was trained for \(3,\) and \(1,\)"):
        episode_returns(countdown, random_policy(1, 3, 2.0), 2, seed=0)
