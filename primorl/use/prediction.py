"""The actions of a policy for every row of a table in Parquet or CSV; memory does not grow with the file.

The dimensions of an observation are found by the names of columns. Errors name the file and the row, counted from 1
without a CSV's header. They quote no cell.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from primorl.base.errors import PipelineError
from primorl.base.files import replaced_file
from primorl.base.records import ElapsedTime
from primorl.base.reporting import progress_bar
from primorl.config.datasets import CsvFormat, DecimalPoint
from primorl.data.sources.tabular.columns import header_of
from primorl.data.sources.tabular.elapsed import RowOrder, elapsed_in
from primorl.policy.loaded import Policy

ABSTAINED, REASON = "abstained", "reason"
_CELLS_PER_BATCH, _ROWS_PER_BATCH = 2**22, 2**16
_CSV_BLOCK_BYTES = 2**22
_PARQUET_BUFFER_BYTES = 2**16
_VECTOR = "observation"
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_NUMBERS: dict[DecimalPoint, str] = {".": _NUMBER, ",": _NUMBER.replace(r"\.", ",")}
# Of these, what is no number by the decimal mark has the other mark, or separates thousands.
_MARKED = r"^[-+]?[.,]?\d+([.,]\d*|[ '\x{a0}\x{202f}]\d{3})*([eE][-+]?\d+)?$"

Matrix = npt.NDArray[np.float64]


@contextmanager
def _readable(says: str | Sequence[str]) -> Iterator[None]:
    """Turn an error of Arrow into one line: the last text in ``says``, which the block may extend."""
    try:
        yield
    except (pa.ArrowMemoryError, MemoryError):
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        raise PipelineError(says if isinstance(says, str) else says[-1]) from None


class Table:
    """A table in Parquet, or in CSV with a header; every field of a CSV is read as text.

    Args:
        path: with an ending that `check_ending` allows.

    Attributes:
        names: of the columns.
        types: of the columns' decoded values.
        total: how much `batches` counts in all.
        unit: of that.
        delimiter: of a CSV.

    Raises:
        PipelineError: the file is not there, or not readable.
    """

    def __init__(self, path: Path):
        if not path.is_file():
            raise PipelineError(f"{path}: not there; give a .parquet or .csv file")
        self.path, self.delimiter, self.unit = path, ",", "row"
        self._parquet: pq.ParquetFile | None = None
        if path.suffix == ".parquet":
            with _readable(
                f"{path}: not readable as Parquet: truncated, corrupt or empty; repair it"
            ):
                # Without `pre_buffer` and threads Arrow holds what it decodes, and not all row groups of the file.
                self._parquet = pq.ParquetFile(
                    path, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES
                )
                self.total: int = self._parquet.metadata.num_rows
                schema = self._parquet.schema_arrow
        else:
            self.total, self.unit = path.stat().st_size, "byte"
            with path.open("rb") as file:
                header = file.readline(_CSV_BLOCK_BYTES).decode("utf-8-sig", "replace")
            self.delimiter, fields = header_of(header)
            self._several = len(fields) > 1
            with self._csv(None) as (_, reader):
                schema = reader.schema
        self.names: list[str] = schema.names
        decoded = (
            kind.value_type if pa.types.is_dictionary(kind) else kind for kind in schema.types
        )
        self.types: dict[str, pa.DataType] = dict(zip(self.names, decoded, strict=True))
        if self._parquet is None:
            self.types = dict.fromkeys(self.names, pa.string())

    def batches(self, columns: list[str]) -> Iterator[tuple[dict[str, pa.Array], int, int]]:
        """Yield columns of a batch by name, its number of rows, and how much of `total` it is.

        Raises:
            PipelineError: the file is corrupt further down.
        """
        done = 0
        if self._parquet is None:
            with self._csv(columns) as (file, reader):
                for block in reader:  # of short rows it has many
                    for first in range(0, block.num_rows, _ROWS_PER_BATCH):
                        batch, now = block.slice(first, _ROWS_PER_BATCH), file.tell()
                        yield (
                            {column: batch.column(column) for column in columns},
                            batch.num_rows,
                            now - done,
                        )
                        done = now
            return
        width = sum(getattr(self.types[column], "list_size", 1) for column in columns)
        rows = min(_ROWS_PER_BATCH, max(1, _CELLS_PER_BATCH // max(1, width)))
        vectors = any(pa.types.is_fixed_size_list(self.types[column]) for column in columns)
        why = (
            "truncated, corrupt, or a vector is missing" if vectors else "truncated or corrupt"
        )  # Arrow reads no such
        says = [f"{self.path}: {why} after row 0; repair it"]
        with _readable(says):
            for batch in self._parquet.iter_batches(rows, columns=columns, use_threads=False):
                found = {column: batch.column(column) for column in columns}
                for column, array in found.items():
                    if pa.types.is_dictionary(array.type):
                        found[column] = array.dictionary_decode()
                yield found, batch.num_rows, batch.num_rows
                done += batch.num_rows
                says.append(f"{self.path}: {why} after row {done}; repair it")

    @contextmanager
    def _csv(self, columns: list[str] | None) -> Iterator[tuple[Any, pacsv.CSVStreamingReader]]:
        says = [
            f"{self.path}: not readable as CSV in UTF-8 with a header: truncated, corrupt or empty; repair it"
        ]

        def refuse(row: Any) -> str:
            says.append(
                f"{self.path}: row {row.number - 1}: found another number of fields than in the header, whose fields "
                f"{self.delimiter!r} separates; allowed: as many in every row"
            )
            return "error"

        reading = pacsv.ReadOptions(
            block_size=_CSV_BLOCK_BYTES, use_threads=False
        )  # or rows would have no number
        parsing = pacsv.ParseOptions(
            delimiter=self.delimiter,
            newlines_in_values=True,
            ignore_empty_lines=self._several,  # of one column, an empty line is a row without a value
            invalid_row_handler=refuse,
        )
        texts = pacsv.ConvertOptions(
            include_columns=columns, column_types=dict.fromkeys(columns or (), pa.string())
        )
        with (
            self.path.open("rb") as file,
            _readable(says),
            pacsv.open_csv(file, reading, parsing, texts) as reader,
        ):
            yield file, reader


class ObservationTable:
    """One observation a row, with other columns that are left aside.

    Args:
        path: a Parquet or CSV file.
        names: of the S dimensions. A name is that of a column of numbers. ``meal=snack`` is also the category
            ``snack`` of a column ``meal`` of text or whole numbers.
        vector: whether a column ``observation`` of vectors of size S may take the place of the named ones.
        keep: other columns to give with every batch.
        decimal_point: of numbers that are text, as all of a CSV are.
        elapsed: the dimension that is the time since the row before.
        by: columns that `elapsed` is computed from; None: a column of its name has it.

    Attributes:
        table: the file.

    Raises:
        PipelineError: not readable, or a column is missing, there twice, ambiguous or of a wrong type.
    """

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        *,
        vector: bool,
        keep: Sequence[str],
        decimal_point: DecimalPoint,
        elapsed: ElapsedTime | None,
        by: RowOrder | None,
    ):
        self.table, self.keep, self._size = Table(path), list(dict.fromkeys(keep)), len(names)
        self._decimal_point, self._elapsed, self._by = decimal_point, elapsed, by
        there = set(self.table.names)
        wanted = [*self.keep]
        computed = None
        if elapsed is not None and by is not None:
            wanted += [*by.trajectory, by.step]
            computed = elapsed.name
            if computed in there:
                raise PipelineError(
                    f"{path}: found a column {computed!r}, which --trajectory and --step tell as well; allowed is one "
                    "of them; leave out the flags, or drop the column"
                )
            if len(by.trajectory) < len(elapsed.trajectory):
                raise PipelineError(
                    f"--trajectory: found {', '.join(by.trajectory)}; the log of training needed "
                    f"{len(elapsed.trajectory)} columns to tell trajectories apart: {', '.join(elapsed.trajectory)}; "
                    "repeat the flag for each"
                )
        missing = [column for column in wanted if column not in there]
        there |= {computed} if computed is not None else set()
        # A dimension is a column of numbers, or one category of a column: 1 where a row has it, else 0.
        self._dimensions: list[tuple[str, str | None]] = []
        self._vector = vector and _VECTOR in there and not there.issuperset(names)
        missing = [*([] if self._vector else self._find(names, there)), *missing]
        if missing:
            raise PipelineError(
                f"{path}: found no column {', '.join(map(repr, dict.fromkeys(missing)))}; allowed is a table with "
                "every column that the policy was trained on and that a flag names, under the same names (a CSV's "
                f"first line names them, separated by ',', ';', '|' or tabs); rename or add them{self._hint(missing)}"
            )
        own = (
            [_VECTOR]
            if self._vector
            else [column for column, _ in self._dimensions if column != computed]
        )
        self._columns = list(dict.fromkeys((*own, *self.keep)))
        twice = [column for column in self._columns if self.table.names.count(column) > 1]
        if twice:
            raise PipelineError(
                f"{path}: column {', '.join(map(repr, twice))} is there twice; allowed is once; drop or rename one"
            )
        for column, category in self._dimensions:
            if column != computed and not _fits(
                found := self.table.types[column], number=category is None
            ):
                allowed = "numbers" if category is None else "text, whole numbers or truth values"
                raise PipelineError(f"{path}: column {column!r}: found {found}; allowed: {allowed}")
        if self._vector:
            found = self.table.types[_VECTOR]
            if not (pa.types.is_fixed_size_list(found) and found.list_size == self._size):
                raise PipelineError(
                    f"{path}: column {_VECTOR!r}: found {found}; allowed: fixed_size_list of {self._size} numbers, or "
                    f"columns {_VECTOR}_0 to {_VECTOR}_{self._size - 1}"
                )

    def batches(self) -> Iterator[tuple[Matrix, list[pa.Array], int]]:
        """Yield all rows, in the file's order.

        Yields:
            Observations ``[n, S]``, NaN where a value is missing, no number or no declared category; the columns to
            keep; and how much of the table's `total` these rows are.

        Raises:
            PipelineError: the file is corrupt further down, or has a number with other marks than the decimal point.
        """
        before, times = 0, np.empty(0)
        if self._elapsed is not None and self._by is not None:
            form = CsvFormat(delimiter=self.table.delimiter, decimal_point=self._decimal_point)
            times = elapsed_in(
                self.table.path, form, self._by, self._elapsed.unit, self._elapsed.most
            )
        for columns, rows, done in self.table.batches(self._columns):
            if self._elapsed is not None and self._by is not None:
                columns[self._elapsed.name] = pa.array(times[before : before + rows])
            observations = (
                _vectors(columns[_VECTOR]) if self._vector else self._matrix(columns, rows, before)
            )
            yield observations, [columns[column] for column in self.keep], done
            before += rows

    def _hint(self, missing: Sequence[str]) -> str:
        if self._elapsed is None or self._elapsed.name not in missing:
            return ""
        return (
            f"; {self._elapsed.name!r} is the time since the row before, in {self._elapsed.unit}: add it, or, if every "
            "trajectory is there from its first row, name the columns that tell it: --trajectory COLUMN --step COLUMN"
        )

    def _find(self, names: Sequence[str], there: set[str]) -> list[str]:
        """Find the column of each name; return the columns that are not there."""
        groups = [name.partition("=")[0] for name in names]
        missing = []
        for name, group in zip(names, groups, strict=True):
            places = [
                index
                for index, letter in enumerate(name)
                if letter == "=" and name[:index] in there
            ]
            found: list[tuple[str, str | None]] = [(name, None)] if name in there else []
            found += [(name[:index], name[index + 1 :]) for index in places]
            if len(found) > 1:
                raise PipelineError(
                    f"{self.table.path}: column {found[0][0]!r} and column {found[1][0]!r}: the policy's {name!r} "
                    "could be either; allowed is one of them; drop or rename the other"
                )
            if not found:
                missing.append(group if groups.count(group) > 1 and "=" in name else name)
            self._dimensions += found
        return missing

    def _matrix(self, columns: dict[str, pa.Array], rows: int, before: int) -> Matrix:
        # One row a dimension, turned at the end: to write column by column takes three times as long.
        turned = np.empty((self._size, rows))
        of: dict[str, list[int]] = {}
        for index, (column, category) in enumerate(self._dimensions):
            if category is not None:
                of.setdefault(column, []).append(index)
                continue
            self._refuse_marks(column, columns[column], before)
            turned[index] = _numbers(columns[column], self._decimal_point)
        for column, indices in of.items():
            declared = pa.array([self._dimensions[index][1] for index in indices])
            found = pc.index_in(columns[column].cast(pa.string()), value_set=declared)
            code = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
            one_hot = (np.arange(len(indices))[:, None] == code).astype(np.float64)
            turned[indices] = np.where(np.isnan(code), np.nan, one_hot)
        return np.ascontiguousarray(turned.T)

    def _refuse_marks(self, column: str, array: pa.Array, before: int) -> None:
        """Refuse a text such as 1,234, which is one number or a thousand times it. The cell is not quoted."""
        if not _is_text(array.type):
            return
        text, mark = pc.utf8_trim_whitespace(array), self._decimal_point
        plain = pc.match_substring_regex(text, _NUMBERS[mark])
        marked = pc.and_not(pc.match_substring_regex(text, _MARKED), plain)
        if (place := pc.index(marked, True).as_py()) >= 0:
            point, other, remedy = "point", "comma", "pass --decimal-point ,"
            if mark == ",":
                point, other, remedy = "comma", "point", "leave out that flag"
            raise PipelineError(
                f"{self.table.path}: row {before + place + 1}, column {column!r}: found a number with a {other} or a "
                f"thousands separator; allowed is a decimal {point} and no other mark (--decimal-point {mark}); if a "
                f"{other} is the decimal mark, {remedy}, and else remove it"
            )


def _numbers(array: pa.Array, decimal_point: DecimalPoint = ".") -> Matrix:
    """Numbers, or text, as float64; NaN where there is no number."""
    if _is_text(array.type):
        text = pc.utf8_trim_whitespace(array)
        fits = pc.match_substring_regex(text, _NUMBERS[decimal_point])
        array = pc.if_else(
            fits, pc.replace_substring(text, decimal_point, "."), pa.scalar(None, array.type)
        )
    numbers: Matrix = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def _vectors(array: pa.FixedSizeListArray) -> Matrix:
    size = array.type.list_size
    flat = _numbers(array.values.slice(array.offset * size, len(array) * size))
    missing = array.is_null().to_numpy(zero_copy_only=False)
    return np.where(missing[:, None], np.nan, flat.reshape(len(array), size))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _fits(kind: pa.DataType, *, number: bool) -> bool:
    """Whether a column's values can be numbers, or else categories."""
    if number and (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return True
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
        or _is_text(kind)
    )


