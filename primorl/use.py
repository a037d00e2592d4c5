"""Using a policy on tables: its actions for every row of a Parquet or CSV file.

The dimensions of an observation are found by the names of columns. Errors name the file and quote
no cell.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from primorl.base import PipelineError, say
from primorl.base.files import replaced_file
from primorl.data.sources.logs import check_text, header_of
from primorl.policy.loaded import Policy

_LARGEST_HEADER = 2**22  # bytes
_OF_NUMBERS = ("integer", "floating", "decimal", "boolean", "null")
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_COMMA = r"^[-+]?[\d.]*,\d+$"

Matrix = npt.NDArray[np.float64]


def predict(
    policy: Policy,
    observations: Path,
    out: Path,
    *,
    keep: Sequence[str] = (),
) -> tuple[int, int]:
    """Write one row of actions for every row of observations, in the same order.

    The columns are those to keep, those of the action, then ``abstained`` and ``reason``. Where the
    policy abstains, the columns of the action are null.

    Args:
        policy: a loaded one.
        observations: Parquet or CSV, with a column for every dimension; others are left aside.
        out: Parquet or CSV; replaced when it is complete, and untouched if anything fails.
        keep: columns of ``observations`` to carry over. In CSV they are text.

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
