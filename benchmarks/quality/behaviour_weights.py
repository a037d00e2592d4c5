"""Importance weights from the clone of the behaviour against those from a behaviour fitted for them, on the zoo.

python -m benchmarks.quality.behaviour_weights FOLDER --repetitions 3

FOLDER has finished runs of `python -m benchmarks.quality.logs --people 10000 --epsilon 1 --seeds 1 --work FOLDER`. The
question is the value of each run's policy; its truth is that of the run's row in benchmarks/results/logs.json.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import RESULTS, command, machine
from benchmarks.quality.logs.__main__ import FILE as ROWS
from primorl.config.blocks import EstimatorName
from primorl.evaluation.private.estimator import run
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.project.paths import BEHAVIOUR, MODEL, PARTITIONS, POLICY
from primorl.setup import charged_units
from primorl.setup.estimators import estimator
from primorl.setup.evaluation_problem import act_of, clone_of, evaluation_problem
from primorl.setup.partitions import Partitions
from primorl.setup.private_evaluation import plan_at

FILE = RESULTS / "behaviour_weights.json"
EPSILON, DELTA, PEOPLE = 0.2, 1e-5, 10_000
NAMES: tuple[EstimatorName, ...] = ("importance", "doubly_robust")


def main() -> None:
    """Ask every question both ways, keep the rows and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    same = {
        "machine": machine(),
        "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),
        "command": command("benchmarks.quality.behaviour_weights"),
    }
    rows: list[dict[str, Any]] = []
    home = Path.cwd()
    for known in json.loads(ROWS.read_text(encoding="utf-8")):
        run_folder = arguments.folder / f"{known['log']}-{known['people']}-{known['seed']}-1.0"
        if known["people"] == PEOPLE and known["changes"] == {"privacy.target_epsilon": 1.0} and run_folder.exists():
            os.chdir(run_folder)
            try:
                rows += [row | same for row in asked(known, arguments.repetitions)]
            finally:
                os.chdir(home)
            FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


def asked(known: dict[str, Any], repetitions: int) -> list[dict[str, Any]]:
    """The rows of one log, in whose run's folder we are; none where its actions are in a box."""
    clone, partitions = clone_of(BEHAVIOUR, 0), Partitions.open(PARTITIONS)
    if clone is None or clone.probabilities is None:
        return []
    problem = evaluation_problem(
        partitions.manifest,
        MODEL,
        act_of(DeterministicPolicy.load(POLICY)),
        partitions.public,
        delta=DELTA,
        discount=1.0,
        return_bounds="public",
        seed=0,
        ends=PolicyConfig.read(POLICY).ends,
        clone=clone,
    )
    info = partitions.manifest.info
    source = charged_units.open_private(
        partitions.manifest, partitions.version, partitions.folder, 1 << 32, episodes=True
    )
    rows = []
    for name in NAMES:
        for behaviour in ("fit", "clone"):
            own = estimator(name, info, cloned=behaviour == "clone")
            plan = plan_at(own, problem, EPSILON)
            found = [own.estimates(problem, plan, run(own, problem, plan, source))[0] for _ in range(repetitions)]
            row = {
                "log": known["log"],
                "estimator": name,
                "behaviour": behaviour,
                "epsilon": EPSILON,
                "truth": known["policy"]["mean"],
                "range": known["truth"]["best"] - known["truth"]["worst"],
                "values": [each.value for each in found],
                "ci95": [each.ci95 for each in found],
            }
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: mean error and mean half width as shares of the range, by estimator and source of the weights."""
    lines = ["| log | " + " | ".join(f"{name}, {b}" for name in NAMES for b in ("fit", "clone")) + " |"]
    lines.append("|---" * (1 + 2 * len(NAMES)) + "|")
    for log in dict.fromkeys(row["log"] for row in rows):
        cells = []
        for row in (row for row in rows if row["log"] == log):
            error = np.abs(np.array(row["values"]) - row["truth"]).mean() / row["range"]
            half = np.diff(np.array(row["ci95"])).mean() / 2 / row["range"]
            cells.append(f"{error:.0%} ± {half:.0%}")
        lines.append(f"| {log} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
