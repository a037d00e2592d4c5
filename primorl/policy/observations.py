"""What a caller gives as observations, as a matrix of numbers; nothing is guessed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from primorl.project.errors import PipelineError

_KINDS_OF_NUMBERS = "biuf"  # of NumPy's types: truth values, whole numbers, floating-point numbers
Floats = npt.NDArray[np.float64]


class ObservationError(PipelineError, ValueError):
    """An observation that a policy cannot be asked about; the message is one line."""


def matrix(observation: Any, names: Sequence[str], size: int) -> tuple[Floats, bool]:
    """``[n, S]`` with NaN for a missing value, and whether there was one observation and no batch.

    Args:
        observation: ``[S]`` or ``[n, S]``: an array, a list or a tensor; or a table, whose columns are found by name.
        names: of the S dimensions; empty: a table's columns are taken in their order.
        size: S.

    Raises:
        ObservationError: the width is wrong, a column is missing, or there is something else than real numbers.
    """
    if hasattr(observation, "detach"):  # a tensor, of any device
        observation = observation.detach().cpu()
    there = _columns(observation) if names else None
    if there is None:
        values = _real(observation, "observation")
    else:
        if missing := [name for name in names if name not in there]:
            raise ObservationError(
                f"observation: found no column {', '.join(missing)}; needed are {', '.join(names)}; or give an array "
                "with its columns in this order"
            )
        try:
            columns = [_real(observation[name], f"observation: column {name!r}") for name in names]
        except KeyError:  # Arrow, of a name that is there twice
            columns = []
        if len({column.shape for column in columns}) != 1:
            raise ObservationError(
                "observation: found a column twice, or columns of different lengths; give each once, all of one length"
            )
        values = np.stack(columns, axis=-1)
    single = values.ndim == 1
    if values.ndim not in (1, 2) or values.shape[-1] != size:
        shape = "x".join(map(str, values.shape)) or "a single number"
        raise ObservationError(f"observation: found shape {shape}; allowed: [{size}] or [n, {size}]")
    return values[None] if single else values, single


def _columns(observation: Any) -> list[Any] | None:
    """Names of the columns of a dict or of a table of pandas, Arrow or Polars; None: it has no names."""
    if callable(keys := getattr(observation, "keys", None)):
        return list(keys())
    for attribute in ("column_names", "columns"):  # Arrow's `columns` are no names
        if (found := getattr(observation, attribute, None)) is not None:
            return list(found)
    return None


def _real(given: Any, what: str) -> Floats:
    """Float64. Text is not read as numbers, no imaginary part is dropped, and what is masked or None is NaN."""
    try:
        if hasattr(given, "detach"):
            given = given.detach().cpu()
        parts = isinstance(given, list | tuple) and any(isinstance(part, np.ma.MaskedArray) for part in given)
        found = np.ma.array(given) if parts else np.asanyarray(given)
        if found.dtype.kind == "O":
            known = all(value is None or _is_real(value) for value in np.ma.getdata(found).flat)
        else:
            known = found.dtype.kind in _KINDS_OF_NUMBERS
        if known:
            return np.asarray(np.ma.filled(found.astype(np.float64), np.nan))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise ObservationError(f"{what}: not numbers; give real numbers, all rows of one width, and NaN for a missing one")


def _is_real(value: Any) -> bool:
    """Whether an object is a number, and not text or a complex number that could be made one."""
    if isinstance(value, np.generic):
        return value.dtype.kind in _KINDS_OF_NUMBERS
    return hasattr(value, "__float__")
