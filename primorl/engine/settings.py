"""Settings of training.

``params.yaml``'s block ``dynamics`` inherits them; loading this module needs no torch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from primorl.base.records import Fraction, LearningRate, Portion, PositiveInt, Steps, WeightDecay

if TYPE_CHECKING:
    import torch

LEAST_UNITS = 4
"""Public units that a start needs (`primorl.engine.public`): some are held out to tell when
to stop.
"""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """A unit's local steps in one round (PriMORL, Algorithm 2).

    Attributes:
        learning_rate: η of gradient descent.
        batch_size: B, transitions of one local step.
        local_epochs: E, passes over the unit's transitions.
        weight_decay: decoupled, per step.
        max_transitions_per_unit: a uniform subset of at most this many transitions takes part;
            None: all.
        full_rows: transitions from which on a unit counts in full; one with fewer counts in
            proportion, by a quarter at least. None: all count in full.
        beta_nll: β of the ensemble's loss (Seitzer et al. 2022): every term of a row's Gaussian
            loss counts its own predicted variance to the power β. 0 is maximum likelihood, as in
            the paper; with 1 means are fitted as by least squares, so that rare large targets are
            not explained by a large variance alone.
    """

    learning_rate: LearningRate
    batch_size: Steps = 16
    local_epochs: Steps = 1
    weight_decay: WeightDecay = 0.0
    max_transitions_per_unit: PositiveInt | None
    full_rows: Steps | None = None
    beta_nll: Portion

    @property
    def one_batch(self) -> bool:
        """Whether a unit takes one step a round, on all rows that take part."""
        most = self.max_transitions_per_unit
        return self.local_epochs == 1 and most is not None and most <= self.batch_size


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """When the released weights are evaluated on the public split, and when that ends training.

    Attributes:
        every: rounds between two evaluations.
        patience: evaluations without a better public loss before training stops; None: all rounds
            are run.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # in params.yaml

    every: Steps = 5
    patience: Steps | None = None


@dataclass(frozen=True, kw_only=True)
class ServerTraining:
    """Use of released rounds. All of it is post-processing and costs no privacy.

    Attributes:
        server_momentum: share of the last step in the next one; 0 is the paper's server.
        server_averaging: weight of the past in the running average of released weights; 0 keeps the
            last.
        early_stopping: evaluation on the public split.
    """

    server_momentum: Fraction
    server_averaging: Fraction
    early_stopping: EarlyStopping


@dataclass(frozen=True, kw_only=True)
class PooledTraining:
    """NOT PRIVATE. AdamW on uniform mini-batches of pooled transitions.

    Attributes:
        batch_size: rows of a mini-batch, drawn for each member independently.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        max_epochs: epochs at most.
        patience: epochs without a better public loss before training stops.
        epoch_rows: of an epoch, at most.
    """

    batch_size: Steps
    learning_rate: LearningRate
    weight_decay: WeightDecay
    max_epochs: Steps
    patience: Steps
    epoch_rows: PositiveInt = 1 << 40


CHUNK_BYTES = {"cpu": 12 << 20, "cuda": 2 << 30}
"""Default bound on a chunk's buffers: a core's share of the cache, a part of a GPU's memory."""


@dataclass(frozen=True)
class Execution:
    """Choices that change the speed and nothing else.

    Attributes:
        device: where rounds are computed.
        chunk_bytes: bound on one chunk's buffers.
        rank: number of this process, which holds every ``ranks``-th unit from there on.
        ranks: how many processes make every round together (`primorl.engine.shards`).
    """

    device: "torch.device"
    chunk_bytes: int
    rank: int = 0
    ranks: int = 1

    @property
    def own(self) -> slice:
        """The units of this process."""
        return slice(self.rank, None, self.ranks)
