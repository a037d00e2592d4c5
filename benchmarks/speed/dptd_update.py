"""DPTD's update, the sum of clipped gradients of 300 units of 200 steps, beside loops over units with autograd.

python -m benchmarks.speed.dptd_update [--threads 1]

The first loop is Algorithm 1 as the paper writes it: for each transition, Ψ by autograd, then the loss, then its
gradients. It is timed on 3 units. The second is the best loop over units that we know: a unit's transitions in one
batch, ⟨Ψ, ω⟩ by forward-mode differentiation. All are float64, and their sums agree.
"""

import argparse
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import elu, linear

from benchmarks.machine import interleaved, row, write
from primorl.evaluation.private.value_network import TdBatch, ValueNetwork
from primorl.privacy.mechanism.clipping import L2Clip

UNITS, STEPS, SIZE = 300, 200, 4
_LITERAL, _BATCHED = 3, 60  # units that the loops are timed on
_PORTION = 5  # units at once, as `ValueNetwork.row_bytes` has them
_FIELDS = ("inputs", "next_inputs", "reward", "factor", "next_factor", "dual_factor", "weight")


def main() -> None:
    """Check that all agree, time them, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    network, clip = ValueNetwork(SIZE, (50, 50)), L2Clip(0.1)
    theta, omega = network.initial(1, generator), network.initial(1, generator)
    batch = _batch(generator)

    def ours(units: int = UNITS) -> Tensor:
        total = torch.zeros(2 * network.parameters, dtype=torch.float64)
        for first in range(0, units, _PORTION):
            portion = TdBatch(*(getattr(batch, name)[:, first : min(first + _PORTION, units)] for name in _FIELDS))
            total += clip.finish(network.gradients(theta, omega, portion).flatten(1)).sum(0)
        return total

    def loop(unit_gradient: Callable[[int], Tensor], units: int) -> Tensor:
        return sum((clip.finish(unit_gradient(u)[None])[0] for u in range(units)), torch.zeros(()))

    def literal(unit: int) -> Tensor:
        own_theta, own_omega = theta[0].clone().requires_grad_(), omega[0].clone().requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        for m in range(STEPS):
            value = _value(network, own_theta, batch.inputs[0, unit, m])
            (features,) = torch.autograd.grad(value, own_theta, create_graph=True)
            following = batch.next_factor[0, unit, m] * _value(network, own_theta, batch.next_inputs[0, unit, m])
            error = batch.reward[0, unit, m] + following - value
            advantage = features @ own_omega
            total = total + batch.weight[0, unit, m] * (error * advantage - advantage.square() / 2)
        return torch.cat(torch.autograd.grad(total, (own_theta, own_omega)))

    def loss(own_theta: Tensor, own_omega: Tensor, unit: int) -> Tensor:
        def values(parameters: Tensor) -> Tensor:
            return _value(network, parameters, batch.inputs[0, unit])

        value, advantage = torch.func.jvp(values, (own_theta,), (own_omega,))
        following = batch.next_factor[0, unit] * _value(network, own_theta, batch.next_inputs[0, unit])
        error = batch.reward[0, unit] + following - value
        return (batch.weight[0, unit] * (error * advantage - advantage.square() / 2)).sum()

    gradient = torch.func.grad(loss, argnums=(0, 1))

    def batched(unit: int) -> Tensor:
        return torch.cat(gradient(theta[0], omega[0], unit))

    for slow in (literal, batched):
        torch.testing.assert_close(loop(slow, 2), ours(2), rtol=1e-9, atol=1e-12)
    works = [ours, lambda: loop(batched, _BATCHED)]
    fast, best = interleaved(works, 5)
    (obvious,) = interleaved([lambda: loop(literal, _LITERAL)], 1, warm=False)
    obvious, best = obvious * UNITS / _LITERAL, best * UNITS / _BATCHED
    command = f"python -m benchmarks.speed.dptd_update --threads {threads}"
    what = f"DPTD, clipped gradients of {UNITS} units x {STEPS} steps, 2x50"
    peers = (
        ("a loop", obvious, f"per-unit autograd loop, transition by transition ({_LITERAL} units, times 100)"),
        ("the best loop", best, f"per-unit torch.func loop, a unit's steps in one batch ({_BATCHED} units, times 5)"),
    )
    write(
        "dptd_update" if threads == 1 else f"dptd_update_{threads}_threads",
        [row(command, f"{what}: {name}", fast, slow, about, slow / fast, "s") for name, slow, about in peers],
    )


def _batch(generator: torch.Generator) -> TdBatch:
    def normal(*shape: int) -> Tensor:
        return torch.randn(1, UNITS, STEPS, *shape, dtype=torch.float64, generator=generator)

    ones = torch.ones(1, UNITS, STEPS, dtype=torch.float64)
    return TdBatch(normal(SIZE), normal(SIZE), normal(), ones, 0.95 * ones, ones, ones / STEPS)


def _value(network: ValueNetwork, parameters: Tensor, inputs: Tensor) -> Tensor:
    hidden, first = inputs, 0
    for below, above in pairwise(network.sizes):
        layer = parameters[first : first + above * (below + 1)].view(above, below + 1)
        first += above * (below + 1)
        hidden = linear(hidden, layer[:, :-1], layer[:, -1])
        hidden = elu(hidden) if first < network.parameters else hidden
    return hidden[..., 0]


if __name__ == "__main__":
    main()
