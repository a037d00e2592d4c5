"""A unit's scores are bounded, follow from its own rows alone, and are those of the slow, obvious loop."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.private.scores import Candidates, CorrectedModel, CorrectedScorer
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.mechanism.selection import ROUNDING, Scores
from tests.evaluation.conftest import random_policy
from tests.evaluation.private.logs import question

SMALL = CorrectedModel(features=12, rollouts=6, bandwidth=0.4, largest_weight=2.0)
UNITS, STEPS, HORIZON = 6, 9, 12


def problem(discrete: bool) -> Problem:
    """Two observations, and one action in a box or three discrete ones; the model is untrained."""
    actions = 3 if discrete else 1
    shape = Architecture(2, actions, 2, (8,), -10.0, 0.5, False)
    low, high = (torch.zeros(3), torch.ones(3)) if discrete else (torch.tensor([-2.0]), torch.tensor([2.0]))
    observation = torch.tensor([-3.0, -3.0]), torch.tensor([3.0, 3.0])
    size = shape.inputs
    normaliser = Normaliser(torch.zeros(size), torch.ones(size), torch.zeros(3), torch.ones(3))
    ensemble = GaussianEnsemble(
        shape, shape.initial_weights(0), normaliser, Bounds(*observation, low, high, -1.0, 1.0, discrete)
    )
    changes = {
        "horizon": HORIZON,
        "observation_low": observation[0],
        "observation_high": observation[1],
        "action_low": low,
        "action_high": high,
        "discrete_actions": discrete,
        "return_low": -5.0,
        "return_high": 5.0,
        "ensemble": ensemble,
        "starts": torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1,
    }
    return question(UNITS, 2, actions, **changes)


def candidates(discrete: bool) -> Candidates:
    drawn = random_policy(4, 2, 2.0)
    if not discrete:
        return Candidates.of([drawn.one(number) for number in range(4)])
    generator = torch.Generator().manual_seed(5)
    layers = (*drawn.layers[:2], torch.randn(4, 3, 8, generator=generator), torch.zeros(4, 1, 3))
    whole = DeterministicPolicy(layers, torch.zeros(2), torch.ones(2), torch.zeros(3), torch.ones(3), True)
    return Candidates.of([whole.one(number) for number in range(4)])


def episodes(discrete: bool, seed: int = 1) -> Episodes:
    """Two trajectories a unit; the last unit has a few rows only."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    own = torch.ones(UNITS, STEPS, dtype=torch.bool)
    own[-1, 4:] = False
    begins = torch.zeros_like(own)
    begins[:, 0], begins[:-1, 5] = True, True
    step = torch.arange(STEPS).expand(UNITS, -1) - 5 * (torch.arange(STEPS) >= 5) * torch.tensor([1] * 5 + [0])[:, None]
    action = 1.5 * normal(UNITS, STEPS, 1)
    if discrete:
        action = torch.nn.functional.one_hot(torch.randint(3, (UNITS, STEPS), generator=generator), 3).double()
    return Episodes(
        observation=normal(UNITS, STEPS, 2),
        action=action,
        reward=normal(UNITS, STEPS),
        following=normal(UNITS, STEPS, 2),
        terminated=normal(UNITS, STEPS) > 1.5,
        step=step.where(own, 0),
        begins=begins,
        ends=torch.zeros_like(own),
        own=own,
        probability=0.2 + 0.8 * torch.rand(UNITS, STEPS, generator=generator) if discrete else None,
    )


def fitted(discrete: bool = False, score: CorrectedModel = SMALL) -> CorrectedScorer:
    return score.fitted(problem(discrete), candidates(discrete))


def one_by_one(scorer: CorrectedScorer, data: Episodes, unit: int, policy: int) -> float:
    """The docstring's ψ, row by row."""
    question, total = scorer.problem, 0.0
    part = scorer.policies.parts[policy]

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
            gap = float(wanted / 2 - action.clamp(-2, 2) / 2)
            weight = math.exp(-0.5 * (gap / 0.4) ** 2) / (0.4 * math.sqrt(math.pi / 2))
        mean = question.ensemble.predict(held, action.clamp(question.action_low, question.action_high)[None])[0]
        mean = mean[:, 0]
        goes_on = step + 1 < HORIZON
        expected = sum(
            float(own[-1].clamp(-1, 1)) + 0.9 * goes_on * value(held[0] + own[:-1], step + 1) for own in mean
        ) / len(mean)
        real = float(data.reward[unit, row].clamp(-1, 1))
        real += 0.9 * (goes_on and not data.terminated[unit, row]) * value(data.following[unit, row], step + 1)
        total += 0.9**step * min(weight, 2.0) * (real - expected)
    found = (total / int(data.begins[unit].sum()) + 5) / 10
    return min(1.0, max(0.0, found))


