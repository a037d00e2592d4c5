"""The blocks of ``params.yaml``, one frozen class each; the engine takes the same objects."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from primorl.base.files import home
from primorl.base.paths import LEDGER
from primorl.base.records import (
    AnyHiddenSizes,
    AtLeastTwo,
    ClippingNorm,
    Delta,
    Epsilon,
    Fraction,
    HiddenSizes,
    Members,
    Multiplier,
    NaturalInt,
    NonNegative,
    PositiveInt,
    Probability,
    Seed,
    Steps,
    Within,
)
from primorl.config.texts import (
    Block,
    Column,
    ConsentValue,
    InnerPath,
    LogVariances,
    Range,
    Seeds,
    StoreUrl,
    Text,
    Variant,
    word_or_numbers,
)
from primorl.engine.settings import LocalTraining, ServerTraining
from primorl.policy.config import SacConfig


@dataclass(frozen=True, kw_only=True)
class PublicColumn(Block):
    """Units are public where a column of the log has one of these values; true and false mean their
    words.
    """

    column: Column
    values: Annotated[tuple[ConsentValue, ...], Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True, kw_only=True)
class PublicFile(Block):
    """Units are public if their ids stand in this file, one a line."""

    file: InnerPath


EstimatorName = Literal["behaviour", "model_check"]
Estimators = dict[EstimatorName, Epsilon]
"""ε of each estimator that is asked, at `privacy.delta`."""


def _kind_of_public(value: Any) -> str:
    keys = value if isinstance(value, dict) else vars(value) if isinstance(value, Block) else ()
    return "by file" if "file" in keys else "by column"


PublicUnits = Annotated[
    Annotated[PublicColumn, Tag("by column")] | Annotated[PublicFile, Tag("by file")],
    Discriminator(_kind_of_public),
]


@dataclass(frozen=True, kw_only=True)
class Partition(Block):
    """How units are split into private and public.

    Attributes:
        public_fraction: the expected share of units drawn public by a hash of their ids; 0: none is
            public.
        public: the units that are public because they consented; exactly one of the two is given.
    """

    public_fraction: Fraction | None = None
    public: PublicUnits | None = None

    def __post_init__(self) -> None:
        _one_of_two("public_fraction", self.public_fraction, "public", self.public)


@dataclass(frozen=True, kw_only=True)
class Budget(Block):
    """Budget of all runs on a dataset together, at `Privacy.delta`; ``epsilon: null`` sets no
    limit.
    """

    epsilon: Epsilon | None = None


@dataclass(frozen=True, kw_only=True)
class Statistics(Block):
    """Queries of the private units beside the rounds; each takes its share of the ε
    (`primorl.work.resolve`).
    """

    normaliser: Literal["public", "private"]
    starts: bool


@dataclass(frozen=True, kw_only=True)
class Privacy(Block):
    """The mechanism of one run (PriMORL, Algorithm 2), and the budget that all runs share.

    ``draw`` numbers the draws of the noise: settings that were paid for are restored, and another
    number pays for another draw of them. ``total_epsilon`` bounds model, clone and questions
    together; `primorl.config.decisions` makes the model's target of it.
    """

    budget: Budget
    total_epsilon: Epsilon | None = None
    target_epsilon: Epsilon | None = None
    noise_multiplier: Multiplier | None = None
    delta: Delta = 1e-5
    sampling_probability: Probability
    rounds: Steps
    clipping_norm: ClippingNorm
    clipping: Literal["flat", "per_layer"] = "flat"
    statistics: Statistics
    draw: NaturalInt = 0

    def __post_init__(self) -> None:
        _one_of_two(
            "target_epsilon", self.target_epsilon, "noise_multiplier", self.noise_multiplier
        )


def _one_of_two(first: str, a: object, second: str, b: object) -> None:
    if (a is None) == (b is None):
        found = "neither" if a is None else "both"
        raise ValueError(
            f"found {found} of {first} and {second}; give exactly one and leave the other empty"
        )


@dataclass(frozen=True, kw_only=True)
class Dynamics(LocalTraining, ServerTraining, Block):
    """The ensemble and its training.

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
    model: Literal["linear", "network"]
    degree: Annotated[int, Within(ge=1, le=3)]
    start: Literal["random", "public"]
    ensemble_size: Members
    hidden: AnyHiddenSizes
    log_variance_bounds: Range


