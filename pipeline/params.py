"""The typed view of ``params.yaml``: every choice, checked once. No default lives in code."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import PipelineError

PositiveInt = Annotated[int, Field(gt=0)]
NaturalInt = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Hidden = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
Variant = Literal["private", "no_privacy", "no_clip", "mopo"]


class Block(BaseModel):
    """A part of ``params.yaml``: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ReplayOptions(Block):
    """``source: replay``: a behaviour policy's whole training, recorded."""

    algorithm: Literal["ddpg", "td3", "sac"]
    episodes: PositiveInt
    num_envs: PositiveInt
    gradient_steps: PositiveInt
    learning_starts: NaturalInt
    hidden: Hidden
    learning_rate: Positive
    action_noise: NonNegative
    seed: Seed


class MinariOptions(Block):
    """``source: minari``: a dataset on this machine, by id under ``root`` (null: Minari's own folder)."""

    id: str
    root: str | None


class DeclaredBounds(Block):
    """Bounds written down by hand, one number a dimension."""

    low: tuple[Finite, ...]
    high: tuple[Finite, ...]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if len(self.low) != len(self.high) or any(a >= b for a, b in zip(self.low, self.high, strict=False)):
            raise ValueError("low and high must have the same length, and low < high in every dimension")
        return self


class Bounds(Block):
    """Public bounds of model states and rewards."""

    observation: Literal["space", "public"] | DeclaredBounds
    reward: Literal["public"] | tuple[Finite, Finite]


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


class DatasetCommon(Block):
    """What every entry of ``datasets`` says."""

    environment: str
    unit: Literal["trajectory"]
    bounds: Bounds
    score: Score | None


class ReplayDataset(DatasetCommon):
    """A dataset collected here by training a behaviour policy."""

    source: Literal["replay"]
    options: ReplayOptions


class MinariDataset(DatasetCommon):
    """A Minari dataset that is already on this machine."""

    source: Literal["minari"]
    options: MinariOptions


Dataset = Annotated[ReplayDataset | MinariDataset, Field(discriminator="source")]


class Partition(Block):
    """How units are split into private and public."""

    public_fraction: Annotated[float, Field(gt=0, lt=1)]
    salt: str


class Privacy(Block):
    """The budget and the mechanism (PriMORL, Algorithm 2)."""

    target_epsilon: Positive | None
    noise_multiplier: Positive | None
    delta: Annotated[float, Field(gt=0, lt=1)]
    sampling_probability: Probability
    rounds: PositiveInt
    clipping_norm: Positive
    clipping: Literal["flat", "per_layer"]

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
    ensemble_size: Annotated[int, Field(ge=2)]
    hidden: Hidden
    log_variance_bounds: tuple[Finite, Finite]
    learning_rate: Positive
    batch_size: PositiveInt
    local_epochs: PositiveInt
    weight_decay: NonNegative
    max_transitions_per_unit: PositiveInt | None
    server_momentum: Fraction
    server_averaging: Fraction
    early_stopping: EarlyStopping
    mopo: MopoTraining

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.log_variance_bounds[0] >= self.log_variance_bounds[1]:
            raise ValueError("log_variance_bounds must be [low, high] with low < high")
        return self


class Policy(Block):
    """SAC in the pessimistic model (PriMORL, Algorithm 4)."""

    uncertainty: Literal["max_pairwise_difference", "max_aleatoric"]
    penalty: NonNegative
    horizon: PositiveInt
    starts: Literal["reset", "public", "pool"]
    pool_reset_fraction: Probability
    epochs: PositiveInt
    updates_per_epoch: PositiveInt
    rollout_every: PositiveInt
    rollout_batch: PositiveInt
    buffer_size: PositiveInt
    hidden: Hidden
    batch_size: PositiveInt
    learning_rate: Positive
    discount: Annotated[float, Field(gt=0, lt=1)]
    target_rate: Probability
    target_entropy: Finite
    reward_scale: Positive
    mopo_real_fraction: Annotated[float, Field(gt=0, lt=1)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer_size < self.rollout_batch * self.horizon:
            raise ValueError("buffer_size must hold one batch of rollouts: at least rollout_batch * horizon")
        return self


class Evaluation(Block):
    """Episodes in the true environment."""

    episodes: Annotated[int, Field(ge=2)]
    epoch_episodes: Annotated[int, Field(ge=2)]
    seed: Seed


class Tracking(Block):
    """Where MLflow keeps its runs."""

    uri: str | None
    experiment: str


class Compute(Block):
    """What changes speed and nothing else."""

    device: Literal["auto", "cpu", "cuda"]
    memory_mb: PositiveInt | None
    threads: PositiveInt | None


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
    def chosen(self) -> ReplayDataset | MinariDataset:
        """The entry of ``datasets`` that ``dataset`` names."""
        return self.datasets[self.dataset]


def load(path: Path) -> Params:
    """Read and check ``params.yaml``.

    Raises:
        PipelineError: the file is missing, is not YAML, or breaks the schema; the message names the keys.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineError(f"{path}: not there; every choice lives in this file") from None
    except (UnicodeDecodeError, yaml.YAMLError) as broken:
        where = getattr(broken, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise PipelineError(f"{path}{line}: not valid YAML") from None
    return parse(raw, str(path))


def parse(raw: Any, origin: str = "params.yaml") -> Params:
    """Check the content of ``params.yaml``; ``origin`` is the file that errors name.

    Raises:
        PipelineError: one line that names every wrong key, what was found and what is allowed.
    """
    try:
        return Params.model_validate(raw)
    except ValidationError as wrong:
        raise PipelineError(f"{origin}: " + "; ".join(_explain(error) for error in wrong.errors())) from None


def _explain(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "file"
    if error["type"] == "extra_forbidden":
        return f"{key}: unknown key; remove it or check its spelling"
    if error["type"] == "missing":
        return f"{key}: missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    found = error["input"]
    if isinstance(found, dict | list):  # a rule about several keys: its message says what was found
        return f"{key}: {message}"
    return f"{key}: found {found!r}; {message}"
