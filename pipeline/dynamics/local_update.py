"""The private engine's kernel: every (unit, member) pair's local training, all pairs at once.

PriMORL, Algorithm 2, lines for one unit k: from the released weights θ, gradient steps on the unit's own batches,
each followed by ensemble clipping of θ_k - θ. Pairs are the batch of batched matrix products. The backward pass is
written out by hand, so no graph is built; a layer's bias is the last row of its matrix, so one in-place product moves
both; and a clip reads the weights twice and writes them once (docs/performance.md).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.dynamics.ensemble import TERMINATION_GAIN, Architecture, Weights
from pipeline.privacy.clipping import EnsembleClip

_silu_into = torch.ops.aten.silu.out
_silu_backward_into = torch.ops.aten.silu_backward.grad_input
_LEAST_RAW = -80.0  # e^80 is still a float32 number; from there down the slope is 0


@dataclass(frozen=True)
class LocalTraining:
    """The local steps: learning rate η, batch size B, epochs E, decoupled weight decay."""

    learning_rate: float
    batch_size: int
    epochs: int
    weight_decay: float


@dataclass(frozen=True)
class LocalBatches:
    """The batches of U units, in the order in which each unit takes them.

    Sensitive: discard right after use.

    Attributes:
        inputs: standardised, ``[J, U, B, S + A]``, J local steps.
        targets: standardised, ``[J, U, B, S + 1]``; one column more with a learned termination, its flag.
        weights: ``[J, U, B]``, 1/(rows of the batch) on a unit's rows and 0 on padding, so that a step is a
            mean over the unit's own rows and a batch of padding alone moves nothing.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor


def sum_of_updates(
    start: Weights, batches: LocalBatches, shape: Architecture, local: LocalTraining, clip: EnsembleClip
) -> list[Tensor]:
    """Σ_k Δ_k over the units of ``batches``, each joint update of norm at most the clip's.

    Args:
        start: the released weights every unit starts from, ``[N, in, out]`` and ``[N, 1, out]``.
        batches: the units' own transitions.
        shape: sizes of the ensemble.
        local: the local steps.
        clip: applied after every step.

    Returns:
        float64 tensors shaped like ``start``; zero where U = 0. Sensitive: only `Plan.release` may see them.
    """
    updates = _clipped_updates(start, batches, shape, local, clip)
    return _as_weights([u.view(-1, shape.members, *u.shape[1:]).sum(0, dtype=torch.float64) for u in updates])


def updates_of_units(
    start: Weights, batches: LocalBatches, shape: Architecture, local: LocalTraining, clip: EnsembleClip
) -> list[Tensor]:
    """Δ_k of every unit, ``[U, N, in, out]`` and ``[U, N, 1, out]``: the terms of `sum_of_updates`. Sensitive."""
    updates = _clipped_updates(start, batches, shape, local, clip)
    return _as_weights([u.view(-1, shape.members, *u.shape[1:]) for u in updates])


def _clipped_updates(
    start: Weights, batches: LocalBatches, shape: Architecture, local: LocalTraining, clip: EnsembleClip
) -> list[Tensor]:
    """Δ of every (unit, member) pair, one ``[U·N, in + 1, out]`` a layer."""
    steps, units, rows = batches.weights.shape
    pairs = units * shape.members
    origin = [torch.cat(start[i : i + 2], dim=1) for i in range(0, len(start), 2)]
    current = [layer.repeat(units, 1, 1) for layer in origin]
    if pairs == 0 or steps == 0:
        return [torch.zeros_like(layer) for layer in current]
    hidden = [origin[0].new_empty(pairs, rows, size) for size in shape.hidden]
    # The column of ones behind each layer's signal is what the row of biases is multiplied with.
    active = [origin[0].new_ones(pairs, rows, size + 1) for size in shape.hidden]
    views = [(now.view(-1, *was.shape), was) for now, was in zip(current, origin, strict=True)]
    scratch = origin[0].new_empty(max(layer.numel() for layer in current))
    idle = batches.weights.amax(dim=2) == 0
    x = _per_pair(pad(batches.inputs, (0, 1), value=1.0), shape.members)
    y = _per_pair(batches.targets, shape.members)
    weight = _per_pair(batches.weights.unsqueeze(-1), shape.members)
    for j in range(steps):
        _descend(current, x[j], y[j], weight[j], hidden, active, shape, local)
        _clip(views, idle[j], scratch, clip)
    return clip.finish([torch.sub(now, was).flatten(0, 1) for now, was in views])


