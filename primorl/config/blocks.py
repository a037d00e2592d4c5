"""The blocks of ``params.yaml``, one frozen class each; the engine takes the same objects."""

import math
from dataclasses import field
from typing import Annotated, Literal

from primorl.base.files import home
from primorl.base.paths import LEDGER
from primorl.base.records import (
    AnyHiddenSizes,
    AtLeastTwo,
    BufferSize,
    ClippingNorm,
    Delta,
    Epsilon,
    Finite,
    Fraction,
    HiddenSizes,
    LearningRate,
    Members,
    NaturalInt,
    NonNegative,
    Portion,
    Positive,
    PositiveInt,
    Probability,
    Seed,
    Share,
    Steps,
    WeightDecay,
    Within,
)
from primorl.config.reading import (
    Block,
    InnerPath,
    LogVariances,
    OneOf,
    Range,
    Seeds,
    StoreUrl,
    Text,
    Variant,
)
from primorl.engine.settings import EarlyStopping
from primorl.policy.config import refuse_small_buffer


class PublicFile(Block):
    """Units are public if their ids stand in this file, one a line."""

    file: InnerPath


EstimatorName = Literal["behaviour", "model_check"]
JobName = Literal["model", "clone", "behaviour", "model_check"]
Shares = dict[JobName, Annotated[float, Within(gt=0, le=1)]]
"""Parts of what a run may cost, by job, of 1/z² of one Gaussian release at the whole ε. Parts add
up, as Gaussian releases compose.
"""


class Partition(Block):
    """How units are split into private and public.

    Attributes:
        public_fraction: the expected share of units drawn public by a hash of their ids; 0: none is
            public.
        public: the units that are public because they consented; exactly one of the two is given.
    """

    public_fraction: Fraction | None = None
    public: PublicFile | None = None

    def __post_init__(self) -> None:
        if (self.public_fraction is None) == (self.public is None):
            found = "neither" if self.public is None else "both"
            raise ValueError(
                f"found {found} of public_fraction and public; give exactly one and leave the "
                "other empty"
            )


class Budget(Block):
    """Budget of all runs on a dataset together, at `Privacy.delta`; ``epsilon: null`` sets no
    limit.
    """

    epsilon: Epsilon | None = None


class Privacy(Block):
    """The mechanism of one run (PriMORL, Algorithm 2), and the budget that all runs share.

    ``target_epsilon`` is what a run may cost in all, and ``shares`` divide it among its jobs: one
    without a share is not done. ``draw`` numbers the draws of the noise: settings that were paid
    for are restored, and another number pays for another draw of them. None: a rule decides.
    """

    target_epsilon: Epsilon = 0.5
    shares: Shares
    delta: Delta = 1e-5
    budget: Budget = field(default_factory=Budget)
    sampling_probability: Probability | None = None
    rounds: Steps | None = None
    clipping_norm: ClippingNorm | None = None
    clipping: Literal["flat", "per_layer"] = "flat"
    draw: NaturalInt = 0

    def __post_init__(self) -> None:
        if "model" not in self.shares:
            raise ValueError("shares: found none of the model; the model needs one")
        if (total := math.fsum(self.shares.values())) > 1 + 1e-9:
            raise ValueError(f"shares: found {total:.6g} in all; allowed is at most 1")


class Dynamics(Block):
    """The ensemble and its training; see `LocalTraining` and `ServerTraining`. None: a rule
    decides.

    Attributes:
        variant: private, or one of its ablations.
        train_anyway: whether a training is paid for that the forecast before the charge calls
            useless.
        model: ``linear`` heads on fixed features, or a ``network``.
        degree: of the features of linear heads: products of up to so many inputs.
        start: of the weights: ``random``, or ``public``, trained on the public split.
        ensemble_size: N.
        hidden: units of each hidden layer of a network.
        log_variance_bounds: of standardised targets.
    """

    variant: Variant = "private"
    train_anyway: bool = False
    model: Literal["linear", "network"] | None = None
    degree: Annotated[int, Within(ge=1, le=3)] | None = None
    start: Literal["random", "public"] | None = None
    ensemble_size: Members | None = None
    hidden: AnyHiddenSizes | None = None
    log_variance_bounds: Range | None = None
    learning_rate: LearningRate | None = None
    batch_size: Steps = 16
    local_epochs: Steps = 1
    weight_decay: WeightDecay = 0.0
    max_transitions_per_unit: PositiveInt | None = None
    beta_nll: Portion | None = None
    server_momentum: Fraction | None = None
    server_averaging: Fraction | None = None
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping)


