"""Sorts the rows of a log by unit, trajectory and order, in bounded memory."""

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.project.files import scratch_directory
from primorl.trajectories.sources.tabular.files import ROWS_PER_BATCH, Log
from primorl.trajectories.storage.schema import id_text

_BYTES_PER_BUCKET = 2**26
_MOST_BUCKETS = 512  # each is an open file, and systems often allow 1,024
_ROWS_WAITING = 2**20  # to be counted
_TEXT_BYTES = 24  # about what an id takes


def sorted_batches(log: Log, unit: str, beside: Path) -> Generator[pa.Table]:
    """Give the rows of ``log``, ascending by unit, trajectory (both as `id_text`) and order.

    Each range of units is written to a file of its own in a temporary folder, and each file is sorted by itself. The
    log is read twice and written once. Memory holds one range of about 64 MiB, or one unit where that is larger.

    ``unit`` is the field that says whose a row is. The temporary folder is made ``beside`` a path, on a disk with room
    for the mapped columns.

    Raises:
        PipelineError: see `Log.batches`.
    """
    limits = _limits(log, unit)
    with scratch_directory(beside) as folder:
        for path in _spill(log, unit, limits, folder):
            with pa.memory_map(str(path)) as file:
                bucket = _sorted(pa.ipc.open_stream(file).read_all(), unit)
            path.unlink()
            yield from (bucket.slice(start, ROWS_PER_BATCH) for start in range(0, bucket.num_rows, ROWS_PER_BATCH))


def _limits(log: Log, unit: str) -> npt.NDArray[np.object_]:
    """Find unit ids, ascending, that cut the log into ranges of about equal size.

    Memory holds the ids of all units; so do the later checks of who is in the data.
    """
    counted = pa.table({unit: pa.array([], log.schema().field(unit).type), "rows": pa.array([], pa.int64())})
    waiting = [counted]
    for batch in log.batches(only=[unit]):
        waiting.append(pa.table({unit: batch[unit], "rows": pa.array(np.ones(batch.num_rows, np.int64))}))
        if sum(table.num_rows for table in waiting[1:]) > max(waiting[0].num_rows, _ROWS_WAITING):
            waiting = [_summed(waiting, unit)]
    counted = _summed(waiting, unit)
    if counted.num_rows == 0:
        return np.empty(0, dtype=object)
    ids = id_text(counted[unit].combine_chunks()).to_numpy(zero_copy_only=False)
    order = np.argsort(ids, kind="stable")
    before = np.cumsum(counted["rows"].to_numpy()[order])  # rows up to each id
    widths = [_TEXT_BYTES if pa.types.is_string(kind) else max(kind.bit_width // 8, 1) for kind in log.schema().types]
    buckets = min(-(-int(before[-1]) * sum(widths) // _BYTES_PER_BUCKET), _MOST_BUCKETS)
    cuts = np.searchsorted(before, before[-1] * np.arange(1, buckets) // buckets)
    limits: npt.NDArray[np.object_] = np.unique(ids[order][cuts])
    return limits


def _summed(counts: list[pa.Table], unit: str) -> pa.Table:
    summed = pa.concat_tables(counts).group_by(unit).aggregate([("rows", "sum")])
    return summed.select([unit, "rows_sum"]).rename_columns([unit, "rows"])


def _spill(log: Log, unit: str, limits: npt.NDArray[np.object_], folder: Path) -> list[Path]:
    paths = [folder / f"{index}.arrows" for index in range(len(limits) + 1)]
    ids = {unit, "trajectory"}
    schema = pa.schema([(each.name, pa.string() if each.name in ids else each.type) for each in log.schema()])
    with ExitStack() as stack:
        files = [stack.enter_context(pa.OSFile(str(path), "wb")) for path in paths]
        writers = [stack.enter_context(pa.ipc.new_stream(file, schema)) for file in files]
        for batch in log.batches():
            for name in ids:
                place = batch.schema.get_field_index(name)
                batch = batch.set_column(place, name, id_text(batch[name].combine_chunks()))
            encoded = batch[unit].combine_chunks().dictionary_encode()
            of_id = np.searchsorted(limits, encoded.dictionary.to_numpy(zero_copy_only=False), side="right")
            bucket = of_id[encoded.indices.to_numpy()]
            order = np.argsort(bucket, kind="stable")
            ends = np.cumsum(np.bincount(bucket, minlength=len(paths)))
            batch = batch.take(pa.array(order))
            for writer, start, end in zip(writers, [0, *ends[:-1]], ends, strict=True):
                if end > start:
                    writer.write_table(batch.slice(start, end - start))
    return paths


def _sorted(rows: pa.Table, unit: str) -> pa.Table:
    keys = [rows["order"].to_numpy(), _ranks(rows["trajectory"]), _ranks(rows[unit])]
    return rows.take(pa.array(np.lexsort(keys)))


def _ranks(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    encoded = column.combine_chunks().dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), dtype=np.int64)
    ranks[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    chosen: npt.NDArray[np.int64] = ranks[encoded.indices.to_numpy()]
    return chosen
