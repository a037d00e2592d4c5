"""The entries of ``datasets:`` in ``params.yaml``, one class a kind of source; see docs/datasets."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from primorl.config.values import (
    AtLeastTwo,
    Block,
    Categories,
    Column,
    Finite,
    Hidden,
    InnerPath,
    Name,
    NaturalInt,
    NonNegative,
    OpenRange,
    Positive,
    PositiveInt,
    Probability,
    Range,
    Seed,
)


class ReplayOptions(Block):
    """``source: replay``: behaviour policies' whole training, recorded."""

    backend: Literal["gymnasium", "envpool"]
    algorithm: Literal["ddpg", "td3", "sac", "dqn"]
    episodes: PositiveInt
    runs: PositiveInt
    num_envs: PositiveInt
    gradient_steps: PositiveInt
    learning_starts: NaturalInt
    hidden: Hidden
    learning_rate: Positive
    action_noise: NonNegative
    seed: Seed

    @model_validator(mode="after")
    def _episodes_for_all(self) -> Self:
        if self.episodes < self.runs:
            raise ValueError("episodes must be at least runs: every run records some")
        return self


class EpisodeFilter(Block):
    """Which episodes to keep. Both ends of a range belong to it; null leaves an end, or the whole range, open.

    An episode's own rows decide, never the other episodes: a quantile of the dataset would tell of all of them.
    """

    returns: OpenRange | None
    lengths: OpenRange | None
    episodes: OpenRange | None


class MinariPart(Block):
    """One dataset of a mixture, by Minari's id."""

    id: Annotated[str, Field(pattern=r"^[-\w][-\w/]*-v[0-9]+$")]
    filter: EpisodeFilter | None


