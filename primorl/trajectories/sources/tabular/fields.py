"""Fields of a log's rows, and their columns."""

from dataclasses import dataclass
from typing import Literal

from primorl.config.tabular import Categorical, CountedActions, Elapsed, TabularColumns
from primorl.trajectories.storage.schema import BEHAVIOUR_PROBABILITY


@dataclass(frozen=True)
class Field:
    """One thing that a row says, and the log's column that says it.

    ``id`` and ``order`` find a row's place. ``number`` and ``flag`` are what they are called, ``category`` is one of
    ``categories``, ``whole`` is a whole number below ``count``. A ``label`` is any text; a missing one is empty. What
    ``elapsed`` since the row before is read off no column.
    """

    name: str
    column: str
    kind: Literal["id", "order", "number", "flag", "category", "whole", "label", "elapsed"]
    categories: tuple[str, ...] = ()
    count: int = 0
    elapsed: Elapsed | None = None


def fields_of(columns: TabularColumns) -> list[Field]:
    """List the fields of a row: ``trajectory``, ``order``, ``unit`` (if there is one), ``observation.0`` and so on."""
    fields = [Field("trajectory", columns.trajectory, "id"), Field("order", columns.order, "order")]
    if columns.unit is not None:
        fields.append(Field("unit", columns.unit, "id"))
    after = columns.next_observation or ()
    for prefix, named in (("observation", None), ("next_observation", after)):
        for index, entry in enumerate(columns.observation):
            if named is not None and index >= len(named):
                continue
            if isinstance(entry, Elapsed):
                fields.append(Field(f"{prefix}.{index}", entry.elapsed, "elapsed", elapsed=entry))
                continue
            own, categories = (entry.column, entry.categories) if isinstance(entry, Categorical) else (entry, ())
            column = own if named is None else named[index]
            fields.append(Field(f"{prefix}.{index}", column, "category" if categories else "number", categories))
    action = columns.action
    if isinstance(action, Categorical):
        fields.append(Field("action", action.column, "category", action.categories))
    elif isinstance(action, CountedActions):
        fields.append(Field("action", action.column, "whole", count=action.count))
    else:
        fields += [Field(f"action.{index}", column, "number") for index, column in enumerate(action.columns)]
    fields.append(Field("reward", columns.reward, "number"))
    for flag in ("terminated", "truncated"):
        if (column := getattr(columns, flag)) is not None:
            fields.append(Field(flag, column, "flag"))
    if columns.behaviour_probability is not None:
        fields.append(Field(BEHAVIOUR_PROBABILITY, columns.behaviour_probability, "number"))
    return fields
