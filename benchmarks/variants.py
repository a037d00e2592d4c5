"""Variants and ε side by side over seeds, each a `dvc exp run`; the README's table is printed from the result.

python -m benchmarks.variants --seeds 0 1 2 --epsilons 1.2 0.5 0.25

Resumable: rows that are already in benchmarks/results/variants.json for this dataset are not run again
(delete the file to start afresh). The workspace is left at the last run: `git checkout params.yaml` and
`dvc repro` bring back its own results, from the cache.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import RESULTS, machine
from pipeline import params
from pipeline.evaluation.statistics import MeanInterval

FILE = RESULTS / "variants.json"


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.2, 0.5, 0.25])
    arguments = parser.parse_args()
    wanted = [("mopo", None), ("no_clip", None), ("no_privacy", None), *(("private", e) for e in arguments.epsilons)]
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    dataset = params.load(Path("params.yaml")).dataset
    for variant, epsilon in wanted:
        for seed in arguments.seeds:
            key = {"dataset": dataset, "variant": variant, "target_epsilon": epsilon, "seed": seed}
            if any(row.items() >= key.items() for row in rows):
                continue
            rows.append(key | run(variant, epsilon, seed))
            RESULTS.mkdir(exist_ok=True)
            FILE.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(table([row for row in rows if row["dataset"] == dataset]))


def run(variant: str, epsilon: float | None, seed: int) -> dict[str, Any]:
    """One experiment; what its summary says of it."""
    settings = [f"dynamics.variant={variant}", f"seed={seed}"]
    settings += [] if epsilon is None else [f"privacy.target_epsilon={epsilon}"]
    command = ["dvc", "exp", "run", "--quiet", *(word for setting in settings for word in ("-S", setting))]
    print("+", *command, flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, env=os.environ | {"PATH": binaries})
    summary = json.loads(Path("metrics/summary.json").read_text(encoding="utf-8"))
    kept = ("epsilon", "epsilon_rdp", "delta", "units", "return_mean", "return_ci95", "normalized_score", "seconds")
    return {name: summary[name] for name in kept} | {
        "machine": machine(),
        "commit": commit,
        "command": " ".join(command),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for every variant and ε, the seeds' scores and their mean with a 95% interval."""
    lines = ["| variant | ε (PLD) | ε (RDP) | score, mean over seeds | each seed |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["variant"], row["target_epsilon"]), []).append(row)
    for (variant, _), members in groups.items():
        scores = [row["normalized_score"] for row in members]
        interval = MeanInterval.of(np.array(scores))
        pld, rdp = ("∞" if members[0][k] is None else f"{members[0][k]:.2f}" for k in ("epsilon", "epsilon_rdp"))
        spread = f"{interval.mean:.0f} ± {interval.high - interval.mean:.0f}"
        lines.append(f"| `{variant}` | {pld} | {rdp} | {spread} | {', '.join(f'{score:.0f}' for score in scores)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
