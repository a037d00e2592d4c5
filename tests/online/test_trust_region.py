"""What clipping norms from trust regions must keep to: the noisy step stays inside as often as is claimed."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from primorl.online.learning import PARAMETERS, OnlineState, learn
from primorl.online.mechanism import Cohort, online_plan
from primorl.online.network import PolicyNetwork
from primorl.online.trust_region import Schedule, Step, TrustRegionKL, TrustRegionL2, fisher_matrix
from primorl.privacy.mechanism.entropy import SeededEntropy
from primorl.setup.simulated_users import SimulatedUsers
from primorl.simulators import riverswim
from primorl.simulators.batches import batch

RIVER = riverswim.ENVIRONMENTS[0.9]
NETWORK = PolicyNetwork((), torch.zeros(6), torch.ones(6), torch.zeros(2), torch.ones(2), discrete_actions=True)
STEPS = [Step(12.0, 3.73, 0.4), Step(0.06, 0.98, 0.05), Step(1.0, 0.1, 0.3)]


def _steps(step: Step, norm: float, gradient: Tensor, count: int = 40_000) -> Tensor:
    """Δθ of gradients ``[d]`` that are clipped to ``norm``, ``[count, d]``."""
    clipped = gradient * min(1.0, norm / float(gradient.norm()))
    noise = torch.randn(count, len(gradient), generator=torch.Generator().manual_seed(0))
    return step.learning_rate * (clipped + step.noise * norm * noise)


def _inside(step: Step, norm: float, region: float, metric: Tensor) -> float:
    """How often ½ Δθᵀ M Δθ is at most α, for the gradient that is worst for it."""
    worst = torch.linalg.eigh(metric).eigenvectors[:, -1] * 1e6
    moved = _steps(step, norm, worst)
    return float((0.5 * ((moved @ metric) * moved).sum(1) <= region).float().mean())


@pytest.mark.parametrize("step", STEPS)
def test_l2_norm_keeps_the_step_inside_exactly_as_often_as_claimed(step: Step) -> None:
    norm, claimed = step.l2_norm(3.5, 14), 1 - step.failure
    assert _inside(step, norm, 3.5, torch.eye(14)) == pytest.approx(claimed, abs=0.01)
    assert _inside(step, norm * 1.1, 3.5, torch.eye(14)) < claimed - 0.01  # a larger one does not


@pytest.mark.parametrize("step", STEPS)
def test_norms_by_markov_are_below_and_hold_too(step: Step) -> None:
    norm = step.l2_norm_by_markov(3.5, 14)
    assert norm <= step.l2_norm(3.5, 14)
    assert _inside(step, norm, 3.5, torch.eye(14)) >= 1 - step.failure
    assert norm == pytest.approx(math.sqrt(2 * 3.5 * step.failure / (1 + step.noise**2 * 14)) / step.learning_rate)


@pytest.mark.parametrize("step", STEPS)
def test_kl_norm_keeps_the_step_inside_under_the_fisher_matrix(step: Step) -> None:
    root = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    fisher = root @ root.T
    norm = step.kl_norm(3.5, fisher)
    assert _inside(step, norm, 3.5, fisher) >= 1 - step.failure
    without_trace = math.sqrt(2 * 3.5 * step.failure / torch.linalg.eigvalsh(fisher)[-1]) / step.learning_rate
    if step.noise > 1:
        assert _inside(step, without_trace, 3.5, fisher) < 1 - step.failure
    assert step.kl_norm(3.5, torch.eye(14)) == pytest.approx(step.l2_norm_by_markov(3.5, 14))


@pytest.mark.parametrize("step", STEPS)
def test_gap_norm_holds_what_noise_may_cost(step: Step) -> None:
    gradient, gap = torch.tensor([3.0, -4.0]), 0.7

    def kept(norm: float) -> float:
        scaled = min(1.0, norm / 5)
        loss = step.learning_rate * 25 - _steps(step, norm, gradient) @ gradient
        return float((loss <= step.learning_rate * (1 - scaled) * 25 + gap).float().mean())

    norm = step.gap_norm(gap, gradient_norm=5.0)
    assert kept(norm) >= 1 - step.failure
    assert kept(norm * 20) < 1 - step.failure


def test_without_noise_norms_are_those_of_the_clipped_step() -> None:
    step = Step(0.5, 0.0, 0.4)
    assert step.l2_norm(2.0, 14) == pytest.approx(2 / 0.5)
    assert step.gap_norm(1.0, 5.0) == math.inf


def test_fisher_matrix_is_the_mean_over_states_and_actions_of_the_squared_score() -> None:
    """Exact over actions here; the released one has the actions that were drawn."""
    users = SimulatedUsers(batch(RIVER), 20, 1, seed=0)
    theta = NETWORK.initial(0) * 100
    met = users.meet(range(150), NETWORK, theta)
    found = fisher_matrix(NETWORK, theta, met, regulariser=0.0)
    seen = met.observations.flatten(0, 1)
    probabilities = torch.softmax(NETWORK.outputs(theta[None], seen[None])[0], -1)
    expected = torch.zeros(14, 14)
    for action in range(2):
        centred = torch.eye(2)[action] - probabilities
        scores = torch.cat([torch.einsum("ba,bs->bas", centred, seen).flatten(1), centred], 1)
        expected += (scores * probabilities[:, action, None]).T @ scores / len(seen)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(fisher_matrix(NETWORK, theta, met, 0.25), found + 0.25 * torch.eye(14))


@pytest.mark.parametrize("kind", ["l2", "kl"])
def test_each_user_moves_the_policy_by_a_noisy_step_of_the_region(kind: str) -> None:
    rate, users = Schedule(12.0, 5.0, 2, 0.06), SimulatedUsers(batch(RIVER), 20, 1, seed=0)
    update: TrustRegionL2 = TrustRegionL2(rate, 3.5, 0.4, 0.99)
    if kind == "kl":
        update = TrustRegionKL(rate, 3.5, 0.4, 0.99, SimulatedUsers(batch(RIVER), 20, 1, seed=1), 5, 1e-3)
    plan = online_plan(
        users=30, cohort=1, noise_multiplier=3.73, releases=1, appearances=1, delta=1e-5, entropy=SeededEntropy(0)
    )
    visited = [NETWORK.initial(0)]
    state = OnlineState(update.begin(NETWORK, visited[0]), 30)
    cohorts = [[user] for user in range(30)]
    learn(update, NETWORK, plan, users, cohorts, state, on_update=lambda now: visited.append(now.values[PARAMETERS]))
    sizes = 0.5 * torch.stack(visited).diff(dim=0).square().sum(1)
    assert len(sizes) == 30
    if kind == "l2":
        assert 0.4 < float((sizes <= 3.5).float().mean()) < 0.8
    assert sizes.min() > 0


def test_gradients_are_of_one_user_alone_and_end_at_the_horizon() -> None:
    """Two users of one cohort, without noise: the mean of what either gives alone."""
    users = SimulatedUsers(batch(RIVER), 20, 1, seed=0)
    update = TrustRegionL2(Schedule(1.0, 1.0, 1, 0.0), 3.5, 0.4, 0.99)
    theta = NETWORK.initial(0)
    theta[12:] = torch.tensor([0.0, 3.0])
    met = users.meet([0, 1], NETWORK, theta)

    def step(rows: list[int]) -> Tensor:
        own = type(met)(**{name: value[rows] for name, value in vars(met).items()})
        plan = online_plan(users=2, cohort=len(rows), noise_multiplier=0, releases=1, appearances=1, delta=1e-5)
        return update.updated(NETWORK, {PARAMETERS: theta}, own, Cohort(plan, 1), 0)[PARAMETERS] - theta

    torch.testing.assert_close(step([0, 1]), (step([0]) + step([1])) / 2)
    probabilities = torch.softmax(NETWORK.outputs(theta[None], met.observations[:1])[0], -1)
    to_go = np.array([sum(0.99**k * float(met.rewards[0, t + k]) for k in range(20 - t)) for t in range(20)])
    chosen = torch.nn.functional.one_hot(met.actions[0], 2)
    expected = ((chosen - probabilities) * torch.from_numpy(to_go).float()[:, None]).sum(0)
    torch.testing.assert_close(step([0])[12:], expected)


def test_the_learning_rate_falls_to_its_least() -> None:
    rate = Schedule(12.0, 5.0, 50, 0.06)
    assert [rate(number) for number in (0, 49, 50, 100, 150, 200, 900)] == pytest.approx(
        [12, 12, 2.4, 0.48, 0.096, 0.06, 0.06]
    )
