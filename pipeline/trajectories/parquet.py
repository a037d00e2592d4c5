"""Parquet part files of whole units: written and read in batches, never the whole dataset at once."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import PipelineError
from pipeline.trajectories.schema import DatasetInfo, Spaces, arrow_schema

ROWS_PER_GROUP = 2**16
_ROWS_PER_PART = 2**18
_IDS = ["unit_id", "trajectory_id"]


class PartWriter:
    """Writes tables of whole units into ``folder`` as ``part-00000.parquet`` and so on.

    Row groups are about ``ROWS_PER_GROUP`` rows long and hold whole units. Every part carries the
    dataset's facts, which may be known only after the last row: parts stay open until ``close``.
    """

    def __init__(self, folder: Path, spaces: Spaces):
        self._folder = folder
        self._schema = arrow_schema(spaces)
        self._parts: list[pq.ParquetWriter] = []
        self._files = ExitStack()
        self._rows_in_part = _ROWS_PER_PART
        self._waiting: list[pa.Table] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def write(self, table: pa.Table) -> None:
        """Append a table of whole units."""
        self._waiting.append(table)
        if sum(table.num_rows for table in self._waiting) >= ROWS_PER_GROUP:
            self._flush()

    def finish(self, info: DatasetInfo) -> None:
        """Write what waits and the dataset's facts; without this the parts are not complete."""
        self._flush()
        facts = info.to_metadata()
        # Readers take the Arrow schema, its metadata included, from this key; Arrow's writer would put it
        # there itself, but with the facts known when the part was opened.
        described = base64.b64encode(self._schema.with_metadata(facts).serialize().to_pybytes())
        for part in self._parts:
            part.add_key_value_metadata(facts | {b"ARROW:schema": described})

    def _flush(self) -> None:
        group = pa.concat_tables(self._waiting or [self._schema.empty_table()]).combine_chunks()
        self._waiting = []
        if group.num_rows == 0:
            return
        if self._rows_in_part >= _ROWS_PER_PART:
            path = self._folder / f"part-{len(self._parts):05d}.parquet"
            part = pq.ParquetWriter(
                path, self._schema, use_dictionary=_IDS, store_schema=False, write_page_checksum=True
            )
            self._parts.append(self._files.enter_context(part))
            self._rows_in_part = 0
        self._parts[-1].write_table(group, row_group_size=group.num_rows)
        self._rows_in_part += group.num_rows


class PartReader:
    """The part files of ``folder``, in order.

    Args:
        folder: what ``PartWriter`` filled.
        made_by: the stage that makes it, for errors.

    Raises:
        PipelineError: no parts, an unreadable part, or parts of different datasets; quotes no value.
    """

    def __init__(self, folder: Path, made_by: str):
        self._repair = f"run `dvc repro {made_by}` to make it again"
        self._paths = sorted(folder.glob("*.parquet"))
        if not self._paths:
            raise PipelineError(f"{folder}: found no Parquet files; {self._repair}")
        self.rows = 0
        self.info = self._open(self._paths[0])[1]
        for path in self._paths:
            file, info = self._open(path)
            if info != self.info:
                raise PipelineError(f"{path}: belongs to another dataset than {self._paths[0].name}; {self._repair}")
            self.rows += file.metadata.num_rows

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """One table a row group, all columns unless told; the metadata is left behind.

        Raises:
            PipelineError: a part cannot be decoded.
        """
        for path in self._paths:
            file, _ = self._open(path)
            for group in range(file.num_row_groups):
                try:
                    table = file.read_row_group(group, columns=columns)
                except (OSError, pa.ArrowException):
                    raise PipelineError(f"{path}: row group {group} is corrupt; {self._repair}") from None
                yield table.replace_schema_metadata(None)

    def _open(self, path: Path) -> tuple[pq.ParquetFile, DatasetInfo]:
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)
        except (OSError, pa.ArrowException):
            raise PipelineError(f"{path}: not a readable Parquet file; {self._repair}") from None
        info = DatasetInfo.from_schema(file.schema_arrow, path)
        if not file.schema_arrow.equals(arrow_schema(info.spaces)):
            raise PipelineError(f"{path}: columns are not those of the dataset's schema; {self._repair}")
        return file, info
