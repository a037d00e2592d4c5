"""Options of ``source: tabular``: what the columns of a log mean; see docs/datasets/tabular.md."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from primorl.config.texts import Block, Categories, Column, InnerPath
from primorl.project.elapsed import TimeUnit
from primorl.project.values import Finite, Positive, Within

DecimalPoint = Literal[".", ","]


@dataclass(frozen=True, kw_only=True)
class Categorical(Block):
    """A column with one of the declared categories in each row: one-hot, or discrete actions, in the given order."""

    column: Column
    categories: Categories


@dataclass(frozen=True, kw_only=True)
class Elapsed(Block):
    """A dimension of the observation that no column has: the time since the row before, as ``order`` tells it.

    Attributes:
        elapsed: what the dimension is called.
        unit: of the dimension. An ``order`` of numbers counts in this unit; one of times is converted.
        most: a longer time counts as this; a public bound.
    """

    elapsed: Column
    unit: TimeUnit
    most: Positive


@dataclass(frozen=True, kw_only=True)
class CountedActions(Block):
    """A column of discrete actions 0 … count - 1."""

    column: Column
    count: Annotated[int, Within(ge=2, le=10_000)]


@dataclass(frozen=True, kw_only=True)
class BoxActions(Block):
    """Columns of a continuous action, with their bounds; null: those of the environment."""

    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=10_000)]
    low: tuple[Finite, ...] | None = None
    high: tuple[Finite, ...] | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high must both be null or both be lists")
        if self.low is not None and self.high is not None:
            if not len(self.columns) == len(self.low) == len(self.high):
                raise ValueError("low and high must have one number for each of columns")
            if any(low >= high for low, high in zip(self.low, self.high, strict=True)):
                raise ValueError("low must be below high in every dimension")


def _kind_of_action(value: Any) -> str:
    keys = value if isinstance(value, dict) else vars(value) if isinstance(value, Block) else ()
    return next((f"by {key}" for key in ("categories", "count") if key in keys), "by columns")  # tags that are no keys


def _kind_of_observation(value: Any) -> str:
    if isinstance(value, Elapsed) or (isinstance(value, dict) and "elapsed" in value):
        return "by time"
    return "by categories" if isinstance(value, dict | Block) else "by name"


ObservationColumn = Annotated[
    Annotated[Column, Tag("by name")]
    | Annotated[Categorical, Tag("by categories")]
    | Annotated[Elapsed, Tag("by time")],
    Discriminator(_kind_of_observation),
]
ActionColumns = Annotated[
    Annotated[BoxActions, Tag("by columns")]
    | Annotated[CountedActions, Tag("by count")]
    | Annotated[Categorical, Tag("by categories")],
    Discriminator(_kind_of_action),
]


@dataclass(frozen=True, kw_only=True)
class TabularColumns(Block):
    """What the columns of a log mean; null: the log has no such column."""

    unit: Column | None = None
    trajectory: Column
    order: Column
    observation: Annotated[tuple[ObservationColumn, ...], Field(min_length=1, max_length=10_000)]
    action: ActionColumns
    reward: Column
    terminated: Column | None = None
    truncated: Column | None = None
    next_observation: tuple[Column, ...] | None = None
    behaviour_probability: Column | None = None

    def __post_init__(self) -> None:
        if self.next_observation is not None and len(self.next_observation) != len(self.observation):
            raise ValueError("next_observation must be null or name one column for each entry of observation")
        derived = [entry.elapsed for entry in self.observation if isinstance(entry, Elapsed)]
        if derived and self.next_observation is not None:
            raise ValueError("observation has an entry with elapsed, so next_observation must be null")
        if len(derived) > 1 or any(name in self.observation for name in derived):
            raise ValueError("observation may have one entry with elapsed, under a name that no column there has")


@dataclass(frozen=True, kw_only=True)
class CsvFormat(Block):
    """How numbers and fields are written in CSV."""

    delimiter: Annotated[str, Field(pattern=r'^[^\r\n"]$')] = ","
    decimal_point: DecimalPoint = "."


@dataclass(frozen=True, kw_only=True)
class TabularOptions(Block):
    """``source: tabular``: logs in Parquet or CSV, their columns mapped to transitions.

    Attributes:
        beyond_bounds: of observations and rewards beyond the bounds that the entry declares: an error, or cut there.
    """

    files: InnerPath
    csv: CsvFormat = field(default_factory=CsvFormat)
    columns: TabularColumns
    trajectory_ids: Literal["global", "per_unit"]
    end: Literal["flags", "horizon", "last_row", "outcome"]
    sorted: bool = False
    beyond_bounds: Literal["refuse", "clip"] = "refuse"

    def __post_init__(self) -> None:
        if self.trajectory_ids == "per_unit" and self.columns.unit is None:
            raise ValueError(
                "trajectory_ids: per_unit needs columns.unit; name that column; or, where every trajectory is a unit, "
                "set global, and let columns.trajectory name a column in which no two trajectories have the same id"
            )
        if self.end == "flags" and self.columns.terminated is None and self.columns.truncated is None:
            raise ValueError(
                "found no end flags: columns.terminated and columns.truncated are null; name one, or set end to "
                "last_row (every recording was cut there), outcome (it ended there) or horizon (the declared step "
                "limit was reached)"
            )
