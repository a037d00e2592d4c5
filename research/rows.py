"""Rows of results: what was run, on which machine, at which commit. A row that is there is not made again."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).resolve().parent / "results"
FIGURES = RESULTS.parent.parent / "docs" / "figures"
Row = dict[str, Any]


def completed(name: str, keys: Iterable[Row], make: Callable[[Row], Row]) -> list[Row]:
    """Make the rows of ``results/NAME.json`` that are missing, on one thread, and return all that were asked for.

    Args:
        name: of the file, and of the module in this package.
        keys: of the rows.
        make: the other content of a row, from its key.
    """
    torch.set_num_threads(1)
    file = RESULTS / f"{name}.json"
    rows: list[Row] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout[:12]
    machine = f"{os.cpu_count()} cores, torch {torch.__version__}, 1 thread"
    found = []
    for key in keys:
        row = next((row for row in rows if row.items() >= key.items()), None)
        if row is None:
            started = time.perf_counter()
            row = key | make(key)
            row |= {"seconds": round(time.perf_counter() - started, 1), "commit": commit, "machine": machine}
            row |= {"command": f"python -m research.{name}"}
            rows.append(row)
            lines = ",\n".join(json.dumps(row) for row in rows)
            file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
            print(", ".join(f"{name} {value}" for name, value in key.items()), f"({row['seconds']} s)", flush=True)
        found.append(row)
    return found
