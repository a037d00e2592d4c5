"""The zoo's table: true returns of behaviour, cloned policy and policy beside what the pipeline said of them.

python -m benchmarks.quality.logs --logs visits desk --people 1000 10000 --epsilon 0.5 1 3 --seeds 3 --work /tmp/zoo
python -m benchmarks.quality.logs --public nobody biased --learners private alone all --people 1000 --epsilon 1
python -m benchmarks.quality.logs --learners alone all --set partition.public_fraction=0.2

Resumable: rows that are already in benchmarks/results/logs.json for these settings are not run again. Failed runs are
rows too. The learners `alone` (the public people alone) and `all` are references without privacy, which run once
whatever the epsilon; with other settings too, and then the report shows the better policy.
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import command, commit, keep, machine, read
from benchmarks.quality.logs import LOGS, report
from benchmarks.quality.logs.project import LEARNERS, SPLITS, run


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=list(LOGS))
    parser.add_argument("--people", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 3.0])
    parser.add_argument("--public", nargs="+", choices=SPLITS, default=["nobody"], help="who is")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=["private"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--work", type=Path, help="folder of the projects, kept; by default a temporary one"
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="other keys of params.yaml"
    )
    arguments = parser.parse_args()
    changes = {
        key: yaml.safe_load(value)
        for key, _, value in (word.partition("=") for word in arguments.set)
    }
    rows = read("logs")
    wanted = []
    for learner, public in product(arguments.learners, arguments.public):
        if (learner, public) == ("alone", "nobody"):
            continue
        budgets = [{"privacy.target_epsilon": epsilon} for epsilon in arguments.epsilon]
        for people, budget, seed, log in product(
            arguments.people,
            budgets if learner == "private" else [{}],
            range(arguments.seeds),
            arguments.logs,
        ):
            key = {
                "log": log,
                "people": people,
                "seed": seed,
                "learner": learner,
                "changes": changes | budget,
            }
            key["public"] = "nobody" if learner == "all" else public
            if key not in wanted:
                wanted.append(key)
    missing = [key for key in wanted if not any(row.items() >= key.items() for row in rows)]
    work = arguments.work or Path(tempfile.mkdtemp(prefix="logs-"))
    same = {"machine": machine(), "commit": commit(), "command": command("benchmarks.quality.logs")}
    for row in _made(missing, work, arguments.jobs, keep_folders=arguments.work is not None):
        rows.append(row | same)
        keep("logs", rows)
        print(_line(row), flush=True)
    found = [row for row in rows if any(row.items() >= key.items() for key in wanted)]
    print(report.overview(found), report.by_log(found, read("logs_peers")), sep="\n\n")


def _made(
    missing: list[dict[str, Any]], work: Path, jobs: int, *, keep_folders: bool
) -> Iterable[dict[str, Any]]:
    # All rows of one log share data, which two jobs must not make at once: a job is a log, its people and a seed.
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for key in missing:
        groups.setdefault((key["log"], key["people"], key["seed"]), []).append(key)
    with ThreadPoolExecutor(jobs) as pool:
        made = [
            pool.submit(_group, keys, work, keep_folders=keep_folders) for keys in groups.values()
        ]
        for group in as_completed(made):
            yield from group.result()


def _group(keys: list[dict[str, Any]], work: Path, *, keep_folders: bool) -> list[dict[str, Any]]:
    rows = []
    for key in keys:
        facts = {**key, **key["changes"], "changes": ""}
        name = "-".join(str(fact) for fact in facts.values())
        folder = work / name.replace("/", "_")[:120]
        rows.append(
            key
            | run(LOGS[key["log"]], **{k: v for k, v in key.items() if k != "log"}, folder=folder)
        )
        if not keep_folders:
            shutil.rmtree(folder, ignore_errors=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    policy = "-" if row["policy"] is None else f"{row['policy']['mean']:.4g}"
    who = f"{row['people']} people, {row['public']} public, {row['learner']}"
    what = f"{row['log']}, {who}, {row['changes']}, seed {row['seed']}"
    behaviour = f"{row['truth']['behaviour']:.4g}"
    return f"{what}: behaviour {behaviour}, policy {policy}, status {row['status']} {row['error'] or ''}"


if __name__ == "__main__":
    main()
