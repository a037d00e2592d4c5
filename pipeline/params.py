"""The typed view of ``params.yaml``: every choice, checked once. No default lives in code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from pipeline.errors import PipelineError
from pipeline.files import leaves_project


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):  # Python would take true for 1
        raise ValueError("a number is needed, not a truth value")
    return value


def _increasing(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] >= pair[1]:
        raise ValueError(f"found {list(pair)}; must be [low, high] with low < high")
    return pair


def _ordered(pair: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    if pair[0] is not None and pair[1] is not None and pair[0] > pair[1]:
        raise ValueError(f"found {list(pair)}; must be [low, high] with low <= high, or null for an open end")
    return pair


def _inside(path: str) -> str:
    if leaves_project(path):
        raise ValueError("leaves the project; allowed are paths within it, or an absolute path")
    return path


def _inside_if_file(url: str) -> str:
    """A store on a server is none of our business; a SQLite file, a ``file:`` and a plain path are files here."""
    scheme, separator, path = url.partition(":")
    if scheme.startswith("sqlite"):
        _inside(path.removeprefix("///").partition("?")[0])
    elif scheme == "file" or not separator:
        _inside((path if separator else url).removeprefix("//"))
    return url


def _text(value: Any) -> Any:
    """YAML reads 1 as a number, where a log's category is the text of it."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("found one twice; every category stands once")
    return names


