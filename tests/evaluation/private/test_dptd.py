"""DPTD finds values that are known, and one unit moves a release by no more than the plan says."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from primorl.evaluation.private.dptd import Dptd, projected
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import EvaluationState, run
from primorl.evaluation.private.first_states import FirstStateValue
from primorl.evaluation.private.problem import Problem
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.entropy import SeededEntropy
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import ONE
from tests.evaluation.private.chain import Logged, chain, problem, settings

_LENGTHS = (3, 3, 5, 1)


def _noiseless(plan: Plan, clip: float = math.inf) -> Plan:
    queries = tuple(replace(query, noise_multiplier=0.0) for query in plan.queries)
    return replace(plan, noise_multiplier=0.0, clip=L2Clip(clip), queries=queries)


def _converged(estimator: Dptd, question: Problem, source: Logged) -> tuple[Plan, EvaluationState]:
    """TD: the same algorithm without noise and clip. The log is read once."""
    plan = _noiseless(estimator.plan(question, 1.0))
    episodes, values = Episodes.read(source, torch.arange(source.units)), estimator.begin(question)
    for done in range(estimator.rounds):
        released = estimator.contributions(question, values, episodes).mean(0)
        values = estimator.stepped(question, values, released, done)
    return plan, run(estimator, question, plan, source, EvaluationState(values, started=plan.rounds, done=plan.rounds))


def test_td_finds_the_value_of_a_chain() -> None:
    estimator, question = settings(rounds=500), problem(1)
    plan, state = _converged(estimator, question, chain([3]))
    found = estimator.network(question).values(state.values["output"], torch.eye(3, dtype=torch.float64)[None])
    expected = torch.tensor([1 + 0.9 * 0.5, 0.5, 0.0], dtype=torch.float64).expand(2, 3)
    torch.testing.assert_close(found * question.effective_horizon, expected, rtol=0, atol=0.05)
    (estimate,) = estimator.estimates(question, plan, state)
    assert estimate.value == pytest.approx(1.45, abs=0.05)
    assert estimate.ci95 is not None
    assert estimate.ci95[0] <= estimate.value <= estimate.ci95[1]


def test_td_finds_the_value_of_a_policy_and_of_a_horizon() -> None:
    # Units that act -1 get 1.5 in all, those that act +1 as the policy does get -1.5: the mean of the log is 0.
    left, right = chain([3], action=-1.0), chain([3], action=1.0)
    right.targets[0][:, 3] *= -1
    source = Logged([*left.inputs, *right.inputs], [*left.targets, *right.targets], [*left.first, *right.first])
    question = problem(2, horizon=3, discount=1.0, policy=lambda observation: torch.ones(len(observation), 1))
    estimator = settings(rounds=500, of="policy", hidden=(12,))
    plan, state = _converged(estimator, question, source)
    (estimate,) = estimator.estimates(question, plan, state)
    assert estimate.of == "policy"
    assert estimate.value == pytest.approx(-1.5, abs=0.4)


def test_steps_left_count_discounted_rewards() -> None:
    steps = torch.tensor([0, 2, 3, 9])
    assert problem(1, horizon=3, discount=1.0).rewards_left(steps).tolist() == [3, 1, 0, 0]
    torch.testing.assert_close(problem(1, horizon=3).rewards_left(steps)[0].item(), 1 + 0.9 + 0.81)
    assert problem(1).rewards_left(steps).tolist() == pytest.approx([10.0] * 4)


def test_rows_beyond_the_horizon_and_padding_have_no_weight() -> None:
    question = problem(2, horizon=2)
    batch = settings().batch(question, Episodes.read(chain([4, 1]), torch.arange(2)))
    assert batch.weight[0].tolist() == [[0.5, 0.5, 0, 0], [1, 0, 0, 0]]
    assert batch.next_factor[0, 0, 1] == 0  # the horizon ends there


# --- one unit's influence ---------------------------------------------------------------------------------------------


def _neighbours(kind: str) -> tuple[Logged, Logged]:
    """Units whose last one is hostile, and the same with an empty record in its place."""
    source = chain([*_LENGTHS, 4])
    hostile = source.targets[-1]
    if kind == "nan":
        hostile[:, 3] = math.nan
        source.inputs[-1][0] = math.nan
    elif kind == "huge":
        hostile[:, 3] = 3e38
        source.inputs[-1][:] = 1e30
    elif kind == "infinite":
        hostile[:] = math.inf
    without = Logged(source.inputs[:-1], source.targets[:-1], source.first[:-1])
    return source, without


def _sum(estimator: Dptd, question: Problem, values: Mapping[str, Tensor], plan: Plan, source: Logged) -> Tensor:
    assert isinstance(plan.clip, L2Clip)
    episodes = Episodes.read(source, torch.arange(source.units))
    return plan.clip.finish(estimator.contributions(question, values, episodes)).sum(0)


def _moved(estimator: Dptd, kind: str) -> float:
    """By how much the hostile unit moves the sum of a round, in units of C."""
    source, without = _neighbours(kind)
    question = problem(source.units)
    values = estimator.begin(question)
    generator = torch.Generator().manual_seed(3)
    values["omega"] = estimator.network(question).initial(estimator.members, generator)
    plan = estimator.plan(question, 1.0)
    change = _sum(estimator, question, values, plan, source) - _sum(estimator, question, values, plan, without)
    return float(change.norm()) / plan.clipping_norm


@pytest.mark.parametrize("kind", ["plain", "nan", "huge", "infinite"])
@pytest.mark.parametrize("of", ["behaviour", "policy"])
def test_one_unit_moves_the_sum_by_at_most_the_clip(kind: str, of: str) -> None:
    moved = _moved(settings(of=of, clipping_norm=1e-4, hidden=(5, 4)), kind)
    assert moved <= 1 + 1e-9
    assert moved > 0.99  # the clip is what binds


@pytest.mark.parametrize("kind", ["plain", "huge"])
def test_a_contribution_depends_on_its_own_unit_alone(kind: str) -> None:
    source, without = _neighbours(kind)
    estimator, question = settings(), problem(source.units)
    values = estimator.begin(question)
    everyone, others = (
        estimator.contributions(question, values, Episodes.read(which, torch.arange(which.units)))
        for which in (source, without)
    )
    torch.testing.assert_close(everyone[: without.units], others, rtol=1e-12, atol=1e-15)


def test_an_answer_to_the_query_depends_on_its_own_unit_alone() -> None:
    source, estimator, question = chain(_LENGTHS), settings(), problem(4)
    values = estimator.begin(question) | {"output": estimator.begin(question)["theta"]}
    (query,) = estimator.plan(question, 1.0).queries
    together, *apart = (
        estimator.query_total(question, query.what, values, Episodes.read(source, units))
        for units in (torch.arange(4), *torch.arange(4).split(1))
    )
    assert (together - torch.stack(apart).sum(0)).abs().max() <= 4  # roundings


@dataclass(frozen=True, kw_only=True)
class _ClippedApart(Dptd):
    """Must fail: θ's and ω's gradients are each clipped to C."""

    def plan(self, problem: Problem, gaussian_mean: float) -> Plan:
        return replace(super().plan(problem, gaussian_mean), clip=_Apart(self.clipping_norm))


@dataclass(frozen=True)
class _Apart(L2Clip):
    def finish(self, vectors: Tensor) -> Tensor:
        halves = vectors.view(len(vectors), -1, 2, vectors.shape[1] // 4)  # two members of (θ, ω)
        sides = [super(_Apart, self).finish(halves[:, :, side].flatten(1)) for side in (0, 1)]
        return torch.cat(sides, 1)


def test_a_clip_of_both_sides_apart_is_caught() -> None:
    assert _moved(settings(_ClippedApart, clipping_norm=1e-4), "plain") == pytest.approx(math.sqrt(2), rel=1e-3)


def test_an_unclipped_contribution_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(L2Clip, "finish", lambda self, vectors: vectors)
    assert _moved(settings(clipping_norm=1e-4), "plain") > 10


def test_members_share_one_clip() -> None:
    question = problem(1)
    for members in (2, 5):
        estimator = settings(members=members, clipping_norm=1e-4)
        total = _sum(estimator, question, estimator.begin(question), estimator.plan(question, 1.0), chain([3]))
        assert float(total.norm()) <= 1e-4


def test_a_release_divides_by_the_public_constant() -> None:
    question = problem(8)  # of which four are null records
    estimator = settings(rounds=1, sampling_probability=1.0)
    plan = _noiseless(estimator.plan(question, 1.0), clip=1.0)
    values = estimator.begin(question)
    total = _sum(estimator, question, values, plan, chain(_LENGTHS))
    (released,) = plan.release((total,))
    torch.testing.assert_close(released, (total / 8).float())
    assert not torch.allclose(released, (total / len(_LENGTHS)).float())  # the realised cohort


def test_an_empty_cohort_releases_noise() -> None:
    estimator = settings(rounds=1, sampling_probability=1e-9)
    question = problem(4)
    plan = replace(estimator.plan(question, 1.0), entropy=SeededEntropy(0))
    state = run(estimator, question, plan, chain(_LENGTHS))
    assert state.values["p"].abs().min() > 0


@given(value=st.floats())
@hypothesis_settings(max_examples=30, deadline=None)
def test_one_unit_moves_the_query_by_at_most_its_sensitivity(value: float) -> None:
    query = FirstStateValue(-1.0, 3.0)
    total = query.total(torch.tensor([value], dtype=torch.float64))
    assert float(total.double().norm()) <= query.query(1.0).sensitivity * ONE


# --- the algorithm ----------------------------------------------------------------------------------------------------


def test_steps_are_those_of_algorithm_1() -> None:
    estimator, question = settings(kappa=0.5, eta=0.25, alpha=2.0, beta=3.0), problem(1)
    values = estimator.begin(question)
    size, generator = values["theta"].numel(), torch.Generator().manual_seed(0)
    theta, omega = values["theta"].clone(), values["omega"].clone()
    p, d, rate = torch.zeros_like(theta), torch.zeros_like(omega), 0.0
    for done in range(3):
        released = torch.randn(2 * size, generator=generator)
        g = released.double().view(2, 2, -1)
        a, b = (1.0, 1.0) if done == 0 else (2.0 * rate, 3.0 * rate)
        p, d = (1 - a) * p + a * g[:, 0], (1 - b) * d + b * g[:, 1]
        rate = 1 / (4 * math.sqrt(done + 3))
        theta = theta + rate * ((theta - 0.5 * p).clamp(-1, 1) - theta)
        omega = omega + rate * ((omega + 0.25 * d).clamp(-1, 1) - omega)
        values = estimator.stepped(question, values, released, done)
        torch.testing.assert_close(values["theta"], theta)
        torch.testing.assert_close(values["omega"], omega)


def test_iterates_stay_in_the_box() -> None:
    estimator, question = settings(kappa=1e6, eta=1e6), problem(1)
    values = estimator.begin(question)
    for done in range(20):
        released = 1e6 * torch.randn(2 * values["theta"].numel(), generator=torch.Generator().manual_seed(done))
        values = estimator.stepped(question, values, released, done)
        assert all(values[name].abs().max() <= 1 for name in ("theta", "omega", "output"))
    assert projected(torch.tensor([-3.0, 0.5, 2.0])).tolist() == [-1, 0.5, 1]


@pytest.mark.parametrize("output", ["average", "draw"])
def test_the_output_is_made_of_the_iterates(output: str) -> None:
    estimator, question = settings(rounds=5, output=output), problem(1)
    values = estimator.begin(question)
    iterates = []
    for done in range(5):
        iterates.append(values["theta"])
        released = torch.randn(2 * values["theta"].numel(), generator=torch.Generator().manual_seed(done))
        values = estimator.stepped(question, values, released, done)
    if output == "average":
        torch.testing.assert_close(values["output"], torch.stack(iterates[2:]).mean(0))
        return
    for member, drawn in enumerate(values["drawn"].tolist()):
        assert torch.equal(values["output"][member], iterates[drawn][member])
    assert torch.equal(values["drawn"], estimator.begin(question)["drawn"])  # public: it follows the seed


def test_draws_are_uniform_over_the_iterates() -> None:
    drawn = torch.cat([settings(output="draw", members=64).begin(problem(1, seed=seed))["drawn"] for seed in range(20)])
    counts = torch.bincount(drawn, minlength=4)
    assert len(counts) == 4
    assert counts.min() > 250


def test_a_checkpoint_restores_the_run() -> None:
    estimator, question = settings(rounds=6, output="draw"), problem(4)
    plan = _noiseless(estimator.plan(question, 1.0), clip=1.0)
    saved: list[tuple[dict[str, Tensor], str]] = []
    whole = run(
        estimator,
        question,
        plan,
        chain(_LENGTHS),
        save_checkpoint=lambda state: saved.append((state.tensors(), json.dumps(state.facts()))),
    )
    tensors, facts = saved[4]  # the round that is announced there is lost, and stays spent
    resumed = EvaluationState.restore(tensors, json.loads(facts))
    assert resumed.started == resumed.done + 1
    again = run(estimator, question, plan, chain(_LENGTHS), replace(resumed, started=resumed.done))
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name


def test_the_plan_states_about_the_mean_that_was_asked_for() -> None:
    question, mean = problem(3000), 0.25
    for q, rounds in ((1.0, 1), (1.0, 100), (0.05, 400)):
        plan = settings(rounds=rounds, sampling_probability=q).plan(question, mean)
        spent = plan.spent()
        assert spent is not None
        assert spent.epsilon_pld == pytest.approx(0.965, rel=0.06)  # of one Gaussian release of mean 0.25 at 1e-5
        assert plan.clip == L2Clip(1.0)