@pytest.mark.parametrize("discrete", [False, True])
def test_it_is_the_obvious_loop(discrete: bool) -> None:
    scorer, data = fitted(discrete), episodes(discrete)
    found = scorer.scores(data)
    for unit in range(UNITS):
        for policy in range(4):
            assert float(found[unit, policy]) == pytest.approx(one_by_one(scorer, data, unit, policy), abs=1e-11)


def changed(data: Episodes, unit: int, value: float) -> Episodes:
    """Everything that one unit has is this number."""
    parts = {name: getattr(data, name).clone() for name in ("observation", "action", "reward", "following")}
    for part in parts.values():
        part[unit] = value
    return replace(data, **parts)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300, 1e300])
def test_whatever_a_unit_holds_its_scores_are_bounded_and_the_others_stay(value: float) -> None:
    """So zeroing it out moves each sum by at most one; rounding of a batched product may differ in the last digit."""
    scorer, data = fitted(), episodes(False)
    before, after = scorer.scores(data), scorer.scores(changed(data, 2, value))
    assert ((after >= 0) & (after <= 1)).all()
    others = torch.arange(UNITS) != 2
    torch.testing.assert_close(after[others], before[others], rtol=0, atol=float(ROUNDING))
    moved = Scores(4).total(after) - Scores(4).total(after[others])
    assert ((moved >= 0) & (moved <= 1 << 36)).all()


def test_units_are_scored_alone_and_padding_counts_for_nothing() -> None:
    scorer, data = fitted(), episodes(False)
    together = scorer.scores(data)
    short = Episodes(**{name: value if value is None else value[-1:, :4] for name, value in vars(data).items()})
    torch.testing.assert_close(scorer.scores(short)[0], together[-1], rtol=0, atol=float(ROUNDING))


def test_without_weight_only_the_first_states_count() -> None:
    scorer, data = fitted(score=replace(SMALL, largest_weight=0.0)), episodes(False)
    other = replace(data, reward=data.reward * 0, following=-data.following, action=-data.action)
    assert torch.equal(scorer.scores(data), scorer.scores(other))
    assert scorer.model_values().shape == (4,)
    assert not torch.equal(fitted().scores(data), fitted().scores(other))


@pytest.mark.parametrize(("horizon", "value"), [(HORIZON, 0.5 * (1 - 0.9**HORIZON) / 0.1), (None, 5.0)])
def test_the_value_is_that_of_the_model(horizon: int | None, value: float) -> None:
    """With one reward whatever happens, a value is a geometric series, and no correction is left."""
    asked = replace(problem(False), horizon=horizon)
    weights = tuple(torch.zeros_like(part) for part in asked.ensemble.weights)
    pays, sure = torch.tensor([0.0, 0.0, 0.5]), torch.full((3,), 1e-6)
    normaliser = replace(asked.ensemble.normaliser, target_mean=pays, target_scale=sure)
    asked = replace(asked, ensemble=replace(asked.ensemble, weights=weights, normaliser=normaliser))
    scorer = replace(SMALL, features=64, rollouts=32).fitted(asked, candidates(False))
    assert scorer.model_values().tolist() == pytest.approx([value] * 4, rel=0.02)


def test_policies_of_different_shapes_stand_side_by_side() -> None:
    one, two = random_policy(1, 2, 2.0, seed=1), random_policy(1, 2, 2.0, seed=2)
    first, bias, last, end = two.layers
    wide = replace(
        two, layers=(torch.cat((first, first), 1), torch.cat((bias, bias), 2), torch.cat((last, last), 2), end)
    )
    seen = torch.randn(2, 5, 2)
    both = Candidates.of([one, wide]).act(seen)
    torch.testing.assert_close(both[0].float(), one.act(seen[:1])[0])
    torch.testing.assert_close(both[1].float(), wide.act(seen[1:])[0])