class Behaviour(Block):
    """The private clone of the behaviour, which is made where it has a share of ε.

    Attributes:
        hidden: units of each hidden layer. Where these are the policy's, policies begin from the
            clone's weights.
        log_variance_bounds: of actions in a box, scaled to [-1, 1].
    """

    hidden: HiddenSizes = (32,)
    log_variance_bounds: LogVariances = (-5.0, 1.0)


class Policy(Block):
    """SAC in the pessimistic model (PriMORL, Algorithm 4); see `SacConfig`. None: a rule decides.

    Attributes:
        seeds: one policy each; None: one, of the pipeline's seed.
        uncertainty: of the members, by which rewards are lowered.
        penalty: λ.
        starts: where rollouts begin.
        reset_fraction: share of rollouts that begin at a start; the others go on where one of the
            batch before ended.
    """

    seeds: Seeds | None = None
    uncertainty: (
        Literal["max_pairwise_difference", "max_aleatoric", "standardised_difference"] | None
    ) = None
    penalty: NonNegative | None = None
    starts: Literal["reset", "public", "released"] | None = None
    reset_fraction: Probability | None = None
    hidden: HiddenSizes | None = None
    learning_rate: LearningRate | None = None
    discount: Share | None = None
    target_rate: Probability | None = None
    target_entropy: Finite | None = None
    discrete_target_entropy: Share = 0.3
    reward_scale: Positive | None = None
    batch_size: Steps = 256
    epochs: Steps | None = None
    updates_per_epoch: Steps | None = None
    rollout_every: Steps = 250
    rollout_batch: Steps | None = None
    horizon: Steps | None = None
    buffer_size: BufferSize | None = None

    def __post_init__(self) -> None:
        sizes = (self.buffer_size, self.rollout_batch, self.horizon)
        if None not in sizes:
            refuse_small_buffer(*sizes)  # type: ignore[arg-type]


ReturnBounds = Annotated[Literal["public", "reward"] | Range, OneOf()]


class PrivateEvaluation(Block):
    """Questions to the private units, which are asked where they have a share of ε.

    Attributes:
        discount: γ of the value.
        return_bounds: bounds of a trajectory's return; ``public``: from the public returns, where
            there are any; ``reward``: those that the rewards' bounds allow.
        draw: numbers the draws of the noise, as `Privacy.draw` does.
    """

    discount: Annotated[float, Within(gt=0, le=1)] = 1.0
    return_bounds: ReturnBounds = "public"
    draw: NaturalInt = 0


class Evaluation(Block):
    """Episodes in the true environment, and questions to the private units."""

    episodes: AtLeastTwo = 100
    epoch_episodes: AtLeastTwo = 10
    seed: Seed = 1000
    private: PrivateEvaluation = field(default_factory=PrivateEvaluation)


class Online(Block):
    """Learning from users who come after training; each is met once. See `primorl.stages.online`.

    Attributes:
        users: N, how many come at most, each once; None: none.
        cohort: m, users of one update.
        target_epsilon: ε of one user, at `Privacy.delta`; None: the non-private twin.
        learning_rate: of an update.
        clipping_norm: S, of one user's contribution.
        steps: of one user at most; None: the episode's limit times ``episodes``.
        episodes: of one user at most.
        draw: numbers the draws of the noise, as `Privacy.draw` does.
    """

    users: Annotated[int, Within(ge=1, le=10**7)] | None = None
    cohort: Annotated[int, Within(ge=1, le=10**6)] = 250
    target_epsilon: Epsilon | None = 1.0
    learning_rate: Annotated[float, Within(ge=1e-9, le=1e3)] = 5.0
    clipping_norm: ClippingNorm = 0.1
    steps: Steps | None = None
    episodes: PositiveInt = 1
    draw: NaturalInt = 0

    @property
    def asked(self) -> bool:
        """Whether anybody is met at all."""
        return self.users is not None


class LedgerStore(Block):
    """Place of the ledger."""

    url: StoreUrl | None = None

    @property
    def address(self) -> str:
        """SQLAlchemy's URL of the database. A relative path of a SQLite file starts at the project,
        also inside DVC's temporary copies.
        """
        from sqlalchemy import URL, make_url
        from sqlalchemy.exc import ArgumentError

        if self.url is None:
            return URL.create("sqlite", database=str(home() / LEDGER)).render_as_string()
        try:
            url = make_url(self.url)
        except (ArgumentError, ValueError):
            return self.url  # `Ledger.open` says what is wrong with it
        plain = url.get_backend_name() == "sqlite" and url.database and not url.query
        if not plain or url.database == ":memory:":
            return self.url
        return URL.create("sqlite", database=str(home() / str(url.database))).render_as_string()


class Tracking(Block):
    """Where MLflow keeps its runs; ``experiment: null`` is one for each dataset, of its name."""

    uri: StoreUrl | None = None
    experiment: Text | None = None


class Compute(Block):
    """Settings that change speed and nothing else."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
