"""Units that are left out of a dataset: people who withdrew."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from primorl.project.errors import PipelineError

FOLDER = Path("data/withdrawals")
"""Where the files are: DVC watches this folder, so a changed list makes a new version of the dataset."""


class Withdrawals:
    """The ids in a file, one a line; `drop` takes their rows out of every batch.

    Args:
        file: in ``data/withdrawals``; None: nobody withdrew.

    Raises:
        PipelineError: the file is elsewhere, is missing or is not text.
    """

    def __init__(self, file: str | None):
        self._file = file
        self._lines: dict[str, int] = {}
        if file is None:
            return
        path = Path(file)
        if FOLDER.resolve() not in path.resolve().parents:
            raise PipelineError(
                f"params.yaml: exclude_units: found {file!r}; allowed is a file in {FOLDER}, where DVC notices "
                "its edits"
            )
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except OSError as refused:
            raise PipelineError(f"{file}: {refused.strerror}; params.yaml: exclude_units names it") from None
        except UnicodeDecodeError:
            raise PipelineError(f"{file}: not UTF-8 text; allowed is one unit id a line") from None
        for number, line in enumerate(lines, 1):
            if line.strip():
                self._lines.setdefault(line.strip(), number)
        self._ids = pa.array(list(self._lines), pa.string())

    def drop(self, table: pa.Table) -> pa.Table:
        """The rows of ``table`` that are of units that stay."""
        if not self._lines:
            return table
        gone = pc.is_in(table["unit_id"], value_set=self._ids)
        for met in pc.unique(table["unit_id"].filter(gone)).to_pylist():
            self._lines[met] = 0
        return table.filter(pc.invert(gone))

    def check_all_met(self) -> None:
        """Call after the last batch: an id that is nowhere in the data may be a misspelt one, whose owner would stay.

        Raises:
            PipelineError: names the line; not the id, which is a person's.
        """
        missing = [line for line in self._lines.values() if line]
        if missing:
            raise PipelineError(
                f"{self._file}: line {missing[0]}: found an id that no unit has ({len(missing)} such lines); allowed "
                "are ids of the data, as they are in the column unit_id; correct it, or remove the line"
            )
