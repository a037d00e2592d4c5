"""DPTD finds values that are known, and one unit moves a release by no more than the plan says."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.evaluation.private.dptd import Dptd
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import EvaluationState, run
from primorl.evaluation.private.problem import Problem
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.entropy import SeededEntropy
from primorl.privacy.mechanism.plan import Plan
from tests.evaluation.private.logs import Log, chain, question

LENGTHS = (3, 3, 5, 1)


def problem(units: int, **changes: Any) -> Problem:
    bounds = {"observation_low": torch.full((3,), -5.0), "observation_high": torch.full((3,), 5.0)}
    return question(units, 3, 1, **bounds | {"horizon": None, "starts": torch.eye(3)[:1]} | changes)


def settings(kind: type[Dptd] = Dptd, **changes: Any) -> Dptd:
    """Small settings that converge on a chain."""
    defaults: dict[str, Any] = {
        "of": "behaviour",
        "hidden": (8,),
        "members": 2,
        "rounds": 4,
        "sampling_probability": 1.0,
        "clipping_norm": 1.0,
        "alpha": 3.0,
        "beta": 3.0,
        "kappa": 2.0,
        "eta": 20.0,
        "query_share": 0.1,
    }
    return kind(**defaults | changes)


def noiseless(plan: Plan, clip: float = math.inf) -> Plan:
    queries = tuple(replace(query, noise_multiplier=0.0) for query in plan.queries)
    return replace(plan, noise_multiplier=0.0, clip=L2Clip(clip), queries=queries)


def converged(estimator: Dptd, asked: Problem, source: Log) -> tuple[Plan, EvaluationState]:
    """TD: the same algorithm without noise and clip. The log is read once."""
    plan = noiseless(estimator.plan(asked, 1.0))
    episodes, values = source.episodes(), estimator.begin(asked)
    for done in range(estimator.rounds):
        values = estimator.stepped(asked, values, estimator.contributions(asked, values, episodes).mean(0), done)
    return plan, run(estimator, asked, plan, source, EvaluationState(values, started=plan.rounds, done=plan.rounds))


def test_td_finds_the_value_of_a_chain() -> None:
    estimator, asked = settings(rounds=500), problem(1)
    plan, state = converged(estimator, asked, chain([3]))
    found = estimator.network(asked).values(state.values["output"], torch.eye(3, dtype=torch.float64)[None])
    expected = torch.tensor([1 + 0.9 * 0.5, 0.5, 0.0], dtype=torch.float64).expand(2, 3)
    torch.testing.assert_close(found * asked.effective_horizon, expected, rtol=0, atol=0.05)
    (estimate,) = estimator.estimates(asked, plan, state)
    assert estimate.value == pytest.approx(1.45, abs=0.05)
    assert estimate.ci95 is not None
    assert estimate.ci95[0] <= estimate.value <= estimate.ci95[1]


def test_td_finds_the_value_of_a_policy_and_of_a_horizon() -> None:
    """Units that act -1 get 1.5 in all, those that act +1 as the policy does get -1.5: the mean of the log is 0."""
    left, right = chain([3], action=-1.0), chain([3], action=1.0)
    right.targets[..., 3] *= -1
    parts = (torch.cat((getattr(left, name), getattr(right, name))) for name in ("inputs", "targets", "first", "rows"))
    asked = problem(2, horizon=3, discount=1.0, policy=lambda observation: torch.ones(len(observation), 1))
    estimator = settings(rounds=500, of="policy", hidden=(12,))
    (estimate,) = estimator.estimates(asked, *converged(estimator, asked, Log(*parts)))
    assert estimate.of == "policy"
    assert estimate.value == pytest.approx(-1.5, abs=0.4)


def test_rows_beyond_the_horizon_and_padding_have_no_weight() -> None:
    batch = settings().batch(problem(2, horizon=2), chain([4, 1]).episodes())
    assert batch.weight[0].tolist() == [[0.5, 0.5, 0, 0], [1, 0, 0, 0]]
    assert batch.next_factor[0, 0, 1] == 0  # the horizon ends there
    steps = torch.tensor([0, 2, 3, 9])
    assert problem(1, horizon=3, discount=1.0).rewards_left(steps).tolist() == [3, 1, 0, 0]
    assert float(problem(1, horizon=3).rewards_left(steps)[0]) == pytest.approx(1 + 0.9 + 0.81)
    assert problem(1).rewards_left(steps).tolist() == pytest.approx([10.0] * 4)


def summed(estimator: Dptd, asked: Problem, values: Mapping[str, Tensor], plan: Plan, source: Log) -> Tensor:
    assert isinstance(plan.clip, L2Clip)
    return plan.clip.finish(estimator.contributions(asked, values, source.episodes())).sum(0)


def moved(estimator: Dptd, number: float | None) -> float:
    """By how much a hostile unit moves the sum of a round, in units of C; the others' contributions must stay."""
    source, without = chain([*LENGTHS, 4]), chain(LENGTHS)
    asked, plan = problem(5), estimator.plan(problem(5), 1.0)
    if number is not None:
        source = source.spoilt(4, number)
    values = estimator.begin(asked)
    values["omega"] = estimator.network(asked).initial(estimator.members, torch.Generator().manual_seed(3))
    everyone = estimator.contributions(asked, values, source.episodes())[:4]
    others = estimator.contributions(asked, values, without.episodes())
    torch.testing.assert_close(everyone, others, rtol=1e-12, atol=1e-15)
    change = summed(estimator, asked, values, plan, source) - summed(estimator, asked, values, plan, without)
    return float(change.norm()) / plan.clipping_norm


