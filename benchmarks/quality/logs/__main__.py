"""The zoo's table: true returns of behaviour, cloned policy and policy beside what the pipeline said of them.

python -m benchmarks.quality.logs --logs visits desk --people 1000 10000 --epsilon 0.5 1 3 --seeds 3 --work /tmp/zoo
python -m benchmarks.quality.logs --set dynamics.variant=mopo --epsilon 1

Resumable: rows that are already in benchmarks/results/logs.json for these settings are not run again. Failed runs are
rows too.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.machine import RESULTS, command, machine
from benchmarks.quality.logs import LOGS
from benchmarks.quality.logs.project import ROOT, run

FILE = RESULTS / "logs.json"


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=list(LOGS))
    parser.add_argument("--people", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path, help="folder of the projects, kept; by default a temporary one")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="other keys of params.yaml")
    arguments = parser.parse_args()
    changes = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in arguments.set)}
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    wanted = [
        {"log": log, "people": people, "seed": seed, "changes": changes | {"privacy.target_epsilon": epsilon}}
        for people, epsilon, seed, log in product(
            arguments.people, arguments.epsilon, range(arguments.seeds), arguments.logs
        )
    ]
    missing = [key for key in wanted if not any(row.items() >= key.items() for row in rows)]
    work = arguments.work or Path(tempfile.mkdtemp(prefix="logs-"))
    same = {
        "machine": machine(),
        "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip(),
        "command": command("benchmarks.quality.logs"),
    }
    for row in _made(missing, work, arguments.jobs, keep=arguments.work is not None):
        rows.append(row | same)
        RESULTS.mkdir(exist_ok=True)
        fresh = FILE.with_suffix(".new")
        fresh.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        fresh.replace(FILE)
        print(_line(row), flush=True)
    found = [row for row in rows if any(row.items() >= key.items() for key in wanted)]
    print(table(found))
    print(shares(found))


def _made(missing: list[dict[str, Any]], work: Path, jobs: int, *, keep: bool) -> Iterable[dict[str, Any]]:
    # All ε of one log use the same data, which two jobs must not make at once: a job is a log, its people and a seed.
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for key in missing:
        groups.setdefault((key["log"], key["people"], key["seed"]), []).append(key)
    with ThreadPoolExecutor(jobs) as pool:
        made = [pool.submit(_group, keys, work, keep=keep) for keys in groups.values()]
        for group in as_completed(made):
            yield from group.result()


def _group(keys: list[dict[str, Any]], work: Path, *, keep: bool) -> list[dict[str, Any]]:
    rows = []
    for key in keys:
        name = "-".join(str(part) for part in (key["log"], key["people"], key["seed"], *key["changes"].values()))
        folder = work / name.replace("/", "_")[:120]
        rows.append(key | run(LOGS[key["log"]], **{k: v for k, v in key.items() if k != "log"}, folder=folder))
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    policy = "-" if row["policy"] is None else f"{row['policy']['mean']:.4g}"
    what = f"{row['log']}, {row['people']} people, {row['changes']}, seed {row['seed']}"
    behaviour = f"{row['truth']['behaviour']:.4g}"
    return f"{what}: behaviour {behaviour}, policy {policy}, status {row['status']} {row['error'] or ''}"


def relative(row: dict[str, Any], who: str) -> float | None:
    """A policy's gain over the behaviour as a share of the range from doing nothing (or random) to the best known."""
    if row[who] is None:
        return None
    said = row["truth"]
    return float((row[who]["mean"] - said["behaviour"]) / (said["best"] - said["worst"]))


def answer(row: dict[str, Any]) -> str | None:
    """What the run recommended; None: it failed."""
    found: str | None = (row["summary"].get("recommendation") or {}).get("answer")
    return found


def recommended(row: dict[str, Any]) -> tuple[float, float] | None:
    """The relative gain of what is recommended, and its standard error; None: nothing is."""
    who = {"trial": "policy", "keep": "cloned"}.get(answer(row) or "", "")
    gain = relative(row, who) if who else None
    return None if gain is None else (gain, row[who]["error"] / (row["truth"]["best"] - row["truth"]["worst"]))


def worse(row: dict[str, Any]) -> bool:
    """Whether the policy is truly worse than the behaviour."""
    return (relative(row, "policy") or 0.0) < 0


def counts(rows: list[dict[str, Any]]) -> tuple[int, int, int, int, int]:
    """How many recommendations there are, are within 5% or better, are better, are trials, and are wrong trials.

    Within 5% of the range; better by more than 1.96 errors; wrong where the policy is worse than the behaviour.
    """
    known = [found for row in rows if (found := recommended(row)) is not None]
    trials = [row for row in rows if answer(row) == "trial"]
    good, better = (sum(gain >= -0.05 for gain, _ in known), sum(gain > 1.96 * error for gain, error in known))
    return len(known), good, better, len(trials), sum(map(worse, trials))


def shares(rows: list[dict[str, Any]]) -> str:
    """How often what is recommended is good, and a trial of a policy is wrong."""
    known, good, better, trials, wrong = counts(rows)
    return (
        f"{len(rows)} runs: something is recommended in {known}, within 5% of the range or better in {good}, better by "
        f"more than 1.96 errors in {better}; {trials} trials, {wrong} of a policy that is worse"
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each log, number of people and settings; seeds side by side."""
    lines = [
        "| log | people | changes | behaviour | best | nothing | cloned | policy | gain of the range | said | failed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["log"], row["people"], json.dumps(row["changes"])), []).append(row)
    for (log, people, changes), members in sorted(groups.items()):
        first = members[0]["truth"]
        means = [
            ", ".join("-" if row[who] is None else f"{row[who]['mean']:.4g}" for row in members)
            for who in ("cloned", "policy")
        ]
        gains = [gain for row in members if (gain := relative(row, "policy")) is not None]
        said = ", ".join(answer(row) or "-" for row in members)
        lines.append(
            f"| {log} | {people} | `{changes}` | {first['behaviour']:.4g} | {first['best']:.4g} | {first['worst']:.4g} "
            f"| {means[0]} | {means[1]} | {f'{np.mean(gains):+.0%}' if gains else '-'} | {said} "
            f"| {sum(row['status'] != 0 for row in members)} of {len(members)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