class MinariOptions(Block):
    """``source: minari``: datasets under ``root`` (null: Minari's own folder), fetched if they may be."""

    root: InnerPath | None
    remote: bool
    parts: Annotated[tuple[MinariPart, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _ids_once(self) -> Self:
        ids = [part.id for part in self.parts]
        if len(set(ids)) < len(ids):
            raise ValueError("an id is given twice; name each once, with the filter that keeps all its episodes")
        return self


class D4rlOptions(Block):
    """``source: d4rl``: an HDF5 file in D4RL's layout, by path or by D4RL's name."""

    file: InnerPath | None
    name: Annotated[str, Field(min_length=1)] | None
    remote: bool

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.file is None) == (self.name is None):
            found = "neither" if self.file is None else "both"
            raise ValueError(f"found {found} of file and name; give exactly one and set the other to null")
        return self


class Categorical(Block):
    """A column with one of the declared categories in each row: one-hot, or discrete actions, in the declared order."""

    column: Column
    categories: Categories


class CountedActions(Block):
    """A column of discrete actions 0 … count - 1."""

    column: Column
    count: AtLeastTwo


class BoxActions(Block):
    """Columns of a continuous action, with their bounds; null: those of the environment."""

    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    low: tuple[Finite, ...] | None
    high: tuple[Finite, ...] | None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high must both be null or both be lists")
        if self.low is not None and self.high is not None:
            if not len(self.columns) == len(self.low) == len(self.high):
                raise ValueError("low and high must have one number for each of columns")
            if any(low >= high for low, high in zip(self.low, self.high, strict=True)):
                raise ValueError("low must be below high in every dimension")
        return self


def _kind_of_action(value: Any) -> str:
    keys = value if isinstance(value, dict) else vars(value) if isinstance(value, Block) else ()
    return next((f"by {key}" for key in ("categories", "count") if key in keys), "by columns")  # tags that are no keys


def _kind_of_observation(value: Any) -> str:
    return "by categories" if isinstance(value, dict | Block) else "by name"


ObservationColumn = Annotated[
    Annotated[Column, Tag("by name")] | Annotated[Categorical, Tag("by categories")],
    Discriminator(_kind_of_observation),
]
ActionColumns = Annotated[
    Annotated[BoxActions, Tag("by columns")]
    | Annotated[CountedActions, Tag("by count")]
    | Annotated[Categorical, Tag("by categories")],
    Discriminator(_kind_of_action),
]


class TabularColumns(Block):
    """What the columns of a log mean; null: the log has no such column."""

    unit: Column | None
    trajectory: Column
    order: Column
    observation: Annotated[tuple[ObservationColumn, ...], Field(min_length=1)]
    action: ActionColumns
    reward: Column
    terminated: Column | None
    truncated: Column | None
    next_observation: tuple[Column, ...] | None

    @model_validator(mode="after")
    def _as_many_after(self) -> Self:
        if self.next_observation is not None and len(self.next_observation) != len(self.observation):
            raise ValueError("next_observation must be null or name one column for each entry of observation")
        return self


class CsvFormat(Block):
    """How numbers and fields are written in CSV."""

    delimiter: Annotated[str, Field(pattern=r'^[^\r\n"]$')]
    decimal_point: Literal[".", ","]


class TabularOptions(Block):
    """``source: tabular``: logs in Parquet or CSV, their columns mapped to transitions."""

    files: InnerPath
    csv: CsvFormat
    columns: TabularColumns
    trajectory_ids: Literal["global", "per_unit"]
    end: Literal["flags", "horizon", "last_row"]
    sorted: bool

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.trajectory_ids == "per_unit" and self.columns.unit is None:
            raise ValueError("trajectory_ids: per_unit needs columns.unit; name the column, or set global")
        if self.end == "flags" and self.columns.terminated is None and self.columns.truncated is None:
            raise ValueError(
                "found no end flags: columns.terminated and columns.truncated are null; name one, or set end to "
                "last_row (every recording was cut there) or horizon (the declared step limit was reached)"
            )
        return self


class IcuSepsisOptions(Block):
    """``source: icu-sepsis``: simulated patients of the tabular MDP estimated from MIMIC-III."""

    patients: PositiveInt
    expert_share: Probability
    observation: Literal["centres", "one_hot"]
    seed: Seed


class PropofolOptions(Block):
    """``source: propofol``: simulated anaesthesias; each patient's controller is drawn from these ranges."""

    patients: PositiveInt
    base: Range
    gain: Range
    noise: Range
    seed: Seed


class DeclaredBounds(Block):
    """Bounds written down by hand, one number a dimension."""

    low: tuple[Finite, ...]
    high: tuple[Finite, ...]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if len(self.low) != len(self.high) or any(a >= b for a, b in zip(self.low, self.high, strict=False)):
            raise ValueError("low and high must have the same length, and low < high in every dimension")
        return self


def _word_or_numbers(value: Any) -> str:
    return "word" if isinstance(value, str) else "numbers"


class Bounds(Block):
    """Public bounds of model states and rewards."""

    observation: Annotated[
        Annotated[Literal["space", "public"], Tag("word")] | Annotated[DeclaredBounds, Tag("numbers")],
        Discriminator(_word_or_numbers),
    ]
    reward: Annotated[
        Annotated[Literal["public"], Tag("word")] | Annotated[Range, Tag("numbers")], Discriminator(_word_or_numbers)
    ]


class Score(Block):
    """Normalised score = scale · (return - low) / (high - low)."""

    low: Finite
    high: Finite
    scale: Positive

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError("low must be below high")
        return self

    def of(self, episode_return: float) -> float:
        """The normalised score of one return (or of a mean of returns)."""
        return self.scale * (episode_return - self.low) / (self.high - self.low)


class Settings(Block):
    """What one dataset wants otherwise than the blocks of params.yaml say: the same keys, laid over them."""

    partition: dict[str, Any]
    privacy: dict[str, Any]
    dynamics: dict[str, Any]
    policy: dict[str, Any]
    evaluation: dict[str, Any]

    @model_validator(mode="after")
    def _no_budget(self) -> Self:
        if "budget" in self.privacy:  # all runs share it, and a change of it must not train anew
            raise ValueError("privacy.budget: one for all datasets; set it in the block privacy")
        return self


class DatasetCommon(Block):
    """What every entry of ``datasets`` says."""

    environment: str | None
    unit: Annotated[str, Field(min_length=1)]
    horizon: PositiveInt | None
    termination: Name
    duplicates: Literal["refuse", "allow"]
    exclude_units: InnerPath | None
    bounds: Bounds
    score: Score | None
    settings: Settings


class ReplayDataset(DatasetCommon):
    """A dataset collected here by training a behaviour policy."""

    unit: Literal["trajectory"]
    source: Literal["replay"]
    options: ReplayOptions


class MinariDataset(DatasetCommon):
    """Minari datasets, one or several as a mixture, on this machine or fetched."""

    source: Literal["minari"]
    options: MinariOptions


class D4rlDataset(DatasetCommon):
    """A file in D4RL's layout."""

    unit: Literal["trajectory"]
    source: Literal["d4rl"]
    options: D4rlOptions


class TabularDataset(DatasetCommon):
    """Logs of any tool, in Parquet or CSV."""

    source: Literal["tabular"]
    options: TabularOptions

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        columns, action = self.options.columns, self.options.columns.action
        if self.unit != (columns.unit or "trajectory"):
            raise ValueError(
                "unit must be the column that options.columns.unit names, or trajectory where that is null"
            )
        if isinstance(action, BoxActions) and (action.low is None) != (self.environment is not None):
            raise ValueError(
                "options.columns.action.low and high must be declared where environment is null, and be null where an "
                "environment declares them"
            )
        if self.options.end == "horizon" and self.horizon is None:
            raise ValueError("options.end: horizon needs a horizon")
        return self


class IcuSepsisDataset(DatasetCommon):
    """Simulated sepsis patients."""

    unit: Literal["trajectory"]
    source: Literal["icu-sepsis"]
    options: IcuSepsisOptions


class PropofolDataset(DatasetCommon):
    """Simulated anaesthesias."""

    unit: Literal["trajectory"]
    source: Literal["propofol"]
    options: PropofolOptions


AnyDataset = ReplayDataset | MinariDataset | D4rlDataset | TabularDataset | IcuSepsisDataset | PropofolDataset
Dataset = Annotated[AnyDataset, Field(discriminator="source")]
