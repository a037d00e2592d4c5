"""The clip where nobody is public: what the fit takes, against constants and against adaptive clipping for free.

python -m benchmarks.quality.clips --logs visits machine triage pricing --people 1000 --epsilon 1 3 --work /tmp/zoo

Adaptive clipping (Andrew et al. 2021) follows a quantile of the units' update norms. Here it gets the exact quantile of
300 units in every round and pays nothing for it, which no private training may do: a bound on what a charged one could
gain. Losses are of the averaged weights on the log's public units, which nothing else reads; only simulated people may
be measured like this.
"""

import argparse
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import RESULTS, command, machine
from benchmarks.quality.logs import LOGS
from benchmarks.quality.logs.project import lay, partitions
from primorl.config.params import load
from primorl.dynamics.ensemble import Weights
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.entropy import SystemEntropy
from primorl.project.paths import MANIFEST, PRIVATE, PUBLIC
from primorl.setup.fitting import fitted, noise_share
from primorl.setup.model_work import training_setup
from primorl.training.dry_run import update_norms
from primorl.training.local_update import ensemble_clip
from primorl.training.public_evaluation import PublicEvaluator
from primorl.training.rounds import Rounds
from primorl.training.setup import TrainingSetup
from primorl.training.state import TrainingState
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

FILE = RESULTS / "clips.json"
CONSTANT, MEDIAN, MOST = "0.35, step 0.01", "median of norms", "90% of norms"
WAYS = ("fitted", CONSTANT, "0.35, step 0.03", "1, step 0.03", MEDIAN, MOST)
_QUANTILES = {MEDIAN: 0.5, MOST: 0.9}
_UNITS, _LEAST, _MOST_NORM = 300, 1e-3, 1e6


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=["visits", "machine", "triage", "pricing"])
    parser.add_argument("--people", type=int, nargs="+", default=[1000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the data, made where missing")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    same = {
        "machine": machine(),
        "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),
        "command": command("benchmarks.quality.clips"),
    }
    work = arguments.work.resolve()
    for log in arguments.logs:
        for people in arguments.people:
            for epsilon in arguments.epsilon:
                key = {"log": log, "people": people, "epsilon": epsilon}
                if not any(row.items() >= key.items() for row in rows):
                    rows.append(key | losses(log, people, epsilon, work) | same)
                    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


def losses(log: str, people: int, epsilon: float, work: Path) -> dict[str, Any]:
    """Settings, the loss of a constant and the losses of all ways."""
    os.chdir(partitions(LOGS[log], people, 0, work))
    changes = {"privacy.target_epsilon": epsilon, "privacy.statistics.normaliser": "bounds"}
    lay(LOGS[log], 0, changes, Path())
    params = load()
    manifest, held_out, private = Manifest.load(MANIFEST), UnitStore.open(PUBLIC), UnitStore.open(PRIVATE)
    chosen, _ = fitted(params, manifest, held_out)
    found: dict[str, Any] = {}
    for way in WAYS:
        settings = chosen
        if way != "fitted":
            clip, _, step = CONSTANT.partition(", step ") if way in _QUANTILES else way.partition(", step ")
            settings = replace(
                chosen,
                privacy=replace(chosen.privacy, clipping_norm=float(clip)),
                dynamics=replace(chosen.dynamics, learning_rate=float(step)),
            )
        setup = training_setup(settings, manifest, held_out)
        normaliser = setup.make_normaliser(None, {})
        judge = PublicEvaluator(setup.ensemble, normaliser, *_rows(held_out, setup))
        compared = judge.compare(setup.initial_weights(), _trained(setup, private, normaliser, _QUANTILES.get(way)))
        found[way] = compared.final
        found |= {
            "constant": compared.constant,
            "s": noise_share(setup.plan, setup.architecture),
            "hidden": list(setup.ensemble.hidden),
        }
        print(log, people, epsilon, way, f"{compared.final:.3f}", f"(constant {compared.constant:.3f})", flush=True)
    return found


def _rows(units: UnitStore, setup: TrainingSetup) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = units.flat()
    return inputs, targets[:, : setup.architecture.columns]


def _trained(setup: TrainingSetup, private: UnitStore, normaliser: Normaliser, quantile: float | None) -> Weights:
    """The averaged weights; with a quantile, the clip of every round is that of norms at its first weights."""
    state = TrainingState.begin(setup.first_weights())
    now = setup
    for _ in range(setup.plan.rounds):
        if quantile is not None:
            some = torch.randperm(private.units)[:_UNITS]  # their norms are exact: NOT PRIVATE
            norms = update_norms(setup, private, some, normaliser, state.weights, SystemEntropy())
            norm = min(max(float(norms.quantile(quantile)), _LEAST), _MOST_NORM)
            now = replace(setup, plan=replace(setup.plan, clip=replace(ensemble_clip(setup.plan), clipping_norm=norm)))
        with Rounds(now, private, normaliser) as rounds:
            state = state.stepped(now.plan.release(rounds.sum(state.weights, last=True)), setup.server)
    return state.averaged()


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else "diverged"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each log, number of people and ε."""
    lines = [
        "| log | people | ε | s | constant prediction | " + " | ".join(WAYS) + " |",
        "|---" * (5 + len(WAYS)) + "|",
    ]
    for row in rows:
        cells = " | ".join(_number(row[way]) for way in WAYS)
        about = f"{row['log']} | {row['people']} | {row['epsilon']:g} | {row['s']:.2f} | {row['constant']:.2f}"
        lines.append(f"| {about} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
