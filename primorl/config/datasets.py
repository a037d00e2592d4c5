"""The file of one dataset, ``datasets/<name>.yaml``: its source, columns, bounds and
privacy unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from primorl.base.records import (
    Finite,
    HiddenSizes,
    LearningRate,
    NaturalInt,
    NonNegative,
    Positive,
    PositiveInt,
    Seed,
    Steps,
    Within,
    adapter,
)
from primorl.config.meds import MedsOptions
from primorl.config.reading import shown
from primorl.config.tabular import BoxActions, TabularOptions, check_ascending
from primorl.config.texts import (
    Block,
    FilledText,
    InnerPath,
    Name,
    OneOf,
    Range,
    Sentence,
    Text,
    check_once,
)

T = TypeVar("T")
MINARI_ID = r"^[-\w][-\w/]*-v[0-9]+$"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Block):
    """``source: replay``: behaviour policies' whole training, recorded."""

    algorithm: Literal["ddpg", "td3", "sac", "dqn"]
    episodes: PositiveInt
    runs: Annotated[int, Within(gt=0, le=1024)] = 1
    num_envs: Annotated[int, Within(gt=0, le=65_536)]
    gradient_steps: Steps = 1
    learning_starts: NaturalInt
    hidden: HiddenSizes
    learning_rate: LearningRate
    action_noise: NonNegative
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.episodes < self.runs:
            raise ValueError("episodes must be at least runs: every run records some")


MinariId = Annotated[str, Field(pattern=MINARI_ID, max_length=200)]


@dataclass(frozen=True, kw_only=True)
class MinariOptions(Block):
    """``source: minari``: datasets under ``root`` (null: Minari's own folder); ``remote`` allows to
    fetch them.
    """

    root: InnerPath | None = None
    remote: bool = False
    parts: Annotated[
        tuple[MinariId, ...], Field(min_length=1, max_length=1000), AfterValidator(check_once)
    ]


@dataclass(frozen=True, kw_only=True)
class D4rlOptions(Block):
    """``source: d4rl``: an HDF5 file in D4RL's layout, by path or by D4RL's name."""

    file: InnerPath | None = None
    name: FilledText | None = None
    remote: bool = False

    def __post_init__(self) -> None:
        if (self.file is None) == (self.name is None):
            raise ValueError("give exactly one of file and name")


@dataclass(frozen=True, kw_only=True)
class DeclaredBounds(Block):
    """Bounds written down by hand, one number a dimension."""

    low: tuple[Finite, ...]
    high: tuple[Finite, ...]

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high):
            raise ValueError(f"low, high: found {len(self.low)} and {len(self.high)} numbers")
        check_ascending(self.low, self.high)


_Place = Annotated[int, Within(ge=0, le=10_000)]  # of a column, from 0


@dataclass(frozen=True, kw_only=True)
class Bounds(Block):
    """Public bounds of model states and rewards.

    ``before_end`` bounds the rewards of rows that do not end their trajectory, where those that end
    it have an outcome; null: no such bounds are known. ``outcomes`` names the two ways in which a
    trajectory ends, by the least and by the largest reward. ``angles`` are pairs of columns of the
    observation, counted from 0, that are cosine and sine of one angle: the model keeps them so.
    """

    observation: Annotated[Literal["space", "public"] | DeclaredBounds, OneOf()]
    reward: Annotated[Literal["public"] | Range, OneOf()]
    before_end: tuple[Finite, Finite] | None = None
    outcomes: tuple[FilledText, FilledText] | None = None
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


@dataclass(frozen=True, kw_only=True)
class Score(Block):
    """Normalised score = scale · (return - low) / (high - low)."""

    low: Finite
    high: Finite
    scale: Positive

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError("low must be below high")

    def of(self, episode_return: float) -> float:
        """The normalised score of one return (or of a mean of returns)."""
        return self.scale * (episode_return - self.low) / (self.high - self.low)


@dataclass(frozen=True, kw_only=True)
class Ingestion(Block):
    """Treatment of units by ``ingest``.

    Attributes:
        duplicates: whether two units may have equal rows: ``allow`` for short records of a small
            state space.
        exclude_units: a file in data/withdrawals with one unit id a line; these units are left out.
    """

    duplicates: Literal["refuse", "allow"] = "refuse"
    exclude_units: InnerPath | None = None


