"""A sweep's file: which runs it consists of, read and checked."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StrictInt, Tag, TypeAdapter, ValidationError

from primorl.config.explanations import explanations
from primorl.config.reading import read_yaml, shown
from primorl.config.texts import Block
from primorl.project.errors import PipelineError
from primorl.project.values import Finite

Key = Annotated[str, Field(pattern=r"^[a-z_]+(\.[a-z_]+)*$", max_length=100)]
CaseName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=100)]
Settings = dict[Key, Any]
"""Values by dotted key of params.yaml."""
Metric = Literal["return_mean", "normalized_score", "model_value"]
"""What a search may compare: figures of metrics/summary.json that are post-processing of what was charged."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHARED = ("partition", "privacy.budget", "ledger", "tracking", "compute.threads")
_Number = StrictInt | Finite


@dataclass(frozen=True, kw_only=True)
class Between(Block):
    """A range of numbers, whole ones if both ends are.

    Attributes:
        low: smallest number.
        high: largest number.
        log: whether the logarithm is searched evenly.
    """

    low: _Number
    high: _Number
    log: bool = False

    def __post_init__(self) -> None:
        if self.low >= self.high or (self.log and self.low <= 0):
            raise ValueError("must be low < high, and with log: true above 0")


@dataclass(frozen=True, kw_only=True)
class Choices(Block):
    """Values to choose among."""

    choices: Annotated[list[Any], Field(min_length=1)]


def _kind(where: Any) -> str:
    return "among" if isinstance(where, Choices) or (isinstance(where, dict) and "choices" in where) else "between"


Where = Annotated[Annotated[Between, Tag("between")] | Annotated[Choices, Tag("among")], Discriminator(_kind)]
"""Where a search looks for the value of a key."""


@dataclass(frozen=True, kw_only=True)
class Search(Block):
    """A search of Optuna.

    Attributes:
        metric: of metrics/summary.json.
        direction: of better values.
        trials: number of finished trials to reach.
        space: where to look, by dotted key of params.yaml.
    """

    metric: Metric
    direction: Literal["maximize", "minimize"]
    trials: Annotated[int, Field(ge=1)]
    space: Annotated[dict[Key, Where], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class SweepFile(Block):
    """Content of a sweep's file.

    Attributes:
        partition: what the block ``partition`` of params.yaml must have; nothing is changed by it.
        settings: that all trials share.
        cases: named groups of settings; those of a case win over the shared ones.
        grid: values by key; every combination is run, for every case.
        search: instead of a grid.
    """

    partition: dict[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    cases: dict[CaseName, Settings] = field(default_factory=dict)
    grid: dict[Key, Annotated[list[Any], Field(min_length=1)]] = field(default_factory=dict)
    search: Search | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, and keys that belong to the project."""
        if self.search is not None and (self.grid or self.cases):
            raise ValueError("search: found beside grid or cases; a search has shared settings and a space only")
        varied = {*self.grid, *(self.search.space if self.search else ())}
        given = {*self.settings, *(key for case in self.cases.values() for key in case)}
        for key in sorted(varied & given):
            raise ValueError(f"{key}: given in {'grid' if self.grid else 'search.space'} and elsewhere; keep one")
        for key in sorted(varied | given):
            for shared in _SHARED:
                if _meet(key, shared):
                    raise ValueError(f"{key}: all trials share the project's {shared}; set it in params.yaml")
            for other in sorted(varied | given):
                if key != other and _meet(key, other) and key < other:
                    raise ValueError(f"{key}: found beside {other}, which is a part of it; keep one")


def _meet(key: str, other: str) -> bool:
    """Whether one of two dotted keys is the other, or a part of it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


@dataclass(frozen=True)
class Sweep:
    """A sweep's file with its name.

    Attributes:
        name: of the sweep: the file's name without its ending.
        path: of the file.
        content: of the file.
    """

    name: str
    path: Path
    content: SweepFile


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep's file.

    Raises:
        PipelineError: it is missing, is not YAML or does not fit; one line names every wrong key.
    """
    if _NAME.fullmatch(path.stem) is None:
        raise PipelineError(f"{path}: found {shown(path.stem)} as its name; allowed are letters, digits and ._-")
    raw = read_yaml(path, "it says which runs a sweep consists of; docs/sweeps.md describes it")
    if not isinstance(raw, dict):
        raise PipelineError(f"{path}: a block of keys is needed")
    if odd := list(_odd(raw, "")):
        raise PipelineError(f"{path}: " + "; ".join(odd))
    try:
        return Sweep(path.stem, path, _adapter().validate_python(raw))
    except ValidationError as refused:
        said = (f"{key}: {why}" if key else why for key, why in explanations(refused, raw))
        raise PipelineError(f"{path}: " + "; ".join(said)) from None


def _odd(value: Any, where: str) -> Iterator[str]:
    """What has no JSON, which a trial's name is made of."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield f"{where}: found the key {shown(key)}; keys are texts, write it in quotes"
            yield from _odd(inner, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _odd(inner, where)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: found {value}; allowed are finite numbers"
    elif not isinstance(value, str | int | float | None):
        yield f"{where}: found {shown(value)}; allowed are numbers, texts, true, false and null"


def with_settings(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The content of params.yaml with values by dotted key in place; ``raw`` stays as it is.

    Raises:
        PipelineError: a key is not in params.yaml.
    """
    content = dict(raw)
    for key, value in settings.items():
        *path, last = key.split(".")
        block = content
        for part in path:
            if not isinstance(block.get(part), dict):
                raise PipelineError(f"{key}: unknown key; allowed are those of params.yaml, written with dots")
            block[part] = dict(block[part])
            block = block[part]
        block[last] = value
    return content


@cache
def _adapter() -> TypeAdapter[SweepFile]:
    return TypeAdapter(SweepFile)
