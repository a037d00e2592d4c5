"""Rows: what became of each trial, as ``row.json`` in its folder, and all of them flat."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from primorl.project.errors import PipelineError
from primorl.project.files import replaced_file
from primorl.project.records import read_record, record, write_record

FILE = Path("row.json")
Status = Literal["finished", "refused", "failed"]
_SPENT, _VOID = "spent_on_dataset", "void"
_FORMS = (".csv", ".parquet")


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
        """The first of these figures of the summary that is there."""
        return next((self.summary[name] for name in names if self.summary.get(name) is not None), None)

    def flat(self) -> dict[str, Any]:
        """Scalars by column: settings by dotted key, then the summary's under their names, ranges as two columns.

        Of what was spent on the dataset there is the ε: of all its charges when the trial ended.
        """
        found: dict[str, Any] = {"sweep": self.sweep, "trial": self.trial, "case": self.case}
        found |= {key: _cell(value) for key, value in self.settings.items()}
        for key, value in self.summary.items():
            if key in found:
                continue
            if key == _SPENT and isinstance(value, dict):
                found[_SPENT] = value.get("epsilon")
            elif _is_range(value):
                found |= {f"{key}_low": value[0], f"{key}_high": value[1]}
            elif key == _VOID and isinstance(value, list):
                found[_VOID] = "; ".join(map(str, value)) or None
            elif not isinstance(value, dict | list):
                found[key] = value
        machine = {"machine": self.machine, "commit": self.commit, "command": self.command}
        return found | {"curve": json.dumps(self.curve), "seconds": self.seconds} | machine


def read_row(folder: Path) -> Row | None:
    """The row in a trial's folder; None: there is none yet.

    Raises:
        PipelineError: the file is damaged.
    """
    if not (folder / FILE).exists():
        return None
    return read_record(folder / FILE, Row, "remove it: the sweep runs the trial again")


def write_row(folder: Path, row: Row) -> None:
    """Write ``row.json``, atomically."""
    write_record(folder / FILE, row)


def read_rows(folder: Path) -> list[Row]:
    """All rows below a sweep's folder, by the names of the trials."""
    found = (read_row(file.parent) for file in sorted(folder.glob(f"*/{FILE}")))
    return [row for row in found if row is not None]


def write_flat(path: Path, rows: Sequence[Row], changed: Mapping[str, Sequence[str]]) -> None:
    """Write rows as a table, one line a trial: ``.csv`` or ``.parquet``.

    Args:
        path: of the table.
        rows: to write.
        changed: by trial, what is otherwise in the project since it ran; it becomes the column ``stale``.

    Raises:
        PipelineError: another ending.
    """
    check_form(path)
    flat = [row.flat() | {"stale": ", ".join(changed.get(row.trial, ())) or None} for row in rows]
    columns = list(dict.fromkeys(key for line in flat for key in line))
    with replaced_file(path) as fresh:
        if path.suffix == ".csv":
            _write_csv(fresh, columns, flat)
        else:
            _write_parquet(fresh, columns, flat)


def check_form(path: Path) -> None:
    """Refuse the name of a table that cannot be written.

    Raises:
        PipelineError: its ending is neither ``.csv`` nor ``.parquet``.
    """
    if path.suffix not in _FORMS:
        raise PipelineError(f"{path}: found the ending {path.suffix!r}, allowed are {' and '.join(_FORMS)}")


def _write_csv(file: Path, columns: Sequence[str], flat: Iterable[dict[str, Any]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)


def _write_parquet(file: Path, columns: Sequence[str], flat: Sequence[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({name: _column([line.get(name) for line in flat]) for name in columns}), file)


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: numbers, truths, or else texts."""
    there = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in there) or all(isinstance(value, str) for value in there):
        return values
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in there):
        whole = all(isinstance(value, int) for value in there)
        return values if whole else [None if value is None else float(value) for value in values]
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value)
