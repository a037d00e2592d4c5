"""What becomes of a person's events: the options of ``source: meds``."""

import itertools
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from primorl.base.records import Finite, Positive
from primorl.config.tabular import Dimension
from primorl.config.texts import Block, Category, Column, InnerPath, OneOf

Codes = Annotated[tuple[Category, ...], Field(min_length=1, max_length=10_000)]
"""Codes of events; one that ends in ``*`` stands for all that begin so."""
TimeUnit = Literal["seconds", "minutes", "hours", "days"]


@dataclass(frozen=True, kw_only=True)
class MedsValue(Block):
    """The last number that came with some codes, at or before a decision, and its age.

    Attributes:
        name: of the dimension; that of the age is ``NAME_age``.
        codes: of the measurement, all in one unit of measure. Codes of the action count before the
            decision only.
        low: a lower number is an artefact, and counts as missing; a public bound.
        high: a higher number is one too.
        unit: of the age.
        most: a higher age counts as this; a public bound.
        first: value before the first measurement, with the age ``most``; a public fact. None:
            decisions before the first measurement are left out.
        before: whether numbers count that came before the trajectory began, by at most ``most``.
    """

    name: Column
    codes: Codes
    low: Finite
    high: Finite
    unit: TimeUnit = "hours"
    most: Positive
    first: Finite | None = None
    before: bool = False

    @property
    def age(self) -> str:
        """Name of the age's dimension."""
        return f"{self.name}_age"

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The value and its age."""
        return (self.name, self.low, self.high), (self.age, 0.0, self.most)

    def __post_init__(self) -> None:
        if (
            not self.low < self.high
            or not self.low <= (self.low if self.first is None else self.first) <= self.high
        ):
            raise ValueError("low must be below high, and first null or within them")


@dataclass(frozen=True, kw_only=True)
class MedsFlag(Block):
    """A dimension that is 1 from the first event of some codes on, also without a time (sex), and 0
    before.
    """

    happened: Column
    codes: Codes

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The flag."""
        return ((self.happened, 0.0, 1.0),)


@dataclass(frozen=True, kw_only=True)
class MedsClock(Block):
    """A dimension that is the time since the trajectory began, at most ``most``, a public bound."""

    clock: Column
    unit: TimeUnit
    most: Positive

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The time."""
        return ((self.clock, 0.0, self.most),)


@dataclass(frozen=True, kw_only=True)
class MedsElapsed(Block):
    """A dimension that is the time since the decision before, at most ``most``, a public bound; 0
    at the first.
    """

    elapsed: Column
    unit: TimeUnit
    most: Positive

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The time."""
        return ((self.elapsed, 0.0, self.most),)


@dataclass(frozen=True, kw_only=True)
class MedsDose(Block):
    """A part of the action: events from a decision up to the next one.

    Attributes:
        name: of the dimension.
        codes: of the events.
        of: ``sum`` of their numbers; their ``count``; or the ``last`` number, which holds until
            another comes (a rate).
        bins: ascending edges of levels, for discrete actions; a dose at an edge is of the level
            below.
        low: bounds of a continuous action; a dose beyond is cut there.
        high: the same.
    """

    name: Column
    codes: Codes
    of: Literal["sum", "count", "last"] = "sum"
    bins: Annotated[tuple[Finite, ...], Field(min_length=1, max_length=1000)] | None = None
    low: Finite | None = None
    high: Finite | None = None

    def __post_init__(self) -> None:
        ends = self.bins or (self.low, self.high)
        if (self.bins is None) == (self.low is None) or (self.low is None) != (self.high is None):
            raise ValueError("give either bins, or low and high")
        if any(a is None or b is None or a >= b for a, b in itertools.pairwise(ends)):
            raise ValueError("bins must ascend, and low be below high")


@dataclass(frozen=True, kw_only=True)
class MedsEvents(Block):
    """A decision is taken whenever one of these events happens."""

    codes: Codes


@dataclass(frozen=True, kw_only=True)
class MedsGrid(Block):
    """A decision is taken every so often, from the begin of the trajectory on."""

    every: Positive
    unit: TimeUnit


@dataclass(frozen=True, kw_only=True)
class MedsEventReward(Block):
    """A reward for each event after a decision, up to the next one: ``value``, or ``scale`` times
    its number.
    """

    codes: Codes
    value: Finite | None = None
    scale: Finite | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.scale is None):
            raise ValueError("give either value or scale")


@dataclass(frozen=True, kw_only=True)
class MedsRangeReward(Block):
    """A reward for the value of an observation at the next decision: within ``low`` and ``high``,
    or outside.
    """

    observation: Column
    low: Finite
    high: Finite
    inside: Finite
    outside: Finite


MedsDimension = Annotated[MedsValue | MedsFlag | MedsClock | MedsElapsed, OneOf()]
MedsReward = Annotated[MedsEventReward | MedsRangeReward, OneOf()]
_MEDS_COLUMNS = ("subject_id", "trajectory", "time", "reward", "terminated")


@dataclass(frozen=True, kw_only=True)
class MedsOptions(Block):
    """``source: meds``: a folder in the Medical Event Data Standard.

    Attributes:
        folder: with ``data/**/*.parquet``.
        begins: codes that begin a trajectory; None: it is all of a person's record.
        ends: codes that end it; None, or where none comes: the next one begins, or the record ends.
        terminates: of these codes, those that end it for good, such as death; None: there are none.
        decision: when an action is chosen.
        observation: dimensions, in order.
        action: dimensions; those with ``bins`` are one discrete action together.
        reward: parts, which are added.
    """

    folder: InnerPath
    begins: Codes | None = None
    ends: Codes | None = None
    terminates: Codes | None = None
    decision: Annotated[MedsEvents | MedsGrid, OneOf()]
    observation: Annotated[tuple[MedsDimension, ...], Field(min_length=1, max_length=10_000)]
    action: Annotated[tuple[MedsDose, ...], Field(min_length=1, max_length=10_000)]
    reward: Annotated[tuple[MedsReward, ...], Field(min_length=1, max_length=1000)]

    def __post_init__(self) -> None:
        values = [entry.name for entry in self.observation if isinstance(entry, MedsValue)]
        names = [name for entry in self.observation for name, _, _ in entry.dimensions]
        names += [dose.name for dose in self.action]
        if len({*names, *_MEDS_COLUMNS}) < len(names) + len(_MEDS_COLUMNS):
            raise ValueError(f"a name stands twice, or is one of {', '.join(_MEDS_COLUMNS)}")
        if len({dose.bins is None for dose in self.action}) > 1:
            raise ValueError("action must be entries with bins, or entries with low and high")
        for part in self.reward:
            if isinstance(part, MedsRangeReward) and part.observation not in values:
                raise ValueError(f"reward names {part.observation!r}, no observation with codes")
