"""How often `primorl select` picks one of the three best of ten policies, beside choices that cost nothing.

python -m benchmarks.quality.selection FOLDER --candidates spread
python -m benchmarks.quality.selection FOLDER --candidates last
python -m benchmarks.quality.selection FOLDER --model-noise 1

FOLDER is a finished project of a dataset with a simulator (models/dynamics, models/policy with the policies of all
epochs, data/partitions); nothing is written there. The ten are epochs of its policy, spread over the training or the
last ones. Truth is the mean return of 500 episodes in the simulator. With --model-noise, the model that scores is a
worse one: every weight has noise of that share of its layer's standard deviation. The choices:

- private: `primorl.privacy.mechanism.selection` on the private units' scores, 200 draws of its coins for each ε;
- without noise: the largest sum of the same scores;
- public: the largest sum of the same scores over the public split, which is free where there is one;
- by the model: the largest value in the released model alone, which is free;
- at random: three of ten.

Resumable: a row of benchmarks/results/selection.json that has all its keys is not made again.
"""

import argparse
import json
import os
import subprocess
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import RESULTS, machine
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.evaluation.private.scores import Candidates, CorrectedModel
from primorl.evaluation.returns import episode_returns
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.mechanism.selection import ONE, Selection
from primorl.setup.evaluation_problem import act_of, evaluation_problem
from primorl.setup.selection import sum_scores
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

FILE = RESULTS / "selection.json"
CANDIDATES, BEST, DRAWS, EPISODES = 10, 3, 200, 500
EPSILONS = (0.01, 0.05, 0.2)
SCORES = (
    CorrectedModel(features=256, rollouts=256, bandwidth=0.3, largest_weight=0.0),
    CorrectedModel(features=256, rollouts=256, bandwidth=0.3, largest_weight=1.0),
    CorrectedModel(features=256, rollouts=256, bandwidth=0.2, largest_weight=5.0),
)
Row = dict[str, Any]


def main() -> None:
    """Make the rows that are missing, then print all of the dataset's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a finished project")
    parser.add_argument("--candidates", choices=["spread", "last"], default="spread")
    parser.add_argument("--model-noise", type=float, default=0.0)
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    file = FILE.resolve()
    rows: list[Row] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    os.chdir(arguments.folder)
    manifest = Manifest.load(Path("data/partitions/manifest.json"))
    key = {"dataset": manifest.info.dataset, "candidates": arguments.candidates}
    asked = key | {"model_noise": arguments.model_noise}
    missing = [score for score in SCORES if not any(row.items() >= (asked | described(score)).items() for row in rows)]
    if missing:
        policies, epochs = candidates(arguments.candidates)
        truth = true_values(rows, key, manifest, policies)
        for score in missing:
            row = asked | described(score) | {"epochs": epochs, "truth": truth}
            rows.append(
                row
                | measured(score, manifest, policies, truth, arguments.model_noise)
                | {"machine": machine(), "commit": commit}
            )
            file.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(table([row for row in rows if row.items() >= asked.items()]))


def described(score: CorrectedModel) -> Row:
    """A score's name and settings."""
    return {"score": score.name, "settings": asdict(score)}


def candidates(which: str) -> tuple[DeterministicPolicy, list[int]]:
    """The candidates side by side, and their epochs from 1."""
    policies = DeterministicPolicy.load_epochs(Path("models/policy"))
    count = policies.policies
    spread = np.linspace(0, count - 1, CANDIDATES).round().astype(int).tolist()
    chosen = spread if which == "spread" else list(range(count - CANDIDATES, count))
    return DeterministicPolicy.stacked([policies.one(number) for number in chosen]), [n + 1 for n in chosen]


def true_values(rows: list[Row], key: Row, manifest: Manifest, policies: DeterministicPolicy) -> list[float]:
    """Mean returns in the simulator, ``[k]``; an earlier row's, if there is one."""
    for row in rows:
        if row.items() >= key.items():
            return list(row["truth"])
    environment = manifest.info.environment
    assert environment is not None, "the dataset has no simulator"
    returns = episode_returns(environment, policies, EPISODES, 12345, manifest.info.horizon)
    return [float(value) for value in returns.mean(1)]


def worse(ensemble: GaussianEnsemble, share: float) -> GaussianEnsemble:
    """The same with noise on every weight."""
    generator = torch.Generator().manual_seed(1)
    weights = (w + share * w.std() * torch.randn(w.shape, generator=generator) for w in ensemble.weights)
    return replace(ensemble, weights=tuple(weights))


def measured(
    score: CorrectedModel, manifest: Manifest, policies: DeterministicPolicy, truth: list[float], noise: float
) -> Row:
    """What every way of choosing chooses."""
    start = time.perf_counter()
    public, private = (UnitStore.open(Path("data/partitions") / part) for part in ("public", "private"))
    problem = evaluation_problem(
        manifest,
        Path("models/dynamics"),
        act_of(policies.one(0)),
        public,
        delta=1e-5,
        discount=1.0,
        return_bounds=None,
        seed=0,
    )
    problem = replace(problem, ensemble=worse(problem.ensemble, noise))
    chosen = Candidates.of([policies.one(number) for number in range(policies.policies)])
    scorer = score.fitted(problem, chosen)
    plans = [Selection(private.units, manifest.info.unit, policies.policies, epsilon, 1e-5) for epsilon in EPSILONS]
    total = sum_scores(plans[0], scorer, private)
    private_choices = {
        f"private, ε {plan.epsilon:g}": Counter(plan.choose(total) for _ in range(DRAWS)) for plan in plans
    }
    free = {"without noise": int(total.argmax()), "by the model": int(scorer.model_values().argmax())}
    if public.units:
        free["public"] = int(sum_scores(plans[0], scorer, public).argmax())
    choices = private_choices | {name: Counter({number: 1}) for name, number in free.items()}
    ranks = np.argsort(-np.array(truth)).argsort()
    return {
        "units": private.units,
        "mean_scores": [float(value) / ONE / private.units for value in total],
        "chosen": {
            name: {
                "best_three": sum(n for number, n in counts.items() if ranks[number] < BEST) / counts.total(),
                "regret": sum(n * (max(truth) - truth[number]) for number, n in counts.items()) / counts.total(),
            }
            for name, counts in choices.items()
        }
        | {"at random": {"best_three": BEST / CANDIDATES, "regret": max(truth) - sum(truth) / len(truth)}},
        "seconds": round(time.perf_counter() - start, 1),
        "seed": 0,
    }


def table(rows: list[Row]) -> str:
    """Markdown: a line for each score and choice."""
    lines = ["| score | choice | one of the best three | regret |", "|---|---|---|---|"]
    for row in rows:
        name = f"{row['score']}, weight ≤ {row['settings']['largest_weight']:g}"
        lines += [
            f"| {name} | {how} | {found['best_three']:.0%} | {found['regret']:.3g} |"
            for how, found in row["chosen"].items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
