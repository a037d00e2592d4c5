"""Value error against truth: every estimator, five policies from worst to best, at several ε and without noise.

python -m benchmarks.quality.value_error STUDIES --tasks pendulum-replay icu-sepsis propofol cartpole-swingup

STUDIES holds a finished project (`dvc repro`) of every task in a folder of its name. The truth is the mean discounted
return of 2,000 episodes in the simulator; it is kept as a row, like everything else. Resumable: rows that are already
in benchmarks/results/value_error.json are not computed again (delete the file to start afresh).

The policies are chosen among random networks, the trained policies of all epochs and the last of these with its
outputs negated: five whose quickly measured returns are spread evenly from the least to the greatest.
"""

import argparse
import json
import math
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scipy.stats import spearmanr

from benchmarks.machine import RESULTS, machine
from primorl.config.blocks import EstimatorName
from primorl.evaluation.private.estimator import NOISE, Estimator, EvaluationState, noise_of, run
from primorl.evaluation.private.model_value import ModelBased
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.returns import as_the_space_has_them
from primorl.policy.exported import DeterministicPolicy
from primorl.setup.estimators import estimator
from primorl.setup.evaluation_problem import act_of, evaluation_problem
from primorl.setup.private_evaluation import plan_at
from primorl.simulators import environments
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore

FILE = RESULTS / "value_error.json"
EPSILONS = (0.1, 0.3, 1.0, None)
DELTA = 1e-5
AT_ONCE = 1000


@dataclass(frozen=True)
class Task:
    """What the study fixes for a dataset.

    Attributes:
        discount: γ.
        return_bounds: declared bounds of a return; None: what the rewards' bounds allow.
        episodes: for each policy's truth.
        quick_episodes: by which five policies are chosen.
    """

    discount: float
    return_bounds: tuple[float, float] | None = None
    episodes: int = 2000
    quick_episodes: int = 40


TASKS = {
    "pendulum-replay": Task(0.99),
    "icu-sepsis": Task(1.0, (0.0, 1.0)),  # a stay ends with 1 for survival
    "propofol": Task(0.99),
    "cartpole-swingup": Task(0.99, episodes=60, quick_episodes=3),  # 1,000 slow steps each, which start nearly alike
}

# How often each estimator is repeated (trained ones take long).
ESTIMATORS: dict[EstimatorName, int] = {"lstd": 20, "dptd": 5, "doubly_robust": 20}


