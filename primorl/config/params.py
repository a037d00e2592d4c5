"""The typed view of ``params.yaml``: every choice, checked once. No default lives in code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from primorl.config.datasets import AnyDataset, Dataset, Settings
from primorl.config.values import (
    NUMBER,
    AtLeastTwo,
    Block,
    Finite,
    Fraction,
    Hidden,
    Multiplier,
    Name,
    NonNegative,
    Positive,
    PositiveInt,
    Probability,
    Range,
    Seed,
    Seeds,
    Share,
    StoreUrl,
    Variant,
)
from primorl.project.errors import PipelineError


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
    """SAC in the pessimistic model (PriMORL, Algorithm 4); ``seeds: null`` is one policy, of the pipeline's seed."""

    seeds: Seeds | None
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
    threads: Annotated[int, Field(gt=0, le=1024), NUMBER] | None
    processes: Annotated[int, Field(gt=0, le=1024), NUMBER] | None


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

    @model_validator(mode="after")
    def _rollouts_begin_somewhere(self) -> Self:
        """Refused here, for every stage: found out after training, the answer would be to pay for another model."""
        starts, nowhere = self.policy.starts, None
        if self.dynamics.variant == "mopo":  # its rollouts begin at real states
            return self
        if starts in ("reset", "pool") and self.chosen.environment is None:
            nowhere = f"datasets.{self.dataset}.environment is null"
        elif starts == "public" and self.partition.public_fraction == 0:
            nowhere = "partition.public_fraction is 0"
        elif starts == "released" and not self.privacy.statistics.starts:
            nowhere = "privacy.statistics.starts is false"
        if nowhere is not None:
            raise ValueError(
                f"policy.starts: found {starts!r}, while {nowhere}; allowed: reset or pool with an environment, public "
                "with a public split, released with privacy.statistics.starts: true"
            )
        return self

    @property
    def policy_seeds(self) -> tuple[int, ...]:
        """The seed of every policy that is trained, first the one whose policy is used and released."""
        return (self.seed,) if self.policy.seeds is None else self.policy.seeds

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
    if key == "dynamics.processes" or key.endswith(".dynamics.processes"):
        return "unknown key; it is compute.processes, on which no charge depends"
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
