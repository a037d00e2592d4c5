"""Raw trajectories become one validated Parquet dataset."""

from pathlib import Path

from pipeline.files import replaced_directory
from pipeline.trajectories.environments import declared
from pipeline.trajectories.fingerprint import Fingerprint, project_secret
from pipeline.trajectories.minari_files import MinariReader
from pipeline.trajectories.parquet import PartWriter
from pipeline.trajectories.schema import DatasetInfo, RowCheck


def ingest(raw: Path, target: Path, *, dataset: str, environment: str, unit: str) -> DatasetInfo:
    """Read the Minari dataset under ``raw``, check every row and write ``target`` whole or not at all.

    Args:
        raw: the folder with one Minari dataset.
        target: the folder of Parquet parts to replace.
        dataset: the name of the dataset's entry in params.yaml.
        environment: the Gymnasium id whose spaces the rows must fit.
        unit: what one privacy unit is.

    Returns:
        The facts written into every part.

    Raises:
        PipelineError: the environment or the data are not fit for use; ``target`` is untouched.
    """
    spaces, horizon = declared(environment)
    reader = MinariReader(raw, spaces)
    check = RowCheck(spaces, reader.path)
    fingerprint = Fingerprint(spaces)
    with replaced_directory(target) as fresh, PartWriter(fresh, spaces) as writer:
        for table in reader.tables():
            check(table)
            fingerprint.update(table)
            writer.write(table)
        info = DatasetInfo(dataset, environment, unit, spaces, horizon, fingerprint.keyed(project_secret()))
        writer.finish(info)
    return info
