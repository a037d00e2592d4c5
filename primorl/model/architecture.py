"""Sizes of what the engine trains, the dynamics ensemble and the clone, and the model's
``config.json``.

Loading this module needs no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from primorl.base.records import Count, FileRecord, Line, NaturalInt, Within, record
from primorl.model.features import Polynomials
from primorl.model.termination import LEARNED

if TYPE_CHECKING:
    from torch import Tensor


FILE = "config.json"
Variant = Literal["private", "no_privacy", "no_clip"]

LITTLE_EXPLAINED = 0.2
"""Share of a column's variance that a model must explain, or a warning is printed."""

CanLearn = Literal["yes", "marginal", "no"]
"""Whether the settings of a training can learn, as far as is known before it."""


@record
class PublicLosses:
    """Mean negative log-likelihood on the public split."""

    initial: float
    """Of the initial weights."""
    constant: float
    """Of the best constant prediction."""
    final: float
    """Of the weights in `model.safetensors`; below both, or the model is not written."""
    public_alone: float | None = None
    """Of the weights that the public split alone made; `null`: rounds began at random."""

    @property
    def diverged(self) -> bool:
        """Whether training made the model worse than its initial weights, or worse than a constant
        prediction.
        """
        return not self.final < min(self.initial, self.constant)


@record
class Explained:
    """What a model explains of one column, by a charged query."""

    share: Annotated[float, Within(ge=0, le=1)]
    """Share of the variance over people's rows."""
    error: Annotated[float, Within(ge=0)]
    """Standard error of it, by the public noise."""


@record
class ModelConfig(FileRecord):
    """Sizes and facts of a model that its weights do not tell.

    Sizes and bounds come from the environment, params.yaml or the public split, never from private
    data.
    """

    FILE_NAME: ClassVar[str] = FILE
    REMEDY: ClassVar[str] = "`dvc checkout` brings the last model back; training anew spends ε"

    observation_size: Count
    """Dimensions of an observation."""
    action_size: Count
    """Dimensions of an action, or the number of discrete actions."""
    members: Count
    """Members of the ensemble."""
    hidden: tuple[Count, ...]
    """Units of every hidden layer."""
    log_variance_low: float
    """Lower bound of the predicted log-variance."""
    log_variance_high: float
    """Upper bound of the predicted log-variance."""
    reward_low: float
    """Lower bound of rewards."""
    reward_high: float
    """Upper bound of rewards."""
    before_end: tuple[float, float] | None = None
    """Bounds of rewards of steps that do not end the episode; `null`: those of all rewards."""
    angles: tuple[tuple[NaturalInt, NaturalInt], ...] = ()
    """Pairs of columns that are cosine and sine of one angle."""
    discrete_actions: bool
    """Whether actions are discrete (one-hot inputs)."""
    termination: Line
    """`none`, `learned` or the name of a declared rule."""
    environment: Line | None
    """Id of the Gymnasium environment; `null`: no simulator."""
    variant: Variant
    """`dynamics.variant` of params.yaml."""
    rounds: Annotated[int, Within(ge=0)]
    """Rounds (or epochs) in the weights, after early stopping on the public split; 0: the public
    split alone.
    """
    observation_names: tuple[Line, ...] | None = None
    """Names of the observation's dimensions, as declared."""
    action_names: tuple[Line, ...] | None = None
    """Names of the action's dimensions or of the actions."""
    engine_version: Count | None = None
    """Version of the engine that trained the weights."""
    public_loss: PublicLosses | None = None
    """Losses on the public split; `null`: there is none."""
    can_learn: CanLearn | None = None
    """The verdict before training; `null`: there is none."""
    warnings: tuple[Line, ...] = ()
    """What was warned of before the charge or after training, and bars a trial of a policy."""
    explained: tuple[Explained | None, ...] | None = None
    """What the model explains of the change of every dimension of the observation, then of the
    reward; `null` for one that the noise hides.
    """
    action_shares: tuple[float, ...] | None = None
    """How often people took each discrete action, by charged queries; `null`: not asked."""
    action_shares_error: float | None = None
    """Standard error of each of them, by the public noise."""
    rare_actions: tuple[NaturalInt, ...] = ()
    """Discrete actions whose shares the noise could have made; neither the clone nor a policy near
    it takes them.
    """
    degree: Count | None = None
    """Largest degree of the features of linear heads; `null`: a network."""
    one_hot: tuple[tuple[int, int], ...] = ()
    """One-hot parts of the features' inputs: first column, number of categories."""

    @property
    def features(self) -> Polynomials | None:
        """Features of linear heads; None: the model is a network."""
        if self.degree is None:
            return None
        return Polynomials(self.observation_size + self.action_size, self.one_hot, self.degree)


TERMINATION_GAIN = 10.0
"""Of a network, logits are the last output times this, since a unit has one row of an end."""
END_SCALE = 0.25
"""Linear heads predict whether a step ends the episode in this unit: the spread of such flags where
episodes have some fifteen steps.
"""
_RARE_LOGIT = math.log(0.01 / 0.99)


