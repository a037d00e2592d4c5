"""True returns of behaviour, clone and policy on logs with a known truth, beside what the pipeline
said of them.

python -m benchmarks.quality.logs --logs visits swing --people 10000 --epsilon 1 --seeds 3 --work
/tmp/logs

Resumable: a run whose row is in benchmarks/results/logs.json is not made again. Failed runs are
rows too.
"""

import argparse
import shutil
import tempfile
from itertools import product
from pathlib import Path

import yaml

from benchmarks.machine import command, commit, keep, machine, read
from benchmarks.quality.logs import ADVERSARIAL, LOGS, report
from benchmarks.quality.logs.project import run


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = LOGS | ADVERSARIAL
    parser.add_argument("--logs", nargs="+", choices=known, default=list(LOGS))
    parser.add_argument("--people", type=int, nargs="+", default=[10_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--work", type=Path, help="folder of the projects, kept")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="other keys of params.yaml"
    )
    arguments = parser.parse_args()
    split = (word.partition("=") for word in arguments.set)
    changes = {key: yaml.safe_load(value) for key, _, value in split}
    rows = read("logs")
    work = arguments.work or Path(tempfile.mkdtemp(prefix="logs-"))
    same = {"machine": machine(), "commit": commit(), "command": command("benchmarks.quality.logs")}
    for people, epsilon, seed, log in product(
        arguments.people,
        arguments.epsilon,
        range(arguments.seeds),
        arguments.logs,
    ):
        own = changes | {"privacy.target_epsilon": epsilon}
        key = {"people": people, "seed": seed, "changes": own}
        if any(row.items() >= ({"log": log} | key).items() for row in rows):
            continue
        folder = work / f"{log}-{people}-{seed}-{epsilon:g}"
        row = run(known[log], **key, folder=folder)
        rows.append({"log": log} | key | row | same)
        keep("logs", rows)
        print(report.line(rows[-1]), flush=True)
        if arguments.work is None:
            shutil.rmtree(folder, ignore_errors=True)
    report.main()


if __name__ == "__main__":
    main()
