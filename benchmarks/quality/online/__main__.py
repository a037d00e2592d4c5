"""Rows of the tables of online learning: private updates in strict and paper mode, their twins, stable-baselines3.

python -m benchmarks.quality.online [--only CartPole Acrobot] [--methods DP-PG] [--columns strict twin] [--seeds 10]
python -m benchmarks.quality.online --only HalfCheetah Hopper --seeds 3

Resumable: rows that are in benchmarks/results/online.json with the same settings are not made again; a run that was
killed goes on where it stopped, and several may go side by side. A row whose settings have changed since replaces the
old one. `python -m benchmarks.quality.online.report` prints the tables and draws the figures.
"""

import argparse
import fcntl
import json
import subprocess
from typing import Any

from benchmarks.machine import RESULTS, command, machine
from benchmarks.quality.online.cases import CASES
from benchmarks.quality.online.runs import Row, one_thread

FILE = RESULTS / "online.json"
_CHOICES = {"--only": "task", "--tables": "table", "--methods": "method", "--columns": "column", "--budgets": "budget"}


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, what in _CHOICES.items():
        parser.add_argument(option, nargs="+", choices=sorted({case.key[what] for case in CASES}))
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    one_thread()
    wanted = {what: getattr(arguments, option[2:]) for option, what in _CHOICES.items()}
    chosen = [case for case in CASES if all(not names or case.key[what] in names for what, names in wanted.items())]
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=RESULTS, text=True).strip()
    same = {"commit": commit, "machine": machine(), "command": command("benchmarks.quality.online")}
    for seed in range(arguments.seeds):
        for case in chosen:
            key = case.key | {"seed": seed}
            if any(row.items() >= key.items() for row in read()):
                continue
            row = key | case.run(seed) | same
            add(row)
            print(line(row), flush=True)


def read() -> list[Row]:
    """All rows on disk."""
    rows: list[Row] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    return rows


def add(row: dict[str, Any]) -> None:
    """Put a row in place of the one that it replaces, if there is one; other runs may do so at the same time."""
    RESULTS.mkdir(exist_ok=True)
    with FILE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = [old for old in read() if place(old) != place(row)] + [row]
        rows.sort(key=place)
        fresh = FILE.with_suffix(".new")
        fresh.write_text("[\n" + ",\n".join(json.dumps(old, ensure_ascii=False) for old in rows) + "\n]\n", "utf-8")
        fresh.replace(FILE)


def place(row: Row) -> tuple[Any, ...]:
    """Where a row stands in the tables."""
    return tuple(row[name] for name in ("table", "task", "method", "column", "budget", "seed"))


def line(row: Row) -> str:
    """What is said of a row as it is made."""
    what = f"{row['task']}, {row['method']}, {row['column']}, {row['budget']}, seed {row['seed']}"
    return f"{what}: {row['drawn']['mean']:.1f} drawn, {row['greedy']['mean']:.1f} greedy, {row['seconds']:.1f} s"


if __name__ == "__main__":
    main()
