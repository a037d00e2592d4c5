"""The slow, obvious round: one unit, one member, one batch at a time, with autograd.

It judges the kernel, and tells attackers what they need to know.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from primorl.engine.local_update import LocalBatches
from primorl.engine.settings import LocalTraining
from primorl.model.architecture import TERMINATION_GAIN, CloneNetwork, Network

MARGIN = 1 - 2.0**-14  # the documented hair below the bound


def mean_loss(
    parameters: list[Tensor], x: Tensor, y: Tensor, shape: Network, beta_nll: float
) -> Tensor:
    """Mean over rows of the negative log-likelihood, and of the ends' cross-entropy, written as the
    textbook has it; a normal's without its constant.

    β-NLL (Seitzer et al. 2022) weighs every term of a dynamics model by the variance to the power
    β, which counts as a constant.
    """
    hidden = x
    for weight, bias in zip(parameters[0:-2:2], parameters[1:-2:2], strict=True):
        z = hidden @ weight + bias
        hidden = z.clamp(min=0) if isinstance(shape, CloneNetwork) else z * torch.sigmoid(z)
    output = hidden @ parameters[-2] + parameters[-1]
    if isinstance(shape, CloneNetwork) and shape.discrete_actions:
        return -torch.distributions.Categorical(logits=output).log_prob(y.argmax(1)).mean()
    if not shape.spread:
        return 0.5 * (output - y).square().sum(1).mean()
    if isinstance(shape, CloneNetwork):
        mean, raw = output.chunk(2, dim=1)
        return _normal_loss(mean.tanh(), raw, y, shape, 0.0)
    size = shape.targets
    mean, raw = output[:, :size], output[:, size : 2 * size]
    loss = _normal_loss(mean, raw, y[:, :size], shape, beta_nll)
    if shape.learned_termination:
        ends = torch.distributions.Bernoulli(logits=TERMINATION_GAIN * output[:, -1])
        loss = loss - ends.log_prob(y[:, -1]).mean()
    return loss


def _normal_loss(mean: Tensor, raw: Tensor, y: Tensor, shape: Network, beta_nll: float) -> Tensor:
    low, high, softplus = shape.log_variance_low, shape.log_variance_high, nn.functional.softplus
    log_variance = low + softplus(high - softplus(high - raw) - low)
    normal = torch.distributions.Normal(mean, torch.exp(log_variance / 2))
    terms = -normal.log_prob(y) - 0.5 * math.log(2 * math.pi)
    return (terms * normal.variance.detach() ** beta_nll).sum(1).mean()


def clipped(update: list[Tensor], norm: float, mode: str, members: int) -> list[Tensor]:
    """EnsembleClip of one member's update: flat to C/√N, per layer to C/√(N·L)."""
    size = len(update) if mode == "flat" else 2
    groups = [update[first : first + size] for first in range(0, len(update), size)]
    result: list[Tensor] = []
    for group in groups:
        length = math.sqrt(sum(float(u.double().square().sum()) for u in group))
        bound = MARGIN * norm / math.sqrt(members * len(groups))
        result += [u * min(1.0, bound / length) if length > 0 else u for u in group]
    return result


def reference_update(
    start: Sequence[Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
    shape: Network,
    local: LocalTraining,
    norm: float,
    mode: str,
) -> list[Tensor]:
    """Δ of one unit, shaped like ``start``, by a step on each batch ``(x, y)``."""
    joint: list[list[Tensor]] = []
    for member in range(shape.members):
        origin = [w[member].clone() for w in start]
        current = [w.clone() for w in origin]
        for x, y in batches:
            leaves = [w.requires_grad_() for w in current]
            gradients = torch.autograd.grad(mean_loss(leaves, x, y, shape, local.beta_nll), leaves)
            with torch.no_grad():
                kept = 1 - local.learning_rate * local.weight_decay
                moved = [
                    w * kept - local.learning_rate * g - o
                    for w, g, o in zip(current, gradients, origin, strict=True)
                ]
                held = clipped(moved, norm, mode, shape.members)
                current = [o + d for o, d in zip(origin, held, strict=True)]
        joint.append([(now - was).detach() for now, was in zip(current, origin, strict=True)])
    return [torch.stack(parts) for parts in zip(*joint, strict=True)]


def reference_sum(
    start: tuple[Tensor, ...],
    batches: LocalBatches,
    shape: Network,
    local: LocalTraining,
    norm: float,
    mode: str,
) -> list[Tensor]:
    """Σ_k Δ_k of PriMORL's Algorithm 2; padding is cut away, never multiplied by zero."""
    total = [torch.zeros(w.shape, dtype=torch.float64) for w in start]
    for unit in range(batches.inputs.shape[1]):
        own = [
            (batches.inputs[step, unit][rows], batches.targets[step, unit][rows])
            for step, rows in enumerate(batches.weights[:, unit] > 0)
            if rows.any()
        ]
        update = reference_update(start, own, shape, local, norm, mode)
        total = [whole + part.double() for whole, part in zip(total, update, strict=True)]
    return total
