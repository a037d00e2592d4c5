"""Raw trajectories become one validated Parquet dataset."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TypeVar

from primorl.config.datasets import AnyDataset
from primorl.project.errors import PipelineError
from primorl.project.files import replaced_directory
from primorl.trajectories.checks import RowCheck
from primorl.trajectories.consent import write_consent
from primorl.trajectories.identity.duplicates import DuplicateCheck
from primorl.trajectories.identity.fingerprint import Fingerprint, project_secret
from primorl.trajectories.identity.id_list import Withdrawals
from primorl.trajectories.sources import source_of
from primorl.trajectories.sources.tabular.source import TabularReader
from primorl.trajectories.storage.parquet import PartWriter
from primorl.trajectories.storage.schema import DatasetInfo

_Item = TypeVar("_Item")


def ingest(raw: Path, target: Path, name: str, dataset: AnyDataset, public_column: str | None = None) -> DatasetInfo:
    """Read what ``collect`` left in ``raw``, check every row and write ``target`` whole or not at all.

    Args:
        raw: the folder of raw files.
        target: the folder of Parquet parts to replace.
        name: the dataset's entry in params.yaml.
        dataset: that entry.
        public_column: the column of the log that says who consented to be public; None: there is none.

    Returns:
        The facts written into every part.

    Raises:
        PipelineError: if the entry or the data are not fit for use; ``target`` is untouched.
    """
    reader = source_of(name, dataset).open(raw)
    if public_column is not None:
        if not isinstance(reader, TabularReader):
            raise PipelineError(
                f"params.yaml: partition.public.column: found {public_column!r}, but the source {dataset.source} has "
                "no columns of its own; allowed with it is partition.public.file, or source: tabular"
            )
        reader.keep_consent(public_column)
    spaces = reader.spaces
    withdrawals = Withdrawals(dataset.ingestion.exclude_units)
    horizon = dataset.horizon or reader.horizon
    check = RowCheck(
        spaces,
        reader.path,
        may_terminate=dataset.termination != "none",
        horizon=horizon,
        trajectories_per_unit=dataset.trajectories_per_person,
        behaviour_probabilities=reader.behaviour_probabilities,
        environment=dataset.environment is not None,
    )
    check_duplicates = DuplicateCheck(reader.path) if dataset.ingestion.duplicates == "refuse" else None
    fingerprint = Fingerprint(spaces, behaviour_probabilities=reader.behaviour_probabilities)
    with (
        replaced_directory(target) as fresh,
        PartWriter(fresh, spaces, behaviour_probabilities=reader.behaviour_probabilities) as writer,
        closing(ahead(reader.tables())) as tables,
    ):
        rows = 0
        for whole in tables:
            table = withdrawals.drop(whole)
            if table.num_rows == 0:
                continue
            check(table)
            if check_duplicates is not None:
                check_duplicates(table)
            fingerprint.update(table)
            writer.write(table)
            rows += table.num_rows
        check.finish()
        if check_duplicates is not None:
            check_duplicates.finish()
        withdrawals.check_all_met()
        if rows == 0:
            raise PipelineError(f"{reader.path}: found no transitions; allowed is at least one")
        info = DatasetInfo(
            dataset=name,
            environment=dataset.environment,
            unit=dataset.unit,
            spaces=spaces,
            horizon=horizon,
            termination=dataset.termination,
            duplicates=dataset.ingestion.duplicates,
            dataset_fingerprint=fingerprint.keyed(project_secret()),
            population=dataset.population,
            trajectories_per_person=dataset.trajectories_per_person,
            behaviour_probabilities=reader.behaviour_probabilities,
        )
        writer.finish(info)
        if public_column is not None and isinstance(reader, TabularReader):
            write_consent(fresh, public_column, [withdrawals.drop(table) for table in reader.consent])
    return info


def ahead(items: Iterator[_Item]) -> Generator[_Item]:
    """Make each item in a thread of its own while the one before it is worked on.

    Closing it closes ``items``: what a source has open, or on disk for a while, goes with an error too.
    """
    with closing(items) if isinstance(items, Generator) else nullcontext(), ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = maker.submit(next, items, None)
            yield item
