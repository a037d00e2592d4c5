"""What UCB-VI must keep to: optimal plans, ε for all counters together, and releases that are all it plans from."""

import math

import numpy as np
import pytest

from primorl.online.ucbvi import REWARD_UNIT, UCBVI, backward_induction
from primorl.privacy.accounting.pure import pure_epsilon
from primorl.simulators import riverswim

S, A, H = riverswim.STATES, riverswim.ACTIONS, riverswim.HORIZON


def _settings(epsilon: float, users: int = 400, optimism: float = 1e-3) -> UCBVI:
    return UCBVI(S, A, H, users, epsilon, failure=0.1, optimism=optimism, seed=0)


def test_backward_induction_finds_the_value_of_its_own_policy_and_no_policy_has_more() -> None:
    moves = riverswim.transition_probabilities(0.6)
    rewards = (moves * riverswim.rewards()).sum(-1)
    table = np.broadcast_to(rewards, (H, S, A)), np.broadcast_to(moves, (H, S, A, S))
    values, policy = backward_induction(*table, np.random.default_rng(0))
    states = np.arange(S)
    rng, best = np.random.default_rng(0), -np.inf
    for tried in (policy, np.ones_like(policy), np.zeros_like(policy), *rng.integers(2, size=(50, H, S))):
        worth = np.zeros(S)
        for actions in tried[::-1]:
            worth = rewards[states, actions] + moves[states, actions] @ worth
        best = max(best, worth[0])
        if tried is policy:
            np.testing.assert_allclose(worth, values[0])
    assert best == pytest.approx(values[0, 0])
    assert values[0, 0] > 2


def test_equal_actions_are_drawn() -> None:
    """A fixed order would favour the action that happens to be the right one."""
    _, policy = backward_induction(np.ones((50, S, A)), np.zeros((50, S, A, S)), np.random.default_rng(0))
    assert 0.4 < policy.mean() < 0.6


def test_the_twin_without_noise_finds_what_pays() -> None:
    """Two states: action 1 leads from the first to the second, where action 0 pays; action 0 stays and pays 0.1."""
    settings = UCBVI(2, 2, 4, users=300, epsilon=math.inf, failure=0.1, optimism=0.2, seed=0)
    learner, totals = settings.learner(), []
    for _ in range(settings.users):
        states, actions, rewards = [0], [], []
        for step in range(settings.horizon):
            state = states[-1]
            actions.append(int(learner.policy[step, state]))
            rewards.append((0.1, 1.0)[state] * (actions[-1] == 0))
            states.append(int(state == 0 and actions[-1] == 1) or int(state == 1 and actions[-1] == 0))
        learner.learn(np.array(states), np.array(actions), np.array(rewards))
        totals.append(sum(rewards))
    assert np.mean(totals[-50:]) > 2.7  # 3 is best
    assert np.mean(totals[:20]) < 2


def test_one_user_adds_no_more_than_the_counters_are_made_for() -> None:
    settings = _settings(math.inf)
    learner = settings.learner()
    states = np.minimum(np.arange(H + 1), S - 1)
    learner.learn(states, np.ones(H, int), np.full(H, 7.0))  # rewards above 1 count as 1
    for stream, unit in ((learner._visits, 1), (learner._rewards, REWARD_UNIT), (learner._transitions, 1)):
        assert np.abs(stream._sums).sum() == H * unit == settings.counter(unit).sensitivity


def test_the_three_counters_together_cost_epsilon() -> None:
    assert pure_epsilon(_settings(1.0).event) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no event"):
        _ = _settings(math.inf).event


def test_policies_of_the_private_run_are_made_of_noisy_counts() -> None:
    """Where nothing was counted, the counts that are planned from are noise."""
    learner = _settings(1.0, users=8).learner()
    states = np.zeros(H + 1, int)
    learner.learn(states, np.zeros(H, int), np.zeros(H))
    for stream in (learner._visits, learner._rewards, learner._transitions):
        assert (stream._noisy[0] != stream._sums[0]).mean() > 0.9


def test_an_episode_that_cannot_be_counts_as_an_empty_one() -> None:
    """Raising for it would show that somebody sent it."""
    learner = UCBVI(3, 2, 2, 4, math.inf, failure=0.1, optimism=1e-3, seed=0).learner()
    actions, rewards = np.zeros(2, np.int64), np.array([np.nan, 1.0])
    learner.learn(np.array([0, 1, 7]), actions, rewards)
    assert learner._visits._noisy.sum() == 0
    learner.learn(np.array([0, 1, 2]), actions, rewards)
    assert learner._visits._noisy.sum() == 2
    assert learner._rewards._noisy.sum() == REWARD_UNIT
