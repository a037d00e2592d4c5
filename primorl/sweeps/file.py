"""A sweep's file and the trials that it describes."""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, TypeAdapter, ValidationError

from primorl.base.errors import PipelineError
from primorl.config.reading import explanations, read_yaml, shown
from primorl.config.texts import Block

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHARED = ("partition", "privacy.budget", "ledger", "tracking", "compute.threads")
_DIGITS = 16  # of a trial's name


def _finite(value: Any) -> Any:
    json.dumps(value, allow_nan=False)
    return value


Value = Annotated[JsonValue, AfterValidator(_finite)]
Key = Annotated[str, Field(pattern=r"^[a-z_]+(\.[a-z_]+)*$", max_length=100)]
CaseName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=100)]
Settings = dict[Key, Value]
"""Values by dotted key of params.yaml."""


@dataclass(frozen=True, kw_only=True)
class SweepFile(Block):
    """Content of a sweep's file.

    Attributes:
        partition: keys that the block ``partition`` of params.yaml must have; nothing is changed by it.
        settings: of all trials.
        cases: named groups of settings, which override the shared ones.
        grid: values by key; every combination is run, for every case.
    """

    partition: dict[str, Value] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    cases: dict[CaseName, Settings] = field(default_factory=dict)
    grid: dict[Key, Annotated[list[Value], Field(min_length=1)]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        varied = set(self.grid)
        given = {*self.settings, *(key for case in self.cases.values() for key in case)}
        for key in sorted(varied & given):
            raise ValueError(f"{key}: given in grid and elsewhere; keep one")
        keys = sorted(varied | given)
        for key, shared in itertools.product(keys, _SHARED):
            if f"{key}.".startswith(f"{shared}.") or f"{shared}.".startswith(f"{key}."):
                raise ValueError(
                    f"{key}: all trials share the project's {shared}; set it in params.yaml"
                )
        for key, other in itertools.combinations(keys, 2):
            if other.startswith(f"{key}."):
                raise ValueError(f"{key}: found beside {other}, which is a part of it; keep one")


_ADAPTER = TypeAdapter(SweepFile)


@dataclass(frozen=True)
class Sweep:
    """A sweep's file; the sweep has the file's name without its ending."""

    name: str
    path: Path
    content: SweepFile

    @property
    def keys(self) -> list[str]:
        """Settings that tell trials of one case apart."""
        return list(self.content.grid)


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep's file; one line names every wrong key."""
    if _NAME.fullmatch(path.stem) is None:
        raise PipelineError(
            f"{path}: found {shown(path.stem)} as its name; allowed are letters, digits and ._-"
        )
    raw = read_yaml(path, "it says which runs a sweep consists of; docs/sweeps.md describes it")
    if not isinstance(raw, dict):
        raise PipelineError(f"{path}: a block of keys is needed")
    try:
        return Sweep(path.stem, path, _ADAPTER.validate_python(raw))
    except ValidationError as refused:
        reasons = [f"{key}: {why}" if key else why for key, why in explanations(refused, raw)]
        raise PipelineError(f"{path}: {'; '.join(dict.fromkeys(reasons))}") from None


def with_settings(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of params.yaml with values by dotted key in place; ``raw`` stays as it is."""
    content = dict(raw)
    for key, value in settings.items():
        *path, last = key.split(".")
        block = content
        for part in path:
            if not isinstance(block.get(part), dict):
                raise PipelineError(
                    f"{key}: unknown key; allowed are those of params.yaml, written with dots"
                )
            block[part] = dict(block[part])
            block = block[part]
        block[last] = value
    return content


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        settings: by dotted key of params.yaml.
        case: name of its group of settings; None: the sweep has no cases.
    """

    settings: Mapping[str, Any]
    case: str | None = None

    @cached_property
    def name(self) -> str:
        """Digest the settings; the order of keys, the case, and 1 or 1.0 make no difference."""
        content = json.loads(json.dumps(dict(self.settings)), parse_float=_number)
        content = json.dumps(content, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]

    def describe(self, keys: list[str]) -> str:
        """Name the case and the values of ``keys`` in a line."""
        words = [self.case] if self.case else []
        words += [f"{key} {json.dumps(self.settings[key])}" for key in keys]
        return ", ".join(words) or "no settings"


def expand(sweep: Sweep) -> list[Trial]:
    """List all trials of a grid: every combination of its values, for every case.

    All cases of the first combination come first: a sweep that is stopped early has compared all cases.
    """
    file = sweep.content
    cases: dict[str | None, Settings] = dict(file.cases.items()) or {None: {}}
    found: dict[str, Trial] = {}
    for values in itertools.product(*file.grid.values()):
        for case, own in cases.items():
            trial = Trial(
                {**file.settings, **own, **dict(zip(file.grid, values, strict=True))}, case
            )
            if trial.name in found:
                other = found[trial.name].case
                where = f"cases {shown(other)} and {shown(case)}" if case != other else "grid"
                said = trial.describe(sweep.keys)
                raise PipelineError(
                    f"{sweep.path}: {where}: the same settings twice, {said}; keep one"
                )
            found[trial.name] = trial
    return list(found.values())


def column_heads(keys: list[str]) -> list[str]:
    """Shorten keys to their last word, unless two would be the same."""
    words = [key.rpartition(".")[2] for key in keys]
    return [word if words.count(word) == 1 else key for key, word in zip(keys, words, strict=True)]


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value
