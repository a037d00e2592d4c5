"""What a dry run on the public split says beforehand, beside what the private training comes to, on the zoo of logs.

python -m benchmarks.quality.fits --people 1000 --epsilon 1 --work /tmp/zoo

Losses are mean negative log-likelihoods of standardised targets. The training's own is measured on 16,384 private rows,
which only a benchmark on simulated people may do. Resumable: rows in benchmarks/results/fits.json are not made again.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import RESULTS, machine
from benchmarks.quality.logs import LOGS
from benchmarks.quality.logs.project import ROOT, lay, partitions
from primorl.config.params import load
from primorl.project.paths import MANIFEST, PRIVATE, PUBLIC
from primorl.setup.fitting import fitted
from primorl.setup.model_work import training_setup
from primorl.training.public_evaluation import PublicEvaluator
from primorl.training.training import train
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

FILE = RESULTS / "fits.json"
_ROWS = 16_384


def main() -> None:
    """Make the rows that are missing, and print all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=list(LOGS))
    parser.add_argument("--people", type=int, nargs="+", default=[1000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="fits-"))).resolve()
    for people in arguments.people:
        for epsilon in arguments.epsilon:
            for name in arguments.logs:
                key = {"log": name, "people": people, "epsilon": epsilon}
                if not any(row.items() >= key.items() for row in rows):
                    made = measured(name, people, epsilon, work)
                    rows.append(key | made | {"machine": machine(), "commit": commit})
                    FILE.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print("| log | people | ε | verdict | learned | public start: dry, true | after: dry, true | constant | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['log']} | {row['people']} | {row['epsilon']} | {row['answer']} | {row['learned']:.0%} | "
            f"{row['dry_start']:.2f}, {row['true_start']:.2f} | {row['dry_loss']:.2f}, {row['true_loss']:.2f} | "
            f"{row['true_constant']:.2f} | {row['seconds']:.0f} |"
        )


def measured(name: str, people: int, epsilon: float, work: Path) -> dict[str, Any]:
    """One log's fit, and the training that it chose."""
    folder = partitions(LOGS[name], people, 0, work)
    lay(LOGS[name], 0, {"policy.starts": "public", "privacy.target_epsilon": epsilon}, folder)
    os.chdir(folder)
    params = load()
    manifest, public, private = Manifest.load(MANIFEST), UnitStore.open(PUBLIC), UnitStore.open(PRIVATE)
    started = time.perf_counter()
    chosen, fit = fitted(params, manifest, public)
    setup = training_setup(chosen, manifest, public)
    inputs, targets = private.flat()
    rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[:_ROWS]
    normaliser = setup.make_normaliser(public.flat(), {})
    judge = PublicEvaluator(setup.ensemble, normaliser, inputs[rows], targets[rows][:, : setup.ensemble.columns])
    trained = train(setup, private, public.flat())
    compared = judge.compare(setup.first_weights(), trained.weights)
    return {
        "answer": fit.answer,
        "learned": fit.learned,
        "values": fit.values,
        "dry_start": fit.start,
        "dry_loss": fit.loss,
        "dry_constant": fit.constant,
        "true_start": compared.initial,
        "true_loss": compared.final,
        "true_constant": compared.constant,
        "seconds": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    main()
