"""Draft a dataset's file for a log, as `primorl init --csv` writes it.

Of the log, only names and types of columns are known here. Bounds, categories and the horizon are declared public, so
they come from facts known beforehand and never from a row. A fact that is not given is `FILL` in the draft, which no
reader of the file accepts: nothing trains before it is replaced.
"""

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from primorl.base.errors import PipelineError
from primorl.config.datasets import CsvFormat
from primorl.config.reading import shown
from primorl.data.sources.tabular.columns import LogColumn

FILL = "FILL IN"
_NUMBERS = (
    "whole numbers",
    "numbers",
    "empty",
)  # types as `ingest` reads them: `true` in a CSV is none
_BLOCKS = ("partition", "privacy", "dynamics", "behaviour", "policy", "evaluation")
_TEMPLATE = """\
# Drafted by `primorl init` from a log's columns: {listed}.
# docs/datasets/tabular.md of primorl's repository explains every key. Replace each FILL IN. Bounds, categories and the
# horizon are public: take them from what is known beforehand (physiology, devices, the protocol), and never from the
# rows. Statements and cards call a person by the name of the unit's column. For another word, such as "patient",
# rename that column in the log before the first run.
source: tabular
environment: null
unit: {unit}  # column of the person whom the guarantee protects; the trajectory's, if the log names nobody
population: {population}
trajectories_per_person: {per_person}  # the most that one person has
horizon: {horizon}  # the most steps of a trajectory
termination: {termination}
ingestion: {{}}
options:
  files: {files}
  csv: {{delimiter: {delimiter}, decimal_point: {decimal_point}}}
  columns:
    unit: {unit}  # as above
    trajectory: {trajectory}  # column of the visit, the stay, the trip
    order: {step}  # column of a number or time that ascends within a trajectory
    observation: {observation}  # columns; of texts: {{column: NAME, categories: [A, B]}}; docs/prepare-a-log.md
    action: {action}  # {{columns: [A, B], low: [0, 0], high: [1, 1]}}, or discrete: {{column: A, categories: [B, C]}}
    reward: {reward}
    terminated: null
    truncated: null
    next_observation: null
    behaviour_probability: null
  trajectory_ids: {trajectory_ids}
  end: {end}  # last_row: recordings were cut there, its reward is not used; outcome: they ended with its reward
  sorted: false
  beyond_bounds: refuse  # observations and rewards beyond the numbers below; clip: cut there
bounds:
  observation:  # in this order: {dimensions}
    low: {low}
    high: {high}
  reward: {reward_bounds}
score: null
suggested: {suggested}
# For the card and the report, in words of your own. `primorl release` needs all four; an edit charges nothing:
# card:
#   owner: who answers for data and policy
#   purpose: what they may be used for
#   contact: whom to ask
#   licence: of the data
"""


