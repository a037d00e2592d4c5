"""The fitted behaviour: gradients against autograd, the probabilities of a known behaviour, bounds on one unit."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from primorl.evaluation.private.behaviour_model import BehaviourFit, fitted_probabilities
from primorl.privacy.mechanism.clipping import L2Clip
from tests.evaluation.private import tiny_mdp

FIT = BehaviourFit(sampling_probability=0.5, rounds=60, clipping_norm=1.0, learning_rate=0.2, budget_share=0.5)


def fitted(units: int) -> dict[str, Tensor]:
    """Rounds without noise, of all units."""
    problem, episodes = tiny_mdp.problem(units), tiny_mdp.log(units).episodes()
    values = FIT.begin(problem)
    for done in range(FIT.rounds):
        values = FIT.stepped(values, FIT.gradients(problem, values, episodes).mean(0).float(), done)
    return values


def test_gradients_are_those_of_autograd() -> None:
    problem, episodes = tiny_mdp.problem(9), tiny_mdp.log(9).episodes()
    values = FIT.begin(problem)
    weights = torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values["behaviour.weights"] = weights
    found = FIT.gradients(problem, values, episodes)
    for unit in range(9):
        own = weights.clone().requires_grad_()
        rows = episodes.own[unit]
        standard = problem.standardised(episodes.observation[unit, rows])
        features = torch.cat((standard, torch.ones(len(standard), 1)), 1) / 2  # √(S + 1)
        cross_entropy(features @ own, episodes.action[unit, rows].argmax(1)).backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None
        torch.testing.assert_close(found[unit], own.grad.flatten())


def test_the_fit_finds_a_known_behaviour() -> None:
    problem, episodes = tiny_mdp.problem(1500), tiny_mdp.log(1500).episodes()
    found = fitted(1500)
    assert episodes.probability is not None
    error = (fitted_probabilities(problem, found, episodes) - episodes.probability)[episodes.own].abs()
    assert error.max() < 0.05
    uniform = (fitted_probabilities(problem, FIT.begin(problem), episodes) - episodes.probability)[episodes.own].abs()
    assert uniform.max() > 0.1


def test_the_average_is_over_the_second_half_of_the_iterates() -> None:
    problem = tiny_mdp.problem(10)
    values, iterates = FIT.begin(problem), []
    for done in range(FIT.rounds):
        values = FIT.stepped(values, torch.randn(8), done)
        iterates.append(values["behaviour.weights"])
    torch.testing.assert_close(values["behaviour.average"], torch.stack(iterates[FIT.rounds // 2 :]).mean(0))


def test_whatever_a_unit_holds_its_gradient_is_bounded_and_the_others_stay() -> None:
    problem = tiny_mdp.problem(20)
    values = FIT.begin(problem)
    sound, hostile = (FIT.gradients(problem, values, tiny_mdp.log(20, hostile=u).episodes()) for u in (None, 4))
    others = torch.arange(20) != 4
    torch.testing.assert_close(sound[others], hostile[others], atol=1e-12, rtol=0)
    assert hostile.isfinite().all()
    assert L2Clip(0.01).finish(hostile.clone()).norm(dim=1).max() <= 0.01
    assert hostile.norm(dim=1).max() > 0.01  # the twin: without the clip the bound is exceeded
