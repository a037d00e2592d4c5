"""Importance sampling: blocks against a slow loop, the truth of a small MDP, bounds on one unit, the interval."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from primorl.evaluation.private.behaviour_model import BehaviourFit, Cloned
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import Estimate, EvaluationState, run
from primorl.evaluation.private.importance import ImportanceSampling
from primorl.evaluation.private.precision import BLOCK
from primorl.evaluation.private.problem import Problem
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.queries import ONE
from primorl.project.errors import PipelineError
from tests.evaluation.private import tiny_mdp

EXACT = 1e5  # a Gaussian mean at which noise is negligible
BLOCKS = [(0, 1), (1, 2), (2, 4), (4, 5)]  # of 5 steps

FIT = BehaviourFit(sampling_probability=0.3, rounds=50, clipping_norm=1.0, learning_rate=0.2, budget_share=0.5)


def estimator(**changed: object) -> ImportanceSampling:
    plain = ImportanceSampling(largest_weight=1e4, lookback=tiny_mdp.HORIZON, behaviour=None)
    return replace(plain, **changed)  # type: ignore[arg-type]


def slow_vector(own: ImportanceSampling, problem: Problem, episodes: Episodes, unit: int) -> Tensor:
    """One unit by a loop over its trajectories and all steps of the horizon."""
    assert episodes.probability is not None
    rows = range(int(episodes.own[unit].sum()))
    first = [row for row in rows if episodes.begins[unit, row]]
    vector = torch.zeros(4, len(BLOCKS), dtype=torch.float64)
    chosen = problem.actions(episodes.observation).argmax(-1)
    for begin, end in zip(first, [*first[1:], len(rows)], strict=True):
        ratios: list[float] = []
        for step in range(tiny_mdp.HORIZON):
            block = next(number for number, (low, high) in enumerate(BLOCKS) if low <= step < high)
            row = begin + step
            if row < end:
                same = chosen[unit, row] == episodes.action[unit, row].argmax()
                ratios.append(1 / float(episodes.probability[unit, row]) if same else 0.0)
                reward = tiny_mdp.DISCOUNT**step * float(episodes.reward[unit, row]) / problem.return_high
                weight = 1.0
                for ratio in ratios[-own.lookback :]:
                    weight = min(weight * ratio, own.largest_weight)
                vector[0, block] += weight * reward
                vector[2, block] += reward
                vector[3, block] += 1 / (BLOCKS[block][1] - BLOCKS[block][0])
            vector[1, block] += weight / (BLOCKS[block][1] - BLOCKS[block][0])
    return vector.flatten() / len(first)


@pytest.mark.parametrize("lookback", [1, 2, 5])
@pytest.mark.parametrize("largest", [3.0, 1e4])
def test_vectors_are_those_of_a_slow_loop(lookback: int, largest: float) -> None:
    own, problem, episodes = estimator(lookback=lookback, largest_weight=largest), *_small()
    slow = torch.stack([slow_vector(own, problem, episodes, unit) for unit in range(episodes.units)])
    torch.testing.assert_close(own.vectors(problem, {}, episodes), slow)


def test_without_noise_the_value_is_the_truth() -> None:
    """Weights are not cut and the whole past is weighed, so the estimator is consistent."""
    state, value = _evaluated(estimator(largest_weight=200.0), 10000)
    assert value.ci95 is not None
    assert 0.01 < value.ci95[1] - value.ci95[0] < 0.2
    assert abs(value.value - tiny_mdp.true_value()) < value.ci95[1] - value.ci95[0]  # four standard errors
    weights = state.values["importance_sums"].view(4, -1)[1]
    torch.testing.assert_close(weights, torch.ones_like(weights), atol=0.15, rtol=0)


def test_a_fitted_behaviour_stands_in_for_the_logged_one() -> None:
    source = tiny_mdp.log(3000).without_probabilities()
    problem = tiny_mdp.problem(source.units)
    own = estimator(behaviour=FIT)
    plan = own.plan(problem, EXACT)
    state = run(own, problem, plan, source)
    (value,) = own.estimates(problem, plan, state)
    assert abs(value.value - tiny_mdp.true_value()) < 0.15
    with pytest.raises(PipelineError, match="names no probabilities"):
        run(estimator(), problem, estimator().plan(problem, EXACT), source)


def test_a_clone_stands_in_for_the_logged_behaviour_at_no_further_cost() -> None:
    """Its probabilities make the weights; nothing is spent on a fit. Twin: a clone that is wrong makes others."""
    problem, logged = tiny_mdp.problem(50), tiny_mdp.log(50)
    silent, cloned = logged.without_probabilities().episodes(), estimator(behaviour=Cloned())
    known = replace(problem, clone=tiny_mdp.clone)
    expected = estimator().vectors(problem, {}, logged.episodes())
    torch.testing.assert_close(cloned.vectors(known, {}, silent), expected)
    wrong = replace(problem, clone=lambda rows: torch.full((len(rows), 2), 0.5, dtype=torch.float64))
    assert not torch.allclose(cloned.vectors(wrong, {}, silent), expected, atol=0.1)
    assert str(cloned.plan(known, 0.3)) == str(estimator().plan(problem, 0.3))
    assert "clone" in cloned.bias()
    sizes: list[int] = []
    blocks = replace(problem, clone=lambda rows: (sizes.append(len(rows)), tiny_mdp.clone(rows))[1])
    cloned.vectors(blocks, {}, silent)
    assert set(sizes) == {BLOCK}, "a row's rounding would depend on who shares its batch"
    with pytest.raises(ValueError, match="no clone"):
        cloned.vectors(problem, {}, silent)


def test_where_weights_have_died_out_the_value_is_that_of_the_behaviour() -> None:
    own, problem = estimator(), tiny_mdp.problem(10)
    plain = torch.tensor([0.1, 0.2, 0.0, 0.05], dtype=torch.float64)
    mean = torch.cat((torch.zeros(4), torch.full((4,), -0.3), plain, torch.tensor([1.0, 0.9, 0.5, -0.1])))
    value, gradient = own.value(problem, mean)
    assert value == pytest.approx(float(plain.sum()) * problem.return_high)
    assert (gradient[4:8] == 0).all()


def test_missing_weights_earn_what_trajectories_earn_that_go_on() -> None:
    """Half of the people have ended, with all the weight that is left: the others earn 0.2 / 0.5 in the behaviour."""
    own, problem = estimator(), tiny_mdp.problem(10)
    zeros = torch.zeros(3, dtype=torch.float64)
    by_block = [torch.cat((torch.tensor([first]), zeros)) for first in (0.0, 0.75, 0.2, 0.5)]
    by_block[1][1:] = 1.0
    value, _ = own.value(problem, torch.cat(by_block))
    assert value == pytest.approx(0.25 * 0.2 / 0.5 * problem.return_high)


def test_the_gradient_is_that_of_the_value() -> None:
    own, problem = estimator(), tiny_mdp.problem(10)
    mean = 2 * torch.rand(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, gradient = own.value(problem, mean)
    for number, slope in enumerate(gradient.tolist()):
        step = torch.zeros(16, dtype=torch.float64)
        step[number] = 1e-6
        difference = own.value(problem, mean + step)[0] - own.value(problem, mean - step)[0]
        assert difference / 2e-6 == pytest.approx(slope, abs=1e-5)


def check_bound(own: ImportanceSampling, vectors: Tensor) -> None:
    """Every number of a contribution is within the largest weight."""
    assert vectors.isfinite().all()
    assert (vectors.abs() <= own.largest_weight * (1 + 1e-12)).all()


class Unbounded(ImportanceSampling):
    """The twin: weights are not cut."""

    def weights(self, problem: Problem, values: object, episodes: Episodes) -> Tensor:
        return replace(estimator(), lookback=self.lookback).weights(problem, {}, episodes)


@settings(max_examples=20, deadline=None)
@given(largest=st.floats(1, 50), lookback=st.integers(1, 6), seed=st.integers(0, 99))
def test_weights_and_contributions_are_bounded_whatever_a_unit_holds(largest: float, lookback: int, seed: int) -> None:
    own, problem = estimator(largest_weight=largest, lookback=lookback), tiny_mdp.problem(8)
    episodes = tiny_mdp.log(8, seed, hostile=3).episodes()
    weights = own.weights(problem, {}, episodes)
    assert (weights >= 0).all()
    assert (weights <= largest).all()
    check_bound(own, own.vectors(problem, {}, episodes))


def test_without_the_bound_on_weights_the_check_fails() -> None:
    problem, episodes = _small()
    own = Unbounded(largest_weight=3.0, lookback=5, behaviour=None)
    with pytest.raises(AssertionError):
        check_bound(own, own.vectors(problem, {}, episodes))


@pytest.mark.parametrize("behaviour", [None, FIT, Cloned()])
def test_a_unit_moves_no_sum_by_more_than_its_sensitivity(behaviour: BehaviourFit | Cloned | None) -> None:
    """Whatever one unit holds, the others' contributions stay, and its own are within the bounds that are charged."""
    own = estimator(behaviour=behaviour, largest_weight=4.0)
    problem = replace(tiny_mdp.problem(40), clone=tiny_mdp.clone)
    plan = own.plan(problem, 1.0)
    values = {**own.begin(problem), "importance_sums": torch.rand(16, dtype=torch.float64)}
    sound, hostile = (tiny_mdp.log(40, hostile=unit).episodes() for unit in (None, 7))
    assert isinstance(plan.clip, L2Clip)
    a, b = (plan.clip.finish(own.contributions(problem, values, episodes)) for episodes in (sound, hostile))
    others = torch.arange(40) != 7
    torch.testing.assert_close(a[others], b[others], atol=1e-12, rtol=0)
    assert float(b[7].norm()) <= plan.clip.sensitivity
    alone = Episodes.read(tiny_mdp.log(40, hostile=7), torch.tensor([7]))
    for query in plan.queries:
        total = own.query_total(problem, query.what, values, alone).double() / ONE
        assert float(total.norm()) <= query.sensitivity


