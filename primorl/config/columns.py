"""Columns of a log, and the dimensions of observation and action that they become."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from primorl.base.records import Finite, Positive, TimeUnit, Within
from primorl.config.texts import Block, Categories, Column

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
class Elapsed(Block):
    """A dimension of the observation that no column has: the time since the row before, as
    ``order`` tells it.

    Attributes:
        elapsed: name of the dimension.
        unit: of the dimension. An ``order`` of numbers counts in this unit; one of times is
            converted.
        most: a longer time counts as this; a public bound.
    """

    elapsed: Column
    unit: TimeUnit
    most: Positive

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The time."""
        return ((self.elapsed, 0.0, self.most),)


@dataclass(frozen=True, kw_only=True)
class Carried(Block):
    """A column with missing cells: the last value of the same trajectory, and its age as a
    dimension of its own.

    Attributes:
        carried: the column.
        unit: of the age. An ``order`` of numbers counts in this unit; one of times is converted.
        most: a higher age counts as this; a public bound.
        first: value before the first measurement, with the age ``most``; a public fact. None: a
            first cell that is missing is refused.
    """

    carried: Column
    unit: TimeUnit
    most: Positive
    first: Finite | None = None

    @property
    def age(self) -> str:
        """Name of the age's dimension."""
        return f"{self.carried}_age"

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The value and its age."""
        return (self.carried, -math.inf, math.inf), (self.age, 0.0, self.most)


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


def keys_of(value: Any) -> Iterable[str]:
    """Give the keys of a block, or of the mapping that it will be made of."""
    return value if isinstance(value, dict) else vars(value) if isinstance(value, Block) else ()


def _kind_of_action(value: Any) -> str:
    keys = keys_of(value)
    # Tags that are no keys.
    return next((f"by {key}" for key in ("categories", "count") if key in keys), "by columns")


def _kind_of_observation(value: Any) -> str:
    if tag := next((f"by {key}" for key in ("elapsed", "carried") if key in keys_of(value)), None):
        return tag
    return "by categories" if isinstance(value, dict | Block) else "by name"


ObservationColumn = Annotated[
    Annotated[Column, Tag("by name")]
    | Annotated[Categorical, Tag("by categories")]
    | Annotated[Elapsed, Tag("by elapsed")]
    | Annotated[Carried, Tag("by carried")],
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
        if self.next_observation is not None and len(self.next_observation) != len(
            self.observation
        ):
            raise ValueError(
                "next_observation must be null or name one column for each entry of observation"
            )
        elapsed = [entry.elapsed for entry in self.observation if isinstance(entry, Elapsed)]
        carried = [entry for entry in self.observation if isinstance(entry, Carried)]
        if (elapsed or carried) and self.next_observation is not None:
            raise ValueError(
                "observation has an entry with elapsed or carried, so next_observation must be null"
            )
        if len(elapsed) > 1 or any(name in self.observation for name in elapsed):
            raise ValueError(
                "observation may have one entry with elapsed, under a name that no column there has"
            )
        named = [*elapsed, *(name for name in self.observation if isinstance(name, str))]
        named += [name for entry in carried for name in (entry.carried, entry.age)]
        if carried and len(set(named)) < len(named):
            raise ValueError(
                "observation has one name twice; a carried column also makes a dimension COLUMN_age"
            )
