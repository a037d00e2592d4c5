"""Weights to begin a private training from, made of the public split. Reads no private byte, so they cost nothing."""

from dataclasses import replace

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Weights
from primorl.dynamics.normaliser import Normaliser
from primorl.training.cohort import CohortSource
from primorl.training.normaliser_query import all_rows
from primorl.training.policy_network import Network
from primorl.training.pooled import train_pooled
from primorl.training.public_evaluation import PublicEvaluation
from primorl.training.settings import LEAST_UNITS, PooledTraining

_HELD_OUT = 4  # one unit in so many
_MOST_ROWS, _HELD_OUT_ROWS = 262_144, 16_384
_EPOCH_ROWS = 16_384
_POOLED = PooledTraining(batch_size=256, learning_rate=2e-3, weight_decay=1e-3, max_epochs=300, patience=10)
_BATCHES = 50  # of an epoch, at least, where rows are few
_LEAST_BATCH = 32
_ORDER_SEED = 3


class Units:
    """Some units of a source as a source of their own."""

    def __init__(self, source: CohortSource, chosen: Tensor) -> None:
        self._source, self._chosen = source, chosen

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self._chosen)

    def lengths(self, units: Tensor) -> Tensor:
        """See `CohortSource.lengths`."""
        return self._source.lengths(self._chosen[units])

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """See `CohortSource.transitions`."""
        return self._source.transitions(self._chosen[units], steps)

    def rows(self, most: int | None = None) -> tuple[Tensor, Tensor]:
        """Inputs ``[R, inputs]`` and targets ``[R, >= columns]``, evenly thinned to at most ``most`` rows."""
        parts = [(inputs[own], targets[own]) for inputs, targets, own in all_rows(self, 0, 1)]
        inputs, targets = (torch.cat(same) for same in zip(*parts, strict=True))
        stride = 1 if most is None else -(-len(inputs) // most)
        return inputs[::stride], targets[::stride]


def shuffled(source: CohortSource) -> Tensor:
    """All units of a source in a random order, the same every time."""
    return torch.randperm(source.units, generator=torch.Generator().manual_seed(_ORDER_SEED))


def public_start(
    architecture: Network, normaliser: Normaliser, public: CohortSource, seed: int, beta_nll: float
) -> Weights:
    """Maximum likelihood on public units, stopped when units that are held out no longer gain from it.

    The number of epochs is found with one unit in four held out. Then all units are trained on for as many.

    Args:
        architecture: sizes of the network, an ensemble or a policy.
        normaliser: of inputs and targets.
        public: the public units, as training sees them (`TrainingSetup.source_of`).
        seed: of the initial weights and the batches.
        beta_nll: β of an ensemble's loss, see `primorl.training.settings.LocalTraining`.

    Raises:
        ValueError: there are fewer than `LEAST_UNITS` units.
    """
    if public.units < LEAST_UNITS:
        raise ValueError(f"a start from public units needs {LEAST_UNITS} of them, found {public.units}")
    order = shuffled(public)
    held_out = max(1, public.units // _HELD_OUT)
    inputs, targets = Units(public, order[held_out:]).rows(_MOST_ROWS)
    size = min(_POOLED.batch_size, max(_LEAST_BATCH, len(inputs) // _BATCHES))
    pooled = replace(_POOLED, batch_size=size)

    def train(
        rows: tuple[Tensor, Tensor], judge: tuple[Tensor, Tensor] | None, pooled: PooledTraining
    ) -> tuple[Weights, tuple[PublicEvaluation, ...]]:
        trained = train_pooled(
            architecture,
            rows,
            judge,
            normaliser=normaliser,
            pooled=pooled,
            seed=seed,
            device=torch.device("cpu"),
            on_epoch=lambda evaluation: None,
            beta_nll=beta_nll,
            epoch_rows=_EPOCH_ROWS,
        )
        return trained.weights, trained.evaluations

    _, seen = train((inputs, targets), Units(public, order[:held_out]).rows(_HELD_OUT_ROWS), pooled)
    losses = [evaluation.loss for evaluation in seen]
    epochs = 1 + losses.index(min(losses))
    weights, _ = train(Units(public, order).rows(_MOST_ROWS), None, replace(pooled, max_epochs=epochs))
    return weights
