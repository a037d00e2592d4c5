"""Raw trajectories become one validated Parquet dataset."""

from pathlib import Path

from pipeline.files import replaced_directory
from pipeline.params import AnyDataset
from pipeline.trajectories.fingerprint import Fingerprint, project_secret
from pipeline.trajectories.parquet import PartWriter
from pipeline.trajectories.schema import DatasetInfo, RowCheck
from pipeline.trajectories.sources import source_of


def ingest(raw: Path, target: Path, name: str, dataset: AnyDataset) -> DatasetInfo:
    """Read what ``collect`` left in ``raw``, check every row and write ``target`` whole or not at all.

    Args:
        raw: the folder of raw files.
        target: the folder of Parquet parts to replace.
        name: the dataset's entry in params.yaml.
        dataset: that entry.

    Returns:
        The facts written into every part.

    Raises:
        PipelineError: the entry or the data are not fit for use; ``target`` is untouched.
    """
    reader = source_of(name, dataset).open(raw)
    spaces = reader.spaces
    check = RowCheck(spaces, reader.path)
    fingerprint = Fingerprint(spaces)
    with replaced_directory(target) as fresh, PartWriter(fresh, spaces) as writer:
        for table in reader.tables():
            check(table)
            fingerprint.update(table)
            writer.write(table)
        info = DatasetInfo(
            dataset=name,
            environment=dataset.environment,
            unit=dataset.unit,
            spaces=spaces,
            horizon=dataset.horizon or reader.horizon,
            termination=dataset.termination,
            duplicates=dataset.duplicates,
            dataset_fingerprint=fingerprint.keyed(project_secret()),
        )
        writer.finish(info)
    return info
