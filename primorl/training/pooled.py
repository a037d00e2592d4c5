"""NOT PRIVATE. Plain mini-batches over pooled transitions, no clip, no noise: the MOPO baseline, and public starts."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from primorl.dynamics.normaliser import Normaliser
from primorl.training.policy_network import Network
from primorl.training.public_evaluation import PublicEvaluation, PublicEvaluator, losses_of_rows
from primorl.training.settings import PooledTraining
from primorl.training.training import Trained


def train_pooled(
    architecture: Network,
    private: tuple[Tensor, Tensor],
    public: tuple[Tensor, Tensor] | None,
    *,
    normaliser: Normaliser,
    pooled: PooledTraining,
    seed: int,
    device: torch.device,
    on_epoch: Callable[[PublicEvaluation | None], None],
    beta_nll: float = 0.0,
    epoch_rows: int | None = None,
) -> Trained:
    """Train by maximum likelihood on all private transitions (MOPO, Yu et al. 2020, section 4.3).

    Args:
        architecture: sizes of the network.
        private: inputs ``[R, inputs]`` and targets ``[R, >= columns]`` of every private transition.
        public: the same of the public split, for evaluation; None: there is none.
        normaliser: of inputs and targets.
        pooled: batches, step size, epochs.
        seed: of the initial weights and the batches.
        device: where to compute.
        on_epoch: called with the evaluation after every epoch.
        beta_nll: β of an ensemble's loss, see `primorl.training.settings.LocalTraining`.
        epoch_rows: rows of an epoch, where there are more; None: all.

    Returns:
        The weights with the best public loss; without a public split, those after the last epoch. ``rounds`` counts
        epochs.
    """
    normaliser = replace(normaliser, flag=architecture.columns > architecture.targets)
    maps = normaliser.to(device)
    evaluate = None
    if public is not None:
        columns = public[1][:, : architecture.columns].to(device)
        evaluate = PublicEvaluator(architecture, maps, public[0].to(device), columns)
    inputs = maps.inputs(private[0].to(device))
    targets = maps.targets(private[1].to(device))
    initial = tuple(w.to(device) for w in architecture.initial_weights(seed))
    weights = tuple(w.clone().requires_grad_() for w in initial)
    optimiser = torch.optim.AdamW(weights, lr=pooled.learning_rate, weight_decay=pooled.weight_decay, fused=True)
    generator = torch.Generator(device).manual_seed(seed)
    evaluations: list[PublicEvaluation] = []
    best, best_loss, since_best, epoch = weights, float("inf"), 0, 0
    steps = max(1, min(len(inputs), epoch_rows or len(inputs)) // pooled.batch_size)
    for epoch in range(1, pooled.max_epochs + 1):
        for _ in range(steps):
            size = (architecture.members, pooled.batch_size)
            rows = torch.randint(len(inputs), size, generator=generator, device=device)
            losses, _ = losses_of_rows(architecture, weights, inputs[rows], targets[rows], beta_nll)
            loss = losses.mean(1).sum()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        if evaluate is None:
            on_epoch(None)
            continue
        evaluations.append(evaluate(weights, epoch))
        on_epoch(evaluations[-1])
        if evaluations[-1].loss < best_loss:
            best_loss, since_best = evaluations[-1].loss, 0
            best = tuple(w.detach().clone() for w in weights)
        else:
            since_best += 1
            if since_best >= pooled.patience:
                break
    released = best if evaluations else tuple(w.detach() for w in weights)
    comparison = evaluate.compare(initial, released) if evaluate else None
    return Trained(released, epoch, tuple(evaluations), normaliser, public_loss=comparison)
