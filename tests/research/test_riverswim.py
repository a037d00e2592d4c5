"""Riverswim: counters whose noise is that of ε, optimal plans, and steps that stay in the trust
region.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from primorl.privacy.mechanism.sampling import SeededEntropy
from research import riverswim
from research.riverswim import A, H, S
from research.trust_region import Step
from research.ucbvi import (
    REWARD_UNIT,
    UCBVI,
    Learner,
    Stream,
    TreeCounter,
    backward_induction,
    discrete_laplace,
)


@pytest.mark.parametrize("people", [1, 7, 8, 21])
def test_one_person_changes_as_many_nodes_as_the_noise_is_made_for(people: int) -> None:
    """Each node is released once; L nodes of L1 sensitivity Δ with noise of scale L Δ / ε
    cost ε.
    """
    made = TreeCounter(people, 3, math.inf)
    worst, ones = 0.0, np.ones((1, 2), np.int64)
    for at in range(people):
        streams, total = (Stream(made, 1, 2), Stream(made, 1, 2)), 0.0
        for person in range(people):
            own = np.array([[2, 1]]) if person == at else ones
            released = streams[0].add(own), streams[1].add(0 * ones if person == at else ones)
            level = ((person + 1) & -(person + 1)).bit_length() - 1
            distance = np.abs(streams[0].sums[level] - streams[1].sums[level]).sum()
            assert distance <= made.sensitivity
            total += distance
            assert np.abs(released[0] - released[1]).sum() == (3 if person >= at else 0)
        worst = max(worst, total)
    assert worst <= made.levels * made.sensitivity
    if people in (1, 8):
        assert worst == made.levels * made.sensitivity, "fewer levels would not do"
    with pytest.raises(ValueError, match="as many as are paid for"):
        streams[0].add(ones)
    private = TreeCounter(people, 3, 0.7)
    assert private.levels * private.sensitivity / private.scale <= 0.7


def test_noise_is_discrete_laplace_and_fresh_in_every_node() -> None:
    for scale in (1, 37):
        draws = discrete_laplace(SeededEntropy(scale), 40_000, scale)
        assert _fits(draws, scale)
        assert not _fits(draws, scale * 2 / 3)
        assert not _fits(draws, scale * 3 / 2)
    made = TreeCounter(64, 3, 1.0, SeededEntropy(0))
    stream = Stream(made, 2, 250)
    released = np.array([stream.add(np.zeros((2, 250), np.int64)).ravel() for _ in range(64)])
    assert abs(np.corrcoef(released[0], released[1])[0, 1]) < 0.2
    for person in (1, 3, 63, 64):  # as many nodes as binary ones
        expected = 2 * made.scale**2 * person.bit_count()
        assert released[person - 1].var() == pytest.approx(expected, rel=0.3)
    assert (np.abs(released) > made.error(0.01)).mean() <= 0.01


def _fits(draws: np.ndarray, scale: float) -> bool:
    """χ² test against the discrete Laplace distribution in 13 cells."""
    q, edges = math.exp(-1 / scale), np.arange(-6, 7) * max(int(scale / 2), 1)
    counted = np.histogram(draws, edges - 0.5)[0]
    support = np.arange(edges[0], edges[-1])
    shares = ((1 - q) / (1 + q) * q ** np.abs(support)).reshape(12, -1).sum(1)
    counts = np.append(counted, len(draws) - counted.sum())
    expected = np.append(shares, 1 - shares.sum())
    return bool(stats.chisquare(counts, expected * len(draws)).pvalue > 1e-4)


def test_ucb_vi_counts_what_is_paid_for_and_plans_optimally() -> None:
    assert riverswim.optimal_value(0.9) == pytest.approx(4.676, abs=1e-3)
    equal = np.ones((1, 50, S, A)), np.zeros((1, 50, S, A, S))
    ties = backward_induction(*equal, np.random.default_rng(0))[1]
    assert 0.4 < ties.mean() < 0.6, "a fixed order would favour the action that happens to be right"

    private = UCBVI(S, A, H, 400, 1.0, failure=0.1, optimism=1e-3, seed=0)
    counters = private.counter(1), private.counter(1000), private.counter(1)
    assert sum(each.epsilon for each in counters) == pytest.approx(1.0)
    noisy, plain = Learner(private, 2), Learner(UCBVI(S, A, H, 400, math.inf, 0.1, 1e-3, 0), 2)
    path, right = np.minimum(np.arange(H + 1), S - 1), np.ones(H, int)
    rewards = np.full((2, H), 7.0)  # above 1 they count as 1
    user = np.stack([path, path]), np.stack([right, right]), rewards
    user[0][1] = S  # a state that does not exist: counts as an empty episode
    for learner in (noisy, plain):
        learner.learn(*user)
    for stream, twin, unit in zip(noisy.streams, plain.streams, (1, REWARD_UNIT, 1), strict=True):
        assert np.abs(twin.sums).sum((0, 2)).tolist() == [H * unit, 0]
        assert private.counter(unit).sensitivity == H * unit
        assert (stream.noisy[0] != stream.sums[0]).mean() > 0.9


@pytest.mark.parametrize(
    "step", [Step(12.0, 3.73, 0.4), Step(0.06, 0.98, 0.05), Step(1.0, 0.1, 0.3)]
)
def test_steps_stay_in_the_trust_region_as_often_as_claimed(step: Step) -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=generator)
    noise = torch.randn(40_000, 6, generator=generator)

    def inside(norm: float, metric: torch.Tensor) -> float:
        """How often ½ Δθᵀ M Δθ ≤ 3.5, for the clipped gradient that is worst for it."""
        worst = torch.linalg.eigh(metric).eigenvectors[:, -1] * norm
        moved = step.learning_rate * (worst + step.noise * norm * noise)
        return float((0.5 * ((moved @ metric) * moved).sum(1) <= 3.5).float().mean())

    norm, claimed = step.l2_norm(3.5, 6), 1 - step.failure
    assert inside(norm, torch.eye(6)) == pytest.approx(claimed, abs=0.01)
    assert inside(norm * 1.1, torch.eye(6)) < claimed - 0.01
    found = float(step.kl_norm(3.5, (root @ root.T).double().numpy()))
    assert inside(found, root @ root.T) >= claimed
    assert inside(found * 10, root @ root.T) < claimed


def test_rivers_are_paid_and_counted_as_an_exact_recursion_says() -> None:
    theta = np.zeros((1, S + A))
    theta[0, -1] = 1.5
    theta[0, :S] = 9.0  # one-hot states cancel
    policies, scores = riverswim.policies_and_scores(theta)
    assert policies[0, :, 1] == pytest.approx(1 / (1 + math.exp(-1.5)))
    assert not scores[..., :S].any()
    met = riverswim.played(0.9, policies, 20_000, np.random.default_rng(0))
    moves, state, value = riverswim.transition_probabilities(0.9), np.eye(S)[0], 0.0
    for _ in range(H):
        value += float(np.einsum("s,sa,sax,sax", state, policies[0], moves, riverswim.rewards()))
        state = np.einsum("s,sa,sax->x", state, policies[0], moves)
    assert met.totals.mean() == pytest.approx(value, abs=0.03)
    assert (met.counts.sum((2, 3)) == H).all()
    shares = met.counts[0].mean(0) / H
    expected = np.einsum("sa,sad,sae->de", shares, scores[0], scores[0]) + 1e-3 * np.eye(S + A)
    np.testing.assert_allclose(riverswim.fisher_matrices(scores, met.counts)[0], expected)
    right = np.broadcast_to([0.0, 1.0], (1, S, A))
    always = riverswim.played(1.0, right, 50, np.random.default_rng(0))
    last = always.totals[0]  # on reaching the bank a swimmer stays there and is paid at every step
    np.testing.assert_allclose(always.counts[0, :, -1, 1], last)
    gathered = [sum((1 - 0.99**n) / 0.01 for n in range(1, int(paid) + 1)) for paid in last]
    np.testing.assert_allclose(always.returns[0, :, -1, 1], gathered)


@pytest.mark.parametrize("algorithm", ["dppg-l2", "dppg-kl"])
def test_modes_differ_in_what_they_say(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards of 50 users: with noise alone they do not depend on the gradient; without noise all
    runs stay close.
    """
    monkeypatch.setattr(riverswim, "USERS", 50)
    key = {"algorithm": algorithm, "baseline": "none", "epsilon": "1.0", "p": 0.9}
    paper = riverswim.SETTINGS["paper"]
    found = {mode: riverswim.dppg({**key, "mode": mode}, paper) for mode in riverswim.MODES}
    assert all(rewards.shape == (50, riverswim.RUNS) for rewards in found.values())
    assert found["clip alone"][-10:].mean() < 0.2, "the gradient leads to the left bank"
    assert found["noise alone"][-10:].mean() > 0.5
    assert found["learning"][-10:].mean() > 0.5