def _as_weights(layers: list[Tensor]) -> list[Tensor]:
    """``[.., in + 1, out]`` a layer to ``[.., in, out]`` and ``[.., 1, out]``, as `Weights` has them."""
    return [part for layer in layers for part in (layer[..., :-1, :], layer[..., -1:, :])]


def _per_pair(per_unit: Tensor, members: int) -> Tensor:
    """``[J, U, B, D]`` → ``[J, U·N, B, D]``: all members of a unit see the same rows."""
    return per_unit.unsqueeze(2).expand(-1, -1, members, -1, -1).flatten(1, 2)


def _descend(
    current: list[Tensor],
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    hidden: list[Tensor],
    active: list[Tensor],
    shape: Architecture,
    local: LocalTraining,
) -> None:
    """One gradient step of every pair, in place: forward, loss gradient, backward, update."""
    signals = [x, *active]
    for layer, before, after, signal in zip(current, hidden, active, signals, strict=False):
        torch.bmm(signal, layer, out=before)
        _silu_into(before, out=after[..., :-1])
    error = _loss_gradient(torch.bmm(signals[-1], current[-1]), y, shape).mul_(weight)

    rate = local.learning_rate
    kept = 1 - rate * local.weight_decay * (weight.amax(dim=1, keepdim=True) > 0) if local.weight_decay else None
    for i in reversed(range(len(current))):
        # The error is carried down through this layer's weights before they move.
        carried = torch.bmm(error, current[i][:, :-1].mT) if i else None
        if kept is not None:
            current[i].mul_(kept)
        current[i].baddbmm_(signals[i].mT, error, alpha=-rate)
        if carried is not None:
            error = _silu_backward_into(carried, hidden[i - 1], grad_input=carried)


def _loss_gradient(output: Tensor, y: Tensor, shape: Architecture) -> Tensor:
    """∂/∂(mean, raw, output) of every row's loss (`row_losses`), ``[P, B, 2(S + 1)]``, or one more with a logit.

    With v = soft_bounded(raw): ∂/∂mean = (mean - y)e^(-v), ∂/∂v = (1 - (mean - y)²e^(-v))/2; of the cross-entropy
    of a flag f, with logit = g·output, ∂/∂output = g (sigmoid(logit) - f).

    Between low and high v is log(e^low + p), p = 1/(e^-high + e^-raw): two logarithms of sums of exponentials, of
    which e^-v and ∂v/∂raw = (p e^-raw)(p e^-v) need one exponential and no logarithm.
    """
    size = shape.targets
    mean, raw = output[..., :size], output[..., size : 2 * size]
    gradient = torch.empty_like(output)
    inverse = raw.clamp(min=_LEAST_RAW).neg_().exp_()
    below_high = (inverse + math.exp(-shape.log_variance_high)).reciprocal_()
    precision = (below_high + math.exp(shape.log_variance_low)).reciprocal_()
    slope = inverse.mul_(below_high).mul_(below_high.mul_(precision))
    miss = mean - y[..., :size]
    scaled = torch.mul(miss, precision, out=gradient[..., :size])
    torch.mul(slope, miss.mul_(scaled).sub_(1), out=gradient[..., size : 2 * size]).mul_(-0.5)
    if shape.learned_termination:
        probability = torch.sigmoid(TERMINATION_GAIN * output[..., -1:])
        torch.mul(probability - y[..., -1:], TERMINATION_GAIN, out=gradient[..., -1:])
    return gradient


def _clip(views: list[tuple[Tensor, Tensor]], idle: Tensor, scratch: Tensor, clip: EnsembleClip) -> None:
    """θ ← θ_start + EnsembleClip(θ - θ_start), in place.

    float32 throughout: what is promised of an update is settled by `EnsembleClip.finish`, after the last step.

    Units that are ``idle`` are left alone to the last bit (a factor of 1 gives back the weight itself). How many
    steps of padding a unit sees depends on its neighbours in the chunk: were it clipped again, rounding
    would carry their presence into its update.

    Args:
        views: of each layer, the weights ``[U, N, in + 1, out]`` and where they started, ``[N, in + 1, out]``.
        idle: whether a unit has no rows of its own in this step, ``[U]``.
        scratch: room for the largest layer's difference.
        clip: see above.
    """
    norms = []
    for now, was in views:
        moved = torch.sub(now, was, out=scratch[: now.numel()].view_as(now))
        norms.append(torch.linalg.vector_norm(moved.flatten(2), dim=2))
    squares = torch.stack(norms, dim=-1).square_()
    factors = clip.factors(squares.flatten(0, 1)).view_as(squares)
    factors = factors.masked_fill(idle.view(-1, 1, 1), 1.0)
    for i, (now, was) in enumerate(views):
        torch.lerp(was, now, factors[..., i, None, None], out=now)
