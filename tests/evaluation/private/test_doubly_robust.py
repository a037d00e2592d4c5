"""Doubly robust: a slow loop, the truth whatever the model says, its value where no weights are left, bounds."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.evaluation.private.doubly_robust import DoublyRobust
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import EvaluationState, run
from primorl.evaluation.private.problem import Problem
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.queries import ONE
from tests.evaluation.private import tiny_mdp

EXACT = 1e5  # a Gaussian mean at which noise is negligible


def estimator(**changed: object) -> DoublyRobust:
    """With a Q̂ that is wrong: the model pays 0.5 a step and nothing moves."""
    plain = DoublyRobust(
        largest_weight=1e4,
        lookback=tiny_mdp.HORIZON,
        behaviour=None,
        model_features=8,
        rollouts=64,
        largest_correction=20.0,
    )
    return replace(plain, **changed)  # type: ignore[arg-type]


def slow_number(own: DoublyRobust, problem: Problem, values: dict[str, Tensor], episodes: Episodes, unit: int) -> float:
    """ψ of one unit by a loop over its rows, before it is scaled."""
    assert episodes.probability is not None
    total, ratios = 0.0, [1.0]

    def q(observation: Tensor, action: Tensor | None, step: int) -> float:
        taken = problem.actions(observation) if action is None else action
        return float(own.action_values(problem, values, observation[None], taken[None], torch.tensor([step])))

    for row in range(int(episodes.own[unit].sum())):
        now, then, action = (part[unit, row] for part in (episodes.observation, episodes.following, episodes.action))
        if episodes.begins[unit, row]:
            step, ratios = 0, []
            total += q(now, None, 0)
        same = problem.actions(now).argmax() == action.argmax()
        ratios.append(1 / float(episodes.probability[unit, row]) if same else 0.0)
        weight = min(float(torch.tensor(ratios[-own.lookback :]).prod()), own.largest_weight)
        ahead = 0.0 if episodes.terminated[unit, row] or step + 1 == tiny_mdp.HORIZON else q(then, None, step + 1)
        error = float(episodes.reward[unit, row]) + tiny_mdp.DISCOUNT * ahead - q(now, action, step)
        total += tiny_mdp.DISCOUNT**step * weight * error
        step += 1
    return total / int(episodes.begins[unit].sum())


@pytest.mark.parametrize(("lookback", "largest"), [(1, 2.0), (2, 1e4), (5, 3.0)])
def test_contributions_are_those_of_a_slow_loop(lookback: int, largest: float) -> None:
    own, problem, episodes = estimator(lookback=lookback, largest_weight=largest), *_small()
    values = own.begin(problem)
    slow = [slow_number(own, problem, values, episodes, unit) for unit in range(episodes.units)]
    vectors = own.vectors(problem, values, episodes)[:, 0]
    found = torch.tensor([own.value(problem, vector[None])[0] for vector in vectors])
    torch.testing.assert_close(found, torch.tensor(slow), rtol=1e-5, atol=1e-5)


def test_without_noise_the_value_is_the_truth_though_the_model_is_wrong() -> None:
    source = tiny_mdp.log(6000)
    problem = tiny_mdp.problem(source.units)
    own = estimator()
    plan = own.plan(problem, EXACT)
    state = run(own, problem, plan, source)
    (value,) = own.estimates(problem, plan, state)
    assert value.ci95 is not None
    assert 0.01 < value.ci95[1] - value.ci95[0] < 0.2
    assert abs(value.value - tiny_mdp.true_value()) < value.ci95[1] - value.ci95[0]  # four standard errors
    first = own.action_values(
        problem, state.values, problem.starts, tiny_mdp.act(problem.starts), torch.zeros(3).long()
    )
    assert abs(float(first.mean()) - tiny_mdp.true_value()) > value.ci95[1] - value.ci95[0]


def test_who_is_never_treated_like_the_policy_leaves_the_model_its_value() -> None:
    problem, episodes = _small()
    problem = replace(problem, policy=lambda observation: 1 - tiny_mdp.act(observation))
    own = estimator()
    values = own.begin(problem)
    other = 1 - problem.actions(episodes.observation)
    alone = replace(episodes, action=other)
    first = own.action_values(
        problem, values, episodes.observation, problem.actions(episodes.observation), episodes.step
    )
    expected = (first * episodes.begins).sum(1) / episodes.trajectories
    found = torch.tensor([own.value(problem, vector)[0] for vector in own.vectors(problem, values, alone)])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_whatever_a_unit_holds_its_contribution_is_bounded_and_the_others_stay() -> None:
    own, problem = estimator(largest_weight=50.0, largest_correction=0.1), tiny_mdp.problem(20)
    values = own.begin(problem)
    sound, hostile = (own.vectors(problem, values, tiny_mdp.log(20, hostile=u).episodes()) for u in (None, 4))
    assert hostile.isfinite().all()
    assert (hostile.abs() <= 1).all()
    others = torch.arange(20) != 4
    torch.testing.assert_close(sound[others], hostile[others], atol=1e-12, rtol=0)
    plan = own.plan(problem, 1.0)
    assert isinstance(plan.clip, L2Clip)
    assert plan.clip.sensitivity == 1.0
    released = {**values, "doubly_robust_sums": torch.tensor([0.3], dtype=torch.float64)}
    alone = Episodes.read(tiny_mdp.log(20, hostile=4), torch.tensor([4]))
    (query,) = plan.queries
    assert 0 <= int(own.query_total(problem, query.what, released, alone)) <= query.sensitivity * ONE


def test_the_interval_is_that_of_a_mean_of_many_units() -> None:
    """Sampling and noise, to within what the noisy second moment adds."""
    own, problem = estimator(), tiny_mdp.problem(4000)
    plan = own.plan(problem, 0.5)
    middle, half = (problem.return_high + problem.return_low) / 2, problem.return_high * 20.5
    spread = torch.tensor([0.01], dtype=torch.float64)
    state = EvaluationState({"doubly_robust_sums": torch.tensor([0.0])}, {"doubly_robust_spread": spread})
    (value,) = own.estimates(problem, plan, state)
    noise = plan.noise_multiplier / 4000
    second = 0.01 + plan.queries[0].noise_multiplier / 4000
    expected = 1.96 * half * (second / 4000 + noise**2) ** 0.5
    assert value.value == pytest.approx(middle)
    assert value.ci95 is not None
    assert value.ci95[1] - middle == pytest.approx(min(expected, problem.return_high - middle), rel=1e-3)


def _small() -> tuple[Problem, Episodes]:
    return tiny_mdp.problem(12), tiny_mdp.log(12).episodes()
