"""Drafts a dataset's file for a log: what `primorl init --csv` writes.

Of the log, only names and types of columns are known here. Bounds, categories and the horizon are declared public, so
they come from what is known beforehand and never from a row. What nobody gave is null in the draft: nothing trains
before it is filled in.
"""

import glob
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from primorl.config.datasets import TabularDataset, checked
from primorl.config.explanations import explanations
from primorl.config.reading import shown
from primorl.config.tabular import CsvFormat, Elapsed
from primorl.project.errors import PipelineError
from primorl.trajectories.sources.tabular.columns import LogColumn
from primorl.trajectories.sources.tabular.fields import fields_of
from primorl.trajectories.sources.tabular.files import Log

_HEADER = """\
# Drafted by `primorl init` from the names and types of a log's columns. docs/datasets/tabular.md of primorl's
# repository explains every key. Bounds and the horizon are public: fill them in from what is known beforehand
# (physiology, devices, the protocol), and never from the rows. Statements and cards call a person by the name of the
# unit's column. For another word, such as "patient", rename that column in the log before the first run.
"""
_FOOTER = """\
# For the card and the report, in words of your own; each may be left out, and an edit charges nothing:
# card:
#   owner: who answers for data and policy
#   purpose: what they may be used for
#   contact: whom to ask
#   licence: of the data
"""
_BLOCKS = ("partition", "privacy", "dynamics", "behaviour", "policy", "evaluation")
_NUMBERS = ("whole numbers", "numbers", "empty")  # as `ingest` reads them: `true` in a CSV is none


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the columns of a log mean.

    Attributes:
        name: of the dataset.
        unit: the column of the person; the trajectory's column where every trajectory is a unit.
        trajectory: the column of the trajectory.
        step: the column that orders a trajectory.
        observation: columns, in order.
        action: one column of discrete actions if `categories` names it, else columns of a continuous action.
        reward: its column.
        categories: of columns that become one-hot, or of the action.
        bounds: low and high by column, as far as they are known.
        horizon: the most steps of a trajectory; None: not declared.
        elapsed: the time since the row before, the last dimension of the observation; None: it is not observed.
    """

    name: str
    unit: str
    trajectory: str
    step: str
    observation: tuple[str, ...]
    action: tuple[str, ...]
    reward: str
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    horizon: int | None = None
    elapsed: Elapsed | None = None

    @property
    def bounded(self) -> tuple[str, ...]:
        """Columns that need bounds."""
        numbers = (column for column in (*self.observation, *self.action) if column not in self.categories)
        return tuple(dict.fromkeys((*numbers, self.reward)))

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Columns that need bounds and have none yet."""
        return tuple(column for column in self.bounded if column not in self.bounds)

    @property
    def unfilled(self) -> tuple[str, ...]:
        """What is still to be filled in."""
        return (*(f"bounds of {column}" for column in self.unbounded), *(("horizon",) if self.horizon is None else ()))


def default_name(log: Path) -> str:
    """A dataset's name made of a file's."""
    stem = log.name.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100] or "log"


def check_answers(answers: Answers, columns: tuple[LogColumn, ...]) -> None:
    """Check the answers against the names and types of the columns.

    Raises:
        PipelineError: a flag names no column, or one of a wrong type, or what is given for a column is not used.
    """
    kinds = {column.name: column.kind for column in columns}
    for flag, named in _named(answers):
        if named not in kinds:
            raise PipelineError(f"{flag}: found {shown(named)}, which is no column; allowed are {listed(columns)}")
    for flag, named in _named(answers):
        numeric = flag in ("--observation", "--action", "--reward") and named not in answers.categories
        if numeric and kinds[named] not in _NUMBERS:
            truth = kinds[named] == "truth values"
            remedy = "write it as 0 and 1" if truth else "name a column of numbers"
            if flag != "--reward":
                remedy += f", or declare what may be in it: --categories {named}=A,B"
            raise PipelineError(f"{flag}: found {shown(named)}, a column of {kinds[named]}; {remedy}")
    if len(answers.action) > 1 and (discrete := [name for name in answers.action if name in answers.categories]):
        raise PipelineError(
            f"--action: found {len(answers.action)} columns, and categories of {shown(discrete[0])}; allowed is one "
            "column with categories (discrete actions), or columns of numbers"
        )
    for flag, given, used in (
        ("--bounds", answers.bounds, answers.bounded),
        ("--categories", answers.categories, (*answers.observation, *answers.action)),
    ):
        for column in given:
            if column not in used:
                raise PipelineError(f"{flag}: found {shown(column)}, which takes none; allowed are {_quoted(used)}")