def test_both_releases_are_paid_for() -> None:
    """The Gaussian means of the releases add up, squared, to the share that was given."""
    problem = tiny_mdp.problem(1000)
    plan = estimator().plan(problem, 0.3)
    shares = [plan.noise_multiplier, *(query.noise_multiplier for query in plan.queries)]
    assert sum(z**-2 for z in shares) == pytest.approx(0.3**2)
    fitted = estimator(behaviour=FIT).plan(problem, 0.3)
    assert sum(query.noise_multiplier**-2 for query in fitted.queries) == pytest.approx(0.5 * 0.3**2)
    assert fitted.rounds == FIT.rounds
    spent = plan.spent()
    other = fitted.spent()
    assert spent
    assert other
    assert other.epsilon_pld == pytest.approx(spent.epsilon_pld, rel=0.15)


def test_actions_in_a_box_are_refused() -> None:
    problem = replace(tiny_mdp.problem(10), discrete_actions=False)
    with pytest.raises(PipelineError, match="needs discrete actions"):
        estimator().plan(problem, 1.0)


def test_the_interval_covers_what_sampling_and_noise_do() -> None:
    """95% intervals of 400 resamples hold the whole population's value 93% of the time at least; halves do not."""
    units = 1500
    own, problem = estimator(largest_weight=10.0), tiny_mdp.problem(units)
    episodes = tiny_mdp.log(10000).episodes()
    vectors = L2Clip(own.norm(problem)).finish(own.vectors(problem, {}, episodes))
    target, _ = own.value(problem, vectors.mean(0))
    plan = own.plan(problem, 0.3)
    generator = torch.Generator().manual_seed(1)
    covered = halved = 0
    for _ in range(400):
        drawn = vectors[torch.randint(len(vectors), (units,), generator=generator)]
        scale = plan.noise_multiplier * plan.clipping_norm / units
        mean = drawn.mean(0) + scale * torch.randn(vectors.shape[1], generator=generator)
        _, gradient = own.value(problem, mean)
        second = (drawn @ gradient / (own.norm(problem) * gradient.norm())).square().mean()
        second = second + plan.queries[0].standard_deviation / units * torch.randn((), generator=generator)
        state = EvaluationState({"importance_sums": mean}, {"importance_spread": second[None]}, finished=True)
        (value,) = own.estimates(problem, plan, state)
        assert value.ci95 is not None
        low, high = value.ci95
        covered += low <= target <= high
        halved += abs(value.value - target) <= (high - low) / 4
    assert 0.93 * 400 <= covered <= 0.995 * 400
    assert halved < 0.85 * 400


def _small() -> tuple[Problem, Episodes]:
    return tiny_mdp.problem(30), tiny_mdp.log(30).episodes()


def _evaluated(own: ImportanceSampling, units: int) -> tuple[EvaluationState, Estimate]:
    source = tiny_mdp.log(units)
    problem = tiny_mdp.problem(units)
    plan = own.plan(problem, EXACT)
    state = run(own, problem, plan, source)
    (value,) = own.estimates(problem, plan, state)
    return state, value
