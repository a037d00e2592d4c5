"""DPTD finds values that are known, steps as Algorithm 1 does, and its gradients are those of autograd."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from primorl.evaluate.private.dptd import Dptd, TdBatch, ValueNetwork
from primorl.evaluate.private.estimator import EvaluationState, run
from primorl.evaluate.private.problem import Problem
from primorl.evaluate.private.results import Answer
from primorl.privacy.mechanism.clipping import L2Clip
from tests.evaluate.private.conftest import RETURN, Log, payers, problem
from tests.evaluate.private.test_one_unit import dptd


def converged(estimator: Dptd, question: Problem, source: Log) -> Answer:
    """TD: the same algorithm without noise and clip. The log is read once."""
    plan = estimator.plan(question, 1.0)
    queries = tuple(replace(query, noise_multiplier=0.0) for query in plan.queries)
    plan = replace(plan, noise_multiplier=0.0, clip=L2Clip(math.inf), queries=queries)
    episodes, values = source.episodes(), estimator.begin(question)
    for done in range(estimator.rounds):
        values = estimator.stepped(
            question, values, estimator.contributions(question, values, episodes).mean(0), done
        )
    state = run(
        estimator,
        question,
        plan,
        source,
        EvaluationState(values, started=plan.rounds, done=plan.rounds),
    )
    (found,) = estimator.estimates(question, plan, state)
    return found


def test_td_finds_the_value_of_a_chain_and_of_a_policy() -> None:
    found = converged(dptd(rounds=700), problem(2), payers(2, 1.0, noise=0.0))
    assert found.value == pytest.approx(RETURN, rel=0.05)
    assert found.ci95 is not None
    assert found.ci95[0] <= found.value <= found.ci95[1]
    source = payers(40, 0.0, noise=0.0)
    source.inputs[..., 1] = source.targets[..., 1] = (torch.arange(40) % 2 * 2.0 - 1)[:, None]
    question = problem(40, policy=lambda observation: torch.ones(len(observation), 1))
    found = converged(dptd(rounds=400, of="policy", hidden=(12,)), question, source)
    assert (found.of, found.value) == ("policy", pytest.approx(RETURN, abs=0.8))


def test_rows_beyond_the_horizon_and_padding_have_no_weight() -> None:
    batch = dptd().batch(problem(2, horizon=2), payers(2, 1.0, length=4).episodes())
    assert batch.weight[0, 0].tolist() == [0.5, 0.5, *[0] * 6]
    assert batch.weight[0, 1].tolist() == [0.25, 0.25, 0, 0, 0.25, 0.25, 0, 0]
    assert batch.next_factor[0, 0, 1] == 0  # the horizon ends there
    steps = torch.tensor([0, 2, 3, 9])
    assert problem(1, horizon=3, discount=1.0).rewards_left(steps).tolist() == [3, 1, 0, 0]
    assert float(problem(1, horizon=3).rewards_left(steps)[0]) == pytest.approx(1 + 0.9 + 0.81)
    assert problem(1, horizon=None).rewards_left(steps).tolist() == pytest.approx([10.0] * 4)


def test_steps_are_those_of_algorithm_1_and_the_output_averages_the_later_half() -> None:
    estimator, question = dptd(rounds=5, kappa=0.5, eta=0.25, alpha=2.0, beta=3.0), problem(1)
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
    far = dptd(kappa=1e6, eta=1e6)
    for done in range(20):
        values = far.stepped(
            question, values, 1e6 * torch.randn(2 * size, generator=generator), done
        )
        assert all(values[name].abs().max() <= 1 for name in ("theta", "omega", "output")), (
            "the box"
        )


def slow_loss(network: ValueNetwork, theta: Tensor, omega: Tensor, *parts: Tensor) -> Tensor:
    """ℓ of one transition, by autograd and literally as the paper writes it."""
    inputs, next_inputs, reward, factor, next_factor = parts

    def value(at: Tensor) -> Tensor:
        """The network step by step."""
        first, hidden = 0, at
        for below, above in pairwise(network.sizes):
            layer = theta[first : first + above * (below + 1)].view(above, below + 1)
            first += above * (below + 1)
            hidden = layer[:, :-1] @ hidden + layer[:, -1]
            hidden = elu(hidden) if first < len(theta) else hidden
        return hidden[0]

    (gradient,) = torch.autograd.grad(value(inputs), theta, create_graph=True)
    error = reward + next_factor * value(next_inputs) - factor * value(inputs)
    return error * (factor * gradient) @ omega - 0.5 * (factor * gradient @ omega).square()


@pytest.mark.parametrize(("hidden", "shared"), [((6, 5), True), ((4,), False)])
def test_gradients_and_losses_are_those_of_autograd(hidden: tuple[int, ...], shared: bool) -> None:
    generator, network, networks = torch.Generator().manual_seed(0), ValueNetwork(4, hidden), 2
    shapes = [(1 if shared else networks, 2, 3, *last) for last in ((4,), (4,), (), (), (), ())]
    batch = TdBatch(
        *(torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    )
    theta, omega = network.initial(networks, generator), network.initial(networks, generator)
    gradients, losses = network.gradients(theta, omega, batch), network.losses(theta, omega, batch)
    for n in range(networks):
        for u in range(2):
            own_theta, own_omega = (
                theta[n].clone().requires_grad_(),
                omega[n].clone().requires_grad_(),
            )
            *parts, weight = (part[0 if shared else n, u] for part in batch)
            rows = [[part[m] for part in parts] for m in range(3)]
            each = torch.stack([slow_loss(network, own_theta, own_omega, *row) for row in rows])
            expected = torch.stack(
                torch.autograd.grad((weight * each).sum(), (own_theta, own_omega))
            )
            torch.testing.assert_close(gradients[u, n], expected, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(losses[n, u], each.detach(), rtol=1e-10, atol=1e-12)
