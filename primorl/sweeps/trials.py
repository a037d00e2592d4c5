"""Trials: the settings of one run each, named by a digest of them."""

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from primorl.config.reading import shown
from primorl.project.errors import PipelineError
from primorl.sweeps.file import Sweep

_DIGITS = 16


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        settings: by dotted key of params.yaml.
        case: whose settings these are; None: the sweep has no cases.
    """

    settings: Mapping[str, Any]
    case: str | None = None

    @cached_property
    def name(self) -> str:
        """A digest of the settings. The order of keys, and whether a whole number is written as 1 or 1.0, are nothing.

        The case is left out: the same settings are one run, whatever they are called.
        """
        content = json.dumps(_plain(dict(self.settings)), sort_keys=True, allow_nan=False)
        return hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]


def expand(sweep: Sweep) -> list[Trial]:
    """All trials of a grid: every combination of its values, for every case.

    All cases of the first combination come first: a sweep that is stopped early has compared all cases.

    Raises:
        PipelineError: two trials have the same settings.
    """
    file = sweep.content
    cases: list[tuple[str | None, Mapping[str, Any]]] = list(file.cases.items()) or [(None, {})]
    found: dict[str, Trial] = {}
    for values in itertools.product(*file.grid.values()):
        for case, own in cases:
            trial = Trial({**file.settings, **own, **dict(zip(file.grid, values, strict=True))}, case)
            if trial.name in found:
                other = found[trial.name]
                where = f"cases {shown(other.case)} and {shown(case)}" if case != other.case else "grid"
                raise PipelineError(f"{sweep.path}: {where}: the same settings twice, {said(trial)}; keep one")
            found[trial.name] = trial
    return list(found.values())


def varying(trials: list[Trial]) -> list[str]:
    """Keys whose values differ between trials of one case, in the order of the file: a case's own keys are its name."""
    keys = dict.fromkeys(key for trial in trials for key in trial.settings)
    texts: dict[tuple[str, str | None], set[str]] = {}
    for trial in trials:
        for key in keys:
            texts.setdefault((key, trial.case), set()).add(json.dumps(_plain(trial.settings.get(key))))
    several = {key for (key, _), values in texts.items() if len(values) > 1}
    return [key for key in keys if key in several]


def short(keys: list[str]) -> list[str]:
    """Headings of keys in a table: the last word of each, unless two would be the same."""
    words = [key.rpartition(".")[2] for key in keys]
    return [word if words.count(word) == 1 else key for key, word in zip(keys, words, strict=True)]


def said(trial: Trial, keys: list[str] | None = None) -> str:
    """A trial's case and settings in a line.

    Args:
        trial: the trial.
        keys: to name. None, or where these and the case say nothing: all.
    """
    named = [] if keys is None else [key for key in keys if key in trial.settings]
    if keys is None or not (named or trial.case):
        named = list(trial.settings)
    words = [f"{key} {json.dumps(trial.settings[key])}" for key in named]
    return ", ".join(([trial.case] if trial.case else []) + words) or "no settings"


def _plain(value: Any) -> Any:
    """A value whose JSON is the same however it was written."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
