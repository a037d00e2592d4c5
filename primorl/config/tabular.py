"""A log's columns and the dimensions that they become: the options of ``source: tabular``."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from primorl.base.records import Finite, Within
from primorl.config.texts import Block, Categories, Column, InnerPath, OneOf

_MOST_ACTIONS = 10_000

Dimension = tuple[str, float, float]
"""Name, lowest and highest value of one dimension of an observation, as far as its entry
says them.
"""


@dataclass(frozen=True, kw_only=True)
class Categorical(Block):
    """A column with one of the declared categories in each row: one-hot, or discrete actions, in
    the given order.
    """

    column: Column
    categories: Categories

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """One dimension for each category."""
        return tuple((f"{self.column}={category}", 0.0, 1.0) for category in self.categories)


@dataclass(frozen=True, kw_only=True)
class CountedActions(Block):
    """A column of discrete actions 0 … count - 1."""

    column: Column
    count: Annotated[int, Within(ge=2, le=_MOST_ACTIONS)]


def check_ascending(lows: tuple[float, ...], highs: tuple[float, ...]) -> None:
    """Raise ValueError, which names the dimension, where a low is not below its high."""
    for number, (low, high) in enumerate(zip(lows, highs, strict=True), start=1):
        if low >= high:
            raise ValueError(
                f"low must be below high: found {low:g} and {high:g} in dimension {number}"
            )


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
            check_ascending(self.low, self.high)


def _check_joined(columns: tuple[Categorical, ...]) -> tuple[Categorical, ...]:
    if len({each.column for each in columns}) < len(columns):
        raise ValueError("found a column twice")
    if (count := math.prod(len(each.categories) for each in columns)) > _MOST_ACTIONS:
        raise ValueError(f"found {count} combinations; allowed are up to {_MOST_ACTIONS}")
    return columns


JoinedActions = Annotated[
    tuple[Categorical, ...], Field(min_length=1), AfterValidator(_check_joined)
]
"""Columns whose categories together are one discrete action: every combination is one choice, in
the order in which the last column changes first.
"""
ObservationColumn = Annotated[Column | Categorical, OneOf()]
ActionColumns = Annotated[BoxActions | CountedActions | Categorical | JoinedActions, OneOf()]


@dataclass(frozen=True, kw_only=True)
class TabularColumns(Block):
    """Meaning of the columns of a log; null: the log has no such column."""

    unit: Column | None = None
    trajectory: Column
    order: Column
    observation: Annotated[tuple[ObservationColumn, ...], Field(min_length=1, max_length=10_000)]
    action: ActionColumns
    reward: Column
    terminated: Column | None = None
    truncated: Column | None = None
    next_observation: tuple[Column, ...] | None = None

    def __post_init__(self) -> None:
        following = self.next_observation
        if following is not None and len(following) != len(self.observation):
            raise ValueError(
                "next_observation must be null or name one column for each entry of observation"
            )
        names = [name for name, _, _ in self.dimensions]
        if len(set(names)) < len(names):
            raise ValueError("observation has one name twice")

    @property
    def choices(self) -> tuple[Categorical, ...]:
        """The columns that make one discrete action together; none where actions are in a box."""
        if isinstance(self.action, BoxActions):
            return ()
        if isinstance(self.action, CountedActions):
            numbers = tuple(map(str, range(self.action.count)))
            return (Categorical(column=self.action.column, categories=numbers),)
        return self.action if isinstance(self.action, tuple) else (self.action,)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of an observation, in order."""
        found: list[Dimension] = []
        for entry in self.observation:
            if isinstance(entry, str):
                found.append((entry, -math.inf, math.inf))
            else:
                found += entry.dimensions
        return tuple(found)


DecimalPoint = Literal[".", ","]


@dataclass(frozen=True, kw_only=True)
class CsvFormat(Block):
    """How numbers and fields are written in CSV."""

    delimiter: Annotated[str, Field(pattern=r'^[^\r\n"]$')] = ","
    decimal_point: DecimalPoint = "."


@dataclass(frozen=True, kw_only=True)
class TabularOptions(Block):
    """``source: tabular``: logs in Parquet or CSV, their columns mapped to transitions.

    Attributes:
        beyond_bounds: of observations and rewards beyond the bounds that the entry declares: an
            error, or cut there.
    """

    files: InnerPath
    csv: CsvFormat = field(default_factory=CsvFormat)
    columns: TabularColumns
    trajectory_ids: Literal["global", "per_unit"]
    end: Literal["flags", "last_row", "observed", "outcome"]
    sorted: bool = False
    beyond_bounds: Literal["refuse", "clip"] = "refuse"

    def __post_init__(self) -> None:
        if self.trajectory_ids == "per_unit" and self.columns.unit is None:
            raise ValueError("trajectory_ids: per_unit needs columns.unit; else set global")
        if self.end == "flags" and not (self.columns.terminated or self.columns.truncated):
            raise ValueError(
                "end: flags needs columns.terminated or columns.truncated; else set last_row, "
                "observed or outcome"
            )