def main() -> None:
    """Compute what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--estimators", nargs="*", default=["model", *ESTIMATORS])
    parser.add_argument("--repetitions", type=int, help="at most; by default as the table of estimators says")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    for name in arguments.tasks:
        study = Study(arguments.studies / name, name)
        for row in missing(study, rows, arguments.estimators, arguments.repetitions):
            rows.append(row)
            RESULTS.mkdir(exist_ok=True)
            FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


class Study:
    """A finished project and its five policies."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.task, self.folder = name, TASKS[name], folder
        self.manifest = Manifest.load(folder / "data/partitions/manifest.json")
        self.public = UnitStore.open(folder / "data/partitions/public")
        self.private = UnitStore.open(folder / "data/partitions/private")
        self.pool = candidates(folder / "models/policy")

    def problem(self, policy: int) -> Problem:
        """The question for one policy of the pool."""
        return evaluation_problem(
            self.manifest,
            self.folder / "models/dynamics",
            act_of(self.pool.one(policy)),
            self.public,
            delta=DELTA,
            discount=self.task.discount,
            return_bounds=self.task.return_bounds,
            seed=0,
        )

    def true_returns(self, policies: Sequence[int], episodes: int, seed: int) -> npt.NDArray[np.float64]:
        """Discounted returns in the simulator, ``[P, episodes]``; episodes of all policies share their resets."""
        environment = self.manifest.info.environment
        assert environment is not None
        policy = DeterministicPolicy.stacked([self.pool.one(number) for number in policies])
        at_once = min(episodes, max(1, AT_ONCE // len(policies)))
        builders = [lambda: environments.make(environment)] * (len(policies) * at_once)
        envs = SyncVectorEnv(builders, autoreset_mode=AutoresetMode.NEXT_STEP)
        seeds = np.random.SeedSequence(seed).generate_state(episodes + at_once).tolist()
        parts = [self._batch(envs, policy, seeds[start : start + at_once]) for start in range(0, episodes, at_once)]
        envs.close()
        return np.concatenate(parts, axis=1)[:, :episodes]

    def _batch(
        self, envs: SyncVectorEnv, policy: DeterministicPolicy, seeds: list[int | None]
    ) -> npt.NDArray[np.float64]:
        observation, _ = envs.reset(seed=seeds * policy.policies)
        alive, totals = np.ones(envs.num_envs, dtype=bool), np.zeros(envs.num_envs)
        for step in range(self.manifest.info.horizon or 10**6):
            batch = torch.as_tensor(observation, dtype=torch.float32).view(policy.policies, len(seeds), -1)
            action = as_the_space_has_them(policy.act(batch).flatten(0, 1), envs.single_action_space)
            observation, reward, terminated, truncated, _ = envs.step(action)
            totals[alive] += self.task.discount**step * reward[alive]
            alive &= ~(terminated | truncated)
            if not alive.any():
                break
        return totals.reshape(policy.policies, -1)


def candidates(folder: Path) -> DeterministicPolicy:
    """Random networks, the policies of all epochs, and the last one with its outputs negated."""
    epochs = DeterministicPolicy.load_epochs(folder)
    last = epochs.one(epochs.policies - 1)
    negated = replace(last, layers=(*last.layers[:-2], -last.layers[-2], -last.layers[-1]))
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for _ in range(4):
        layers = tuple(torch.randn(part.shape, generator=generator) / math.sqrt(part.shape[-1]) for part in last.layers)
        drawn.append(replace(last, layers=layers))
    return DeterministicPolicy.stacked([*drawn, negated, *(epochs.one(number) for number in range(epochs.policies))])


def truth(study: Study) -> dict[str, Any]:
    """Choose five policies and measure them."""
    started = time.perf_counter()
    quick = study.true_returns(range(study.pool.policies), study.task.quick_episodes, seed=1).mean(1)
    chosen: list[int] = []
    for wanted in np.linspace(quick.min(), quick.max(), 5):
        gaps = np.abs(quick - wanted)
        gaps[chosen] = np.inf
        chosen.append(int(gaps.argmin()))
    returns = study.true_returns(chosen, study.task.episodes, seed=2)
    return {
        "policies": chosen,
        "true_values": returns.mean(1).tolist(),
        "standard_errors": (returns.std(1, ddof=1) / math.sqrt(study.task.episodes)).tolist(),
    } | _facts(started)


def missing(
    study: Study, rows: list[dict[str, Any]], names: Sequence[str], repetitions: int | None
) -> Iterator[dict[str, Any]]:
    """The rows that are not there yet, as they are computed: the truth first."""

    def there(key: dict[str, Any]) -> dict[str, Any] | None:
        return next((row for row in rows if row.items() >= key.items()), None)

    about = {"task": study.name, "discount": study.task.discount}
    true = there(about | {"what": "truth"})
    if true is None:
        true = about | {"what": "truth"} | truth(study)
        yield true
    for policy in true["policies"]:
        key = about | {"what": "model", "policy": policy}
        if "model" in names and there(key) is None:
            yield key | _of_model(study.problem(policy))
        for name, usual in ESTIMATORS.items():
            keys = [about | {"what": name, "policy": policy, "target_epsilon": epsilon} for epsilon in EPSILONS]
            if name in names and not all(there(key) for key in keys):
                problem, chosen = study.problem(policy), estimator(name, study.manifest.info, cloned=False)
                begin = chosen.begin(problem)
                for key in keys:
                    if there(key) is None:
                        count = min(usual, repetitions or usual) if key["target_epsilon"] else 1
                        yield key | _of_estimator(study, chosen, problem, begin, key["target_epsilon"], count)


def _of_model(problem: Problem) -> dict[str, Any]:
    started = time.perf_counter()
    found = ModelBased(rollouts=2000).estimates(problem)[0]
    return {"values": [found.value], "intervals": [], "epsilon": 0.0} | _facts(started)


def _of_estimator(
    study: Study,
    chosen: Estimator,
    problem: Problem,
    begin: dict[str, torch.Tensor],
    epsilon: float | None,
    repetitions: int,
) -> dict[str, Any]:
    """Repetitions draw fresh noise and cohorts on the same units."""
    started = time.perf_counter()
    plan = chosen.plan(problem, math.inf) if epsilon is None else plan_at(chosen, problem, epsilon)
    found = []
    for _ in range(repetitions):
        start = EvaluationState(begin | {NOISE: torch.tensor(noise_of(plan), dtype=torch.float64)})
        state = run(chosen, problem, plan, study.private, start)
        found += [one for one in chosen.estimates(problem, plan, state) if one.of == "policy"]
    spent = plan.spent()
    return {
        "values": [one.value for one in found],
        "intervals": [one.ci95 for one in found],
        "epsilon": spent.epsilon_pld if spent else None,
        "settings": repr(chosen),
    } | _facts(started)


def _facts(started: float) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {"seconds": round(time.perf_counter() - started, 1), "seed": 0, "machine": machine(), "commit": commit}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: for every task, estimator and ε the rank correlation, the error over the range, the coverage.

    Rank correlation and error are means over the repetitions; coverage is over repetitions and policies.
    """
    lines = [
        "| task | estimator | ε | Spearman | error / range | coverage | repetitions |",
        "|---|---|---|---|---|---|---|",
    ]
    for true in (row for row in rows if row["what"] == "truth"):
        values = dict(zip(true["policies"], true["true_values"], strict=True))
        extent = max(values.values()) - min(values.values())
        groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
        for row in rows:
            if row["task"] == true["task"] and row["what"] != "truth" and row["policy"] in values:
                groups.setdefault((row["what"], row.get("target_epsilon")), []).append(row)
        for (name, epsilon), group in groups.items():
            if len(group) < len(values):
                continue
            count = min(len(row["values"]) for row in group)
            found = np.array([row["values"][:count] for row in group])
            wanted = np.array([values[row["policy"]] for row in group])
            ranks = np.mean([spearmanr(found[:, one], wanted).statistic for one in range(count)])
            inside = [a <= values[r["policy"]] <= b for r in group for a, b in r["intervals"]]
            covered = f"{100 * np.mean(inside):.0f}%" if inside else "-"
            level = "free" if name == "model" else "none" if epsilon is None else f"{epsilon:g}"
            error = np.abs(found - wanted[:, None]).mean() / extent
            figures = f"{ranks:.2f} | {100 * error:.1f}% | {covered} | {count}"
            lines.append(f"| {true['task']} | `{name}` | {level} | {figures} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