@dataclass(kw_only=True)
class Draft:
    """The dataset's file of a log, and the facts known of its columns; None and empty: not given.

    Attributes:
        columns: of the log.
        unit: column of the person; the trajectory's where every trajectory is a unit.
        trajectory: column of the trajectory.
        step: column that orders a trajectory.
        observation: columns, in order.
        action: one column of discrete actions if it holds texts or `categories` names it, else continuous ones.
        reward: column of the reward.
        categories: of columns that become one-hot, or of the action.
        bounds: low and high by column.
        horizon: the most steps of a trajectory.
        per_person: the most trajectories of one person, where the unit is the person.
        end: meaning of the last row of a trajectory: `last_row`, or `outcome` where it ends with its reward.
        carry: unit, most and first value (None: not given) of columns whose last value is carried forward.
        elapsed: name, unit and most of the time since the row before, the last dimension of the observation.
        left: keys that are to be filled in, once the text is made.

    Raises:
        PipelineError: a flag names no column, or one of a wrong type.
    """

    columns: tuple[LogColumn, ...]
    unit: str | None = None
    trajectory: str | None = None
    step: str | None = None
    observation: tuple[str, ...] = ()
    action: tuple[str, ...] = ()
    reward: str | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    horizon: int | None = None
    per_person: int | None = None
    carry: Mapping[str, tuple[str, float, float | None]] = field(default_factory=dict)
    elapsed: tuple[str, str, float] | None = None
    end: str = "last_row"
    left: list[str] = field(default_factory=list, init=False)

    def text(self, name: str, log: Path, form: CsvFormat) -> str:
        """Write the file of a dataset of this name for a CSV in this form."""
        keys = ("unit", "trajectory", "step", "observation", "action", "reward")
        self.left = [
            f"the column{'s' * (key in ('observation', 'action'))} of {key}"
            for key in keys
            if not getattr(self, key)
        ]
        one_each = (
            self.unit is not None and self.unit == self.trajectory
        )  # every trajectory is a unit
        observation: list[Any] = []
        dimensions: list[str] = []
        pairs: list[tuple[Any, Any]] = []
        for column in self.observation:
            if self._is_categorical(column):
                observation.append({"column": column, "categories": self._categories(column)})
                own = [f"{column}={category}" for category in self.categories.get(column, ())]
                dimensions += own
                pairs += [(0.0, 1.0)] * len(own)
                continue
            dimensions.append(column)
            pairs.append(self._bounds(column))
            if column in self.carry:
                unit, most, first = self.carry[column]
                observation.append({"carried": column, "unit": unit, "most": most, "first": first})
                dimensions.append(f"{column}_age")
                pairs.append((0.0, most))
            else:
                observation.append(column)
        if self.elapsed is not None:
            elapsed, unit, most = self.elapsed
            observation.append({"elapsed": elapsed, "unit": unit, "most": most})
            dimensions.append(elapsed)
            pairs.append((0.0, most))
        values = {
            "unit": self.unit or FILL,
            "population": name,
            "files": glob.escape(str(log.resolve())),
            "delimiter": form.delimiter,
            "decimal_point": form.decimal_point,
            "trajectory": self.trajectory or FILL,
            "step": self.step or FILL,
            "observation": observation or FILL,
            "action": self._action(),
            "reward": self.reward or FILL,
            "trajectory_ids": "global" if one_each else "per_unit",
            "low": [low for low, _ in pairs] or FILL,
            "high": [high for _, high in pairs] or FILL,
            "reward_bounds": FILL if self.reward is None else list(self._bounds(self.reward)),
            "horizon": self.horizon or FILL,
            "per_person": self.per_person or (None if one_each else FILL),
            "end": self.end,
            "termination": "learned" if self.end == "outcome" else "none",
            "suggested": {block: {} for block in _BLOCKS},
        }
        if self.horizon is None:
            self.left.append("horizon")
        if not one_each and self.per_person is None:
            self.left.append("trajectories_per_person")
        written = {
            key: json.dumps(value, ensure_ascii=False) for key, value in values.items()
        }  # JSON is YAML
        # Names alone: the types follow from the people's rows, and git keeps this file.
        listed = ", ".join(shown(column.name) for column in self.columns)
        return _TEMPLATE.format(
            **written, listed=listed, dimensions=", ".join(map(shown, dimensions)) or "?"
        )

    def _kind(self, column: str) -> str | None:
        return next((each.kind for each in self.columns if each.name == column), None)

    def _is_categorical(self, column: str) -> bool:
        return column in self.categories or self._kind(column) not in _NUMBERS

    def _categories(self, column: str) -> Any:
        if column in self.categories:
            return list(self.categories[column])
        self.left.append(f"categories of {column}")
        return FILL

    def _bounds(self, column: str) -> tuple[Any, Any]:
        if column in self.bounds:
            return self.bounds[column]
        self.left.append(f"bounds of {column}")
        return FILL, FILL

    def _action(self) -> Any:
        if not self.action:
            return FILL
        if self._is_categorical(self.action[0]):
            return {"column": self.action[0], "categories": self._categories(self.action[0])}
        low, high = zip(*map(self._bounds, self.action), strict=True)
        if len(self.action) == 1 and self._kind(self.action[0]) == "whole numbers" and FILL in low:
            self.left[-1] += (
                " (a quantity), or --categories: its levels, if the whole numbers are levels"
            )
        return {"columns": self.action, "low": low, "high": high}

    @property
    def uncarried(self) -> list[str]:
        """Observed columns of numbers that have empty cells at the beginning of the log and are not carried."""
        own = [
            each
            for each in self.columns
            if each.name in self.observation and each.name not in self.carry
        ]
        return [each.name for each in own if each.missing and not self._is_categorical(each.name)]

    def _listed(self) -> str:
        return ", ".join(f"{shown(column.name)} ({column.kind})" for column in self.columns)

    def __post_init__(self) -> None:
        for flag in (
            "unit",
            "trajectory",
            "step",
            "reward",
            "observation",
            "action",
            "categories",
            "bounds",
            "carry",
        ):
            given = getattr(self, flag)
            for column in (given,) if isinstance(given, str) else given or ():
                if self._kind(column) is None:
                    raise PipelineError(
                        f"--{flag}: found {shown(column)}, which is no column; allowed are {self._listed()}"
                    )
        if self.reward is not None and (kind := self._kind(self.reward)) not in _NUMBERS:
            remedy = (
                "write it as 0 and 1"
                if kind == "truth values"
                else "name one of numbers, with decimal points"
            )
            raise PipelineError(
                f"--reward: found {shown(self.reward)}, a column of {kind}; {remedy}"
            )
        if self.step is not None and (kind := self._kind(self.step)) not in (*_NUMBERS, "times"):
            raise PipelineError(
                f"--step: found {shown(self.step)}, a column of {kind}; name a column of numbers or times; write dates "
                "as 2024-03-06 11:25 (docs/prepare-a-log.md, Time)"
            )
        for column in self.bounds:
            if self._is_categorical(column):
                kind = "categories" if column in self.categories else self._kind(column)
                raise PipelineError(
                    f"--bounds: found {shown(column)}, a column of {kind}; allowed is a column of numbers; empty the "
                    "cells that hold a word, or leave the bounds out"
                )
        for column in self.carry:
            if column not in self.observation or self._is_categorical(column):
                raise PipelineError(
                    f"--carry: found {shown(column)}, which is not observed or holds categories; allowed is a column "
                    "of numbers that --observation names"
                )
        for column in self.action:
            if len(self.action) > 1 and self._is_categorical(column):
                raise PipelineError(
                    f"--action: found {len(self.action)} columns, and categories of {shown(column)}; allowed is one "
                    "column with categories (discrete actions), or columns of numbers"
                )
