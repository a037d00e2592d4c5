"""Files of unit ids, one a line: people who withdrew, people who consented."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from primorl.project.errors import PipelineError
from primorl.project.paths import WITHDRAWALS
from primorl.trajectories.storage.schema import id_text, whole


def read_ids(file: str, folder: Path, key: str) -> list[str]:
    """Read the id in each line of a file of text, in the form of the column ``unit_id``; empty for a blank line.

    Blanks within a line belong to the id.

    Args:
        file: a file in ``folder``.
        folder: the folder that DVC watches, so that an edit of the file makes a new version of what depends on it.
        key: the file and key of the settings that name it, for errors.

    Raises:
        PipelineError: if the file is elsewhere, is missing or is not text.
    """
    path = Path(file)
    if folder.resolve() not in path.resolve().parents:
        raise PipelineError(
            f"{key}: found {file!r}; allowed is a file in {folder}, where DVC notices its edits: write {folder}/NAME"
        )
    try:
        lines = [line.removesuffix("\r") for line in path.read_text(encoding="utf-8-sig").split("\n")]
    except OSError as refused:
        raise PipelineError(f"{file}: {refused.strerror}; {key} names it") from None
    except UnicodeDecodeError:
        raise PipelineError(f"{file}: not UTF-8 text; allowed is one unit id a line") from None
    ids: list[str] = id_text(pa.array([line if line.strip() else "" for line in lines], pa.string())).to_pylist()
    return ids


class IdList:
    """The unit ids in a file of text, one a line; blank lines are left out.

    An id of digits may be written with or without the zeros that the column ``unit_id`` has in front of it.

    Args:
        file: see `read_ids`, which raises what is wrong with it.
        folder: likewise.
        key: likewise.
    """

    def __init__(self, file: str, folder: Path, key: str):
        self._file = file
        lines = enumerate(read_ids(file, folder, key), 1)
        given = {unit: number for number, unit in reversed(list(lines)) if unit}  # of equal lines the first counts
        self._lines = np.array(list(given.values()), dtype=np.int64)
        self._met = np.zeros(len(given), dtype=bool)
        self._ids = pa.array(list(given), pa.string())

    def __len__(self) -> int:
        return len(self._lines)

    def contains(self, units: pa.Array) -> npt.NDArray[np.bool_]:
        """Look up each of ``units`` in the list, bool [units]; remember the ids that were met."""
        places = pc.index_in(units, value_set=self._ids).fill_null(-1).to_numpy(zero_copy_only=False)
        listed: npt.NDArray[np.bool_] = places >= 0
        self._met[np.unique(places[listed])] = True
        return listed

    def check_all_met(self) -> None:
        """Call after the last batch: an id that no unit has may be a misspelt one, whose owner would be passed over.

        Raises:
            PipelineError: if there is one. The message names the line and not the id, which is a person's.
        """
        missing = self._lines[~self._met]
        if len(missing) > 0:
            raise PipelineError(
                f"{self._file}: line {missing.min()}: found an id that no unit has ({len(missing)} such lines); "
                "allowed are ids of the data, as they are in the column unit_id; correct it, or remove the line"
            )


class Withdrawals:
    """The ids in a file, one a line; `drop` takes their rows out of every batch.

    Args:
        file: in ``data/withdrawals``; None: nobody withdrew.

    Raises:
        PipelineError: if the file is elsewhere, is missing or is not text.
    """

    def __init__(self, file: str | None):
        self._gone = (
            None if file is None else IdList(file, WITHDRAWALS, "ingestion.exclude_units of the dataset's file")
        )

    def drop(self, table: pa.Table) -> pa.Table:
        """Drop the rows of units that withdrew."""
        if not self._gone:
            return table
        return table.filter(pa.array(~self._gone.contains(whole(table["unit_id"]))))

    def check_all_met(self) -> None:
        """Call after the last batch; see `IdList.check_all_met`.

        Raises:
            PipelineError: if a listed id is not in the data.
        """
        if self._gone is not None:
            self._gone.check_all_met()
