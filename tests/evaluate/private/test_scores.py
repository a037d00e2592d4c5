"""A unit's scores are bounded, follow from its own rows alone, and are those of the slow, obvious loop."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.evaluate.private.problem import Episodes, in_float64
from primorl.evaluate.private.scores import CorrectedModel, CorrectedScorer, _acts
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.mechanism.selection import ROUNDING, Scores
from tests.evaluate.conftest import random_policy
from tests.evaluate.private import tiny_mdp
from tests.evaluate.private.conftest import Log, model, payers, problem

SMALL = CorrectedModel(features=12, rollouts=6, bandwidth=0.4, largest_weight=2.0)
UNITS, HORIZON = 6, 5
DRAWN = [random_policy(4, 1, 1.0).one(number) for number in range(4)]


def fitted(discrete: bool = False, score: CorrectedModel = SMALL) -> tuple[CorrectedScorer, Log]:
    """The scorer of four policies, and a log of one to three trajectories a unit, some of them short."""
    if not discrete:
        return score.fitted(problem(UNITS), DRAWN), payers(UNITS, 0.4, noise=1.0)
    layers = (
        torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(5)),
        torch.zeros(4, 1, 2),
    )
    whole = DeterministicPolicy(
        layers, torch.zeros(3), torch.ones(3), torch.zeros(2), torch.ones(2), True
    )
    policies = [whole.one(number) for number in range(4)]
    return score.fitted(tiny_mdp.problem(UNITS, known=False), policies), tiny_mdp.log(UNITS)


def one_by_one(scorer: CorrectedScorer, data: Episodes, unit: int, policy: int) -> float:
    """The docstring's ψ, row by row."""
    question, total = scorer.problem, 0.0
    part, low, high = scorer.policies[policy], question.reward_low, question.reward_high

    def value(state: Tensor, step: int) -> float:
        return float(scorer.values(state, torch.tensor(step))[policy])

    for row in range(int(data.own[unit].sum())):
        step, state, action = (
            int(data.step[unit, row]),
            data.observation[unit, row],
            data.action[unit, row],
        )
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
        mean = question.ensemble.predict(
            held, action.clamp(question.action_low, question.action_high)[None]
        )[0]
        mean = mean[:, 0]
        goes_on = step + 1 < HORIZON
        expected = sum(
            float(own[-1].clamp(low, high)) + 0.9 * goes_on * value(held[0] + own[:-1], step + 1)
            for own in mean
        ) / len(mean)
        real = float(data.reward[unit, row].clamp(low, high))
        real += (
            0.9
            * (goes_on and not data.terminated[unit, row])
            * value(data.following[unit, row], step + 1)
        )
        total += 0.9**step * min(weight, 2.0) * (real - expected)
    mean_return, width = (
        total / int(data.begins[unit].sum()),
        question.return_high - question.return_low,
    )
    return min(1.0, max(0.0, (mean_return - question.return_low) / width))


@pytest.mark.parametrize("discrete", [False, True])
def test_it_is_the_obvious_loop(discrete: bool) -> None:
    scorer, source = fitted(discrete)
    data = source.episodes()
    slow = [
        [one_by_one(scorer, data, unit, policy) for policy in range(4)] for unit in range(UNITS)
    ]
    torch.testing.assert_close(
        scorer.scores(data), torch.tensor(slow, dtype=torch.float64), rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300, 1e300])
def test_whatever_a_unit_holds_its_scores_are_bounded_and_the_others_stay(value: float) -> None:
    scorer, source = fitted()
    before, after = (
        scorer.scores(source.episodes()),
        scorer.scores(source.spoilt(2, value).episodes()),
    )
    assert ((after >= 0) & (after <= 1)).all()
    others = torch.arange(UNITS) != 2
    torch.testing.assert_close(after[others], before[others], rtol=0, atol=float(ROUNDING))
    moved = Scores(4).total(after) - Scores(4).total(after[others])
    assert ((moved >= 0) & (moved <= 1 << 36)).all()
    torch.testing.assert_close(
        scorer.scores(source.episodes(3))[0], before[3], rtol=0, atol=float(ROUNDING)
    )


@pytest.mark.parametrize(
    ("horizon", "value"), [(HORIZON, 0.5 * (1 - 0.9**HORIZON) / 0.1), (None, 5.0)]
)
def test_the_value_is_that_of_the_model_and_policies_may_have_several_shapes(
    horizon: int | None, value: float
) -> None:
    asked = problem(UNITS, model([0.5, 0.5], [1.0, 1.0]), horizon=horizon)
    first, bias, last, end = DRAWN[1].layers
    layers = (
        torch.cat((first, first), 1),
        torch.cat((bias, bias), 2),
        torch.cat((last, last), 2),
        end,
    )
    policies = [DRAWN[0], replace(DRAWN[1], layers=layers), *DRAWN[2:]]
    scorer = replace(SMALL, features=64, rollouts=32).fitted(asked, policies)
    assert scorer.values(asked.starts, torch.zeros(4).long()).mean(0).tolist() == pytest.approx(
        [value] * 4, rel=0.02
    )
    seen = torch.randn(4, 5, 1)
    both = _acts([in_float64(one) for one in policies], seen)
    for number, one in enumerate(policies):
        torch.testing.assert_close(both[number].float(), one.act(seen[[number]])[0])
