"""Whatever a unit holds, its part in a release is bounded, and nobody else's changes."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.evaluate.private import problem as rows_of_units
from primorl.evaluate.private.behaviour import Behaviour
from primorl.evaluate.private.doubly_robust import BehaviourFit, Cloned, DoublyRobust
from primorl.evaluate.private.dptd import Dptd
from primorl.evaluate.private.estimator import (
    Estimator,
    EvaluationState,
    FirstStateValue,
    OneRelease,
    run,
)
from primorl.evaluate.private.lstd import Lstd
from primorl.evaluate.private.model_check import ModelCheck
from primorl.evaluate.private.problem import Episodes, Problem, row_shares, sum_of_rows
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.queries import ONE, BoundedSum
from primorl.privacy.mechanism.sampling import SeededEntropy
from tests.evaluate.private import tiny_mdp
from tests.evaluate.private.conftest import Log, payers, problem

UNITS, SPOILT = 12, 4
HOSTILE = (math.nan, math.inf, -1e300, 3e38, 1e8)
TINY, CHAIN = tiny_mdp.problem(UNITS, known=False), problem(UNITS)
FIT = BehaviourFit(
    sampling_probability=0.5, rounds=60, clipping_norm=0.5, learning_rate=0.1, budget_share=0.5
)
LSTD = Lstd(model_features=8, rollouts=16, rows=100, clipping_norm=0.4, query_share=0.5)


def dptd(**changes: Any) -> Dptd:
    """Small settings that converge on a chain."""
    rounds = {"rounds": 4, "sampling_probability": 1.0, "clipping_norm": 1.0, "query_share": 0.1}
    steps = {"alpha": 3.0, "beta": 3.0, "kappa": 2.0, "eta": 20.0}
    return Dptd(**{"of": "behaviour", "hidden": (8,), "members": 2} | rounds | steps | changes)  # type: ignore[arg-type]


def doubly_robust(**changes: Any) -> DoublyRobust:
    settings = {
        "model_features": 8,
        "rollouts": 64,
        "largest_correction": 20.0,
        "largest_weight": 1e4,
    }
    return DoublyRobust(**{"behaviour": None} | settings | changes)  # type: ignore[arg-type]


CUT = {"largest_weight": 1.2, "largest_correction": 0.1}
ESTIMATORS: dict[str, tuple[Estimator, Problem]] = {
    "behaviour": (Behaviour(levels=4, mean_share=0.5), CHAIN),
    "model_check": (ModelCheck(horizons=(1, 3, 4), starts=3, cap=1.5), TINY),
    "lstd": (LSTD, CHAIN),
    "dptd of the behaviour": (dptd(hidden=(5, 4)), CHAIN),
    "dptd of the policy": (dptd(of="policy", members=5), CHAIN),
    "doubly robust, logged": (doubly_robust(**CUT), TINY),
    "doubly robust, cloned": (doubly_robust(behaviour=Cloned(), **CUT), TINY),
    "doubly robust, fitted": (doubly_robust(behaviour=FIT, **CUT), TINY),
}


def logged(asked: Problem) -> tuple[Log, list[Log]]:
    """A log, and what it may be where one unit is hostile."""
    source = tiny_mdp.log(UNITS) if asked is TINY else payers(UNITS, 1.0)
    hostile = [source.spoilt(SPOILT, number) for number in HOSTILE]
    return source, hostile + ([tiny_mdp.log(UNITS, hostile=SPOILT)] if asked is TINY else [])


def values_of(estimator: Estimator, asked: Problem, source: Log) -> Mapping[str, Tensor]:
    """After a release."""
    begun = EvaluationState.begin(estimator, asked, estimator.plan(asked, 1.0)).values
    size = estimator.contributions(asked, begun, source.episodes(0)).shape[1]
    released = 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(3))
    return estimator.stepped(asked, begun, released, 0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_unit_moves_a_release_by_at_most_its_sensitivity_and_nobody_else(name: str) -> None:
    estimator, asked = ESTIMATORS[name]
    source, hostile = logged(asked)
    plan, values = estimator.plan(asked, 1.0), values_of(estimator, asked, source)
    others = torch.arange(UNITS) != SPOILT
    before = estimator.contributions(asked, values, source.episodes())
    norms, most = before.norm(dim=1), plan.clip.sensitivity
    tight = L2Clip(1e-3)
    assert norms.max() > tight.sensitivity, "this clip binds"
    if isinstance(estimator, OneRelease):
        assert 0.7 < norms.max() <= 1 + 1e-12 < most, "the plan's clip changes nothing"
    for each in hostile:
        after = estimator.contributions(asked, values, each.episodes())
        torch.testing.assert_close(after[others], before[others], rtol=1e-9, atol=1e-12)
        for clip in (plan.clip, tight):
            assert isinstance(clip, L2Clip)
            moved = clip.finish(after.clone()).sum(0) - clip.finish(after[others].clone()).sum(0)
            assert float(moved.norm()) <= clip.sensitivity * (1 + 1e-9)
        for query in plan.queries:
            total = estimator.query_total(asked, query.what, values, each.episodes(SPOILT))
            assert float(total.double().norm()) <= query.sensitivity * ONE
    alone = [source.episodes(unit) for unit in range(UNITS)]
    apart = torch.cat([estimator.contributions(asked, values, own) for own in alone])
    torch.testing.assert_close(apart, before, rtol=1e-9, atol=1e-12)
    for query in plan.queries:
        parts = torch.stack(
            [estimator.query_total(asked, query.what, values, own) for own in alone]
        ).sum(0)
        assert torch.equal(
            estimator.query_total(asked, query.what, values, source.episodes()), parts
        )


class Careless(Behaviour):
    """Forgets to hold a unit to its blocks."""

    def contributions(
        self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes
    ) -> Tensor:
        return 2 * super().contributions(problem, values, episodes)


@dataclass(frozen=True)
class Apart(L2Clip):
    """Clips the gradients of θ and of ω to C each."""

    def finish(self, vectors: Tensor) -> Tensor:
        halves = vectors.view(len(vectors), -1, 2, vectors.shape[1] // 4)  # two members of (θ, ω)
        return torch.cat(
            [super(Apart, self).finish(halves[:, :, side].flatten(1)) for side in (0, 1)], 1
        )


def test_without_a_bound_a_unit_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver clips what forgets its bound; other twins move a sum by more than its sensitivity."""
    source, careless = payers(UNITS, 1.0), Careless(levels=4, mean_share=0.5)
    contributed = careless.contributions(CHAIN, {}, source.episodes())
    assert (contributed.norm(dim=1) > careless.plan(CHAIN, 1.0).clip.sensitivity).any()
    plan = replace(careless.plan(CHAIN, 0.5), noise_multiplier=1e-9, entropy=SeededEntropy(0))
    total = run(careless, CHAIN, plan, source).values["released"] * UNITS
    assert not torch.allclose(total, contributed.sum(0), atol=1e-3)
    assert float(total.norm()) <= UNITS * plan.clip.sensitivity

    values, clip = values_of(dptd(), CHAIN, source), L2Clip(1e-4)
    gradients = dptd().contributions(CHAIN, values, source.episodes())
    assert (
        Apart(1e-4).finish(gradients.clone()).norm(dim=1) / clip.sensitivity
    ).max() == pytest.approx(math.sqrt(2), rel=1e-3)
    assert gradients.norm(dim=1).max() > 10 * clip.sensitivity

    weights = doubly_robust().weights(TINY, {}, tiny_mdp.log(UNITS, hostile=SPOILT).episodes())
    assert weights.max() > 1.2, "not cut"
    (query,), values = LSTD.plan(CHAIN, 1.0).queries, values_of(LSTD, CHAIN, source)
    monkeypatch.setattr(
        FirstStateValue, "total", lambda self, x: (x / self.problem.return_high * 50 * ONE).long()
    )
    total = LSTD.query_total(CHAIN, query.what, values, source.episodes(0))
    assert float(total.double().norm()) > query.sensitivity * ONE