def predict(
    policy: Policy,
    observations: Path,
    out: Path,
    *,
    keep: Sequence[str] = (),
    decimal_point: DecimalPoint = ".",
    by: RowOrder | None = None,
) -> tuple[int, int]:
    """Write one row of actions for every row of observations, in the same order.

    The columns are those to keep; then of actions in a box their names, or ``action_0`` and so on, as float32; of
    discrete actions ``action``, the number as int64, and ``action_name`` where they have names; then ``abstained``.
    Where the policy abstained (see `Policy.act_or_abstain`) the action is null.

    Args:
        policy: a loaded one.
        observations: Parquet or CSV, with a column for every dimension; others are left aside.
        out: Parquet or CSV; replaced when it is complete, and untouched if anything fails.
        keep: columns of ``observations`` to carry over. In CSV they are text.
        decimal_point: of numbers that are text, as all of a CSV are.
        by: which columns tell the time since the row before, if the policy observes it; None: a column has it.

    Returns:
        The number of rows, and of those on which the policy abstained.

    Raises:
        PipelineError: a file is not readable, a column is missing or of a wrong type, a number has a mark that is
            not the decimal point, or two columns of the output would have the same name. One line.
    """
    for path, option in ((observations, "--observations"), (out, "--out")):
        if path.suffix not in (".parquet", ".csv"):
            raise PipelineError(
                f"{option}: found {str(path)!r}; allowed is a name that ends in .parquet or .csv"
            )
    if out.resolve() == observations.resolve():
        raise PipelineError(
            f"--out: found the file of --observations, {str(out)!r}; allowed is another one"
        )
    if by is not None and policy.elapsed is None:
        raise PipelineError(
            "--trajectory, --step: found a policy that does not observe the time since the row before; leave them out "
            "(a policy that was trained by an earlier version does not say: give the time in a column)"
        )
    unnamed = tuple(f"observation_{index}" for index in range(policy.observation_size))
    names = policy.observation_names or unnamed
    table = ObservationTable(
        observations,
        names,
        vector=names == unnamed,
        keep=keep,
        decimal_point=decimal_point,
        elapsed=policy.elapsed,
        by=by,
    )
    schema = _schema(table, policy, text=out.suffix == ".csv")
    rows = abstentions = 0
    with (
        replaced_file(out) as fresh,
        progress_bar(table.table.total, "predict", table.table.unit) as bar,
        (pq.ParquetWriter if out.suffix == ".parquet" else pacsv.CSVWriter)(
            str(fresh), schema
        ) as writer,
    ):
        for values, kept, done in table.batches():
            actions, abstained = policy.act_or_abstain(values)
            columns = [array.cast(field.type) for array, field in zip(kept, schema, strict=False)]
            if policy.discrete_actions:
                columns.append(pa.array(actions, mask=abstained))
                if policy.action_names:
                    columns.append(pa.array(policy.action_names).take(columns[-1]))
            else:
                columns += [
                    pa.array(np.ascontiguousarray(column), mask=abstained) for column in actions.T
                ]
            said = policy.reasons(values) if abstained.any() else [""] * len(values)
            reasons = pa.array(said, pa.string(), mask=~abstained)
            writer.write_table(
                pa.Table.from_arrays([*columns, pa.array(abstained), reasons], schema=schema)
            )
            rows, abstentions = rows + len(abstained), abstentions + int(abstained.sum())
            bar.update(done)
    return rows, abstentions


def _schema(table: ObservationTable, policy: Policy, *, text: bool) -> pa.Schema:
    kept = [(name, table.table.types[name]) for name in table.keep]
    nested = [name for name, kind in kept if pa.types.is_nested(kind) or pa.types.is_binary(kind)]
    if text and nested:
        raise PipelineError(
            f"--keep: found {', '.join(map(repr, nested))}, which no field of a CSV can hold; allowed are numbers, "
            "text, times and truth values; give --out a name that ends in .parquet"
        )
    fields = [(name, pa.string() if text else kind) for name, kind in kept]
    if policy.discrete_actions:
        fields += [
            ("action", pa.int64()),
            *([("action_name", pa.string())] if policy.action_names else []),
        ]
    else:
        named = policy.action_names or [f"action_{index}" for index in range(policy.action_size)]
        fields += [(name, pa.float32()) for name in named]
    names = [name for name, _ in (*fields, (ABSTAINED, None), (REASON, None))]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PipelineError(
            f"--keep: the output would have {', '.join(map(repr, twice))} twice; allowed are columns with other names "
            "than the actions'; rename it in the observations"
        )
    return pa.schema([*fields, (ABSTAINED, pa.bool_()), (REASON, pa.string())])
