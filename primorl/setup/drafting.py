"""Draft a dataset's file for a log: what `primorl init --csv` writes.

Of the log, only names and types of columns are known here. Bounds, categories and the horizon are declared public, so
they come from what is known beforehand and never from a row. What nobody gave is `FILL` in the draft, which no reader
of the file accepts: nothing trains before it is replaced.
"""

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from primorl.config.reading import shown
from primorl.config.tabular import CsvFormat
from primorl.project.errors import PipelineError
from primorl.trajectories.sources.tabular.columns import LogColumn

FILL = "FILL IN"
_NUMBERS = ("whole numbers", "numbers", "empty")  # types as `ingest` reads them: `true` in a CSV is none
_BLOCKS = ("partition", "privacy", "dynamics", "behaviour", "policy", "evaluation")
_TEMPLATE = """\
# Drafted by `primorl init` from the names and types of a log's columns: {listed}.
# docs/datasets/tabular.md of primorl's repository explains every key. Replace each FILL IN. Bounds, categories and the
# horizon are public: take them from what is known beforehand (physiology, devices, the protocol), and never from the
# rows. Statements and cards call a person by the name of the unit's column. For another word, such as "patient",
# rename that column in the log before the first run.
source: tabular
environment: null
unit: {unit}  # column of the person whom the guarantee protects; the trajectory's, if the log names nobody
population: {population}
trajectories_per_person: null
horizon: {horizon}  # the most steps of a trajectory
termination: none
ingestion: {{}}
options:
  files: {files}
  csv: {{delimiter: {delimiter}, decimal_point: {decimal_point}}}
  columns:
    unit: {unit}  # as above
    trajectory: {trajectory}  # column of the visit, the stay, the trip
    order: {step}  # column of a number or time that ascends within a trajectory
    observation: {observation}  # columns; of texts: {{column: NAME, categories: [A, B]}}
    action: {action}  # {{columns: [A, B], low: [0, 0], high: [1, 1]}}, or discrete: {{column: A, categories: [B, C]}}
    reward: {reward}
    terminated: null
    truncated: null
    next_observation: null
    behaviour_probability: null
  trajectory_ids: {trajectory_ids}
  end: last_row
  sorted: false
bounds:
  observation:  # in this order: {dimensions}
    low: {low}
    high: {high}
  reward: {reward_bounds}
score: null
suggested: {suggested}
# For the card and the report, in words of your own; each may be left out, and an edit charges nothing:
# card:
#   owner: who answers for data and policy
#   purpose: what they may be used for
#   contact: whom to ask
#   licence: of the data
"""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What is known of a log's columns; None and empty: not given.

    Attributes:
        unit: column of the person; the trajectory's where every trajectory is a unit.
        trajectory: column of the trajectory.
        step: column that orders a trajectory.
        observation: columns, in order.
        action: one column of discrete actions if it holds texts or `categories` names it, else continuous ones.
        reward: column of the reward.
        categories: of columns that become one-hot, or of the action.
        bounds: low and high by column.
        horizon: the most steps of a trajectory.
        elapsed: name, unit and most of the time since the row before, the last dimension of the observation.
    """

    unit: str | None = None
    trajectory: str | None = None
    step: str | None = None
    observation: tuple[str, ...] = ()
    action: tuple[str, ...] = ()
    reward: str | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    horizon: int | None = None
    elapsed: tuple[str, str, float] | None = None


class Draft:
    """The dataset's file of a log.

    Args:
        meaning: of the columns, as far as it is given.
        columns: of the log.

    Attributes:
        left: what is to be filled in, once the text is made.

    Raises:
        PipelineError: a flag names no column, or one of a wrong type.
    """

    def __init__(self, meaning: Meaning, columns: tuple[LogColumn, ...]) -> None:
        self._meaning, self._columns = meaning, columns
        self._kinds = {column.name: column.kind for column in columns}
        self.left: list[str] = []
        self._check()

    def text(self, name: str, log: Path, form: CsvFormat) -> str:
        """Write the file."""
        given, keys = self._meaning, ("unit", "trajectory", "step", "observation", "action", "reward")
        self.left = [
            f"the column{'s' * (key in ('observation', 'action'))} of {key}" for key in keys if not getattr(given, key)
        ]
        observation: list[Any] = []
        dimensions: list[str] = []
        pairs: list[tuple[Any, Any]] = []
        for column in given.observation:
            if self._is_categorical(column):
                categories = self._categories(column)
                observation.append({"column": column, "categories": categories})
                dimensions += [f"{column}={category}" for category in given.categories.get(column, ())]
                pairs += [(0.0, 1.0)] * len(given.categories.get(column, ()))
            else:
                observation.append(column)
                dimensions.append(column)
                pairs.append(self._bounds(column))
        if given.elapsed is not None:
            elapsed, unit, most = given.elapsed
            observation.append({"elapsed": elapsed, "unit": unit, "most": most})
            dimensions.append(elapsed)
            pairs.append((0.0, most))
        action = self._action()
        reward_bounds = FILL if given.reward is None else list(self._bounds(given.reward))
        if given.horizon is None:
            self.left.append("horizon")
        values = {
            "unit": given.unit or FILL,
            "population": name,
            "horizon": given.horizon or FILL,
            "files": glob.escape(str(log.resolve())),
            "delimiter": form.delimiter,
            "decimal_point": form.decimal_point,
            "trajectory": given.trajectory or FILL,
            "step": given.step or FILL,
            "observation": observation or FILL,
            "action": action,
            "reward": given.reward or FILL,
            "trajectory_ids": "global" if given.unit and given.unit == given.trajectory else "per_unit",
            "low": [low for low, _ in pairs] or FILL,
            "high": [high for _, high in pairs] or FILL,
            "reward_bounds": reward_bounds,
            "suggested": {block: {} for block in _BLOCKS},
        }
        written = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}  # JSON is YAML
        return _TEMPLATE.format(**written, listed=self._listed(), dimensions=", ".join(map(shown, dimensions)) or "?")

    def _is_categorical(self, column: str) -> bool:
        return column in self._meaning.categories or self._kinds[column] not in _NUMBERS

    def _categories(self, column: str) -> Any:
        if column in self._meaning.categories:
            return list(self._meaning.categories[column])
        self.left.append(f"categories of {column}")
        return FILL

    def _bounds(self, column: str) -> tuple[Any, Any]:
        if column in self._meaning.bounds:
            return self._meaning.bounds[column]
        self.left.append(f"bounds of {column}")
        return FILL, FILL

    def _action(self) -> Any:
        columns = self._meaning.action
        if not columns:
            return FILL
        if self._is_categorical(columns[0]):
            return {"column": columns[0], "categories": self._categories(columns[0])}
        pairs = [self._bounds(column) for column in columns]
        return {"columns": list(columns), "low": [low for low, _ in pairs], "high": [high for _, high in pairs]}

    def _listed(self) -> str:
        return ", ".join(f"{shown(column.name)} ({column.kind})" for column in self._columns)

    def _check(self) -> None:
        given = self._meaning
        named = [("--unit", given.unit), ("--trajectory", given.trajectory), ("--step", given.step)]
        named += [("--reward", given.reward)]
        for flag in ("observation", "action", "categories", "bounds"):
            named += [(f"--{flag}", column) for column in getattr(given, flag)]
        for flag, column in named:
            if column is not None and column not in self._kinds:
                raise PipelineError(f"{flag}: found {shown(column)}, which is no column; allowed are {self._listed()}")
        if given.reward is not None and self._kinds[given.reward] not in _NUMBERS:
            kind = self._kinds[given.reward]
            remedy = "write it as 0 and 1" if kind == "truth values" else "name a column of numbers"
            raise PipelineError(f"--reward: found {shown(given.reward)}, a column of {kind}; {remedy}")
        for column in given.action:
            if len(given.action) > 1 and self._is_categorical(column):
                raise PipelineError(
                    f"--action: found {len(given.action)} columns, and categories of {shown(column)}; allowed is one "
                    "column with categories (discrete actions), or columns of numbers"
                )
