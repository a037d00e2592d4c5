"""Values in the released model are those of models in which they are known, and count steps as
recordings have them; so do the rows that tell what a policy does.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from primorl.evaluate.private.model_values import (
    PaidActions,
    Rollouts,
    compare_actions,
    roll_out,
    signs_against,
    values_in_model,
)
from primorl.evaluate.private.problem import PublicTrajectories, public_return_bounds
from primorl.evaluate.private.results import AS_DRAWN, MEAN_RETURN, Answer, Conduct
from primorl.evaluate.summary import Estimate
from primorl.model.architecture import TERMINATION_GAIN
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.pessimism import returns_by_member, step_weights
from primorl.model.termination import RULES, Rule
from tests.evaluate.conftest import random_policy
from tests.evaluate.private.conftest import Acting, model, payers, problem, question

HALVES = torch.tensor([1.0, 0.5, 0.25, 0.125, 0.0], dtype=torch.float64)
HALF_LIVED = float(HALVES.sum())  # a return of ones


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that ends episodes where the state is beyond 2.5."""
    rule = Rule(1, lambda observation, action, following: following[:, 0] > 2.5)
    monkeypatch.setitem(RULES, "far", rule)


def values(ensemble: GaussianEnsemble, start: float = 0.0) -> list[float]:
    """Of rollouts of ten steps, by each member."""
    policy, starts = random_policy(2, 1, 1.0), torch.full((5, 1), start)
    found = returns_by_member(
        ensemble, policy, starts, rollouts=6, weights=step_weights(10), seed=0
    ).mean(-1)
    assert torch.equal(found[0], found[1]), "whatever the policy does"
    one: list[float] = found[0].tolist()
    return one


def test_every_member_is_rolled_out_alone_unpenalised_until_it_terminates() -> None:
    found = values(model([1.0, -2.0, 1.5], [0.0, 0.0, 0.0]))
    assert found == pytest.approx([10.0, -20.0, 15.0], rel=1e-5)
    spread = Estimate.in_model(torch.tensor(found))
    assert (spread.mean, spread.low, spread.high) == pytest.approx((5 / 3, -20.0, 15.0), rel=1e-5)
    ensemble = replace(model([1.0, 0.75, -1.0], [1.0, 0.75, -0.1]), termination="far")
    assert values(ensemble) == pytest.approx([3.0, 3.0, -10.0], rel=1e-5)
    assert values(ensemble, start=2.0)[0] == pytest.approx(1.0, rel=1e-5), "from where it is begun"


def trajectories(
    lengths: list[int], terminated: list[bool] | None = None, weight: list[float] | None = None
) -> PublicTrajectories:
    count = len(lengths)
    weights = torch.tensor(weight or [1.0] * count, dtype=torch.float64)
    ended = torch.tensor(terminated or [False] * count)
    rewards = torch.zeros(count, max(lengths)).double()
    return PublicTrajectories(torch.tensor(lengths), ended, weights, rewards)


def test_survival_is_the_chance_that_a_trajectory_which_does_not_terminate_goes_on() -> None:
    """Every unit counts once.

    The twin of random cuts and terminations: the share that is longer would be seen.
    """
    found = trajectories([1, 3, 3, 6], weight=[1.0, 0.5, 0.5, 2.0]).survival(8)
    assert found.tolist() == [1.0, 0.75, 0.75, 0.5, 0.5, 0.5, 0.0, 0.0]
    generator = torch.Generator().manual_seed(1)
    cut, end = (torch.rand(20_000, 40, generator=generator) < chance for chance in (0.1, 0.2))
    stopped = (cut | end).long().argmax(1)
    found = trajectories(
        (stopped + 1).tolist(), end[torch.arange(20_000), stopped].tolist()
    ).survival(8)
    torch.testing.assert_close(
        found, 0.9 ** torch.arange(8, dtype=torch.float64), atol=0.02, rtol=0
    )
    longer = (stopped + 1 > torch.arange(8)[:, None]).double().mean(1)
    assert float((longer - found).abs().max()) > 0.3
    read = PublicTrajectories.of(payers(3, 1.0, length=4))
    rows = payers(3, 1.0, length=4).episodes()
    assert read.length.tolist() == [4] * 6, "1, 2 and 3 trajectories"
    torch.testing.assert_close(read.weight.sum(), torch.tensor(3.0, dtype=torch.float64))
    torch.testing.assert_close(read.reward.sum(), rows.reward.where(rows.own, 0.0).sum())


def rows(drawn: Tensor, *, known: bool = True) -> Rollouts:
    every = torch.full((len(drawn),), known)
    return Rollouts(torch.zeros(1, 1), None, drawn, drawn, drawn, every)