def listed(columns: tuple[LogColumn, ...]) -> str:
    """Names and types of columns, in one line."""
    return ", ".join(f"{shown(column.name)} ({column.kind})" for column in columns)


def draft(answers: Answers, log: Path, form: CsvFormat) -> dict[str, Any]:
    """The content of the dataset's file.

    Args:
        answers: checked.
        log: the CSV.
        form: how it is written.
    """
    bounds = [pair for column in answers.observation for pair in _bounds_of(column, answers)]
    since = [] if answers.elapsed is None else [answers.elapsed]
    bounds += [(0.0, each.most) for each in since]
    reward = answers.bounds.get(answers.reward)
    own = answers.unit == answers.trajectory
    return {
        "source": "tabular",
        "environment": None,
        "unit": answers.unit,
        "population": answers.name,
        "trajectories_per_person": None,
        "horizon": answers.horizon,
        "termination": "none",
        "ingestion": {},
        "options": {
            "files": glob.escape(str(log.resolve())),
            "csv": {"delimiter": form.delimiter, "decimal_point": form.decimal_point},
            "columns": {
                "unit": answers.unit,
                "trajectory": answers.trajectory,
                "order": answers.step,
                "observation": [
                    *(_with_categories(column, answers) for column in answers.observation),
                    *map(vars, since),
                ],
                "action": _action(answers),
                "reward": answers.reward,
                "terminated": None,
                "truncated": None,
                "next_observation": None,
                "behaviour_probability": None,
            },
            "trajectory_ids": "global" if own else "per_unit",
            "end": "last_row",
            "sorted": False,
        },
        "bounds": {
            "observation": {"low": [low for low, _ in bounds], "high": [high for _, high in bounds]},
            "reward": [None, None] if reward is None else list(reward),
        },
        "score": None,
        "suggested": {block: {} for block in _BLOCKS},
    }


def check_draft(answers: Answers, log: Path, form: CsvFormat) -> None:
    """Check what `draft` makes, and the log's columns, as `primorl check` and `ingest` do. Bounds may still be missing.

    Raises:
        PipelineError: an answer does not fit, or a column is of a wrong type.
    """
    anything = dict.fromkeys(answers.unbounded, (0.0, 1.0))
    content = draft(replace(answers, bounds=anything | dict(answers.bounds)), log, form)
    try:
        dataset = checked(TabularDataset, content)
    except ValidationError as refused:
        texts = (f"{key}: {why}" for key, why in explanations(refused, content))
        raise PipelineError(f"init: {'; '.join(texts)}") from None
    Log(log.parent, fields_of(dataset.options.columns), form, [log])


def as_yaml(entry: dict[str, Any], answers: Answers) -> str:
    """The dataset's file, in the style in which DVC writes it."""
    order = f"# bounds.observation stands in this order: {', '.join(map(shown, _dimensions(answers)))}\n"
    content = yaml.dump(entry, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return _HEADER + order + content + _FOOTER


class _Dumper(yaml.SafeDumper):
    """Writes null as nothing and every list in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(  # numbers to DVC, which reads YAML 1.2, and not to PyYAML: as text they need quotes
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9.]+[eE][-+]?[0-9]+$|^0o[0-7]+$"), list("-+.0123456789")
)
_Dumper.add_representer(type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", ""))


def _named(answers: Answers) -> Iterator[tuple[str, str]]:
    yield "--unit", answers.unit
    yield "--trajectory", answers.trajectory
    yield "--step", answers.step
    yield from (("--observation", column) for column in answers.observation)
    yield from (("--action", column) for column in answers.action)
    yield "--reward", answers.reward


def _dimensions(answers: Answers) -> Iterator[str]:
    for column in answers.observation:
        categories = answers.categories.get(column)
        yield from [column] if categories is None else (f"{column}={category}" for category in categories)
    if answers.elapsed is not None:
        yield answers.elapsed.elapsed


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(map(shown, names))


def _bounds_of(column: str, answers: Answers) -> list[tuple[float | None, float | None]]:
    """One pair for each dimension of an observed column; a category is 0 or 1."""
    if column in answers.categories:
        return [(0.0, 1.0)] * len(answers.categories[column])
    return [answers.bounds.get(column, (None, None))]


def _with_categories(column: str, answers: Answers) -> Any:
    categories = answers.categories.get(column)
    return column if categories is None else {"column": column, "categories": list(categories)}


def _action(answers: Answers) -> dict[str, Any]:
    if answers.action[0] in answers.categories:
        found: dict[str, Any] = _with_categories(answers.action[0], answers)
        return found
    pairs = [answers.bounds.get(column, (None, None)) for column in answers.action]
    return {"columns": list(answers.action), "low": [low for low, _ in pairs], "high": [high for _, high in pairs]}
