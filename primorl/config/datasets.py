"""The file of one dataset, ``datasets/<name>.yaml``: source, columns, bounds and privacy unit."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from primorl.base import records
from primorl.config import reading
from primorl.config.reading import Block

_MOST_ACTIONS = 10_000

Dimension = tuple[str, float, float]
"""Name, lowest and highest value of one dimension of an observation, as far as its entry
says them.
"""


class Categorical(Block):
    """A column with one of the declared categories in each row: one-hot, or discrete actions, in
    the given order.
    """

    column: reading.Column
    categories: reading.Categories

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """One dimension for each category."""
        return tuple((f"{self.column}={category}", 0.0, 1.0) for category in self.categories)


class CountedActions(Block):
    """A column of discrete actions 0 … count - 1."""

    column: reading.Column
    count: Annotated[int, records.Within(ge=2, le=_MOST_ACTIONS)]


def check_ascending(lows: tuple[float, ...], highs: tuple[float, ...]) -> None:
    """Raise ValueError, which names the dimension, where a low is not below its high."""
    for number, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if low >= high:
            found = f"found {low:g} and {high:g} in dimension {number}"
            raise ValueError(f"low must be below high: {found}")


class BoxActions(Block):
    """Columns of a continuous action, with their bounds; null: those of the environment."""

    columns: Annotated[tuple[reading.Column, ...], Field(min_length=1, max_length=10_000)]
    low: tuple[records.Finite, ...] | None = None
    high: tuple[records.Finite, ...] | None = None

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
ObservationColumn = Annotated[reading.Column | Categorical, reading.OneOf()]
ActionColumns = Annotated[
    BoxActions | CountedActions | Categorical | JoinedActions, reading.OneOf()
]


class TabularColumns(Block):
    """Meaning of the columns of a log; null: the log has no such column.

    Attributes:
        words_as_ids: whether NA, None, null and the like are ids; if not they are missing ones.
    """

    unit: reading.Column | None = None
    trajectory: reading.Column
    order: reading.Column
    observation: Annotated[tuple[ObservationColumn, ...], Field(min_length=1, max_length=10_000)]
    action: ActionColumns
    reward: reading.Column
    terminated: reading.Column | None = None
    truncated: reading.Column | None = None
    next_observation: tuple[reading.Column, ...] | None = None
    words_as_ids: bool = False

    def __post_init__(self) -> None:
        following = self.next_observation
        if following is not None and len(following) != len(self.observation):
            raise ValueError("next_observation must be null or one column for each observation")
        names = [name for name, _, _ in self.dimensions]
        if len(set(names)) < len(names):
            raise ValueError("observation has one name twice")
        done = [*getattr(self.action, "columns", ()), *(one.column for one in self.choices)]
        later = {*done, self.unit, self.reward, self.terminated, self.truncated}
        seen = [one if isinstance(one, str) else one.column for one in self.observation]
        if found := [one for one in seen if one in later]:
            what = "the person, or what a row's action is or leads to"
            raise ValueError(f"observation: found {found[0]!r}, {what}; observe the row before's")

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


class CsvFormat(Block):
    """How numbers and fields are written in CSV."""

    delimiter: Annotated[str, Field(max_length=1, pattern=r'^[^\r\n"]$')] = ","
    decimal_point: Literal[".", ","] = "."


class TabularOptions(Block):
    """``source: tabular``: logs in Parquet or CSV, their columns mapped to transitions.

    Attributes:
        beyond_bounds: of observations and rewards beyond the bounds that the entry declares: an
            error, or cut there.
    """

    files: reading.InnerPath
    csv: CsvFormat = field(default_factory=CsvFormat)
    columns: TabularColumns
    trajectory_ids: Literal["global", "per_unit"]
    end: Literal["flags", "last_row", "observed", "outcome"]
    sorted: bool = False
    beyond_bounds: Literal["refuse", "clip"] = "refuse"

    @property
    def cuts_last_rows(self) -> bool:
        """Whether the last row of a trajectory that does not terminate is dropped, with a reward
        that it may have.
        """
        kept = self.end in ("observed", "outcome")
        return not kept and self.columns.next_observation is None

    def __post_init__(self) -> None:
        if self.trajectory_ids == "per_unit" and self.columns.unit is None:
            raise ValueError("trajectory_ids: per_unit needs columns.unit; else set global")
        if self.end == "flags" and not (self.columns.terminated or self.columns.truncated):
            needed = "columns.terminated or columns.truncated"
            raise ValueError(f"end: flags needs {needed}; else set last_row, observed or outcome")


Codes = Annotated[tuple[reading.Category, ...], Field(min_length=1, max_length=10_000)]
"""Codes of events; one that ends in ``*`` stands for all that begin so."""


class MedsValue(Block):
    """The last number that came with some codes, at or before a decision, and its age unless
    ``age`` is false.

    Attributes:
        name: of the dimension; that of its age is ``NAME_age``.
        codes: of the measurement, all in one unit of measure. Codes of the action count before the
            decision only.
        low: a lower number is an artefact, and counts as missing; a public bound.
        high: a higher number is one too.
        unit: of the age.
        most: a higher age counts as this; a public bound. None: neither ``age`` nor ``before``
            needs it.
        first: value before the first measurement, with the age ``most``; a public fact. None:
            decisions before the first measurement are left out.
        before: whether numbers count that came before the trajectory began, by at most ``most``.
    """

    name: reading.Column
    codes: Codes
    low: records.Finite
    high: records.Finite
    unit: records.TimeUnit = "hours"
    most: records.Positive | None = None
    first: records.Finite | None = None
    before: bool = False
    age: bool = True

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The value and its age."""
        own = (self.name, self.low, self.high)
        if self.most is None or not self.age:
            return (own,)
        return own, (f"{self.name}_age", 0.0, self.most)

    def __post_init__(self) -> None:
        first = self.low if self.first is None else self.first
        if self.low >= self.high or not self.low <= first <= self.high:
            raise ValueError("low must be below high, and first null or within them")
        if self.most is None and (self.age or self.before):
            raise ValueError("most: missing, the highest age; allowed without age and before alone")


