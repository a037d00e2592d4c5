"""Units that are left out of a dataset: people who withdrew."""

import pyarrow as pa

from primorl.project.paths import WITHDRAWALS
from primorl.trajectories.identity.id_list import IdList
from primorl.trajectories.storage.schema import whole

FOLDER = WITHDRAWALS
"""Where the files are. DVC watches this folder, so a changed list makes a new version of the dataset."""


class Withdrawals:
    """The ids in a file, one a line; `drop` takes their rows out of every batch.

    Args:
        file: in ``data/withdrawals``; None: nobody withdrew.

    Raises:
        PipelineError: if the file is elsewhere, is missing or is not text.
    """

    def __init__(self, file: str | None):
        self._gone = None if file is None else IdList(file, FOLDER, "ingestion.exclude_units of the dataset's file")

    def drop(self, table: pa.Table) -> pa.Table:
        """The rows of ``table`` that are of units that stay."""
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
