"""The time since the row before of the same trajectory, and values that are carried forward with
their age.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from primorl.base.records import TimeUnit
from primorl.config.columns import Carried
from primorl.config.datasets import CsvFormat
from primorl.data.sources.tabular.files import Field, Log, refuse_row
from primorl.data.storage.schema import id_text, whole

MICROSECONDS: dict[TimeUnit, float] = {
    "seconds": 1e6,
    "minutes": 6e7,
    "hours": 3.6e9,
    "days": 8.64e10,
}


@dataclass(frozen=True)
class RowOrder:
    """Which columns of a log say when a row was.

    Attributes:
        trajectory: that tell the trajectories apart, together.
        step: a number or a time that ascends within a trajectory.
    """

    trajectory: tuple[str, ...]
    step: str


def elapsed_times(
    order: npt.NDArray[np.generic],
    starts: npt.NDArray[np.int64],
    unit: TimeUnit,
    most: float,
    *,
    by_time: bool,
) -> npt.NDArray[np.float64]:
    """Compute the time since the row before, at most the declared one; 0 in the first row of a
    trajectory.

    Args:
        order: of rows in their order, trajectory by trajectory, ``[n]``.
        starts: the first row of every trajectory.
        unit: of the result.
        most: a longer time counts as this.
        by_time: whether ``order`` is in microseconds; else it counts in ``unit``.
    """
    since: npt.NDArray[np.float64] = np.diff(order, prepend=order[:1]).astype(np.float64)
    since[starts] = 0
    since /= MICROSECONDS[unit] if by_time else 1
    return since.clip(max=most)


def carry_forward(
    values: npt.NDArray[np.float32],
    order: npt.NDArray[np.generic],
    starts: npt.NDArray[np.int64],
    entry: Carried,
    *,
    by_time: bool,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Fill missing values with the last one of the same trajectory, and compute the age of every
    value.

    Args:
        values: NaN where missing, ``[n]``.
        order: see `elapsed_times`.
        starts: the same.
        entry: of the column.
        by_time: see `elapsed_times`.

    Returns:
        The values, ``entry.first`` or NaN before the first one of a trajectory; and their ages, at
        most ``entry.most``.
    """
    rows = np.arange(len(values))
    begun = np.repeat(starts, np.diff(starts, append=len(values)))
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, rows))
    known = last >= begun
    age = (order - order[last.clip(0)]).astype(np.float64)
    age /= MICROSECONDS[entry.unit] if by_time else 1
    first = np.nan if entry.first is None else entry.first
    filled: npt.NDArray[np.float32] = np.where(known, values[last.clip(0)], np.float32(first))
    return filled, np.where(known, age, entry.most).clip(max=entry.most)


def elapsed_in(
    path: Path, form: CsvFormat, by: RowOrder, unit: TimeUnit, most: float
) -> npt.NDArray[np.float64]:
    """`elapsed_times` of every row of a file, in the file's order, as `ingest` finds them; its rows
    may lie in any.

    The columns of ``by`` are in memory.

    Raises:
        PipelineError: a column is missing or of a wrong type, an id or order is missing, or a
            trajectory has an order twice; names the file and the row.
    """
    ids = [Field(f"trajectory.{index}", column, "id") for index, column in enumerate(by.trajectory)]
    log = Log(path.parent, [*ids, Field("order", by.step, "order")], form, [path])
    rows = pa.concat_tables([log.schema().empty_table(), *log.batches()])
    order = rows["order"].to_numpy()
    texts = [id_text(whole(rows[field.name])) for field in ids]
    keys = [text.dictionary_encode().indices.to_numpy() for text in texts]
    place = np.lexsort((order, *keys))
    sorted_order, starting = order[place], np.ones(len(place), dtype=bool)
    starting[1:] = np.any([key[place][1:] != key[place][:-1] for key in keys], axis=0)
    repeated = place[1:][~starting[1:] & (sorted_order[1:] == sorted_order[:-1])]
    if repeated.size > 0:
        refuse_row(
            path,
            int(repeated.min()),
            f"column {by.step!r}: found an order that its trajectory has already",
            "every one once; drop a duplicate, or repeat --trajectory for all columns that tell "
            "trajectories apart",
        )
    since = np.empty(len(place))
    starts, by_time = np.flatnonzero(starting), log.ordered_by_time
    since[place] = elapsed_times(sorted_order, starts, unit, most, by_time=by_time)
    return since
