"""Using a policy on tables: its actions for every row of a Parquet or CSV file.

The dimensions of an observation are found by the names of columns. Errors name the file and quote
no cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from primorl.base import PipelineError, say
from primorl.base.files import replaced_file
from primorl.base.records import TimeUnit
from primorl.data.sources.logs import ZONE, can_end_summer_time, check_text, header_of
from primorl.policy.loaded import Policy

_LARGEST_HEADER = 2**22  # bytes
_OF_NUMBERS = ("integer", "floating", "decimal", "boolean", "null")
_ZONE = r":.*(?:Z|[+-]\d\d(?::?\d\d)?)\s*$"
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_COMMA = r"^[-+]?[\d.]*,\d+$"

Matrix = npt.NDArray[np.float64]


def predict(
    policy: Policy,
    observations: Path,
    out: Path,
    *,
    keep: Sequence[str] = (),
    carry: "Carry | None" = None,
) -> tuple[int, int]:
    """Write one row of actions for every row of observations, in the same order.

    The columns are those to keep, those of the action, then ``abstained`` and ``reason``. Where the
    policy abstains, the columns of the action are null.

    Args:
        policy: a loaded one.
        observations: Parquet or CSV, with a column for every dimension; others are left aside.
        out: Parquet or CSV; replaced when it is complete, and untouched if anything fails.
        keep: columns of ``observations`` to carry over. In CSV they are text.
        carry: how empty cells are filled from earlier rows; None: the policy abstains on them.

    Returns:
        The number of rows, and of those on which the policy abstained.

    Raises:
        PipelineError: a file is not readable, a column is missing or of a wrong type, or two
            columns of the output would have the same name. One line.
    """
    for path, option in ((observations, "--observations"), (out, "--out")):
        if path.suffix not in (".parquet", ".csv"):
            raise PipelineError(
                f"{option}: found {str(path)!r}; allowed is a name that ends in .parquet or .csv"
            )
    if out.resolve() == observations.resolve():
        raise PipelineError(f"--out: found the file of --observations, {out}; give another one")
    table = read_table(observations)
    if carry is not None:
        table = carry.fill(table, policy, observations)
    values = observations_of(table, policy, observations)
    reasons = policy.reasons(values)
    answered = np.array([reason == "" for reason in reasons], dtype=bool)
    content = {name: _column(table, name, observations) for name in dict.fromkeys(keep)}
    # Each row is asked for by its place among the answered ones; null where there is none.
    place = pa.array(np.cumsum(answered) - 1, mask=~answered)
    columns = _actions(policy, values[answered])
    made = {name: column.take(place) for name, column in columns.items()}
    made["abstained"] = pa.array(~answered)
    made["reason"] = pa.array(reasons, pa.string(), mask=answered)
    if twice := content.keys() & made.keys():
        found = f"the output would have {', '.join(sorted(twice))} twice"
        raise PipelineError(f"--keep: {found}; rename it in the observations")
    _write(out, content, made)
    return len(reasons), int((~answered).sum())


def _write(out: Path, kept: dict[str, pa.Array], made: dict[str, pa.Array]) -> None:
    """Write kept columns, and those that were made, as Parquet or CSV."""
    with replaced_file(out) as fresh:
        try:
            if out.suffix == ".parquet":
                pq.write_table(pa.table(kept | made), fresh)
            else:  # kept columns as text, so that a CSV has them as they were
                texts = {name: column.cast(pa.string()) for name, column in kept.items()}
                pacsv.write_csv(pa.table(texts | made), fresh)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise PipelineError(f"--keep: found columns that {out} cannot hold") from None


def _actions(policy: Policy, values: Matrix) -> dict[str, pa.Array]:
    """Make the columns of the action for observations ``[n, S]`` that the policy answers.

    Of discrete actions ``action``, the number, and ``action_name``; of a clone
    ``probability_NAME`` of every one; in a box a column for each dimension.
    """
    size = policy.action_size
    if policy.drawn:
        names = policy.action_names or tuple(map(str, range(size)))
        shares = policy.probabilities(values).T
        each = zip(names, shares, strict=True)
        return {f"probability_{name}": pa.array(own) for name, own in each}
    chosen: Any = policy.act(values)
    if policy.discrete_actions:
        found = {"action": pa.array(chosen)}
        if policy.action_names:
            found["action_name"] = pa.array(policy.action_names).take(found["action"])
        return found
    names = policy.action_names or tuple(f"action_{place}" for place in range(size))
    return {name: pa.array(own.copy()) for name, own in zip(names, chosen.T, strict=True)}


@dataclass(frozen=True)
class Carry:
    """Carries the last number of a column ``NAME`` forward within a trajectory, where a policy
    observes its age, ``NAME_age``, too, and the table has no such column.

    Attributes:
        by: columns that name a trajectory together, such as those of the person and of the stay.
        time: column of the time.
        unit: of ages, where the policy does not know it.
    """

    by: tuple[str, ...]
    time: str
    unit: TimeUnit | None = None

    def fill(self, table: pa.Table, policy: Policy, path: Path) -> pa.Table:
        """Return the table with these numbers in empty cells, and with their ages, at most those
        of the public range. Before the first number, and in a cell that is no number, both are
        missing.

        Raises:
            PipelineError: a column is missing, or holds no times, or ``by`` lacks one that names a
                trajectory, such as the person's of a stay.
        """
        time = self._read_times(table, path)
        # as text, since pandas makes floats of whole numbers where one is missing
        columns = [_column(table, name, path).cast(pa.string()) for name in self.by]
        named = policy.trajectory_columns
        if missing := [name for name in named if name not in self.by]:
            raise PipelineError(
                f"--carry-by: found {', '.join(map(repr, self.by))}; a trajectory is named by "
                f"{' and '.join(map(repr, named))} together: add --carry-by {missing[0]!r}"
            )
        who = [pc.utf8_trim_whitespace(ids).to_pandas().replace("", None) for ids in columns]
        unnamed = pd.concat(who, axis=1).isna().any(axis=1)
        if time.dt.tz is None:
            step = time.groupby(who).diff()
            back = (step < pd.Timedelta(0)) & (step > pd.Timedelta(-1, "hours"))
            back &= can_end_summer_time(time.to_numpy("datetime64[us]").astype(np.int64))
            if back.any():
                found = f"row {back.argmax() + 1}: found a time before that of the row before"
                raise PipelineError(f"{path}: {found}; allowed: {ZONE}")
        order = time.sort_values(kind="stable").index
        for index, aged in enumerate(policy.observation_names):
            name = aged.removesuffix("_age")
            if name == aged or aged in table.column_names or name not in table.column_names:
                continue
            place = table.column_names.index(name)
            column = _column(table, name, path)
            values = pd.Series(_numbers(column, name, path))
            empty = column.cast(pa.string()).to_pandas().fillna("").str.strip() == ""
            since = time.where(values.notna())[order].groupby(who).ffill()
            if (unit := policy.age_units.get(aged, self.unit)) is None:
                found = f"not given; give the unit of {aged} in the log that the policy is of"
                raise PipelineError(f"--age-unit: {found}")
            if self.unit not in (None, unit):
                found = f"found {self.unit!r}, and the policy's {aged} is in {unit}"
                raise PipelineError(f"--age-unit: {found}; leave the option out")
            if aged not in policy.age_units:
                say(f"--age-unit: {aged} is given in {unit}; check it, the policy knows no unit")
            age = (time - since) / pd.Timedelta(1, unit)
            age = age.where(empty | values.notna())
            if policy.observation_range is not None:
                age = age.clip(upper=float(policy.observation_range[1][index]))
            carried = values[order].groupby(who).ffill().sort_index()
            carried = carried.where(empty | unnamed, values)
            table = table.set_column(place, name, pa.array(carried, from_pandas=True))
            table = table.append_column(aged, pa.array(age, from_pandas=True))
        return table

    def _read_times(self, table: pa.Table, path: Path) -> "pd.Series[Any]":
        written = _column(table, self.time, path).to_pandas()
        try:
            text = written.astype(str)[written.notna() & (written != "")]
            zoned = text.str.contains(_ZONE)
            # not a year, and times in several zones as one kind
            if text.str.fullmatch(r"\s*\d+\s*").any() or (len(text) and zoned.any() != zoned.all()):
                raise ValueError
            return pd.to_datetime(written, format="ISO8601", utc=bool(zoned.any()))
        except (ValueError, TypeError):
            found = f"column {self.time!r}: found no times, or only some with a zone"
            raise PipelineError(f"{path}: {found}; allowed are such as 2024-03-31 14:00") from None


def read_table(path: Path) -> pa.Table:
    """Read a table, every field of a CSV as text.

    Raises:
        PipelineError: the file is not there, or not readable.
    """
    if not path.is_file():
        found = "found a folder" if path.is_dir() else "not there"
        raise PipelineError(f"{path}: {found}; give one .parquet or .csv file")
    try:
        if path.suffix == ".parquet":
            # not read_table, which refuses a name that is there twice
            return pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()
        with path.open("rb") as file:
            header = file.readline(_LARGEST_HEADER).decode("utf-8-sig", "replace")
        delimiter, fields = header_of(header)
        check_text(path, delimiter)
        parsing = pacsv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=len(fields) > 1
        )
        texts = pacsv.ConvertOptions(column_types=dict.fromkeys(fields, pa.string()))
        return pacsv.read_csv(path, parse_options=parsing, convert_options=texts)
    except (OSError, pa.ArrowInvalid, UnicodeDecodeError):
        forms = "Parquet, or as CSV in UTF-8 with a header and as many fields in every row"
        raise PipelineError(f"{path}: not readable as {forms}; repair it") from None


def observations_of(table: pa.Table, policy: Policy, path: Path) -> Matrix:
    """Return the observations ``[n, S]`` of a table: NaN where a value is missing, no number or no
    declared category.

    A dimension is a column of numbers of its name. ``meal=snack`` is also the category ``snack`` of
    a column ``meal``.

    Raises:
        PipelineError: columns are missing, there twice, or of a wrong type; names all that are
            missing.
    """
    size = policy.observation_size
    names = policy.observation_names or tuple(f"observation_{index}" for index in range(size))
    categories = {index for own in policy.categories for index in own} or range(len(names))
    values, missing = np.empty((table.num_rows, len(names))), []
    for index, name in enumerate(names):
        column, _, category = name.partition("=")
        if name in table.column_names:
            values[:, index] = _numbers(_column(table, name, path), name, path)
        elif category and column in table.column_names and index in categories:
            values[:, index] = _is_category(_column(table, column, path), column, category, path)
        else:
            missing.append(name)
    if missing:
        found = f"found no column {', '.join(map(repr, missing))}"
        raise PipelineError(f"{path}: {found}; allowed are all that the policy was trained on")
    return values


def _column(table: pa.Table, name: str, path: Path) -> pa.Array:
    if (count := table.column_names.count(name)) != 1:
        raise PipelineError(f"{path}: column {name!r}: found {count} times, allowed is once")
    found = table[name].combine_chunks()
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    return found.cast(pa.string()) if pa.types.is_string_view(found.type) else found


def _numbers(array: pa.Array, name: str, path: Path) -> Matrix:
    """Read numbers, or text, as float64; NaN where there is no number, such as 3,5, which a
    warning names.
    """
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = pc.utf8_trim_whitespace(array)
        fits = pc.match_substring_regex(text, _NUMBER)
        comma = pc.index(pc.match_substring_regex(text, _COMMA), True).as_py()
        if comma >= 0:
            found = f"column {name!r}, row {comma + 1}: found a number with a comma"
            say(f"warning: {path}: {found}; write decimal points (3.5), no thousands separators")
        array = pc.if_else(fits, text, pa.scalar(None, text.type))
    elif not any(getattr(pa.types, f"is_{fit}")(kind) for fit in _OF_NUMBERS):
        raise PipelineError(f"{path}: column {name!r}: found {kind}; allowed: numbers")
    numbers: Matrix = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def _is_category(array: pa.Array, name: str, category: str, path: Path) -> Matrix:
    """Return 1 where a column has the category, 0 where it has another one or none."""
    if pa.types.is_floating(array.type) or pa.types.is_nested(array.type):
        allowed = "text, whole numbers or truth values"
        raise PipelineError(f"{path}: column {name!r}: found {array.type}; allowed: {allowed}")
    same = pc.fill_null(pc.equal(array.cast(pa.string()), category), False)
    found: Matrix = same.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return found
