"""The actions of a policy for every row of a table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from primorl.config.tabular import DecimalPoint
from primorl.policy.loaded import Policy
from primorl.project.errors import PipelineError
from primorl.project.files import replaced_file
from primorl.project.progress import progress_bar
from primorl.setup.tables import ObservationTable, check_ending
from primorl.trajectories.sources.tabular.elapsed import RowOrder

ABSTAINED = "abstained"


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
    check_ending(observations, "--observations")
    check_ending(out, "--out")
    if out.resolve() == observations.resolve():
        raise PipelineError(f"--out: found the file of --observations, {str(out)!r}; allowed is another one")
    unnamed = tuple(f"observation_{index}" for index in range(policy.observation_size))
    names = policy.observation_names or unnamed
    elapsed = policy.elapsed
    if by is not None and elapsed is None:
        raise PipelineError(
            "--trajectory, --step: found a policy that does not observe the time since the row before; leave them out "
            "(a policy that was trained by an earlier version does not say: give the time in a column)"
        )
    table = ObservationTable(
        observations,
        names,
        vector=names == unnamed,
        keep=tuple(dict.fromkeys(keep)),
        decimal_point=decimal_point,
        elapsed=elapsed,
        by=by,
    )
    schema = _schema(table, policy, text=out.suffix == ".csv")
    rows = abstentions = 0
    with (
        replaced_file(out) as fresh,
        progress_bar(table.table.total, "predict", table.table.unit) as bar,
        (pq.ParquetWriter if out.suffix == ".parquet" else pacsv.CSVWriter)(str(fresh), schema) as writer,
    ):
        for batch in table.batches():
            actions, abstained = policy.act_or_abstain(batch.observations)
            kept = [array.cast(field.type) for array, field in zip(batch.kept, schema, strict=False)]
            columns = [*kept, *_columns(policy, actions, abstained), pa.array(abstained)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            rows, abstentions = rows + len(abstained), abstentions + int(abstained.sum())
            bar.update(batch.done)
    return rows, abstentions


def _schema(table: ObservationTable, policy: Policy, *, text: bool) -> pa.Schema:
    kept = [(name, pa.string() if text else kind) for name, kind in table.kept]
    nested = [name for name, kind in table.kept if text and (pa.types.is_nested(kind) or pa.types.is_binary(kind))]
    if nested:
        raise PipelineError(
            f"--keep: found {', '.join(map(repr, nested))}, which no field of a CSV can hold; allowed are numbers, "
            "text, times and truth values; give --out a name that ends in .parquet"
        )
    if policy.discrete_actions:
        own = [("action", pa.int64()), *([("action_name", pa.string())] if policy.action_names else [])]
    else:
        named = policy.action_names or [f"action_{index}" for index in range(policy.action_size)]
        own = [(name, pa.float32()) for name in named]
    fields = [*kept, *own, (ABSTAINED, pa.bool_())]
    names = [name for name, _ in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PipelineError(
            f"--keep: the output would have {', '.join(map(repr, twice))} twice; allowed are columns with other names "
            "than the actions'; rename it in the observations"
        )
    return pa.schema(fields)


def _columns(policy: Policy, actions: npt.NDArray[np.generic], abstained: npt.NDArray[np.bool_]) -> list[pa.Array]:
    if not policy.discrete_actions:
        return [pa.array(np.ascontiguousarray(column), mask=abstained) for column in actions.T]
    numbers = pa.array(actions, mask=abstained)
    return [numbers, *([pa.array(policy.action_names).take(numbers)] if policy.action_names else [])]
