"""The machine that a figure was measured on, timing in turns, and the files that figures are kept
in.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from primorl.base.files import replaced_file

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RESULTS_PAGE = ROOT / "benchmarks" / "results.md"


def processor() -> str:
    """The processor's name."""
    listed = Path("/proc/cpuinfo")
    if listed.exists():
        for line in listed.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> str:
    """Processor, cores and torch, in one line."""
    return (
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread(s)"
    )


def command(module: str) -> str:
    """How this process was started, without options that name a folder: where rows were made says
    nothing.
    """
    words: list[str] = []
    for word in sys.argv[1:]:
        if "/" not in word:
            words.append(word)
        elif words and words[-1].startswith("--"):
            words.pop()
    return " ".join([f"python -m {module}", *words])


def commit() -> str:
    """The commit of this checkout."""
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()


def interleaved(
    works: Sequence[Callable[[], object]], repeats: int, *, warm: bool = True
) -> list[float]:
    """The median wall time of each work, called in turns, so that a slow minute of the machine
    falls on all of them.
    """
    for work in works if warm else ():
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, mine in zip(works, times, strict=True):
            started = time.perf_counter()
            work()
            mine.append(time.perf_counter() - started)
    return [sorted(mine)[repeats // 2] for mine in times]


def row(
    command: str,
    what: str,
    ours: float,
    peer: float | None,
    peer_name: str | None,
    ratio: float | None,
    unit: str,
) -> dict[str, object]:
    """One line of the results, made on this machine by ``command``; None: there is no peer."""
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "peer_name": peer_name,
        "ratio": ratio,
        "unit": unit,
        "machine": machine(),
        "command": command,
    }


def read(name: str) -> list[dict[str, Any]]:
    """Rows on disk; none where the file is not there."""
    file = RESULTS / f"{name}.json"
    rows: list[dict[str, Any]] = (
        json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    )
    return rows


def keep(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Replace ``benchmarks/results/<name>.json``, one row a line."""
    with replaced_file(RESULTS / f"{name}.json") as fresh:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        fresh.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows, keep them, and write the tables of the documentation anew."""
    from benchmarks.speed import tables  # it imports this module

    keep(name, rows)
    for row in rows:
        beside = (
            "" if row["peer"] is None else f", peer {row['peer']:.4g}, ratio {row['ratio']:.3g}"
        )
        print(f"{row['what']}: {row['ours']:.4g} {row['unit']}{beside}")
    tables.main()


def put(page: Path, name: str, content: str) -> None:
    """Put a table into a page, between ``<!-- name -->`` and ``<!-- /name -->``.

    Raises:
        ValueError: the page has no such marks.
    """
    first, last = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, mark, rest = page.read_text(encoding="utf-8").partition(first)
    if not mark or last not in rest:
        raise ValueError(f"{page}: has no marks for {name!r}")
    page.write_text(f"{before}{first}{content}\n{last}{rest.partition(last)[2]}", encoding="utf-8")
