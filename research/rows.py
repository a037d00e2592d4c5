"""Rows of results: settings, figures, machine and commit. A row that is there is not made again."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).resolve().parent / "results"
FIGURES = RESULTS.parent.parent / "benchmarks" / "figures"
Row = dict[str, Any]


def read(name: str) -> list[Row]:
    """Read the rows of ``results/NAME.jsonl``, one a line."""
    file = RESULTS / f"{name}.jsonl"
    return (
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if file.exists()
        else []
    )


def complete_rows(name: str, keys: Iterable[Row], make: Callable[[Row], Row]) -> list[Row]:
    """Make the rows of ``results/NAME.jsonl`` that are missing, on one thread, and return all that
    were asked for.

    A row is appended when it is made, so a run that was killed goes on, and several runs may go
    side by side.

    Args:
        name: of the file, and of the module in this package.
        keys: of the rows.
        make: the other content of a row, from its key.
    """
    torch.set_num_threads(1)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=RESULTS, capture_output=True, text=True, check=True
    ).stdout[:12]
    machine = f"{os.cpu_count()} cores, torch {torch.__version__}, 1 thread"
    rows, found = read(name), []
    for key in keys:
        row = next((row for row in rows if row.items() >= key.items()), None)
        if row is None:
            started = time.perf_counter()
            row = key | make(key)
            row |= {
                "seconds": round(time.perf_counter() - started, 1),
                "commit": commit,
                "machine": machine,
            }
            with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            shown = {name: value for name, value in key.items() if name != "setting"}
            print(
                ", ".join(f"{name} {value}" for name, value in shown.items()),
                f"({row['seconds']} s)",
                flush=True,
            )
        found.append(row)
    return found