class MedsFlag(Block):
    """A dimension that is 1 from the first event of some codes on, also without a time (sex), and 0
    before.
    """

    happened: reading.Column
    codes: Codes

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The flag."""
        return ((self.happened, 0.0, 1.0),)


class MedsClock(Block):
    """A dimension that is the time since the trajectory began, at most ``most``, a public bound."""

    clock: reading.Column
    unit: records.TimeUnit
    most: records.Positive

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The time."""
        return ((self.clock, 0.0, self.most),)


class MedsSince(Block):
    """A dimension that is the time since the last event of some codes (an age, since a birth), at
    most ``most``, a public bound; this also where none came.
    """

    since: reading.Column
    codes: Codes
    unit: records.TimeUnit
    most: records.Positive

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The time."""
        return ((self.since, 0.0, self.most),)


class MedsElapsed(Block):
    """A dimension that is the time since the decision before, at most ``most``, a public bound; 0
    at the first.
    """

    elapsed: reading.Column
    unit: records.TimeUnit
    most: records.Positive

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The time."""
        return ((self.elapsed, 0.0, self.most),)


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

    name: reading.Column
    codes: Codes
    of: Literal["sum", "count", "last"] = "sum"
    bins: Annotated[tuple[records.Finite, ...], Field(min_length=1, max_length=1000)] | None = None
    low: records.Finite | None = None
    high: records.Finite | None = None

    def __post_init__(self) -> None:
        ends = self.bins or (self.low, self.high)
        if (self.bins is None) == (self.low is None) or (self.low is None) != (self.high is None):
            raise ValueError("give either bins, or low and high")
        if any(a is None or b is None or a >= b for a, b in itertools.pairwise(ends)):
            raise ValueError("bins must ascend, and low be below high")


class MedsEvents(Block):
    """A decision is taken whenever one of these events happens."""

    codes: Codes


class MedsGrid(Block):
    """A decision is taken every so often, from the begin of the trajectory on."""

    every: records.Positive
    unit: records.TimeUnit


class MedsEventReward(Block):
    """A reward for each event after a decision, up to the next one: ``value``, or ``scale`` times
    its number.
    """

    codes: Codes
    value: records.Finite | None = None
    scale: records.Finite | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.scale is None):
            raise ValueError("give either value or scale")


class MedsRangeReward(Block):
    """A reward for the value of an observation at the next decision: within ``low`` and ``high``,
    or outside.
    """

    observation: reading.Column
    low: records.Finite
    high: records.Finite
    inside: records.Finite
    outside: records.Finite


MedsDimension = Annotated[
    MedsValue | MedsFlag | MedsClock | MedsSince | MedsElapsed, reading.OneOf()
]
MedsReward = Annotated[MedsEventReward | MedsRangeReward, reading.OneOf()]
_MEDS_COLUMNS = ("subject_id", "trajectory", "time", "reward", "terminated")


