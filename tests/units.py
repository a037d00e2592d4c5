"""Units in memory for tests of the engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from primorl.engine.settings import EarlyStopping, Execution, LocalTraining, ServerTraining
from primorl.engine.setup import TrainingSetup
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds
from primorl.model.features import Columns
from primorl.privacy.mechanism.mechanism import Mechanism


@dataclass
class Ragged:
    """Units in memory, as lists of tensors: the smallest thing that satisfies `CohortSource`."""

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]

    @property
    def units(self) -> int:
        return len(self.inputs)

    def lengths(self, units: Tensor) -> Tensor:
        return torch.tensor([len(self.inputs[u]) for u in units.tolist()], dtype=torch.int64)

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        chosen = list(zip(units.tolist(), steps, strict=True))
        return (
            torch.stack([self.inputs[u][s] for u, s in chosen]),
            torch.stack([self.targets[u][s] for u, s in chosen]),
        )

    def without(self, unit: int) -> "Ragged":
        keep = [i for i in range(self.units) if i != unit]
        return Ragged([self.inputs[i] for i in keep], [self.targets[i] for i in keep])


@dataclass(frozen=True)
class Padded:
    """Units as tensors ``[U, M, n]``, of which unit u has the first ``rows[u]`` rows."""

    inputs: Tensor
    targets: Tensor
    rows: Tensor

    @property
    def units(self) -> int:
        return len(self.rows)

    def lengths(self, units: Tensor) -> Tensor:
        return self.rows[units]

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[units[:, None], steps], self.targets[units[:, None], steps]


def make_units(shape: Architecture, lengths: Sequence[int], seed: int = 0) -> Ragged:
    """Units of a smooth random system, uneven in length."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(shape.inputs, shape.targets, generator=generator)
    inputs = [torch.randn(length, shape.inputs, generator=generator) for length in lengths]
    return Ragged(inputs, [torch.sin(x @ mixing) for x in inputs])


def local_training(
    learning_rate: float = 0.05, batch_size: int = 16, **changes: Any
) -> LocalTraining:
    """One epoch of local steps without weight decay."""
    settings: dict[str, Any] = {
        "local_epochs": 1,
        "weight_decay": 0.0,
        "max_transitions_per_unit": None,
        "beta_nll": 0.0,
    }
    return LocalTraining(learning_rate=learning_rate, batch_size=batch_size, **(settings | changes))


def server_training(
    momentum: float = 0.0, averaging: float = 0.0, every: int = 5, patience: int | None = None
) -> ServerTraining:
    """The paper's plain server."""
    stopping = EarlyStopping(every=every, patience=patience)
    return ServerTraining(
        server_momentum=momentum, server_averaging=averaging, early_stopping=stopping
    )


def training_setup(
    mechanism: Mechanism, architecture: Architecture, **changes: Any
) -> TrainingSetup:
    """A setup with that mechanism; its normaliser comes from the public split."""
    observation = torch.full((architecture.observation_size,), 10.0)
    action = torch.ones(architecture.action_size)
    settings: dict[str, Any] = {
        "bounds": Bounds(-observation, observation, -action, action, -10.0, 10.0),
        "columns": Columns(len(observation), len(action), (), discrete=False),
        "normaliser": "public",
        "local": local_training(),
        "server": server_training(),
        "seed": 0,
        "execution": Execution(torch.device("cpu"), 1 << 20),
    }
    return TrainingSetup(mechanism=mechanism, architecture=architecture, **(settings | changes))