@dataclass(frozen=True)
class Apart(L2Clip):
    """Must fail: θ's and ω's gradients are each clipped to C."""

    def finish(self, vectors: Tensor) -> Tensor:
        halves = vectors.view(len(vectors), -1, 2, vectors.shape[1] // 4)  # two members of (θ, ω)
        return torch.cat([super(Apart, self).finish(halves[:, :, side].flatten(1)) for side in (0, 1)], 1)


@dataclass(frozen=True, kw_only=True)
class ClippedApart(Dptd):
    def plan(self, problem: Problem, gaussian_mean: float) -> Plan:
        return replace(super().plan(problem, gaussian_mean), clip=Apart(self.clipping_norm))


@pytest.mark.parametrize("number", [None, math.nan, 3e38, math.inf])
@pytest.mark.parametrize("of", ["behaviour", "policy"])
def test_one_unit_moves_the_sum_by_at_most_the_clip(number: float | None, of: str) -> None:
    assert 0.99 < moved(settings(of=of, clipping_norm=1e-4, hidden=(5, 4)), number) <= 1 + 1e-9, "the clip binds"
    assert 0.99 < moved(settings(members=5, clipping_norm=1e-4), number) <= 1 + 1e-9, "members share one clip"


def test_a_clip_of_both_sides_apart_or_none_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert moved(settings(ClippedApart, clipping_norm=1e-4), None) == pytest.approx(math.sqrt(2), rel=1e-3)
    monkeypatch.setattr(L2Clip, "finish", lambda self, vectors: vectors)
    assert moved(settings(clipping_norm=1e-4), None) > 10


def test_an_answer_to_the_query_depends_on_its_own_unit_alone() -> None:
    source, estimator, asked = chain(LENGTHS), settings(), problem(4)
    values = estimator.begin(asked) | {"output": estimator.begin(asked)["theta"]}
    (query,) = estimator.plan(asked, 1.0).queries
    together, *apart = (
        estimator.query_total(asked, query.what, values, Episodes.read(source, units))
        for units in (torch.arange(4), *torch.arange(4).split(1))
    )
    assert (together - torch.stack(apart).sum(0)).abs().max() <= 4  # roundings


def test_a_release_divides_by_the_public_constant_and_an_empty_cohort_releases_noise() -> None:
    asked, estimator = problem(8), settings(rounds=1)  # of which four are null records
    plan = noiseless(estimator.plan(asked, 1.0), clip=1.0)
    total = summed(estimator, asked, estimator.begin(asked), plan, chain(LENGTHS))
    torch.testing.assert_close(plan.release((total,))[0], (total / 8).float())
    assert not torch.allclose(plan.release((total,))[0], (total / len(LENGTHS)).float())  # the realised cohort
    nobody = settings(rounds=1, sampling_probability=1e-9)
    plan = replace(nobody.plan(problem(4), 1.0), entropy=SeededEntropy(0))
    assert run(nobody, problem(4), plan, chain(LENGTHS)).values["p"].abs().min() > 0


def test_steps_are_those_of_algorithm_1_and_the_output_averages_the_later_half() -> None:
    estimator, asked = settings(rounds=5, kappa=0.5, eta=0.25, alpha=2.0, beta=3.0), problem(1)
    values = estimator.begin(asked)
    size, generator = values["theta"].numel(), torch.Generator().manual_seed(0)
    theta, omega, iterates = values["theta"].clone(), values["omega"].clone(), []
    p, d, rate = torch.zeros_like(theta), torch.zeros_like(omega), 0.0
    for done in range(5):
        iterates.append(theta)
        released = torch.randn(2 * size, generator=generator)
        g = released.double().view(2, 2, -1)
        a, b = (1.0, 1.0) if done == 0 else (2.0 * rate, 3.0 * rate)
        p, d = (1 - a) * p + a * g[:, 0], (1 - b) * d + b * g[:, 1]
        rate = 1 / (4 * math.sqrt(done + 3))
        theta = theta + rate * ((theta - 0.5 * p).clamp(-1, 1) - theta)
        omega = omega + rate * ((omega + 0.25 * d).clamp(-1, 1) - omega)
        values = estimator.stepped(asked, values, released, done)
        torch.testing.assert_close((values["theta"], values["omega"]), (theta, omega))
    torch.testing.assert_close(values["output"], torch.stack(iterates[2:]).mean(0))
    far = settings(kappa=1e6, eta=1e6)
    for done in range(20):
        values = far.stepped(asked, values, 1e6 * torch.randn(2 * size, generator=generator), done)
        assert all(values[name].abs().max() <= 1 for name in ("theta", "omega", "output")), "the box"


def test_a_checkpoint_restores_the_run() -> None:
    estimator, asked = settings(rounds=6), problem(4)
    plan, source = noiseless(estimator.plan(asked, 1.0), clip=1.0), chain(LENGTHS)
    saved: list[tuple[dict[str, Tensor], str]] = []

    def save(state: EvaluationState) -> None:
        saved.append((state.tensors(), json.dumps(state.facts())))

    whole = run(estimator, asked, plan, source, save_checkpoint=save)
    tensors, facts = saved[4]  # the round that is announced there is lost, and stays spent
    resumed = EvaluationState.restore(tensors, json.loads(facts))
    assert resumed.started == resumed.done + 1
    assert run(estimator, asked, plan, source, resumed).finished
    again = run(estimator, asked, plan, source, replace(resumed, started=resumed.done))
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name


@pytest.mark.parametrize(("q", "rounds"), [(1.0, 1), (1.0, 100), (0.05, 400)])
def test_the_plan_states_about_the_mean_that_was_asked_for(q: float, rounds: int) -> None:
    plan = settings(rounds=rounds, sampling_probability=q).plan(problem(3000), 0.25)
    spent = plan.spent()
    assert spent is not None
    assert spent.epsilon_pld == pytest.approx(0.965, rel=0.06)  # of one Gaussian release of mean 0.25 at 1e-5
    assert plan.clip == L2Clip(1.0)
