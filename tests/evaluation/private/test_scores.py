"""A unit's scores are bounded, follow from its own rows alone, and are those of the slow, obvious loop."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.evaluation.private.problem import Episodes, Problem, in_float64
from primorl.evaluation.private.scores import CorrectedModel, CorrectedScorer, _acts
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.mechanism.selection import ROUNDING, Scores
from tests.evaluation.conftest import random_policy
from tests.evaluation.private import tiny_mdp
from tests.evaluation.private.conftest import Log, model, payers
from tests.evaluation.private.conftest import problem as paying

SMALL = CorrectedModel(features=12, rollouts=6, bandwidth=0.4, largest_weight=2.0)
UNITS, HORIZON = 6, 5


def problem(discrete: bool) -> Problem:
    if discrete:
        return replace(tiny_mdp.problem(UNITS), ensemble=tiny_mdp.ensemble(known=False))
    return paying(model([0.5, 0.9], [1.0, 1.0]), UNITS)


def candidates(discrete: bool) -> list[DeterministicPolicy]:
    if not discrete:
        drawn = random_policy(4, 1, 1.0)
        return [drawn.one(number) for number in range(4)]
    generator = torch.Generator().manual_seed(5)
    layers = (torch.randn(4, 2, 3, generator=generator), torch.zeros(4, 1, 2))
    whole = DeterministicPolicy(layers, torch.zeros(3), torch.ones(3), torch.zeros(2), torch.ones(2), True)
    return [whole.one(number) for number in range(4)]


def log(discrete: bool) -> Log:
    """One to three trajectories a unit, some of them short."""
    return tiny_mdp.log(UNITS) if discrete else payers(UNITS, 0.4, noise=1.0)


def fitted(discrete: bool = False, score: CorrectedModel = SMALL) -> CorrectedScorer:
    return score.fitted(problem(discrete), candidates(discrete))


def one_by_one(scorer: CorrectedScorer, data: Episodes, unit: int, policy: int) -> float:
    """The docstring's ψ, row by row."""
    question, total = scorer.problem, 0.0
    part, low, high = scorer.policies[policy], question.reward_low, question.reward_high

    def value(state: Tensor, step: int) -> float:
        return float(scorer.values(state, torch.tensor(step))[policy])

    for row in range(int(data.own[unit].sum())):
        step, state, action = int(data.step[unit, row]), data.observation[unit, row], data.action[unit, row]
        if data.begins[unit, row]:
            total += value(state, step)
        held = state.clamp(question.observation_low, question.observation_high)[None]
        wanted = part.act(held[None].double())[0, 0]
        if question.discrete_actions:
            assert data.probability is not None
            weight = float(wanted @ action) / float(data.probability[unit, row])
        else:
            gap = float(wanted - action)
            weight = math.exp(-0.5 * (gap / 0.4) ** 2) / (0.4 * math.sqrt(math.pi / 2))
        mean = question.ensemble.predict(held, action.clamp(question.action_low, question.action_high)[None])[0]
        mean = mean[:, 0]
        goes_on = step + 1 < HORIZON
        expected = sum(
            float(own[-1].clamp(low, high)) + 0.9 * goes_on * value(held[0] + own[:-1], step + 1) for own in mean
        ) / len(mean)
        real = float(data.reward[unit, row].clamp(low, high))
        real += 0.9 * (goes_on and not data.terminated[unit, row]) * value(data.following[unit, row], step + 1)
        total += 0.9**step * min(weight, 2.0) * (real - expected)
    mean_return, width = total / int(data.begins[unit].sum()), question.return_high - question.return_low
    return min(1.0, max(0.0, (mean_return - question.return_low) / width))


@pytest.mark.parametrize("discrete", [False, True])
def test_it_is_the_obvious_loop(discrete: bool) -> None:
    scorer, data = fitted(discrete), log(discrete).episodes()
    found = scorer.scores(data)
    for unit in range(UNITS):
        for policy in range(4):
            assert float(found[unit, policy]) == pytest.approx(one_by_one(scorer, data, unit, policy), abs=1e-11)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300, 1e300])
def test_whatever_a_unit_holds_its_scores_are_bounded_and_the_others_stay(value: float) -> None:
    """So zeroing it out moves each sum by at most one; rounding of a batched product may differ in the last digit."""
    scorer, source = fitted(), log(False)
    before, after = scorer.scores(source.episodes()), scorer.scores(source.spoilt(2, value).episodes())
    assert ((after >= 0) & (after <= 1)).all()
    others = torch.arange(UNITS) != 2
    torch.testing.assert_close(after[others], before[others], rtol=0, atol=float(ROUNDING))
    moved = Scores(4).total(after) - Scores(4).total(after[others])
    assert ((moved >= 0) & (moved <= 1 << 36)).all()
    alone = scorer.scores(Episodes.read(source, torch.tensor([3])))
    torch.testing.assert_close(alone[0], before[3], rtol=0, atol=float(ROUNDING))


def test_without_weight_only_the_first_states_count() -> None:
    scorer, data = fitted(score=replace(SMALL, largest_weight=0.0)), log(False).episodes()
    other = replace(data, reward=data.reward * 0, following=-data.following, action=-data.action)
    assert torch.equal(scorer.scores(data), scorer.scores(other))
    assert scorer.model_values().shape == (4,)
    assert not torch.equal(fitted().scores(data), fitted().scores(other))


@pytest.mark.parametrize(("horizon", "value"), [(HORIZON, 0.5 * (1 - 0.9**HORIZON) / 0.1), (None, 5.0)])
def test_the_value_is_that_of_the_model(horizon: int | None, value: float) -> None:
    """With one reward whatever happens, a value is a geometric series."""
    asked = paying(model([0.5, 0.5], [1.0, 1.0]), UNITS, horizon=horizon)
    scorer = replace(SMALL, features=64, rollouts=32).fitted(asked, candidates(False))
    assert scorer.model_values().tolist() == pytest.approx([value] * 4, rel=0.02)


def test_policies_of_different_shapes_stand_side_by_side() -> None:
    one, two = random_policy(1, 2, 2.0, seed=1), random_policy(1, 2, 2.0, seed=2)
    first, bias, last, end = two.layers
    wide = replace(
        two, layers=(torch.cat((first, first), 1), torch.cat((bias, bias), 2), torch.cat((last, last), 2), end)
    )
    seen = torch.randn(2, 5, 2)
    both = _acts([in_float64(one), in_float64(wide)], seen)
    torch.testing.assert_close(both[0].float(), one.act(seen[:1])[0])
    torch.testing.assert_close(both[1].float(), wide.act(seen[1:])[0])
