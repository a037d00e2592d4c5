"""Sizes of the dynamics ensemble. Loading this module needs no torch, which is slow to import."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from primorl.model.config import ModelConfig
from primorl.model.features import Polynomials
from primorl.model.termination import LEARNED

if TYPE_CHECKING:
    from torch import Tensor

    from primorl.model.ensemble import Weights

TERMINATION_GAIN = 10.0
"""Logits are the last output times this, since a unit has one row of an end (docs/internals.md compares gains)."""
_RARE_LOGIT = math.log(0.01 / 0.99)


@dataclass(frozen=True)
class Architecture:
    """Sizes of the ensemble and the fixed bounds of its log-variance.

    Each of ``members`` is an MLP from (observation, action) to the mean and log-variance of the
    standardised (next_observation - observation, reward), with Swish activations (PriMORL, section 4.1,
    after MOPO). The log-variance bounds are constants: MOPO learns them, but there they would be shared
    by members and lie outside the clipped update.

    With ``learned_termination`` the last layer has one output more: times `TERMINATION_GAIN`, the logit of the
    probability that the step ends the episode. Its weights are clipped, noised and charged with all others.

    With ``features`` each member is one linear layer of them, without hidden layers. Private rounds train its means
    alone (``spread`` False); the log-variances, the same at every input, join them when the model is released.
    """

    observation_size: int
    action_size: int
    members: int
    hidden: tuple[int, ...]
    log_variance_low: float
    log_variance_high: float
    learned_termination: bool = False
    features: Polynomials | None = field(default=None, repr=False)
    spread: bool = field(default=True, repr=False)

    @classmethod
    def of(cls, config: ModelConfig) -> Architecture:
        """Read the sizes that a stored model states."""
        own = ("learned_termination", "features", "spread")
        sizes = {name: getattr(config, name) for name in cls.__dataclass_fields__ if name not in own}
        return cls(**sizes, learned_termination=config.termination == LEARNED, features=config.features)

    @property
    def inputs(self) -> int:
        """S + A, or the number of features."""
        return self.observation_size + self.action_size if self.features is None else self.features.size

    @property
    def targets(self) -> int:
        """S + 1, of the Gaussian."""
        return self.observation_size + 1

    @property
    def columns(self) -> int:
        """Columns of a target row: S + 1, and the flag of a termination where that is learned."""
        return self.targets + self.learned_termination

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the columns of a target row."""
        names = (*(f"observation_{i}" for i in range(self.observation_size)), "reward", "termination")
        return names[: self.columns]

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of every layer; the last gives means, raw log-variances and the logit, if any, side by side."""
        sizes = (self.inputs, *self.hidden, (1 + self.spread) * self.targets + self.learned_termination)
        return tuple(itertools.pairwise(sizes))

    @property
    def parameters(self) -> int:
        """Weights of the whole ensemble: the dimension of one noise draw."""
        return self.members * sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    def initial_weights(self, seed: int) -> Weights:
        """Draw weights uniformly within ±1/√in, each member its own, from a public seed; linear heads begin at zero.

        The logit of a termination begins as a constant, at a probability of 1%: an episode ends once in many steps, and
        from even odds on every step of every unit would first spend its clipped update on saying so.
        """
        weights = uniform_weights(self.members, self.layers, seed)
        if self.features is not None:
            for part in weights:
                part.zero_()
        if self.learned_termination:
            weights[-2][..., -1] = 0.0
            weights[-1][..., -1] = _RARE_LOGIT / TERMINATION_GAIN
        return weights


def uniform_weights(members: int, layers: Sequence[tuple[int, int]], seed: int) -> Weights:
    """Draw the weights of ``members`` MLPs of these (in, out) layers, uniformly within ±1/√in."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weights: list[Tensor] = []
    for inputs, outputs in layers:
        for shape in ((members, inputs, outputs), (members, 1, outputs)):
            weights.append((torch.rand(shape, generator=generator) * 2 - 1) * (1 / math.sqrt(inputs)))
    return tuple(weights)