def test_a_policy_that_leaves_the_states_or_actions_of_another_is_seen_to() -> None:
    """Twin: the other one itself."""
    drawn = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0))
    other, late = rows(drawn), drawn.clone()
    late[:2000] = 9.0
    shares = [each.share_beyond(other) for each in (other, rows(late), rows(drawn, known=False))]
    assert shares == pytest.approx([0.02, 0.118, 1.0], abs=0.005)


def test_rollouts_weigh_steps_as_recordings_have_them() -> None:
    asked = problem(1)
    (policy, *_), (whole, _, clone, beyond) = (
        values_in_model(*(roll_out(each, each.policy, 8) for _ in range(3)))
        for each in (replace(asked, survival=HALVES), asked)
    )
    assert policy.members == pytest.approx([0.5 * HALF_LIVED, 0.9 * HALF_LIVED], rel=1e-3)
    assert whole.value > 1.9 * policy.value, "the twin: whole rollouts are worth more"
    assert (clone.what, clone.members) == (AS_DRAWN, whole.members), "they do the same"
    assert beyond.value == 0.0


def test_return_bounds_are_those_of_public_returns_and_a_spread_more() -> None:
    asked = problem(1, horizon=3)
    rewards = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.5, 0.6]], dtype=torch.float64)
    public = replace(trajectories([3, 3]), reward=rewards)
    assert public_return_bounds(public, asked) == pytest.approx((-0.11, 3.2)), (
        "1 to 2.1, rounded outwards"
    )
    # Held within the rewards' own bounds, [-2, 2], and what they allow.
    wide = replace(public, reward=rewards * 4)
    assert public_return_bounds(wide, asked) == pytest.approx((2.0, 6.0))
    assert public_return_bounds(replace(public, reward=rewards[[0, 0]]), asked) is None


def said(*, policy: float, today: float, random: float, apart: float = 0.0) -> list[Answer]:
    facts: dict[str, Any] = {"estimator": "model", "ci95": None, "covers": "x", "bias": "x"}
    facts |= {"epsilon": None, "delta": None}
    values: tuple[tuple[Any, str, float, float], ...] = (
        ("policy", MEAN_RETURN, policy, 0.0),
        ("clone", AS_DRAWN, today, 0.0),
        ("random", MEAN_RETURN, random, apart),  # its members are
    )
    return [
        Answer(of=of, what=what, value=value, members=(value + far, value - far), **facts)
        for of, what, value, far in values
    ]


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, []),
        ({"policy": 23.6}, ["beyond_bounds"]),
        ({"policy": -0.1}, ["beyond_bounds"]),
        ({"random": 7.0}, ["random_as_good"]),
        ({"random": 7.0, "apart": 2.0}, []),  # not each member says so
        ({"policy": math.nan}, ["not_finite"]),
    ],
)
def test_free_signs_against_the_model_are_found(
    changes: dict[str, float], kinds: list[str]
) -> None:
    """Nobody can have more than 10, or less than 0; practice has 7."""
    asked = replace(problem(4), return_low=0.0, return_high=10.0)
    values = said(**{"policy": 9.0, "today": 7.0, "random": 3.0} | changes)
    found = signs_against(asked, values)
    assert [veto.kind for veto in found] == kinds
    impossible = str(changes.get("policy"))
    assert not any(impossible in veto.reason for veto in found), "as if it were a value"


def test_an_outcome_is_earned_once() -> None:
    """A model that pays 2 in every step, and ends in one of ten. The twins: without bounds before
    the end, and without ends, values are impossible, so the model is not believed.
    """
    found = model([2.0, 2.0], [0.0, 0.0])
    *others, weight, bias = found.weights
    chance = torch.full((2, 1, 1), math.log(0.1 / 0.9) / TERMINATION_GAIN)
    ending = replace(
        found,
        architecture=replace(found.architecture, learned_termination=True),
        weights=(*others, pad(weight, (0, 1)), torch.cat((bias, chance), -1)),
        normaliser=replace(found.normaliser, flag=True),
        termination="learned",
    )
    asked = problem(4, ending, reward_low=-2.0, reward_high=2.0, horizon=30)
    bounds = replace(asked.bounds, before_end=(0.0, 0.0))
    sound = replace(asked.ensemble, bounds=bounds)
    asked = replace(asked, ensemble=sound).with_return_bounds(None)
    assert (asked.return_low, asked.return_high) == (-2.0, 2.0)
    unbound = replace(sound, bounds=replace(bounds, before_end=None))
    impossible = ["beyond_bounds"]
    for ensemble, vetoes in (
        (sound, []),
        (unbound, impossible),
        (sound.with_ends("none"), impossible),
    ):
        each = replace(asked, ensemble=ensemble)
        own = roll_out(each, each.policy, 400)
        of_policy = values_in_model(own, own)[:1]
        assert [veto.kind for veto in signs_against(each, of_policy)] == vetoes
        assert of_policy[0].value > 1.5


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_model_that_predicts_no_finite_number_is_not_praised(number: float) -> None:
    """Rewards are negative, so 0 would be the best. The twin: a sound model."""
    asked = problem(4, model([-0.5, -0.9], [1.0, 1.0]), reward_low=-2.0, reward_high=0.0)
    weights = asked.ensemble.weights
    broken = tuple(part.clone() for part in weights)
    broken[-1][0, 0, 1] = number
    for each, finite in ((weights, True), (broken, False)):
        own = roll_out(
            replace(asked, ensemble=replace(asked.ensemble, weights=each)), asked.policy, 8
        )
        found = values_in_model(own, own, own)
        of_policy = found[0]
        assert of_policy.finite == finite
        assert ("not_finite" in {veto.kind for veto in signs_against(asked, found)}) != finite


