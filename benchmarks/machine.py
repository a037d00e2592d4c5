"""What a figure was measured on, and where figures go."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from primorl.project.processes import processor

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> str:
    """Processor, cores and torch, in one line."""
    return f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} thread(s)"


def command(module: str) -> str:
    """How this process was started, without options that name a folder: where rows were made says nothing."""
    words: list[str] = []
    for word in sys.argv[1:]:
        if "/" not in word:
            words.append(word)
        elif words and words[-1].startswith("--"):
            words.pop()
    return " ".join([f"python -m {module}", *words])


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median wall time of ``repeats`` calls, after one to warm up."""
    return interleaved([work], repeats)[0]


def interleaved(works: Sequence[Callable[[], object]], repeats: int, *, warm: bool = True) -> list[float]:
    """The median wall time of each work, called in turns, so that a slow minute of the machine falls on all of them."""
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
    command: str, what: str, ours: float, peer: float, peer_name: str, ratio: float, unit: str
) -> dict[str, object]:
    """One line of the results, made on this machine by ``command``."""
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


def write(name: str, rows: list[dict[str, object]]) -> None:
    """Print the rows, and keep them in ``benchmarks/results/<name>.json`` and in the tables made of it."""
    from benchmarks.speed import tables  # it imports this module

    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    for row in rows:
        beside = "" if row["peer"] is None else f", peer {row['peer']:.4g}, ratio {row['ratio']:.3g}"
        print(f"{row['what']}: {row['ours']:.4g} {row['unit']}{beside}")
    tables.main()
