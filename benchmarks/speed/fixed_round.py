"""Define a round of a fixed amount of work: every unit joins, all are of one length."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from primorl.engine.rounds import Rounds
from primorl.engine.settings import CHUNK_BYTES, Execution, LocalTraining
from primorl.engine.setup import TrainingSetup
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser, Weights
from primorl.model.features import Polynomials
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import Mechanism
from tests.units import local_training, training_setup

OBSERVATION, ACTION, BATCH = 3, 1, 16


@dataclass(frozen=True)
class Units:
    """U trajectories of M transitions each; a `CohortSource`.

    ``inputs [U, M, S + A]``, ``targets [U, M, S + 1]``.
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
        """See `CohortSource.transitions`; steps past a unit's end give its own last row."""
        length = self.inputs.shape[1]
        rows = units.unsqueeze(1) * length + steps.clamp(max=length - 1)
        inputs, targets = self.flat()
        return embedding(rows, inputs), embedding(rows, targets)

    def flat(self) -> tuple[Tensor, Tensor]:
        """All inputs ``[U·M, S + A]`` and targets ``[U·M, S + 1]``."""
        return self.inputs.flatten(0, 1), self.targets.flatten(0, 1)


@dataclass(frozen=True)
class FixedRound:
    """N members of two hidden layers on U units of T transitions, in batches of 16; q = 1, so all
    of them join.

    Attributes:
        members: N.
        width: units of a hidden layer; 0: linear heads of degree 3, all T transitions in one step.
        transitions: T.
        cohort: U = qK.
        clipping_norm: C.
        device: where it runs.
    """

    members: int
    width: int
    transitions: int
    cohort: int
    clipping_norm: float = 0.5
    device: str = "cpu"

    @property
    def name(self) -> str:
        """In one line, as tables have it."""
        sizes = (
            f"N {self.members}, 2x{self.width}" if self.width else f"{self.shape.inputs} features"
        )
        return f"qK {self.cohort}, {sizes}, T {self.transitions}, B {self.batch}"

    @property
    def batch(self) -> int:
        """Transitions of a local step."""
        return BATCH if self.width else self.transitions

    @property
    def shape(self) -> Architecture:
        """Of the ensemble."""
        if self.width:
            return Architecture(
                OBSERVATION, ACTION, self.members, (self.width, self.width), -10.0, 0.5
            )
        features = Polynomials(OBSERVATION + ACTION, (), 3)
        return Architecture(
            OBSERVATION, ACTION, self.members, (), -10.0, 0.5, features=features, spread=False
        )

    @property
    def local(self) -> LocalTraining:
        """One epoch; of linear heads a step on all rows, as the pipeline has it."""
        return local_training(
            0.01, self.batch, max_transitions_per_unit=None if self.width else self.batch
        )

    @property
    def mechanism(self) -> Mechanism:
        """With a noise multiplier that suits no dataset: what it is does not change the time."""
        layers = len(self.shape.layers)
        clip = EnsembleClip(self.clipping_norm, "flat", self.members, layers)
        return Mechanism(self.cohort, "trajectory", 1.0, clip, 8.0, 1, 1e-5)

    @property
    def weights(self) -> Weights:
        """Initial ones."""
        return tuple(w.to(self.device) for w in self.shape.initial_weights(0))

    @property
    def normaliser(self) -> Normaliser:
        """The identity."""
        size, targets, features = OBSERVATION + ACTION, self.shape.targets, self.shape.features
        maps = Normaliser(
            torch.zeros(size), torch.ones(size), torch.zeros(targets), torch.ones(targets)
        )
        maps = maps if features is None else maps.with_features(features, torch.zeros(size))
        return maps.to(torch.device(self.device))

    def source(self) -> Units:
        """Fresh units of random inputs; targets are their sines."""
        generator = torch.Generator().manual_seed(self.cohort)
        inputs = torch.randn(
            self.cohort, self.transitions, OBSERVATION + ACTION, generator=generator
        )
        return Units(inputs, torch.sin(inputs)[..., : self.shape.targets])

    def rounds(self, source: Units) -> Rounds:
        """The rounds of a training, whose memory serves every round."""
        return Rounds(self.setup(), source, self.normaliser)

    def setup(self) -> TrainingSetup:
        """The training that the round belongs to."""
        device = torch.device(self.device)
        execution = Execution(device, CHUNK_BYTES[device.type])
        return training_setup(self.mechanism, self.shape, local=self.local, execution=execution)