def rest(observation: Tensor) -> Tensor:
    """What the clone does: nothing, at any time."""
    return torch.zeros_like(observation)


def conduct(policy: Any, **changes: Any) -> Conduct:
    """Of a policy beside `rest` in a chain of five states that say the time."""
    asked = replace(problem(10), policy=Acting(policy), **changes)
    paid = PaidActions(torch.tensor([0.25]), None)
    names = ["time"], ["7"]
    own, today = (roll_out(asked, Acting(act), 512) for act in (policy, rest))
    return compare_actions(asked, own, today, names, paid, ("lost", "won"))


def test_the_largest_change_is_found_where_it_is() -> None:
    """Twins: one that is the same everywhere, and none."""
    found = conduct(lambda state: (state > 2.5).float())
    (use,) = found.actions
    assert (use.name, use.today, use.clone) == ("action 7", 0.25, 0.0)
    assert use.policy == pytest.approx(0.4, abs=0.02), "in two of five steps"
    assert (use.clone_range, use.policy_range) == ((0.0, 0.0), (0.0, 1.0))
    where = found.contrast
    assert where is not None
    assert (where.action, where.column, where.above) == ("action 7", "time", True)
    assert (where.threshold, where.clone) == (2.0, 0.0)
    assert where.policy > 0.75
    everywhere = conduct(torch.ones_like).contrast
    assert everywhere is not None
    assert everywhere.column is None
    assert conduct(rest).contrast is None


def test_the_action_that_changes_most_in_all_states_together_is_named() -> None:
    """Twin: where none does, one that changes on one side of a column."""
    seen = torch.linspace(-1, 1, 100)[:, None]
    today = replace(rows(seen), action=torch.zeros(100, 2))
    for more, named in ((0.5, ("more", None)), (0.0, ("turned", "x"))):

        def act(x: Tensor, more: float = more) -> Tensor:
            return torch.cat((torch.full_like(x, more), x.sign()), 1)

        asked = question(4, 1, 2, policy=Acting(act))
        found = compare_actions(asked, today, today, (["x"], ["more", "turned"]), None).contrast
        assert found is not None
        assert (found.action, found.column) == named


def test_every_rollout_counts_once_and_is_cut_as_recordings_are() -> None:
    """Twin: rollouts that are never cut all come to their end."""
    found = conduct(lambda state: (state > 2.5).float(), survival=HALVES)
    assert found.actions[0].policy == pytest.approx(0.125 / 4, abs=0.02)
    assert found.policy_ended is None, "the model has no ends"
    ensemble = replace(problem(10).ensemble, termination="far")
    assert conduct(rest, ensemble=ensemble).policy_ended == 1.0
    cut = conduct(rest, ensemble=ensemble, survival=HALVES)
    assert cut.policy_ended == pytest.approx(0.25, abs=0.06)


def test_two_outcomes_are_told_by_what_trajectories_earn() -> None:
    """The ends earn -2 and 2: of a mean of 0 each is half. Twin: if none ends, neither."""
    for pay, end, shares in (
        (0.0, "far", (0.5, 0.5)),
        (2.0, "far", (0.0, 1.0)),
        (0.0, "none", (0.0, 0.0)),
    ):
        ensemble = replace(model([pay], [1.0]), termination=end)
        lost, won = conduct(rest, ensemble=ensemble).outcomes
        assert (lost.name, lost.reward, won.name, won.reward) == ("lost", -2.0, "won", 2.0)
        assert (lost.clone, won.clone) == (lost.policy, won.policy) == shares