@dataclass(frozen=True, kw_only=True)
class CardTexts(Block):
    """Declared texts for the card and the report.

    No stage that trains or charges reads it; None: not stated.

    Attributes:
        owner: responsible for data and policy.
        purpose: permitted uses.
        contact: for questions and mistakes.
        licence: of the data.
    """

    owner: Sentence | None = None
    purpose: Sentence | None = None
    contact: Sentence | None = None
    licence: Sentence | None = None


@dataclass(frozen=True, kw_only=True)
class DeclaredTexts(Block):
    """Texts of a dataset's file for people.

    Attributes:
        card: see `CardTexts`.
        reward_meaning: meaning of one point of the return; None: not stated.
        left_out: what the declared bounds leave out, as is known beforehand; None: not stated.
    """

    card: CardTexts = field(default_factory=CardTexts)
    reward_meaning: Sentence | None = None
    left_out: Sentence | None = None

    @property
    def texts(self) -> dict[str, str]:
        """The texts that are given, by key."""
        own = {"reward_meaning": self.reward_meaning, "left_out": self.left_out}
        given = vars(self.card) | own
        return {key: text for key, text in given.items() if text is not None}


@dataclass(frozen=True, kw_only=True)
class DatasetCommon(DeclaredTexts):
    """Keys of every dataset's file.

    Attributes:
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

    environment: Text | None
    unit: FilledText
    population: FilledText
    trajectories_per_person: PositiveInt | None
    horizon: Steps | None
    termination: Name
    bounds: Bounds
    score: Score | None
    ingestion: Ingestion
    recipe: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReplayDataset(DatasetCommon):
    """A dataset collected here by training a behaviour policy."""

    unit: Literal["trajectory"]
    source: Literal["replay"]
    options: ReplayOptions


@dataclass(frozen=True, kw_only=True)
class MinariDataset(DatasetCommon):
    """Minari datasets, one or several as a mixture, on this machine or fetched."""

    unit: Literal["trajectory"]
    source: Literal["minari"]
    options: MinariOptions


@dataclass(frozen=True, kw_only=True)
class D4rlDataset(DatasetCommon):
    """A file in D4RL's layout."""

    unit: Literal["trajectory"]
    source: Literal["d4rl"]
    options: D4rlOptions


@dataclass(frozen=True, kw_only=True)
class TabularDataset(DatasetCommon):
    """Logs of any tool, in Parquet or CSV."""

    source: Literal["tabular"]
    options: TabularOptions

    def __post_init__(self) -> None:
        columns, action = self.options.columns, self.options.columns.action
        if self.unit != (columns.unit or "trajectory"):
            raise ValueError(
                f"unit: found {shown(self.unit)}; allowed is {columns.unit or 'trajectory'}, as "
                "options.columns.unit says (trajectory where that is null)"
            )
        if isinstance(action, BoxActions) and (action.low is None) != (
            self.environment is not None
        ):
            raise ValueError(
                "options.columns.action.low and high must be declared where environment is null, "
                "and be null where an environment declares them"
            )
        if self.options.end == "outcome" and self.termination == "none":
            raise ValueError("options.end: outcome needs termination: learned")


@dataclass(frozen=True, kw_only=True)
class MedsDataset(DatasetCommon):
    """Events of patients in the Medical Event Data Standard."""

    environment: None
    unit: Literal["subject_id"]
    horizon: Steps
    source: Literal["meds"]
    options: MedsOptions

    def __post_init__(self) -> None:
        if self.bounds.observation != "space":
            raise ValueError(
                "bounds.observation must be space: options.observation says low, high and most"
            )
        if (self.options.terminates is None) != (self.termination == "none"):
            raise ValueError(
                "termination must be learned where options.terminates names codes, and else none"
            )


AnyDataset = ReplayDataset | MinariDataset | D4rlDataset | TabularDataset | MedsDataset
Dataset = Annotated[AnyDataset, Field(discriminator="source")]


def checked(kind: type[T], content: Mapping[str, Any]) -> T:
    """Make one of this module's classes from plain values; raises pydantic's error if they do not
    fit.
    """
    made: T = adapter(kind).validate_python(dict(content))  # type: ignore[arg-type]
    return made
