"""Doubly robust: a slow loop, the truth whatever the model says, the behaviour's probabilities, intervals."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from primorl.evaluate.private.doubly_robust import Cloned
from primorl.evaluate.private.estimator import run
from primorl.evaluate.private.problem import BLOCK
from tests.evaluate.private import tiny_mdp
from tests.evaluate.private.test_one_unit import FIT, doubly_robust

# In tests, Q̂ is wrong: the model pays 0.5 a step and nothing moves.
FIT = replace(FIT, clipping_norm=1.0, learning_rate=0.2)


def test_without_noise_the_value_is_the_truth_though_the_model_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves = tiny_mdp.MOVES[:, :1].expand_as(tiny_mdp.MOVES)
    monkeypatch.setattr(tiny_mdp, "MOVES", moves)
    source, states = tiny_mdp.log(6000), torch.arange(3)
    problem = replace(tiny_mdp.problem(6000), discount=0.5).with_return_bounds(None)
    truth = torch.zeros(3, dtype=torch.float64)
    for _ in range(tiny_mdp.HORIZON):
        truth = tiny_mdp.REWARDS[states, tiny_mdp.POLICY] + 0.5 * moves[:, 0, :3] @ truth
    for own, right in ((doubly_robust(), True), (doubly_robust(largest_weight=1.2), False)):
        plan = own.plan(problem, 1e9)  # next to no noise
        state = run(own, problem, plan, source)
        (value,) = own.estimates(problem, plan, state)
        assert value.ci95 is not None
        error, width = abs(value.value - float(truth.mean())), value.ci95[1] - value.ci95[0]
        assert 0.01 < width < 0.2
        assert (error < width) == right, (
            "four standard errors; weights that are cut do not remove the model's error"
        )
        model = own.model(problem).at_starts(state.values).mean(0)
        assert (model - truth).abs().min() > 2 * width, "the model is wrong"


def test_the_behaviours_probabilities_are_logged_cloned_or_fitted() -> None:
    """A clone costs nothing; a fit pays for itself. Twin: a clone that is wrong makes other weights."""
    problem, logged = tiny_mdp.problem(50), tiny_mdp.log(50)
    silent, cloned = replace(logged, probability=None).episodes(), doubly_robust(behaviour=Cloned())
    sizes: list[int] = []
    known = replace(problem, clone=lambda rows: (sizes.append(len(rows)), tiny_mdp.clone(rows))[1])
    expected = doubly_robust().weights(problem, {}, logged.episodes())
    torch.testing.assert_close(cloned.weights(known, {}, silent), expected)
    assert set(sizes) == {BLOCK}, "a row's rounding would depend on who shares its batch"
    wrong = replace(
        problem, clone=lambda rows: torch.full((len(rows), 2), 0.5, dtype=torch.float64)
    )
    assert not torch.allclose(cloned.weights(wrong, {}, silent), expected, atol=0.1)
    assert (cloned.about, doubly_robust().about) == (
        ("model", "policy", "clone"),
        ("model", "policy"),
    )
    plan, paid = cloned.plan(known, 0.3), doubly_robust(behaviour=FIT).plan(problem, 0.3)
    shares = [plan.noise_multiplier, *(query.noise_multiplier for query in plan.queries)]
    assert sum(z**-2 for z in shares) == pytest.approx(0.3**2), "squared Gaussian means add up"
    assert sum(query.noise_multiplier**-2 for query in paid.queries) == pytest.approx(0.5 * 0.3**2)
    spent = [each.spent() for each in (plan, paid)]
    assert spent[1].epsilon_pld == pytest.approx(spent[0].epsilon_pld, rel=0.15)  # type: ignore[union-attr]


def test_the_fit_descends_the_cross_entropy_to_a_known_behaviour() -> None:
    problem, episodes = tiny_mdp.problem(1500), tiny_mdp.log(1500).episodes()
    values = FIT.begin(problem)
    values["behaviour.weights"] = torch.randn(
        4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    found = FIT.gradients(problem, values, episodes)
    for unit in range(9):
        own, rows = values["behaviour.weights"].clone().requires_grad_(), episodes.own[unit]
        standard = problem.standardised(episodes.observation[unit, rows])
        features = torch.cat((standard, torch.ones(len(standard), 1)), 1) / 2  # √(S + 1)
        cross_entropy(features @ own, episodes.action[unit, rows].argmax(1)).backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None
        torch.testing.assert_close(found[unit], own.grad.flatten())
    values, iterates = FIT.begin(problem), []
    for done in range(FIT.rounds):  # without noise, of all units
        values = FIT.stepped(values, FIT.gradients(problem, values, episodes).mean(0).float(), done)
        iterates.append(values["behaviour.weights"])
    torch.testing.assert_close(
        values["behaviour.average"], torch.stack(iterates[FIT.rounds // 2 :]).mean(0)
    )
    assert episodes.probability is not None

    def error(fitted: dict[str, Tensor]) -> Tensor:
        chances = FIT.probabilities(problem, fitted, episodes.observation)
        logged = chances.gather(-1, episodes.action.argmax(-1, keepdim=True))[..., 0]
        return (logged - episodes.probability)[episodes.own].abs().max()

    assert error(values) < 0.05
    assert error(FIT.begin(problem)) > 0.1
