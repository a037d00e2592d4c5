"""Raw trajectories become one validated Parquet dataset."""

import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow.compute as pc

from primorl.base.errors import PipelineError
from primorl.base.files import replaced_directory
from primorl.base.paths import WITHDRAWALS
from primorl.config.datasets import AnyDataset
from primorl.data.checks import RowCheck
from primorl.data.identity.consent import IdList, read_ids
from primorl.data.identity.membership import (
    DuplicateCheck,
    Fingerprint,
    SpellingCheck,
    project_secret,
)
from primorl.data.sources import source_of
from primorl.data.storage.parquet import PartWriter
from primorl.data.storage.schema import DatasetInfo

_Item = TypeVar("_Item")


def ingest(raw: Path, target: Path, name: str, dataset: AnyDataset) -> DatasetInfo:
    """Read the files of ``collect`` in ``raw``, check every row and write ``target`` whole or not
    at all.

    Args:
        raw: the folder of raw files.
        target: the folder to replace.
        name: the dataset's entry in params.yaml.
        dataset: that entry.

    Returns:
        The facts written into the file.

    Raises:
        PipelineError: if the entry or the data are not fit for use; ``target`` is untouched.
    """
    reader = source_of(name, dataset).open(raw)
    info = DatasetInfo(
        dataset=name,
        environment=dataset.environment,
        unit=dataset.unit,
        spaces=reader.spaces,
        horizon=dataset.horizon or reader.horizon,
        termination=dataset.termination,
        duplicates=dataset.ingestion.duplicates,
        dataset_fingerprint="",
        population=dataset.population,
        trajectories_per_person=dataset.trajectories_per_person,
    )
    key, withdrawn = (
        "ingestion.exclude_units of the dataset's file",
        dataset.ingestion.exclude_units,
    )
    gone = IdList(read_ids(withdrawn, WITHDRAWALS, key) if withdrawn else [], withdrawn)
    check, fingerprint = RowCheck(info, reader.path), Fingerprint(info.schema)
    check_duplicates, check_spelling = DuplicateCheck(reader.path), SpellingCheck(reader.path)
    with (
        replaced_directory(target) as fresh,
        PartWriter(fresh, info.schema) as writer,
        closing(ahead(reader.tables())) as tables,
    ):
        rows = people = kept = 0
        for everybody in tables:
            people += pc.count_distinct(everybody["unit_id"]).as_py()
            check_spelling(everybody)
            table = gone.drop(everybody)
            if table.num_rows == 0:
                continue
            check(table)
            if info.duplicates == "refuse":
                check_duplicates(table)
            fingerprint.update(table)
            writer.write(table)
            rows += table.num_rows
            kept += pc.count_distinct(table["unit_id"]).as_py()
        check.finish()
        check_duplicates.finish()
        check_spelling.finish()
        gone.check_all_met()
        if rows == 0:
            raise PipelineError(f"{reader.path}: found no transitions; allowed is at least one")
        info = replace(info, dataset_fingerprint=fingerprint.keyed(project_secret()))
        writer.finish(info)
    # The number of units is public, that of rows is not.
    print(
        f"ingest: found {people} units in {reader.files} files or datasets; kept {kept}",
        file=sys.stderr,
    )
    return info


def ahead(items: Generator[_Item]) -> Generator[_Item]:
    """Make each item in a thread of its own while the one before it is worked on.

    Closing it closes ``items``: open and temporary files of a source go with an error too.
    """
    with closing(items), ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = maker.submit(next, items, None)
            yield item
