"""DPTD finds values that are known, and one unit moves a release by no more than the plan says."""

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from primorl.evaluation.private.dptd import Dptd
from primorl.evaluation.private.estimator import EvaluationState, run
from primorl.evaluation.private.problem import Episodes, Problem
from primorl.evaluation.private.results import Answer
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.entropy import SeededEntropy
from primorl.privacy.mechanism.plan import Plan
from tests.evaluation.private.conftest import Log, model, payers, problem

RETURN = (1 - 0.9**5) / 0.1  # of a reward of 1 on every one of five steps


def asked(units: int, **changes: Any) -> Problem:
    return problem(model([0.5], [1.0]), units, **changes)


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


def converged(estimator: Dptd, question: Problem, source: Log) -> Answer:
    """TD: the same algorithm without noise and clip. The log is read once."""
    plan = noiseless(estimator.plan(question, 1.0))
    episodes, values = source.episodes(), estimator.begin(question)
    for done in range(estimator.rounds):
        values = estimator.stepped(question, values, estimator.contributions(question, values, episodes).mean(0), done)
    state = run(estimator, question, plan, source, EvaluationState(values, started=plan.rounds, done=plan.rounds))
    (found,) = estimator.estimates(question, plan, state)
    return found


def test_td_finds_the_value_of_a_chain() -> None:
    found = converged(settings(rounds=1500), asked(2), payers(2, 1.0, noise=0.0))
    assert found.value == pytest.approx(RETURN, rel=0.05)
    assert found.ci95 is not None
    assert found.ci95[0] <= found.value <= found.ci95[1]


def test_td_finds_the_value_of_a_policy() -> None:
    """Units that act +1 as the policy does get 1 on every step, those that act -1 lose as much: their mean is 0."""
    source = payers(40, 0.0, noise=0.0)
    source.inputs[..., 1] = source.targets[..., 1] = (torch.arange(40) % 2 * 2.0 - 1)[:, None]
    question = asked(40, policy=lambda observation: torch.ones(len(observation), 1))
    found = converged(settings(rounds=500, of="policy", hidden=(12,)), question, source)
    assert found.of == "policy"
    assert found.value == pytest.approx(RETURN, abs=0.8)


def test_rows_beyond_the_horizon_and_padding_have_no_weight() -> None:
    batch = settings().batch(asked(2, horizon=2), payers(2, 1.0, length=4).episodes())
    assert batch.weight[0, 0].tolist() == [0.5, 0.5, *[0] * 6]
    assert batch.weight[0, 1].tolist() == [0.25, 0.25, 0, 0, 0.25, 0.25, 0, 0]
    assert batch.next_factor[0, 0, 1] == 0  # the horizon ends there
    steps = torch.tensor([0, 2, 3, 9])
    assert asked(1, horizon=3, discount=1.0).rewards_left(steps).tolist() == [3, 1, 0, 0]
    assert float(asked(1, horizon=3).rewards_left(steps)[0]) == pytest.approx(1 + 0.9 + 0.81)
    assert asked(1, horizon=None).rewards_left(steps).tolist() == pytest.approx([10.0] * 4)


def moved(estimator: Dptd, number: float | None) -> float:
    """By how much a hostile unit moves the sum of a round, in units of C; the others' contributions must stay."""
    source, question = payers(5, 1.0), asked(5)
    plan, values = estimator.plan(question, 1.0), estimator.begin(question)
    values["omega"] = estimator.network(question).initial(estimator.members, torch.Generator().manual_seed(3))
    spoilt = source if number is None else source.spoilt(4, number)
    everyone, others = (
        estimator.contributions(question, values, rows) for rows in (spoilt.episodes(), source.episodes(4))
    )
    torch.testing.assert_close(everyone[:4], others, rtol=1e-12, atol=1e-15)
    assert isinstance(plan.clip, L2Clip)
    change = plan.clip.finish(everyone).sum(0) - plan.clip.finish(others).sum(0)
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
    source, estimator, question = payers(4, 1.0), settings(), asked(4)
    values = estimator.begin(question) | {"output": estimator.begin(question)["theta"]}
    (query,) = estimator.plan(question, 1.0).queries
    together, *apart = (
        estimator.query_total(question, query.what, values, Episodes.read(source, units))
        for units in (torch.arange(4), *torch.arange(4).split(1))
    )
    assert (together - torch.stack(apart).sum(0)).abs().max() <= 4  # roundings


def test_an_empty_cohort_releases_noise() -> None:
    nobody = settings(rounds=1, sampling_probability=1e-9)
    plan = replace(nobody.plan(asked(4), 1.0), entropy=SeededEntropy(0))
    assert run(nobody, asked(4), plan, payers(4, 1.0)).values["p"].abs().min() > 0


def test_steps_are_those_of_algorithm_1_and_the_output_averages_the_later_half() -> None:
    estimator, question = settings(rounds=5, kappa=0.5, eta=0.25, alpha=2.0, beta=3.0), asked(1)
    values = estimator.begin(question)
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
        values = estimator.stepped(question, values, released, done)
        torch.testing.assert_close((values["theta"], values["omega"]), (theta, omega))
    torch.testing.assert_close(values["output"], torch.stack(iterates[2:]).mean(0))
    far = settings(kappa=1e6, eta=1e6)
    for done in range(20):
        values = far.stepped(question, values, 1e6 * torch.randn(2 * size, generator=generator), done)
        assert all(values[name].abs().max() <= 1 for name in ("theta", "omega", "output")), "the box"


def test_a_checkpoint_restores_the_run() -> None:
    estimator, question = settings(rounds=6), asked(4)
    plan, source = noiseless(estimator.plan(question, 1.0), clip=1.0), payers(4, 1.0)
    saved: list[tuple[dict[str, Tensor], str]] = []

    def save(state: EvaluationState) -> None:
        saved.append((state.tensors(), json.dumps(state.facts())))

    whole = run(estimator, question, plan, source, save_checkpoint=save)
    tensors, facts = saved[4]  # the round that is announced there is lost, and stays spent
    resumed = EvaluationState.restore(tensors, json.loads(facts))
    assert resumed.started == resumed.done + 1
    assert run(estimator, question, plan, source, resumed).finished
    again = run(estimator, question, plan, source, replace(resumed, started=resumed.done))
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name


@pytest.mark.parametrize(("q", "rounds"), [(1.0, 1), (1.0, 100), (0.05, 400)])
def test_the_plan_states_about_the_mean_that_was_asked_for(q: float, rounds: int) -> None:
    plan = settings(rounds=rounds, sampling_probability=q).plan(asked(3000), 0.25)
    spent = plan.spent()
    assert spent is not None
    assert spent.epsilon_pld == pytest.approx(0.965, rel=0.06)  # of one Gaussian release of mean 0.25 at 1e-5
    assert plan.clip == L2Clip(1.0)