@dataclass(frozen=True)
class Architecture:
    """Sizes of the ensemble and the fixed bounds of its log-variance.

    Each of ``members`` is an MLP from (observation, action) to the mean and log-variance of the
    standardised (next_observation - observation, reward), with Swish activations (PriMORL, section
    4.1, after MOPO). The log-variance bounds are constants: MOPO learns them, but there they would
    be shared by members and lie outside the clipped update.

    With ``learned_termination`` the last layer has one output more, for the probability that the
    step ends the episode: times `TERMINATION_GAIN` its logit; of linear heads the probability
    itself in units of `END_SCALE`, which least squares fit as all other targets. Its weights are
    clipped, noised and charged with all others.

    With ``features`` each member is one linear layer of them, without hidden layers. Private rounds
    train its means alone (``spread`` False); the log-variances, the same at every input, join them
    when the model is released.
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
        return cls(
            config.observation_size,
            config.action_size,
            config.members,
            config.hidden,
            config.log_variance_low,
            config.log_variance_high,
            config.termination == LEARNED,
            config.features,
        )

    @property
    def inputs(self) -> int:
        """S + A, or the number of features."""
        if self.features is not None:
            return self.features.size
        return self.observation_size + self.action_size

    @property
    def targets(self) -> int:
        """S + 1, of the Gaussian."""
        return self.observation_size + 1

    @property
    def columns(self) -> int:
        """Columns of a target row: S + 1, and the flag of a termination where that is learned."""
        return self.targets + self.learned_termination

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of every layer; the last gives means, raw log-variances and the logit, if any,
        side by side.
        """
        outputs = (1 + self.spread) * self.targets + self.learned_termination
        return tuple(itertools.pairwise((self.inputs, *self.hidden, outputs)))

    @property
    def parameters(self) -> int:
        """Weights of the whole ensemble: the dimension of one noise draw."""
        return self.members * sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    def initial_weights(self, seed: int) -> tuple[Tensor, ...]:
        """Draw weights uniformly within ±1/√in, each member its own, from a public seed; linear
        heads begin at zero.

        The logit of a termination begins as a constant, at a probability of 1%: an episode ends
        once in many steps, and from even odds on every step of every unit would first spend its
        clipped update on saying so.
        """
        weights = uniform_weights(self.members, self.layers, seed)
        if self.features is not None:
            for part in weights:
                part.zero_()
        elif self.learned_termination:
            weights[-2][..., -1] = 0.0
            weights[-1][..., -1] = _RARE_LOGIT / TERMINATION_GAIN
        return weights


@dataclass(frozen=True)
class CloneNetwork:
    """Sizes of a cloned policy and the fixed bounds of its log-variance.

    An MLP from the standardised observation, of the form of the policies that SAC trains: ReLU
    layers, or none. Actions in a box, scaled to [-1, 1], are Gaussian: mean tanh(output) and
    log-variance, side by side. Discrete actions have a logit each.

    ``hidden`` are the units of every hidden layer; the bounds are of actions scaled to [-1, 1].
    """

    observation_size: int
    action_size: int
    discrete_actions: bool
    hidden: tuple[int, ...]
    log_variance_low: float
    log_variance_high: float
    members: ClassVar[int] = 1
    features: ClassVar[None] = None

    @property
    def inputs(self) -> int:
        """S."""
        return self.observation_size

    @property
    def spread(self) -> bool:
        """Whether log-variances are outputs beside the means."""
        return not self.discrete_actions

    @property
    def targets(self) -> int:
        """A."""
        return self.action_size

    @property
    def columns(self) -> int:
        """A: there is no flag."""
        return self.action_size

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of every layer; the last gives logits, or means before tanh and raw
        log-variances.
        """
        outputs = (1 + self.spread) * self.action_size
        return tuple(itertools.pairwise((self.inputs, *self.hidden, outputs)))

    @property
    def parameters(self) -> int:
        """Weights: the dimension of one noise draw."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    def initial_weights(self, seed: int) -> tuple[Tensor, ...]:
        """Draw hidden weights uniformly within ±1/√in from a public seed.

        The output begins at zero: all are equal.
        """
        weights = uniform_weights(self.members, self.layers, seed)
        for last in weights[-2:]:
            last.zero_()
        return weights


Network = Architecture | CloneNetwork
"""N equal MLPs side by side that the engine trains: the dynamics ensemble or a cloned policy."""


def uniform_weights(
    members: int, layers: Sequence[tuple[int, int]], seed: int
) -> tuple[Tensor, ...]:
    """Draw the weights of ``members`` MLPs of these (in, out) layers, uniformly within ±1/√in."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weights: list[Tensor] = []
    for inputs, outputs in layers:
        for shape in ((members, inputs, outputs), (members, 1, outputs)):
            drawn = torch.rand(shape, generator=generator)
            weights.append((drawn * 2 - 1) * (1 / math.sqrt(inputs)))
    return tuple(weights)
