"""The rows of the paper's tables in one Parquet file; of two rows of one trial the newer
one wins.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import RESULTS, machine
from primorl.base.files import CURVES, MODEL, POLICY, SUMMARY, read_json, replaced_file
from primorl.base.processes import git_commit
from primorl.model.architecture import Architecture, ModelConfig

FOLDER = RESULTS / "paper"
PARQUET = FOLDER / "rows.parquet"
Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("sweep", "trial", "case", "status", "error", "dataset", "variant")
        ),
        ("seed", pa.int64()),
        ("settings", pa.string()),  # JSON by dotted key of params.yaml
        *((name, pa.float64()) for name in ("epsilon", "epsilon_rdp", "delta", "noise_multiplier")),
        ("sampling_probability", pa.float64()),
        ("rounds", pa.int64()),
        ("clipping_norm", pa.float64()),
        ("units", pa.int64()),  # K
        ("parameters", pa.int64()),  # d, of all members
        ("return_final", pa.float64()),  # mean return of the final policy
        ("return_best", pa.float64()),  # of the best epoch
        (
            "returns_by_seed",
            pa.list_(pa.float64()),
        ),  # of the final policies, where policy.seeds lists several
        ("curve", pa.list_(pa.float64())),  # mean return after each epoch
        ("behaviour", pa.float64()),  # mean return of the public split
        ("stage_seconds", pa.string()),  # JSON by stage
        ("seconds", pa.float64()),
        *((name, pa.string()) for name in ("machine", "commit", "made", "privacy")),
    ]
)
"""Columns of the table; ``made`` is when the trial ended (UTC), ``privacy`` the content of its
``privacy.json``.
"""


def add(fresh: Iterable[Row], file: Path = PARQUET) -> list[Row]:
    """Merge rows with those on disk, write them, and return all."""
    rows = merged([*read(file), *fresh])
    write(rows, file)
    return rows


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row a trial, in the order of sweep and trial: the newest, of two as new the
    fuller one.
    """
    newest: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row["sweep"], row["trial"]
        if key not in newest or _age(row) > _age(newest[key]):
            newest[key] = row
    return [newest[key] for key in sorted(newest)]


def _age(row: Row) -> tuple[str, int, str]:
    there = sum(value is not None for value in row.values())
    return row["made"], there, json.dumps(row, sort_keys=True)


def row_of(
    folder: Path,
    sweep: str,
    case: str | None,
    settings: Mapping[str, Any],
    *,
    seconds: float,
    error: str | None,
) -> Row:
    """Return the row of the run that ended in a project's folder; ``error`` says why it failed."""
    statement, summary, curve = {}, {}, []
    if error is None:
        summary = read_json(folder / SUMMARY)
        statement = read_json(folder / POLICY / "privacy.json")
        with (folder / CURVES).open(encoding="utf-8", newline="") as text:
            curve = [float(line["return_mean"]) for line in csv.DictReader(text)]
    variant = summary.get("variant", settings.get("dynamics.variant"))
    final = summary.get("return_mean")
    given = {
        **{
            name: summary.get(name, statement.get(name))
            for name in ("epsilon", "epsilon_rdp", "delta", "units")
        },
        **{
            name: statement.get(name) or settings.get(f"privacy.{name}")
            for name in ("sampling_probability", "noise_multiplier", "rounds", "clipping_norm")
        },
        "sweep": sweep,
        "trial": hashlib.sha256(canonical(settings).encode()).hexdigest()[:16],
        "case": case,
        "status": "finished" if error is None else "failed",
        "error": error,
        "dataset": summary.get("dataset", settings.get("dataset")),
        "variant": variant,
        "seed": summary.get("seed", settings.get("seed")),
        "settings": json.dumps(settings, sort_keys=True, ensure_ascii=False),
        "parameters": None
        if error
        else Architecture.of(ModelConfig.read(folder / MODEL)).parameters,
        "return_final": final,
        "return_best": max([*curve, *([] if final is None else [final])], default=None),
        "returns_by_seed": [own["return_mean"] for own in summary.get("by_seed") or ()],
        "curve": curve,
        "behaviour": summary.get("public_return_mean"),
        "stage_seconds": json.dumps(summary.get("seconds", {}), sort_keys=True),
        "seconds": round(seconds, 1),
        "machine": machine(),
        "commit": git_commit(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "privacy": json.dumps(statement, sort_keys=True, ensure_ascii=False) if statement else None,
    }
    row: Row = _table([given]).to_pylist()[0]
    return row


def canonical(settings: Mapping[str, Any]) -> str:
    """Write settings as text that is the same for 8 and 8.0, and for any order of keys."""
    return json.dumps(json.loads(json.dumps(settings), parse_int=float), sort_keys=True)


def read(file: Path = PARQUET) -> list[Row]:
    """All rows on disk."""
    rows: list[Row] = pq.read_table(file, schema=SCHEMA).to_pylist() if file.exists() else []
    return rows


def write(rows: Sequence[Row], file: Path = PARQUET) -> None:
    """Write the file in one step."""
    with replaced_file(file) as fresh:
        pq.write_table(_table(rows), fresh, compression="zstd")


def _table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)
