"""Least squares, fitted Q evaluation and the model's value: what they find, and how far one unit reaches."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.evaluation.private import networks
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import NOISE, Estimator, EvaluationState, noise_of, run
from primorl.evaluation.private.first_states import FirstStateValue
from primorl.evaluation.private.fqe import Fqe
from primorl.evaluation.private.lstd import Lstd
from primorl.evaluation.private.model_q import ModelQ
from primorl.evaluation.private.model_value import ModelBased
from primorl.evaluation.private.rows import first_rows, mean_over_trajectories, row_shares, thinned
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import ONE
from tests.evaluation.private.conftest import Chain, episodes, model, problem, spoilt

LSTD = Lstd(features=3, lengthscale=2.0, model_features=8, rollouts=16, rows=100, clipping_norm=0.4, query_share=0.5)
FQE = Fqe(
    rounds=4,
    sampling_probability=0.5,
    clipping_norm=0.05,
    hidden=(4, 3),
    members=2,
    learning_rate=1.0,
    server_momentum=0.5,
    target_every=2,
    model_features=8,
    rollouts=16,
    rows=100,
    query_share=0.3,
)
MODEL = model([0.5, 0.9], [1.0, 1.0])
ESTIMATORS: list[Estimator] = [LSTD, FQE]
RETURN = (1 - 0.9**5) / 0.1  # of a reward of 1 on every step


def begun(estimator: Estimator) -> dict[str, Tensor]:
    plan = estimator.plan(problem(MODEL, 4), 1.0)
    values = {**estimator.begin(problem(MODEL, 4)), NOISE: torch.tensor(noise_of(plan), dtype=torch.float64)}
    size = estimator.contributions(problem(MODEL, 4), values, episodes()).shape[1]
    released = 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(3))
    return estimator.stepped(problem(MODEL, 4), values, released, 0)


def value(estimator: Estimator, source: Chain, mean: float = math.inf) -> tuple[float, tuple[float, float]]:
    asked = problem(MODEL, source.units)
    plan = estimator.plan(asked, mean)
    (found,) = estimator.estimates(asked, plan, run(estimator, asked, plan, source))
    assert found.ci95 is not None
    return found.value, found.ci95


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: one.name)
class TestOneUnit:
    def test_a_contribution_depends_on_its_own_unit_alone(self, estimator: Estimator) -> None:
        """Spoilt rows of another unit, padding and the company of a batch change nothing."""
        asked, values, whole = problem(MODEL, 4), begun(estimator), episodes()
        expected = estimator.contributions(asked, values, whole)
        for number in (math.nan, math.inf, 1e300):
            found = estimator.contributions(asked, values, spoilt(whole, 1, number))
            torch.testing.assert_close(found[[0, 2, 3]], expected[[0, 2, 3]], rtol=1e-9, atol=1e-12)
        alone = Chain(4, 1.0)
        for unit in range(4):
            own = estimator.contributions(asked, values, Episodes.read(alone, torch.tensor([unit])))
            torch.testing.assert_close(own[0], expected[unit], rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("number", [math.nan, math.inf, -1e300, 1e8])
    def test_a_neighbour_moves_the_clipped_sum_by_the_sensitivity_at_most(
        self, estimator: Estimator, number: float
    ) -> None:
        asked, values = problem(MODEL, 4), begun(estimator)
        clip = replace(estimator.plan(asked, 1.0).clip, clipping_norm=1e-3)
        assert isinstance(clip, L2Clip)
        spoiled = clip.finish(estimator.contributions(asked, values, spoilt(episodes(), 1, number)))
        norms = torch.linalg.vector_norm(spoiled, dim=1)
        assert (norms <= clip.sensitivity).all()
        unclipped = estimator.contributions(asked, values, episodes())
        assert (torch.linalg.vector_norm(unclipped, dim=1) > clip.sensitivity).any(), "this clip binds"

    @pytest.mark.parametrize("number", [math.nan, math.inf, -1e300, 1e8])
    def test_a_neighbour_moves_the_query_by_its_sensitivity_at_most(self, estimator: Estimator, number: float) -> None:
        asked, values = problem(MODEL, 1), begun(estimator)
        (query,) = estimator.plan(asked, 1.0).queries
        total = estimator.query_total(asked, query.what, values, spoilt(episodes(1), 0, number))
        assert torch.linalg.vector_norm(total.double() / ONE) <= query.sensitivity

    def test_the_plan_costs_about_the_gaussian_release_that_it_was_given(self, estimator: Estimator) -> None:
        plan = estimator.plan(problem(MODEL, 1000), 0.3)
        alone = Plan(1000, "trajectory", replace(plan.sampler, sampling_probability=1.0), plan.clip, 1 / 0.3, 1, 1e-5)
        spent, wanted = plan.spent(), alone.spent()
        assert spent is not None
        assert wanted is not None
        assert spent.epsilon_pld == pytest.approx(wanted.epsilon_pld, rel=0.25)

    def test_an_unknown_start_is_the_models_value(self, estimator: Estimator) -> None:
        """With all the noise in the world the model is what is left, within what the query's own noise says."""
        found, (low, high) = value(estimator, Chain(30, 1.0), mean=1e-2)
        assert low < found < high


