"""The private engine's kernel: every (unit, member) pair's local training, all pairs at once.

PriMORL, Algorithm 2, lines for one unit k: from the released weights θ, gradient steps on the unit's own batches,
each followed by ensemble clipping of θ_k - θ. Pairs are the batch of batched matrix products; the backward
pass is written out by hand, so no graph is built and the weight step is one in-place product.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pipeline.dynamics.ensemble import TERMINATION_GAIN, Architecture, Weights
from pipeline.privacy.clipping import EnsembleClip

_silu_into = torch.ops.aten.silu.out
_silu_backward_into = torch.ops.aten.silu_backward.grad_input


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
    units = batches.inputs.shape[1]
    updates = clip.finish(updates_of_units(start, batches, shape, local, clip))
    return [u.view(units, shape.members, *u.shape[1:]).sum(0, dtype=torch.float64) for u in updates]


def updates_of_units(
    start: Weights, batches: LocalBatches, shape: Architecture, local: LocalTraining, clip: EnsembleClip
) -> list[Tensor]:
    """Δ of every (unit, member) pair before `EnsembleClip.finish`: ``[U·N, in, out]`` and ``[U·N, 1, out]``."""
    steps, units = batches.inputs.shape[:2]
    members, pairs = shape.members, units * shape.members
    current = [w.repeat(units, 1, 1) for w in start]
    delta = [torch.zeros_like(w) for w in current]
    if pairs == 0:
        return delta
    rows = batches.inputs.shape[2]
    hidden = [torch.empty(pairs, rows, size, device=start[0].device) for size in shape.hidden]
    active = [torch.empty_like(h) for h in hidden]
    all_move = (batches.weights.amax(dim=2) > 0).all(dim=1).tolist()
    for j in range(steps):
        x = _per_pair(batches.inputs[j], members)
        y = _per_pair(batches.targets[j], members)
        weight = _per_pair(batches.weights[j].unsqueeze(-1), members)
        moving = weight.amax(dim=1, keepdim=True) > 0
        _descend(current, x, y, weight, moving, hidden, active, shape, local)
        _clip(current, start, delta, None if all_move[j] else moving, clip)
    return delta


def _per_pair(per_unit: Tensor, members: int) -> Tensor:
    """``[U, B, D]`` → ``[U·N, B, D]``: all members of a unit see the same rows."""
    units, rows, size = per_unit.shape
    return per_unit.unsqueeze(1).expand(units, members, rows, size).reshape(units * members, rows, size)


def _descend(
    current: list[Tensor],
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    moving: Tensor,
    hidden: list[Tensor],
    active: list[Tensor],
    shape: Architecture,
    local: LocalTraining,
) -> None:
    """One gradient step of every pair, in place: forward, loss gradient, backward, update."""
    layers = len(shape.layers)
    signal = x
    for i in range(layers - 1):
        torch.baddbmm(current[2 * i + 1], signal, current[2 * i], out=hidden[i])
        _silu_into(hidden[i], out=active[i])
        signal = active[i]
    output = torch.baddbmm(current[-1], signal, current[-2])
    error = _loss_gradient(output, y, shape).mul_(weight)

    rate = local.learning_rate
    kept = 1 - rate * local.weight_decay * moving.to(x.dtype)
    for i in reversed(range(layers)):
        below = active[i - 1] if i else x
        # The error is carried down through this layer's weights before they move.
        carried = torch.bmm(error, current[2 * i].mT) if i else None
        if local.weight_decay:
            current[2 * i].mul_(kept)
            current[2 * i + 1].mul_(kept)
        current[2 * i].baddbmm_(below.mT, error, alpha=-rate)
        current[2 * i + 1].sub_(error.sum(1, keepdim=True), alpha=rate)
        if carried is not None:
            error = _silu_backward_into(carried, hidden[i - 1], grad_input=carried)


def _loss_gradient(output: Tensor, y: Tensor, shape: Architecture) -> Tensor:
    """∂/∂(mean, raw, output) of every row's loss (`row_losses`), ``[P, B, 2(S + 1)]``, or one more with a logit.

    With v = soft_bounded(raw): ∂/∂mean = (mean - y)e^(-v), ∂/∂v = (1 - (mean - y)²e^(-v))/2; of the cross-entropy
    of a flag f, with logit = g·output, ∂/∂output = g (sigmoid(logit) - f).
    """
    low, high = shape.log_variance_low, shape.log_variance_high
    if shape.learned_termination:
        ends = TERMINATION_GAIN * (torch.sigmoid(TERMINATION_GAIN * output[..., -1:]) - y[..., -1:])
        output, y = output[..., :-1], y[..., :-1]
    mean, raw = output.chunk(2, dim=-1)
    below_high = high - softplus(high - raw)
    log_variance = low + softplus(below_high - low)
    precision = torch.exp(-log_variance)
    miss = mean - y
    scaled = miss * precision
    slope = torch.sigmoid(below_high - low) * torch.sigmoid(high - raw)
    spread = 0.5 * slope * (1 - miss * scaled)
    return torch.cat((scaled, spread, ends) if shape.learned_termination else (scaled, spread), dim=-1)


def _clip(
    current: list[Tensor], start: Weights, delta: list[Tensor], moving: Tensor | None, clip: EnsembleClip
) -> None:
    """θ ← θ_start + EnsembleClip(θ - θ_start), in place; leaves the clipped difference in ``delta``.

    Pairs that are not ``moving`` (``[P, 1, 1]``; None: all move) are left alone to the last bit. How many
    steps of padding a unit sees depends on its neighbours in the chunk: were it clipped again, rounding
    would carry their presence into its update.
    """
    # Views [U, N, ...] let the released weights broadcast over units instead of being read once a unit.
    views = [
        (now.view(-1, *was.shape), was, moved.view(-1, *was.shape))
        for now, was, moved in zip(current, start, delta, strict=True)
    ]
    for now, was, moved in views:
        if moving is None:
            torch.sub(now, was, out=moved)
        else:
            moved.copy_(torch.where(moving.view(-1, len(was), 1, 1), now - was, moved))
    norms = torch.stack([torch.linalg.vector_norm(moved, dim=(1, 2), dtype=torch.float64) for moved in delta], dim=1)
    squares = norms.square().view(len(norms), -1, 2).sum(2)  # a layer is its matrix and its bias
    factors = clip.factors(squares).to(start[0].dtype)
    if moving is not None:
        factors = torch.where(moving.flatten(1), factors, 1.0)
    for i, (now, was, moved) in enumerate(views):
        moved.mul_(factors[:, i // 2].view(-1, len(was), 1, 1))
        torch.add(was, moved, out=now)