@dataclass(frozen=True, kw_only=True)
class Behaviour(Block):
    """The private clone of the behaviour; ``target_epsilon: 0`` makes none. ε holds at
    `Privacy.delta`.

    Attributes:
        target_epsilon: of the clone.
        hidden: units of each hidden layer. Where these are the policy's, policies begin from the
            clone's weights.
        log_variance_bounds: of actions in a box, scaled to [-1, 1].
    """

    target_epsilon: Annotated[float, Within(ge=0, le=1e6)]
    hidden: HiddenSizes = (32,)
    log_variance_bounds: LogVariances = (-5.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Policy(SacConfig, Block):
    """SAC in the pessimistic model (PriMORL, Algorithm 4); without ``seeds`` one policy, of the
    pipeline's seed.
    """

    seeds: Seeds | None = None
    uncertainty: Literal["max_pairwise_difference", "max_aleatoric", "standardised_difference"]
    penalty: NonNegative
    starts: Literal["reset", "public", "pool", "released"]
    pool_reset_fraction: Probability = 0.1


ReturnBounds = Annotated[
    Annotated[Literal["public", "reward"], Tag("word")] | Annotated[Range, Tag("numbers")],
    Discriminator(word_or_numbers),
]


@dataclass(frozen=True, kw_only=True)
class PrivateEvaluation(Block):
    """Questions to the private units about the policy and the model; every estimator is charged.

    Attributes:
        estimators: ε of each, by name; empty: nothing is asked.
        discount: γ of the value.
        return_bounds: bounds of a trajectory's return; ``public``: from the public returns, where
            there are any; ``reward``: those that the rewards' bounds allow.
        draw: numbers the draws of the noise, as `Privacy.draw` does.
    """

    estimators: Estimators
    discount: Annotated[float, Within(gt=0, le=1)] = 1.0
    return_bounds: ReturnBounds = "public"
    draw: NaturalInt = 0


@dataclass(frozen=True, kw_only=True)
class Evaluation(Block):
    """Episodes in the true environment, and questions to the private units."""

    episodes: AtLeastTwo = 100
    epoch_episodes: AtLeastTwo = 10
    seed: Seed = 1000
    private: PrivateEvaluation


@dataclass(frozen=True, kw_only=True)
class Online(Block):
    """Learning from users who come after training; each is met once. See `primorl.work.online`.

    Attributes:
        users: N, how many come at most; None: none, or all of ``arrivals``.
        arrivals: a file in ``data/arrivals`` with the ids of the users in the order of their
            arrival, one a line; None: ``users`` simulated ones, who come once.
        appearances: how often one user is met at most, in different cohorts. All of them are paid
            for.
        cohort: m, users of one update.
        target_epsilon: ε of one user, at `Privacy.delta`; None: the non-private twin.
        algorithm: that makes the updates.
        learning_rate: of an update.
        clipping_norm: S, of one user's contribution.
        steps: of one user at most; None: the episode's limit times ``episodes``.
        episodes: of one user at most.
        draw: numbers the draws of the noise, as `Privacy.draw` does.
    """

    users: Annotated[int, Within(ge=1, le=10**7)] | None = None
    arrivals: InnerPath | None = None
    appearances: Annotated[int, Within(ge=1, le=64)] = 1
    cohort: Annotated[int, Within(ge=1, le=10**6)] = 250
    target_epsilon: Epsilon | None = 1.0
    algorithm: Literal["dp-pg", "dppg", "dp-npg", "dp-rebel"] = "dppg"
    learning_rate: Annotated[float, Within(ge=1e-9, le=1e3)] = 5.0
    clipping_norm: ClippingNorm = 0.1
    steps: Steps | None = None
    episodes: PositiveInt = 1
    draw: NaturalInt = 0

    @property
    def asked(self) -> bool:
        """Whether anybody is met at all."""
        return self.users is not None or self.arrivals is not None


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Tracking(Block):
    """Where MLflow keeps its runs; ``experiment: null`` is one for each dataset, of its name."""

    uri: StoreUrl | None = None
    experiment: Text | None = None


_Parallel = Annotated[int, Within(gt=0, le=1024)]


@dataclass(frozen=True, kw_only=True)
class Compute(Block):
    """Settings that change speed and nothing else."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    memory_mb: PositiveInt | None = None
    data_mb: PositiveInt | None = None
    threads: _Parallel | None = None
