"""The slow, obvious round: one unit, one member, one batch at a time, with autograd.

It judges the kernel.
"""

import math

import torch
from torch import Tensor

from primorl.engine.local_update import LocalBatches
from primorl.engine.public import losses_of_rows
from primorl.engine.settings import LocalTraining
from primorl.model.architecture import Network


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
                alone = tuple(w.unsqueeze(0) for w in leaves)
                losses, _ = losses_of_rows(shape, alone, x[None], y, local.beta_nll)
                loss = losses.mean()
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