class MedsOptions(Block):
    """``source: meds``: a folder in the Medical Event Data Standard.

    Attributes:
        folder: with ``data/**/*.parquet``.
        begins: codes that begin a trajectory; None: it is all of a person's record.
        ends: codes that end it; None, or where none comes: the next one begins, or the record ends.
        terminates: codes that end it for good, such as death; None: there are none.
        decision: when an action is chosen.
        observation: dimensions, in order.
        action: dimensions; those with ``bins`` are one discrete action together.
        reward: parts, which are added.
    """

    folder: reading.InnerPath
    begins: Codes | None = None
    ends: Codes | None = None
    terminates: Codes | None = None
    decision: Annotated[MedsEvents | MedsGrid, reading.OneOf()]
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


T = TypeVar("T")
MINARI_ID = r"^[-\w][-\w/]*-v[0-9]+$"


class ReplayOptions(Block):
    """``source: replay``: behaviour policies' whole training, recorded."""

    algorithm: Literal["ddpg", "td3", "sac", "dqn"]
    episodes: records.PositiveInt
    runs: Annotated[int, records.Within(gt=0, le=1024)] = 1
    num_envs: Annotated[int, records.Within(gt=0, le=65_536)]
    gradient_steps: records.Steps = 1
    learning_starts: records.NaturalInt
    hidden: records.HiddenSizes
    learning_rate: records.LearningRate
    action_noise: records.NonNegative
    seed: records.Seed = 0

    def __post_init__(self) -> None:
        if self.episodes < self.runs:
            raise ValueError("episodes must be at least runs: every run records some")


MinariId = Annotated[str, Field(pattern=MINARI_ID, max_length=200)]


class MinariOptions(Block):
    """``source: minari``: datasets under ``root`` (null: Minari's own folder); ``remote`` allows to
    fetch them.
    """

    root: reading.InnerPath | None = None
    remote: bool = False
    parts: Annotated[
        tuple[MinariId, ...],
        Field(min_length=1, max_length=1000),
        AfterValidator(reading.check_once),
    ]


class D4rlOptions(Block):
    """``source: d4rl``: an HDF5 file in D4RL's layout, by path or by D4RL's name."""

    file: reading.InnerPath | None = None
    name: reading.FilledText | None = None
    remote: bool = False

    def __post_init__(self) -> None:
        if (self.file is None) == (self.name is None):
            raise ValueError("give exactly one of file and name")


class DeclaredBounds(Block):
    """Bounds written down by hand, one number a dimension."""

    low: tuple[records.Finite, ...]
    high: tuple[records.Finite, ...]

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high):
            raise ValueError(f"low, high: found {len(self.low)} and {len(self.high)} numbers")
        check_ascending(self.low, self.high)


_Place = Annotated[int, records.Within(ge=0, le=10_000)]  # of a column, from 0


class Bounds(Block):
    """Public bounds of model states and rewards.

    ``before_end`` bounds the rewards of rows that do not end their trajectory, where those that end
    it have an outcome; null: no such bounds are known. ``outcomes`` names the two ways in which a
    trajectory ends, by the least and by the largest reward. ``angles`` are pairs of columns of the
    observation, counted from 0, that are cosine and sine of one angle: the model keeps them so.
    """

    observation: Annotated[Literal["space", "public"] | DeclaredBounds, reading.OneOf()]
    reward: Annotated[Literal["public"] | reading.Range, reading.OneOf()]
    before_end: tuple[records.Finite, records.Finite] | None = None
    outcomes: tuple[reading.FilledText, reading.FilledText] | None = None
    angles: tuple[tuple[_Place, _Place], ...] = ()

    def __post_init__(self) -> None:
        columns = [column for pair in self.angles for column in pair]
        if len(set(columns)) < len(columns):
            raise ValueError("angles: found a column twice; each is of one angle at most")
        inner, outer = self.before_end, self.reward
        if self.outcomes is not None and inner != (0.0, 0.0):
            raise ValueError(
                "outcomes: each is one reward, at the end; allowed with before_end: [0, 0] alone"
            )
        if inner is None:
            return
        if isinstance(outer, str) or not outer[0] <= inner[0] <= inner[1] <= outer[1]:
            raise ValueError(
                f"before_end: found {list(inner)}; allowed is a range within that of reward"
            )


class Score(Block):
    """Normalised score = scale · (return - low) / (high - low)."""

    low: records.Finite
    high: records.Finite
    scale: records.Positive

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError("low must be below high")

    def of(self, episode_return: float) -> float:
        """The normalised score of one return (or of a mean of returns)."""
        return self.scale * (episode_return - self.low) / (self.high - self.low)