_number = BeforeValidator(_no_truth_value)
PositiveInt = Annotated[int, Field(gt=0), _number]
NaturalInt = Annotated[int, Field(ge=0), _number]
AtLeastTwo = Annotated[int, Field(ge=2), _number]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), _number]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), _number]
Finite = Annotated[float, Field(allow_inf_nan=False), _number]
Multiplier = Annotated[float, Field(ge=0.1, allow_inf_nan=False), _number]  # less is no protection worth the name
Probability = Annotated[float, Field(gt=0, le=1), _number]
Share = Annotated[float, Field(gt=0, lt=1), _number]
Fraction = Annotated[float, Field(ge=0, lt=1), _number]
Seed = Annotated[int, Field(ge=0, lt=2**31), _number]
Range = Annotated[tuple[Finite, Finite], AfterValidator(_increasing)]
OpenRange = Annotated[tuple[Finite | None, Finite | None], AfterValidator(_ordered)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
InnerPath = Annotated[str, AfterValidator(_inside)]
StoreUrl = Annotated[str, AfterValidator(_inside_if_file)]
Category = Annotated[str, BeforeValidator(_text), Field(min_length=1)]
Column = Annotated[str, Field(min_length=1)]
Categories = Annotated[tuple[Category, ...], Field(min_length=2), AfterValidator(_different)]
Hidden = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
Variant = Literal["private", "no_privacy", "no_clip", "mopo"]


class Block(BaseModel):
    """A part of ``params.yaml``: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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

    source: Literal["replay"]
    options: ReplayOptions


class MinariDataset(DatasetCommon):
    """A Minari dataset that is already on this machine."""

    source: Literal["minari"]
    options: MinariOptions


class D4rlDataset(DatasetCommon):
    """A file in D4RL's layout."""

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

    source: Literal["icu-sepsis"]
    options: IcuSepsisOptions


class PropofolDataset(DatasetCommon):
    """Simulated anaesthesias."""

    source: Literal["propofol"]
    options: PropofolOptions


AnyDataset = ReplayDataset | MinariDataset | D4rlDataset | TabularDataset | IcuSepsisDataset | PropofolDataset
Dataset = Annotated[AnyDataset, Field(discriminator="source")]


class Partition(Block):
    """How units are split into private and public."""

    public_fraction: Fraction
    salt: str


class Budget(Block):
    """What all runs on a dataset may spend together; ``epsilon: null`` sets no limit."""

    epsilon: Positive | None
    delta: Share


class Statistics(Block):
    """What training asks of the private units before its rounds; every query is charged with them."""

    normaliser: Literal["public", "bounds", "private"]
    starts: bool
    noise_multiplier: Multiplier


class Privacy(Block):
    """One run's mechanism (PriMORL, Algorithm 2), and the budget that all runs share."""

    budget: Budget
    target_epsilon: Positive | None
    noise_multiplier: Multiplier | None
    delta: Share
    sampling_probability: Probability
    rounds: PositiveInt
    clipping_norm: Positive
    clipping: Literal["flat", "per_layer"]
    statistics: Statistics

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            found = "neither" if self.target_epsilon is None else "both"
            raise ValueError(
                f"found {found} of target_epsilon and noise_multiplier; give exactly one and set the other to null"
            )
        return self


class EarlyStopping(Block):
    """Looks at the public split, in rounds."""

    every: PositiveInt
    patience: PositiveInt | None


class MopoTraining(Block):
    """Plain mini-batch training of the non-private baseline's ensemble."""

    batch_size: PositiveInt
    learning_rate: Positive
    weight_decay: NonNegative
    max_epochs: PositiveInt
    patience: PositiveInt


class Dynamics(Block):
    """The ensemble and its training."""

    variant: Variant
    ensemble_size: AtLeastTwo
    hidden: Hidden
    log_variance_bounds: Range
    learning_rate: Positive
    batch_size: PositiveInt
    local_epochs: PositiveInt
    weight_decay: NonNegative
    max_transitions_per_unit: PositiveInt | None
    server_momentum: Fraction
    server_averaging: Fraction
    early_stopping: EarlyStopping
    mopo: MopoTraining


class Policy(Block):
    """SAC in the pessimistic model (PriMORL, Algorithm 4)."""

    uncertainty: Literal["max_pairwise_difference", "max_aleatoric"]
    penalty: NonNegative
    horizon: PositiveInt
    starts: Literal["reset", "public", "pool", "released"]
    pool_reset_fraction: Probability
    epochs: PositiveInt
    updates_per_epoch: PositiveInt
    rollout_every: PositiveInt
    rollout_batch: PositiveInt
    buffer_size: PositiveInt
    hidden: Hidden
    batch_size: PositiveInt
    learning_rate: Positive
    discount: Share
    target_rate: Probability
    target_entropy: Finite
    discrete_target_entropy: Share
    reward_scale: Positive
    mopo_real_fraction: Share

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer_size < self.rollout_batch * self.horizon:
            raise ValueError("buffer_size must hold one batch of rollouts: at least rollout_batch * horizon")
        return self


class Evaluation(Block):
    """Episodes in the true environment."""

    episodes: AtLeastTwo
    epoch_episodes: AtLeastTwo
    seed: Seed


class LedgerStore(Block):
    """Where the ledger keeps what was spent."""

    url: StoreUrl | None


class Tracking(Block):
    """Where MLflow keeps its runs."""

    uri: StoreUrl | None
    experiment: str


class Compute(Block):
    """What changes speed and nothing else."""

    device: Literal["auto", "cpu", "cuda"]
    memory_mb: PositiveInt | None
    data_mb: PositiveInt | None
    threads: Annotated[int, Field(gt=0, le=1024), _number] | None


class Params(Block):
    """All of ``params.yaml``."""

    dataset: Name
    seed: Seed
    datasets: dict[Name, Dataset]
    partition: Partition
    privacy: Privacy
    dynamics: Dynamics
    policy: Policy
    evaluation: Evaluation
    ledger: LedgerStore
    tracking: Tracking
    compute: Compute

    @model_validator(mode="after")
    def _dataset_is_there(self) -> Self:
        if self.dataset not in self.datasets:
            raise ValueError(
                f"dataset: found {self.dataset!r}, allowed are the entries of datasets: {sorted(self.datasets)}"
            )
        return self

    @property
    def chosen(self) -> AnyDataset:
        """The entry of ``datasets`` that ``dataset`` names."""
        return self.datasets[self.dataset]


class _TwiceError(Exception):
    def __init__(self, key: Any, line: int):
        self.key, self.line = key, line


class _KeysOnce(yaml.SafeLoader):
    """YAML lets the last of two equal keys win in silence; here they are refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for named, _ in node.value:
            key = self.construct_object(named, deep=True)
            if isinstance(key, str | int | float | bool | None):
                if key in seen:
                    raise _TwiceError(key, named.start_mark.line + 1)
                seen.add(key)
        return super().construct_mapping(node, deep)


def load(path: Path) -> Params:
    """Read and check ``params.yaml``.

    Raises:
        PipelineError: the file is missing, is not YAML, or breaks the schema; the message names the keys.
    """
    try:
        raw = _KeysOnce(path.read_text(encoding="utf-8")).get_single_data()
    except FileNotFoundError:
        raise PipelineError(f"{path}: not there; every choice lives in this file") from None
    except _TwiceError as twice:
        raise PipelineError(f"{path}, line {twice.line}: key {twice.key!r} given twice; keep one") from None
    except (UnicodeDecodeError, RecursionError, yaml.YAMLError) as broken:
        where = getattr(broken, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise PipelineError(f"{path}{line}: not valid YAML") from None
    return parse(raw, str(path))


def parse(raw: Any, origin: str = "params.yaml") -> Params:
    """Check the content of ``params.yaml``; ``origin`` is the file that errors name.

    Raises:
        PipelineError: one line that names every wrong key, what was found and what is allowed.
    """
    settings, where = _settings(raw)
    merged = _laid_over(raw, settings) if settings else raw
    try:
        return Params.model_validate(merged)
    except ValidationError as wrong:
        raise PipelineError(f"{origin}: " + "; ".join(_explanations(wrong, merged, settings, where))) from None


def _settings(raw: Any) -> tuple[dict[str, Any], str]:
    """The settings of the chosen dataset, and their key; none where that is not written as it should be."""
    try:
        settings = raw["datasets"][raw["dataset"]]["settings"]
        named = {block: keys for block, keys in settings.items() if block in Settings.model_fields and keys}
    except (KeyError, TypeError, AttributeError):
        return {}, ""
    return named, f"datasets.{raw['dataset']}.settings"


def _laid_over(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {key: _laid_over(below[key], value) if key in below else value for key, value in above.items()}


def _explanations(wrong: ValidationError, raw: Any, settings: dict[str, Any], where: str) -> Iterator[str]:
    errors = [(_key(error, raw), error) for error in wrong.errors()]
    for key, error in errors:
        if any(other.startswith(f"{key}.") for other, _ in errors):
            continue  # pydantic does not count a list's broken entries, and complains of its length too
        named = f"{where}.{key}" if _is_in(settings, key) else key
        yield (f"{named}: " if named else "") + _explain(key, error)


def _is_in(settings: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(settings, dict) or part not in settings:
            return False
        settings = settings[part]
    return bool(key)


def _key(error: Any, raw: Any) -> str:
    """The path of keys as the file has them; pydantic's own also names the alternatives of a type."""
    path, inside = [], raw
    for part in error["loc"]:
        if (isinstance(inside, dict) and part in inside) or (isinstance(inside, list) and part in range(len(inside))):
            path.append(str(part))
            inside = inside[part]
    if error["type"] == "missing":
        path.append(str(error["loc"][-1]))
    elif error["type"].startswith("union_tag") and isinstance(inside, dict):
        path.append("source")
    return ".".join(path)


def _explain(key: str, error: Any) -> str:
    kind, found, message = error["type"], error["input"], error["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return "unknown key; remove it or check its spelling"
    if kind == "missing" or (kind == "union_tag_not_found" and isinstance(found, dict)):
        return "missing"
    if kind == "union_tag_invalid":
        return f"found {error['ctx']['tag']!r}; allowed are {error['ctx']['expected_tags']}"
    if kind in ("model_type", "dict_type", "model_attributes_type", "union_tag_not_found"):
        message = "a block of keys is needed"
    if kind == "tuple_type":
        message = "a list is needed"
    message = message[0].lower() + message[1:]
    # A rule about several keys says itself what it found; a store's URI may carry a password.
    quiet = isinstance(found, dict | list) or not key or key.partition(".")[0] in ("tracking", "ledger")
    return message if quiet else f"found {found!r}; {message}"