@pytest.mark.parametrize(
    "name", [name for name, (each, asked) in ESTIMATORS.items() if each.plan(asked, 1.0).queries]
)
def test_nobody_else_changes_a_bit_of_a_number_that_a_query_sums(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum cuts numbers to multiples of 2⁻²⁰, and a last bit may decide between two. The twin: rows all at once."""
    estimator, asked = ESTIMATORS[name]
    source = logged(asked)[0]
    queries, values = estimator.plan(asked, 1.0).queries, values_of(estimator, asked, source)
    drawn = torch.Generator().manual_seed(0)
    values = {
        key: value + torch.rand(value.shape, dtype=value.dtype, generator=drawn)
        for key, value in values.items()
    }
    monkeypatch.setattr(FirstStateValue, "total", lambda self, numbers: numbers)
    monkeypatch.setattr(BoundedSum, "total", lambda self, numbers: numbers[:, 0])
    generator = random.Random(0)

    def differing() -> int:
        alone = torch.stack([numbers(unit) for unit in range(UNITS)])[:, :, 0]
        companies = [generator.sample(range(UNITS), generator.randint(1, UNITS)) for _ in range(30)]
        return sum(not torch.equal(numbers(*company), alone[company].T) for company in companies)

    def numbers(*units: int) -> Tensor:
        found = [
            estimator.query_total(asked, query.what, values, source.episodes(*units))
            for query in queries
        ]
        return torch.stack(found)

    assert differing() == 0
    if estimator is not LSTD:
        return  # products of so few numbers may come out the same
    monkeypatch.setattr(rows_of_units, "in_blocks", lambda function, rows: function(rows))
    assert differing() > 0


def test_nobody_else_changes_a_bit_of_a_discount(monkeypatch: pytest.MonkeyPatch) -> None:
    """Powers at the end of a tensor have other last bits than in its middle. The twin: torch's powers."""
    of_rows, of_actions = replace(CHAIN, discount=0.97), replace(TINY, discount=0.986)
    payer, logged, estimator = (
        payers(UNITS, 1.0, length=15),
        tiny_mdp.log(UNITS),
        doubly_robust(**CUT),
    )
    values = values_of(estimator, of_actions, logged)

    def differing() -> list[bool]:
        """Of shares of rows, and of the numbers of `DoublyRobust`, whether one has other bits alone."""
        found = [False, False]
        for most in range(2, UNITS + 1):
            units = range(most)
            shares = row_shares(of_rows, payer.episodes(*units))
            alone = [row_shares(of_rows, payer.episodes(unit))[0] for unit in units]
            found[0] |= any(
                not torch.equal(own[: len(one)], one)
                for own, one in zip(shares, alone, strict=True)
            )
            numbers = [
                estimator.numbers(of_actions, values, logged.episodes(unit)) for unit in units
            ]
            together = estimator.numbers(of_actions, values, logged.episodes(*units))
            found[1] |= not torch.equal(together, torch.cat(numbers))
        return found

    assert differing() == [False, False]
    monkeypatch.setattr(Problem, "discounts", lambda self, step: self.discount ** step.double())
    assert differing()[0]
    monkeypatch.setattr(Problem, "discounts", lambda self, step: self.discount**step)
    assert differing()[1]


def test_a_cohort_of_nobody_releases_noise_and_a_checkpoint_restores_the_run() -> None:
    asked, source = problem(4), payers(4, 1.0)
    nobody = dptd(rounds=1, sampling_probability=1e-9)
    plan = replace(nobody.plan(asked, 1.0), entropy=SeededEntropy(0))
    assert run(nobody, asked, plan, source).values["p"].abs().min() > 0
    estimator = dptd(rounds=6)
    plan, saved = estimator.plan(asked, 1.0), list[EvaluationState]()
    queries = tuple(replace(query, noise_multiplier=0.0) for query in plan.queries)
    plan = replace(plan, noise_multiplier=0.0, queries=queries)
    whole = run(estimator, asked, plan, source, save_checkpoint=saved.append)
    lost = saved[4]  # the round that is announced there is lost, and stays spent
    resumed = EvaluationState.restore(lost.tensors(), lost.facts())
    assert resumed.started == resumed.done + 1
    assert run(estimator, asked, plan, source, resumed).finished
    again = run(estimator, asked, plan, source, replace(resumed, started=resumed.done))
    assert all(
        torch.equal(tensor, again.tensors()[name]) for name, tensor in whole.tensors().items()
    )
    with pytest.raises(ValueError, match="an answer of this charge is lost"):
        run(estimator, asked, plan, source, replace(whole, asked=1, answers={}))
    with pytest.raises(ValueError, match="the number of private units differs"):
        run(estimator, asked, plan, payers(5, 1.0))


def test_padding_changes_no_bit_of_a_units_sum() -> None:
    """Longer neighbours ask for more padding. The twin: torch's own sum."""
    numbers = torch.rand(50, 77, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    padded = [torch.nn.functional.pad(numbers, (0, more)) for more in (1, 5, 50, 123)]
    assert all(torch.equal(sum_of_rows(each), sum_of_rows(numbers)) for each in padded)
    assert not all(torch.equal(each.sum(1), numbers.sum(1)) for each in padded)