class Ingestion(Block):
    """Treatment of units by ``ingest``.

    Attributes:
        duplicates: whether two units may have equal rows: ``allow`` for short records of a small
            state space.
        exclude_units: a file in data/withdrawals with one unit id a line; these units are left out.
    """

    duplicates: Literal["refuse", "allow"] = "refuse"
    exclude_units: reading.InnerPath | None = None


class CardTexts(Block):
    """Declared texts for the card and the report.

    No stage that trains or charges reads it; None: not stated.

    Attributes:
        owner: responsible for data and policy.
        purpose: permitted uses.
        contact: for questions and mistakes.
        licence: of the data.
        labels: words for columns and actions, by their names, with the unit of measure; and for
            the unit of privacy, in the singular.
    """

    owner: reading.Sentence | None = None
    purpose: reading.Sentence | None = None
    contact: reading.Sentence | None = None
    licence: reading.Sentence | None = None
    labels: dict[reading.Category, reading.Sentence] = field(default_factory=dict)


class DatasetCommon(Block):
    """Keys of every dataset's file.

    Attributes:
        card: see `CardTexts`.
        reward_meaning: meaning of one point of the return; None: not stated.
        left_out: what the declared bounds leave out, as is known beforehand; None: not stated.
        environment: Gymnasium's id of the simulator; None: there is none.
        unit: of privacy: ``trajectory``, or the source's column that names its person.
        population: name of the group of people. In files with the same population, equal ids are
            one person, and charges on a person count in all of them.
        trajectories_per_person: the most trajectories of one person in any version, a public fact;
            None: not declared.
        horizon: the most steps of an episode, a public fact; None: the environment's limit.
        termination: ``none``, ``learned`` or a rule of primorl/model/termination.py.
        bounds: public bounds of observations and rewards.
        score: how returns are normalised; None: they are not.
        ingestion: see `Ingestion`.
        recipe: values that suit these data, for keys of params.yaml (`primorl.config.params`).
    """

    card: CardTexts = field(default_factory=CardTexts)
    reward_meaning: reading.Sentence | None = None
    left_out: reading.Sentence | None = None
    environment: reading.Text | None
    unit: reading.FilledText
    population: reading.FilledText
    trajectories_per_person: records.PositiveInt | None
    horizon: records.Steps | None
    termination: reading.Name
    bounds: Bounds
    score: Score | None
    ingestion: Ingestion
    recipe: dict[str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> dict[str, Any]:
        """The texts that are given, by key."""
        own = {"reward_meaning": self.reward_meaning, "left_out": self.left_out}
        return {key: text for key, text in {**vars(self.card), **own}.items() if text}


class ReplayDataset(DatasetCommon):
    """A dataset collected here by training a behaviour policy."""

    unit: Literal["trajectory"]
    source: Literal["replay"]
    options: ReplayOptions


class MinariDataset(DatasetCommon):
    """Minari datasets, one or several as a mixture, on this machine or fetched."""

    unit: Literal["trajectory"]
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

    def __post_init__(self) -> None:
        columns, action = self.options.columns, self.options.columns.action
        if self.unit != (columns.unit or "trajectory"):
            allowed = f"{columns.unit or 'trajectory'}, as options.columns.unit says"
            raise ValueError(f"unit: found {reading.quote(self.unit)}; allowed is {allowed}")
        if isinstance(action, BoxActions) and (action.low is None) != (
            self.environment is not None
        ):
            raise ValueError(
                "options.columns.action.low and high: declared exactly where environment is null"
            )
        if self.options.end == "outcome" and self.termination == "none":
            raise ValueError("options.end: outcome needs termination: learned")


class MedsDataset(DatasetCommon):
    """Events of patients in the Medical Event Data Standard."""

    environment: None
    unit: Literal["subject_id"]
    horizon: records.Steps
    source: Literal["meds"]
    options: MedsOptions

    def __post_init__(self) -> None:
        if self.bounds.observation != "space":
            raise ValueError("bounds.observation must be space: options.observation has the bounds")
        if (self.options.terminates is None) != (self.termination == "none"):
            raise ValueError("termination must be learned with options.terminates, none without")


AnyDataset = ReplayDataset | MinariDataset | D4rlDataset | TabularDataset | MedsDataset
Dataset = Annotated[AnyDataset, Field(discriminator="source")]


def validate(kind: type[T], content: Mapping[str, Any]) -> T:
    """Make one of this module's classes from plain values; raises pydantic's error if they do not
    fit.
    """
    made: T = records.adapter(kind).validate_python(dict(content))  # type: ignore[arg-type]
    return made
