"""Rows: the result of each trial as ``row.json`` in its folder, and all of them as one table."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from primorl.project.errors import PipelineError
from primorl.project.files import replaced_file
from primorl.project.records import read_record, record

FILE = Path("row.json")
Status = Literal["finished", "refused", "failed"]


@record
class Row:
    """``row.json``: one trial's settings and results."""

    sweep: Annotated[str, "Name of the sweep."]
    trial: Annotated[str, "Digest of the settings, the name of the trial's folder."]
    case: Annotated[str | None, "Name of the group of settings; `null`: the sweep has no cases."]
    settings: Annotated[dict[str, Any], "Settings by dotted key of params.yaml."]
    status: Annotated[Status, "refused: the ledger would not grant it, and nothing was run."]
    error: Annotated[str | None, "Why it is not finished, in one line."]
    summary: Annotated[dict[str, Any], "Content of metrics/summary.json; empty if it is not finished."]
    curve: Annotated[list[float], "Mean return after each epoch; the value in the model where nothing can be measured."]
    machine: Annotated[str, "Processor, cores, versions."]
    commit: Annotated[str | None, "Commit of the code."]
    command: Annotated[str, "What runs the sweep again."]
    seconds: Annotated[float, "Wall time of the stages."]

    @property
    def finished(self) -> bool:
        """Whether the trial has results."""
        return self.status == "finished"

    def first(self, *names: str) -> float | None:
        """Return the first of these figures that the summary has."""
        return next((self.summary[name] for name in names if self.summary.get(name) is not None), None)

    def flat(self) -> dict[str, Any]:
        """Return scalars by column: the settings, then the summary; ranges become two columns."""
        found: dict[str, Any] = {"sweep": self.sweep, "trial": self.trial, "case": self.case}
        for key, value in self.settings.items():
            found[key] = json.dumps(value) if isinstance(value, dict | list) else value
        summary = {key: value for key, value in self.summary.items() if key not in found}
        for key, value in summary.items():
            if key == "spent_on_dataset" and isinstance(value, dict):
                found[key] = value.get("epsilon")  # of all charges when the trial ended
            elif key == "void" and isinstance(value, list):
                found[key] = "; ".join(map(str, value)) or None
            elif isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value):
                found[f"{key}_low"], found[f"{key}_high"] = value
            elif not isinstance(value, dict | list):
                found[key] = value
        machine = {"machine": self.machine, "commit": self.commit, "command": self.command}
        return found | {"curve": json.dumps(self.curve), "seconds": self.seconds} | machine


def read_row(folder: Path) -> Row | None:
    """Read the row in a trial's folder; None: there is none yet."""
    if not (folder / FILE).exists():
        return None
    return read_record(folder / FILE, Row, "remove it: the sweep runs the trial again")


def finished_rows(folder: Path) -> list[Row]:
    """Read all rows with results below a sweep's folder, by the names of the trials."""
    found = [read_row(file.parent) for file in sorted(folder.glob(f"*/{FILE}"))]
    return [row for row in found if row is not None and row.finished]


def check_table_name(path: Path) -> None:
    """Refuse the name of a table that ends in neither ``.csv`` nor ``.parquet``."""
    if path.suffix not in (".csv", ".parquet"):
        raise PipelineError(f"{path}: found the ending {path.suffix!r}, allowed are .csv and .parquet")


def write_table(path: Path, rows: Sequence[Row], changed: Mapping[str, Sequence[str]]) -> None:
    """Write rows as a table, one line a trial: ``.csv`` or ``.parquet``.

    ``changed`` lists by trial what changed in the project since it ran; it becomes the column ``stale``.
    """
    lines = [row.flat() | {"stale": ", ".join(changed.get(row.trial, ())) or None} for row in rows]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    with replaced_file(path) as fresh:
        if path.suffix == ".csv":
            with fresh.open("w", encoding="utf-8", newline="") as text:
                writer = csv.DictWriter(text, columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(lines)
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: _one_type([line.get(name) for line in lines]) for name in columns}), fresh)


def _one_type(values: list[Any]) -> list[Any]:
    """Return values of one type, which Parquet needs: as they are, as float, or else as text."""
    types = {type(value) for value in values if value is not None}
    if len(types) <= 1:
        return values
    if types == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