def test_a_query_without_its_bound_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: what a spoilt unit would add if numbers were not held within ±1."""
    asked, values = problem(MODEL, 1), begun(LSTD)
    (query,) = LSTD.plan(asked, 1.0).queries

    def unbounded(self: FirstStateValue, numbers: Tensor) -> Tensor:
        return (numbers.nan_to_num() / self.high * 50 * ONE).long()

    monkeypatch.setattr(FirstStateValue, "total", unbounded)
    total = LSTD.query_total(asked, query.what, values, episodes(1))
    assert torch.linalg.vector_norm(total.double() / ONE) > query.sensitivity


def test_least_squares_finds_the_value_of_a_chain_that_the_model_has_wrong() -> None:
    """Members pay 0.5 and 0.9; the chain pays 1. Their difference spans the error, so the answer is exact."""
    model_alone = problem(MODEL, 1)
    public = ModelQ(model_alone, 8, 16)
    fitted = public.fit()
    start = public.action_values(fitted, torch.zeros(1, 1).double(), torch.zeros(1, 1), torch.zeros(1).long()).mean()
    assert float(start) == pytest.approx(0.7 * RETURN, rel=0.02)
    found, (low, high) = value(replace(LSTD, features=0), Chain(300, 1.0))
    assert found == pytest.approx(RETURN, rel=0.02)
    assert low < RETURN < high
    assert high - low < 2 * RETURN  # the correction of the model's value is allowed for


def test_least_squares_covers_the_value_at_a_cost() -> None:
    """Noise, ridge and sampling together: the interval holds the value nearly always, and is not useless."""
    found = [value(replace(LSTD, features=0), Chain(400, 1.0, seed=seed), 1.0) for seed in range(10)]
    covered = sum(low <= RETURN <= high for _, (low, high) in found)
    assert covered >= 7
    assert all(high - low < 3 * RETURN for _, (low, high) in found)


def test_fitted_q_evaluation_leaves_the_model_for_the_data() -> None:
    estimator = replace(FQE, rounds=60, sampling_probability=1.0, clipping_norm=10.0, server_momentum=0.8)
    found, _ = value(estimator, Chain(60, 1.0))
    assert found == pytest.approx(RETURN, rel=0.08)
    untrained, _ = value(replace(estimator, rounds=2, learning_rate=1e-9), Chain(60, 1.0))
    assert untrained == pytest.approx(0.7 * RETURN, rel=0.02)


def test_statistics_are_what_loops_over_rows_add_up_to() -> None:
    """Slow reference: one row at a time, weights γ^t over the unit's own."""
    asked, values, whole = problem(MODEL, 3), begun(LSTD), episodes(3)
    found = LSTD.contributions(asked, values, whole)
    here, gap, error = LSTD._temporal_differences(asked, values, whole)
    size = here.shape[-1]
    for unit in range(3):
        matrix, vector = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        total = sum(0.9 ** int(whole.step[unit, row]) for row in range(whole.own.shape[1]) if whole.own[unit, row])
        for row in range(whole.own.shape[1]):
            if whole.own[unit, row]:
                share = 0.9 ** int(whole.step[unit, row]) / total
                matrix += share * torch.outer(here[unit, row], gap[unit, row])
                vector += share * here[unit, row] * error[unit, row]
        torch.testing.assert_close(found[unit], torch.cat((matrix.flatten(), vector)))
    assert (torch.linalg.vector_norm(here, dim=-1) <= 1 + 1e-9).all()


