"""Gather the rows of the paper's tables from trials' folders into one Parquet file.

python -m benchmarks.quality.paper.rows --from . --from ANOTHER_MACHINES_COPY

Each `--from` is a project (its ``.primorl/sweeps`` is read), or a folder that holds what lies there. Rows that are in
benchmarks/results/paper already stay; of two rows of one trial the newer one wins. So the order of merging is nothing,
merging twice is nothing, and a command that was killed is run again.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import RESULTS
from primorl.base.files import read_json, replaced_file
from primorl.base.paths import MANIFEST, PARTITIONS, STATE
from primorl.data.description import describe
from primorl.data.storage.schema import Manifest
from primorl.model.architecture import FILE as CONFIG
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
        *((name, pa.string()) for name in ("machine", "commit", "command", "made", "privacy")),
    ]
)
"""Columns of the table; ``made`` is when the trial ended (UTC), ``privacy`` the content of its ``privacy.json``."""


def main() -> None:
    """Gather and merge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--from", dest="roots", type=Path, action="append", required=True, metavar="FOLDER"
    )
    rows = add([row for root in parser.parse_args().roots for row in gather(root)])
    print(f"{PARQUET.relative_to(RESULTS.parent.parent)}: {len(rows)} rows")


def add(fresh: Iterable[Row], file: Path = PARQUET) -> list[Row]:
    """Merge rows with those on disk, write them, and return all."""
    rows = merged([*read(file), *fresh])
    write(rows, file)
    return rows


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row a trial, in the order of sweep and trial: the newest, of two as new the fuller one."""
    newest: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row["sweep"], row["trial"]
        if key not in newest or _age(row) > _age(newest[key]):
            newest[key] = row
    return [newest[key] for key in sorted(newest)]


def _age(row: Row) -> tuple[str, int, str]:
    there = sum(value is not None for value in row.values())
    return row["made"], there, json.dumps(row, sort_keys=True)


def gather(root: Path) -> list[Row]:
    """Rows of all trials below a project, or below a folder of sweeps, that have run; refused trials have not."""
    project = root / STATE / "sweeps"
    files = sorted((project if project.is_dir() else root).glob("*/*/row.json"))
    behaviour = _behaviour(root)
    return [
        flat(file.parent, behaviour) for file in files if read_json(file)["status"] != "refused"
    ]


def flat(folder: Path, behaviour: Mapping[tuple[str, int], float]) -> Row:
    """The row of one trial.

    Args:
        folder: with ``row.json``, and ``privacy.json`` if its model was trained.
        behaviour: mean return of the public split, by dataset and number of private units.
    """
    content = read_json(folder / "row.json")
    statement = read_json(folder / "privacy.json") if (folder / "privacy.json").exists() else {}
    settings, summary = content["settings"], content["summary"]
    dataset = summary.get("dataset", settings.get("dataset"))
    variant = summary.get("variant", settings.get("dynamics.variant"))
    final, curve = summary.get("return_mean"), content["curve"]
    made = datetime.fromtimestamp((folder / "row.json").stat().st_mtime, UTC)
    given = {
        **{
            name: content[name]
            for name in ("sweep", "trial", "case", "status", "error", "machine", "commit")
        },
        **{
            name: summary.get(name, statement.get(name))
            for name in ("epsilon", "epsilon_rdp", "delta", "units")
        },
        **{
            name: statement.get(name) or settings.get(f"privacy.{name}")
            for name in ("sampling_probability", "noise_multiplier", "rounds", "clipping_norm")
            if variant != "mopo"
        },
        "dataset": dataset,
        "variant": variant,
        "seed": summary.get("seed", settings.get("seed")),
        "settings": json.dumps(settings, sort_keys=True, ensure_ascii=False),
        "parameters": _parameters(folder / "models" / "dynamics"),
        "return_final": final,
        "return_best": max([*curve, *([] if final is None else [final])], default=None),
        "returns_by_seed": [own["return_mean"] for own in summary.get("by_seed") or ()],
        "curve": curve,
        "behaviour": behaviour.get((dataset, summary.get("units", 0))),
        "stage_seconds": json.dumps(summary.get("seconds", {}), sort_keys=True),
        "seconds": content["seconds"],
        "command": content["command"],
        "made": made.isoformat(timespec="seconds"),
        "privacy": json.dumps(statement, sort_keys=True, ensure_ascii=False) if statement else None,
    }
    row: Row = _table([given]).to_pylist()[0]
    return row


def _parameters(model: Path) -> int | None:
    """Weights of all members; None: the model is not there."""
    if not (model / CONFIG).exists():
        return None
    return Architecture.of(ModelConfig.read(model)).parameters


def _behaviour(project: Path) -> dict[tuple[str, int], float]:
    """Of the dataset that the project holds now, if it has a public split."""
    if not (project / MANIFEST).exists():
        return {}
    manifest = Manifest.load(project / MANIFEST)
    public = describe(project / PARTITIONS)[0]["public"]
    return (
        {}
        if public is None
        else {(manifest.info.dataset, manifest.private_units): public["return"]["mean"]}
    )


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


if __name__ == "__main__":
    main()
