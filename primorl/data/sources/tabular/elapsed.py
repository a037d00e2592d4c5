"""The time since the row before of the same trajectory, and values that are carried forward with
their age.
"""

import numpy as np
import numpy.typing as npt

from primorl.base.records import TimeUnit
from primorl.config.columns import Carried

MICROSECONDS: dict[TimeUnit, float] = {
    "seconds": 1e6,
    "minutes": 6e7,
    "hours": 3.6e9,
    "days": 8.64e10,
}


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