def test_the_correction_weighs_rows_by_the_adjoint_system() -> None:
    """η solves Aᵀη = φ₀ and θ solves A θ = b: then ⟨η, b⟩ = ⟨θ, φ₀⟩, whatever A is."""
    asked, values = problem(MODEL, 4), begun(LSTD)
    size = LSTD._size(asked)
    drawn = torch.randn(size * size + size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = LSTD.stepped(asked, {**values, NOISE: torch.tensor(0.0)}, drawn, 0)
    states = asked.starts.double()
    start = LSTD._features(asked, values, states, asked.actions(states), torch.zeros(4).long())[0].mean(0)
    torch.testing.assert_close(exact["eta"] @ drawn[-size:], exact["theta"] @ start, rtol=1e-3, atol=1e-6)
    shrunk = LSTD.stepped(asked, {**values, NOISE: torch.tensor(1e6)}, drawn, 0)
    assert float(shrunk["theta"].norm()) < 1e-6, "θ fades to the model's value under noise"


def test_closed_form_gradients_are_those_of_autograd() -> None:
    """Slow reference: one unit and one member at a time."""
    sizes, hidden, members, units, rows = 3, (4, 3), 2, 3, 5
    generator = torch.Generator().manual_seed(0)
    flat = networks.initial(sizes, hidden, members, 0)
    flat = flat + 0.3 * torch.randn(flat.shape, generator=generator, dtype=torch.float64)
    inputs = torch.randn(units * rows, sizes, generator=generator, dtype=torch.float64)
    slope = torch.randn(members, units * rows, generator=generator, dtype=torch.float64)
    weights = networks.layers(flat, sizes, hidden, members)
    said, kept = networks.forward(weights, inputs)
    found = networks.unit_gradients(weights, kept, slope, units)
    for unit in range(units):
        own = slice(unit * rows, (unit + 1) * rows)
        variable = flat.clone().requires_grad_()
        output, _ = networks.forward(networks.layers(variable, sizes, hidden, members), inputs[own])
        torch.testing.assert_close(output, said[:, own])
        (expected,) = torch.autograd.grad((output * slope[:, own]).sum(), variable)
        torch.testing.assert_close(found[unit], expected)


def test_trajectories_of_a_unit_share_its_weight() -> None:
    whole = episodes(3)
    first = first_rows(whole)
    assert first.own.sum(1).tolist() == [1, 2, 3]
    assert (first.step[first.own] == 0).all()
    numbers = torch.arange(9, dtype=torch.float64).view(3, 3)
    assert mean_over_trajectories(first, numbers).tolist() == [0.0, 3.5, 7.0]
    shares = row_shares(problem(MODEL, 3), whole)
    torch.testing.assert_close(shares.sum(1), torch.ones(3, dtype=torch.float64))
    assert (shares[~whole.own] == 0).all()


def test_thinned_rows_are_the_units_own_and_evenly_spaced() -> None:
    whole = episodes(3)
    some = thinned(whole, 6)
    assert some.own.sum(1).tolist() == [5, 6, 6]
    assert some.step[0, :5].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(some.reward[2], whole.reward[2, [0, 2, 5, 7, 10, 12]])
    assert thinned(whole, 100) is whole


def test_the_models_value_and_its_baselines() -> None:
    """Each member's own return; zero actions and uniform ones stand beside it."""
    found = {one.of: one for one in ModelBased(rollouts=8).estimates(problem(MODEL, 1))}
    assert set(found) == {"policy", "random", "zero_action"}
    for one in found.values():
        assert one.value == pytest.approx(0.7 * RETURN, rel=1e-4)
        assert one.ci95 is None
        assert one.covers == "no interval: the members of the model say 2.048 to 3.686"  # 0.5 and 0.9 of RETURN


@pytest.mark.parametrize(("spread", "wide"), [(0.0, False), (0.8, True)])
def test_the_interval_of_a_mean_holds_sampling_and_noise(spread: float, wide: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query = FirstStateValue(-1.0, 3.0).query(5.0)
    units, covered, widths = 400, 0, []
    for _ in range(200):
        numbers = 1.0 + spread * torch.randn(units, generator=generator, dtype=torch.float64)
        exact = FirstStateValue(-1.0, 3.0).total(numbers).double() / ONE
        noise = query.standard_deviation * torch.randn(2, generator=generator, dtype=torch.float64)
        found = FirstStateValue(-1.0, 3.0).mean((exact + noise) / units, query, units)
        covered += found.ci95[0] <= 1.0 <= found.ci95[1]
        widths.append(found.ci95[1] - found.ci95[0])
    assert 180 <= covered <= 199
    noise_alone = 2 * 1.96 * 2 * query.standard_deviation / units
    assert (sum(widths) / 200 > 1.1 * noise_alone) == wide


def test_what_was_spent_is_restored() -> None:
    """A state that is written down and read again goes on with the same values."""
    asked = problem(MODEL, 30)
    plan = FQE.plan(asked, math.inf)
    stored: list[EvaluationState] = []
    run(FQE, asked, plan, Chain(30, 1.0), save_checkpoint=stored.append)
    middle = EvaluationState.restore(stored[2].tensors(), stored[2].facts())
    done = run(FQE, asked, plan, Chain(30, 1.0), middle)
    assert done.finished
    assert done.started == FQE.rounds
