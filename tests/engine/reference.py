"""The slow, obvious round: one unit, one member, one batch at a time, with autograd.

It judges the kernel.
"""

import math

import torch
from torch import Tensor

from primorl.engine.local_update import LocalBatches
from primorl.engine.settings import LocalTraining
from primorl.model.architecture import TERMINATION_GAIN, Architecture, CloneNetwork, Network


def member_loss(
    parameters: list[Tensor], x: Tensor, y: Tensor, shape: Architecture, beta_nll: float = 0.0
) -> Tensor:
    """Mean over rows of the Gaussian negative log-likelihood (and cross-entropy), written as the
    textbook has it.

    β-NLL (Seitzer et al. 2022) weighs every term by the variance to the power β, which counts as a
    constant.
    """
    hidden = x
    for weight, bias in zip(parameters[0:-2:2], parameters[1:-2:2], strict=True):
        z = hidden @ weight + bias
        hidden = z * torch.sigmoid(z)
    output = hidden @ parameters[-2] + parameters[-1]
    if not shape.spread:
        return 0.5 * (output - y).square().sum(1).mean()
    mean, raw = output[:, : shape.targets], output[:, shape.targets : 2 * shape.targets]
    raw = shape.log_variance_high - torch.nn.functional.softplus(shape.log_variance_high - raw)
    log_variance = shape.log_variance_low + torch.nn.functional.softplus(
        raw - shape.log_variance_low
    )
    normal = torch.distributions.Normal(mean, torch.exp(log_variance / 2))
    terms = -normal.log_prob(y[:, : shape.targets]) - 0.5 * math.log(2 * math.pi)
    loss = (terms * normal.variance.detach() ** beta_nll).sum(1).mean()
    return loss + _of_ends(output, y, shape)


def _of_ends(output: Tensor, y: Tensor, shape: Architecture) -> Tensor | float:
    if not shape.learned_termination:
        return 0.0
    return (
        -torch.distributions.Bernoulli(logits=TERMINATION_GAIN * output[:, -1])
        .log_prob(y[:, -1])
        .mean()
    )


def policy_loss(parameters: list[Tensor], x: Tensor, y: Tensor, shape: CloneNetwork) -> Tensor:
    """Mean over rows of -log π(action): of torch's categorical, or of its normal without the
    constant.
    """
    hidden = x
    for weight, bias in zip(parameters[0:-2:2], parameters[1:-2:2], strict=True):
        hidden = torch.clamp(hidden @ weight + bias, min=0)
    output = hidden @ parameters[-2] + parameters[-1]
    if shape.discrete_actions:
        return -torch.distributions.Categorical(logits=output).log_prob(y.argmax(1)).mean()
    if not shape.spread:
        return 0.5 * (output - y).square().sum(1).mean()
    mean, raw = torch.tanh(output[:, : shape.action_size]), output[:, shape.action_size :]
    raw = shape.log_variance_high - torch.nn.functional.softplus(shape.log_variance_high - raw)
    log_variance = shape.log_variance_low + torch.nn.functional.softplus(
        raw - shape.log_variance_low
    )
    normal = torch.distributions.Normal(mean, torch.exp(log_variance / 2))
    return (-normal.log_prob(y) - 0.5 * math.log(2 * math.pi)).sum(1).mean()


def clipped(update: list[Tensor], norm: float, mode: str, members: int) -> list[Tensor]:
    """EnsembleClip of one member's update: flat to C/√N, per layer to C/√(N·L)."""
    if mode == "flat":
        length = math.sqrt(sum(float(u.double().square().sum()) for u in update))
        return [
            u * min(1.0, norm / math.sqrt(members) / length) if length > 0 else u for u in update
        ]
    layers = len(update) // 2
    result: list[Tensor] = []
    for layer in range(layers):
        pair = update[2 * layer : 2 * layer + 2]
        length = math.sqrt(sum(float(u.double().square().sum()) for u in pair))
        scale = min(1.0, norm / math.sqrt(members * layers) / length) if length > 0 else 1.0
        result += [u * scale for u in pair]
    return result


def reference_sum(
    start: tuple[Tensor, ...],
    batches: LocalBatches,
    shape: Network,
    local: LocalTraining,
    norm: float,
    mode: str,
) -> list[Tensor]:
    """Σ_k Δ_k of PriMORL's Algorithm 2 by plain loops; padding is cut away, never multiplied by
    zero.
    """
    total = [torch.zeros(w.shape, dtype=torch.float64) for w in start]
    for unit in range(batches.inputs.shape[1]):
        for member in range(shape.members):
            origin = [w[member].clone() for w in start]
            current = [w.clone() for w in origin]
            for step in range(batches.inputs.shape[0]):
                rows = batches.weights[step, unit] > 0
                if not rows.any():
                    continue
                x, y = batches.inputs[step, unit][rows], batches.targets[step, unit][rows]
                leaves = [w.requires_grad_() for w in current]
                if isinstance(shape, CloneNetwork):
                    loss = policy_loss(leaves, x, y, shape)
                else:
                    loss = member_loss(leaves, x, y, shape, local.beta_nll)
                gradients = torch.autograd.grad(loss, leaves)
                with torch.no_grad():
                    moved = [
                        w * (1 - local.learning_rate * local.weight_decay)
                        - local.learning_rate * g
                        - o
                        for w, g, o in zip(current, gradients, origin, strict=True)
                    ]
                    current = [
                        o + d
                        for o, d in zip(
                            origin, clipped(moved, norm, mode, shape.members), strict=True
                        )
                    ]
            for whole, now, was in zip(total, current, origin, strict=True):
                whole[member] += (now - was).detach().double()
    return total
