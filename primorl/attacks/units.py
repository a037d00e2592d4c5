"""Units in memory, and units with canaries among them: what victims of an attack are trained on."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from primorl.training.cohort import CohortSource


@dataclass(frozen=True)
class Units:
    """U trajectories of M transitions each; a `CohortSource`.

    Attributes:
        inputs: (observation, action), ``[U, M, S + A]``.
        targets: (next_observation - observation, reward), ``[U, M, S + 1]``.
    """

    inputs: Tensor
    targets: Tensor

    @property
    def units(self) -> int:
        """U."""
        return len(self.inputs)

    def lengths(self, units: Tensor) -> Tensor:
        """M for each of ``units``."""
        return torch.full((len(units),), self.inputs.shape[1], dtype=torch.int64)

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``steps[u, m]`` of unit ``units[u]``; steps past a unit's end give its own last row."""
        length = self.inputs.shape[1]
        rows = units.unsqueeze(1) * length + steps.clamp(max=length - 1)
        inputs, targets = self.flat()
        return embedding(rows, inputs), embedding(rows, targets)

    def flat(self) -> tuple[Tensor, Tensor]:
        """All inputs ``[U·M, S + A]`` and targets ``[U·M, S + 1]``."""
        return self.inputs.flatten(0, 1), self.targets.flatten(0, 1)


@dataclass(frozen=True)
class WithCanaries:
    """The units of ``source``, then those of ``canaries``, of which only the included have rows.

    A canary that is left out keeps its number and its coin in every round but has no transitions, so its update is
    zero: exactly what removing it does to the sum, while K, the denominator and everybody's numbers stay.

    Attributes:
        source: the real units.
        canaries: the planted ones.
        included: bool ``[canaries]``.
    """

    source: CohortSource
    canaries: Units
    included: Tensor

    @property
    def units(self) -> int:
        """Real units and all canaries, included or not."""
        return self.source.units + self.canaries.units

    def lengths(self, units: Tensor) -> Tensor:
        """Transitions of each unit; 0 for a canary that is left out."""
        real, canary = self._split(units)
        lengths = torch.empty_like(units)
        lengths[real] = self.source.lengths(units[real])
        planted = units[canary] - self.source.units
        lengths[canary] = self.canaries.lengths(planted) * self.included[planted]
        return lengths

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``steps[u, m]`` of unit ``units[u]``; steps past a unit's end may give any row of its own."""
        real, canary = self._split(units)
        inputs = torch.empty(*steps.shape, self.canaries.inputs.shape[-1])
        targets = torch.empty(*steps.shape, self.canaries.targets.shape[-1])
        known, following = self.source.transitions(units[real], steps[real])
        # A source's rows may have a flag behind that is not learned.
        inputs[real], targets[real] = known, following[..., : targets.shape[-1]]
        inputs[canary], targets[canary] = self.canaries.transitions(units[canary] - self.source.units, steps[canary])
        return inputs, targets

    def _split(self, units: Tensor) -> tuple[Tensor, Tensor]:
        canary = units >= self.source.units
        return (~canary).nonzero().squeeze(1), canary.nonzero().squeeze(1)
