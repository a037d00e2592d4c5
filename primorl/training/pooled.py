"""NOT PRIVATE. The MOPO baseline's ensemble: plain mini-batches over pooled transitions, no clip, no noise."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Architecture, Normaliser, row_losses
from primorl.training.training import Look, PublicLook, Trained


@dataclass(frozen=True)
class PooledTraining:
    """Adam on uniform mini-batches, drawn for each member by itself; stopped by the public split."""

    batch_size: int
    learning_rate: float
    weight_decay: float
    max_epochs: int
    patience: int


def train_pooled(
    shape: Architecture,
    private: tuple[Tensor, Tensor],
    public: tuple[Tensor, Tensor] | None,
    *,
    normaliser: Normaliser,
    pooled: PooledTraining,
    seed: int,
    device: torch.device,
    on_epoch: Callable[[Look | None], None],
) -> Trained:
    """Maximum likelihood on all private transitions (MOPO, Yu et al. 2020, section 4.3).

    Args:
        shape: sizes of the ensemble.
        private: inputs ``[R, S + A]`` and targets ``[R, >= columns]`` of every private transition.
        public: the same of the public split, which is looked at; None: there is none.
        normaliser: of inputs and targets.
        pooled: batches, step size, epochs.
        seed: of the initial weights and the batches.
        device: where to compute.
        on_epoch: called with the look after every epoch.

    Returns:
        The weights with the best public loss, or where there is no public split those after the last epoch; ``rounds``
        are epochs.
    """
    normaliser = replace(normaliser.to(device), flag=shape.learned_termination)
    look_at = None
    if public is not None:
        look_at = PublicLook(shape, normaliser, public[0].to(device), public[1][:, : shape.columns].to(device))
    inputs = normaliser.inputs(private[0].to(device))
    targets = normaliser.targets(private[1].to(device))
    weights = tuple(w.to(device).requires_grad_() for w in shape.initial_weights(seed))
    optimiser = torch.optim.AdamW(weights, lr=pooled.learning_rate, weight_decay=pooled.weight_decay, fused=True)
    generator = torch.Generator(device).manual_seed(seed)
    looks: list[Look] = []
    best, best_loss, since_best, epoch = weights, float("inf"), 0, 0
    for epoch in range(1, pooled.max_epochs + 1):
        for _ in range(max(1, len(inputs) // pooled.batch_size)):
            rows = torch.randint(len(inputs), (shape.members, pooled.batch_size), generator=generator, device=device)
            losses, _ = row_losses(shape, weights, inputs[rows], targets[rows])
            loss = losses.mean(1).sum()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        if look_at is None:
            on_epoch(None)
            continue
        looks.append(look_at(weights, epoch))
        on_epoch(looks[-1])
        if looks[-1].loss < best_loss:
            best_loss, since_best = looks[-1].loss, 0
            best = tuple(w.detach().clone() for w in weights)
        else:
            since_best += 1
            if since_best >= pooled.patience:
                break
    released = best if looks else tuple(w.detach() for w in weights)
    return Trained(released, epoch, tuple(looks))
