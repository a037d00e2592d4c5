"""Whether the model check tells useful models from useless ones: pendulum's, trained at two ε with three seeds each.

python -m benchmarks.quality.model_check PROJECT --models FOLDER

PROJECT is a copy of this project in which `dvc repro` has run for a simulated dataset: the check looks at its private
units as the stage would, and beside it, which is not private, at the errors without noise. FOLDER keeps the trained
models. Resumable: what is in FOLDER is not trained again, and rows that are in benchmarks/results/model_check.json are
kept (delete the file to start afresh).
"""

import argparse
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import RESULTS, machine
from primorl.config import params as settings
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import run
from primorl.evaluation.private.problem import Problem
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.project.files import replaced_directory
from primorl.setup.estimators import MODEL_CHECK
from primorl.setup.evaluation_problem import evaluation_problem
from primorl.setup.model_work import training_setup
from primorl.training.training import train
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

FILE = RESULTS / "model_check.json"
PARTITIONS = Path("data", "partitions")


def main() -> None:
    """Train and check what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.05, 0.5], help="of the models")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--check-epsilon", type=float, default=0.1)
    parser.add_argument("--repetitions", type=int, default=200, help="of the noise alone, for how often it says what")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    for epsilon in arguments.epsilons:
        for seed in arguments.seeds:
            key = {"model_epsilon": epsilon, "seed": seed, "check_epsilon": arguments.check_epsilon}
            if any(row.items() >= key.items() for row in rows):
                continue
            folder = arguments.models / f"{epsilon:g}-{seed}"
            if not folder.exists():
                trained(arguments.project, folder, epsilon, seed)
            rows.append(key | checked(arguments.project, folder, arguments.check_epsilon, arguments.repetitions))
            FILE.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(table(rows))


def trained(project: Path, folder: Path, epsilon: float, seed: int) -> None:
    """Train the project's model with another ε and seed, without a ledger: for simulated people only."""
    manifest = Manifest.load(project / PARTITIONS / "manifest.json")
    public = UnitStore.open(project / PARTITIONS / "public")
    chosen = settings.load(project / "params.yaml")
    privacy = replace(chosen.privacy, target_epsilon=epsilon, noise_multiplier=None)
    setup = training_setup(replace(chosen, seed=seed, privacy=privacy), manifest, public)
    made = train(setup, UnitStore.open(project / PARTITIONS / "private"), public.flat())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replaced_directory(folder) as fresh:
        ensemble = GaussianEnsemble(
            setup.architecture, made.weights, made.normaliser, setup.bounds, manifest.info.termination
        )
        environment = manifest.info.environment
        ensemble.save(fresh, environment=environment, variant=chosen.dynamics.variant, rounds=made.rounds)


def checked(project: Path, folder: Path, epsilon: float, repetitions: int) -> dict[str, Any]:
    """One check of a model, and how often repeated noise leads to which verdict."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    problem, source = problem_of(project, folder)
    plan = MODEL_CHECK.plan(problem, 1 / solve_noise_multiplier(epsilon, problem.delta, 1.0, 1, ()))
    started = time.perf_counter()
    state = run(MODEL_CHECK, problem, plan, source)
    seconds = time.perf_counter() - started
    verdict = MODEL_CHECK.verdict(problem, plan, state)
    total = plan.clip.finish(  # type: ignore[attr-defined]
        torch.cat(
            [
                MODEL_CHECK.contributions(problem, {}, Episodes.read(source, units))
                for units in torch.arange(source.units).split(200)
            ]
        )
    ).sum(0)
    said = {"yes": 0, "doubtful": 0, "no": 0}
    for _ in range(repetitions):
        values = MODEL_CHECK.stepped(problem, {}, plan.release((total,))[0], 0)
        said[MODEL_CHECK.verdict(problem, plan, replace(state, values=values)).believable] += 1
    exact = MODEL_CHECK.stepped(problem, {}, total / source.units, 0)
    silent = replace(plan, noise_multiplier=1e-6)
    return {
        "believable": verdict.believable,
        "figure": verdict.figure,
        "said_by_repeated_noise": said,
        "estimates": {e.what: [e.value, *(e.ci95 or ())] for e in MODEL_CHECK.estimates(problem, plan, state)},
        "without_noise": {
            e.what: e.value for e in MODEL_CHECK.estimates(problem, silent, replace(state, values=exact))
        },
        "units": source.units,
        "seconds": round(seconds, 1),
        "machine": machine(),
        "commit": commit,
        "command": "python -m benchmarks.quality.model_check PROJECT --models FOLDER",
    }


def problem_of(project: Path, model: Path) -> tuple[Problem, UnitStore]:
    """The question about a model of a finished project, and the project's private units. No policy is asked."""
    manifest = Manifest.load(project / PARTITIONS / "manifest.json")
    problem = evaluation_problem(
        manifest,
        model,
        lambda observation: observation.new_zeros(len(observation), manifest.info.spaces.action_size),
        UnitStore.open(project / PARTITIONS / "public"),
        delta=settings.load(project / "params.yaml").privacy.delta,
        discount=1.0,
        return_bounds=None,
        seed=0,
    )
    return problem, UnitStore.open(project / PARTITIONS / "private")


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line for each model."""
    longest = max(MODEL_CHECK.horizons)
    lines = [
        f"| ε of the model | seed | reward error, {longest} steps | trivial | state error, {longest} steps | trivial | "
        "ratio of squares | believable | with other noise |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ahead = [found for what, found in row["estimates"].items() if f" {longest} steps" in what]
        cells = [f"{value:.2f} [{low:.2f}, {high:.2f}]" for value, low, high in ahead]
        others = ", ".join(f"{answer} {count}" for answer, count in row["said_by_repeated_noise"].items() if count)
        lines.append(
            f"| {row['model_epsilon']:g} | {row['seed']} | {' | '.join(cells)} | {row['figure']:.2f} | "
            f"{row['believable']} | {others} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
