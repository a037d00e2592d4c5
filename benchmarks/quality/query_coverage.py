"""How often the 95% intervals of the queries hold the truth, and how wide they are.

python -m benchmarks.quality.query_coverage PROJECT

PROJECT is a copy of this project in which `dvc repro` has run for a simulated dataset. Its private units are taken for
a population, of which K units are drawn with replacement for every repetition; the truth is the population's. What each
unit contributes is computed once. Rows are kept in benchmarks/results/query_coverage.json.
"""

import argparse
import json
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import RESULTS, machine
from benchmarks.quality.model_check import problem_of
from primorl.evaluation.private.behaviour import QUANTILES, Behaviour, scaled_returns
from primorl.evaluation.private.episodes import Episodes, EpisodeSource
from primorl.evaluation.private.estimator import EvaluationState
from primorl.evaluation.private.model_check import ModelCheck
from primorl.evaluation.private.problem import Problem
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.setup.estimators import BEHAVIOUR, MODEL_CHECK

FILE = RESULTS / "query_coverage.json"


def main() -> None:
    """Measure, keep and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path)
    parser.add_argument("--units", type=int, default=3000, help="K")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.05, 0.1, 0.3, 1.0])
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the units drawn; noise has no seed")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    problem, source = problem_of(arguments.project, arguments.project / "models" / "dynamics")
    problem = replace(problem, units=arguments.units)
    draws = torch.from_numpy(
        np.random.default_rng(arguments.seed).multinomial(
            arguments.units, np.full(source.units, 1 / source.units), arguments.repetitions
        )
    ).double()
    rows: list[dict[str, Any]] = []
    for estimator, truth in ((BEHAVIOUR, behaviour_truth), (MODEL_CHECK, check_truth)):
        contributions = torch.cat(
            [estimator.contributions(problem, {}, Episodes.read(source, units)) for units in portions(source)]
        )
        totals, true = draws @ contributions, truth(problem, source)
        for epsilon in arguments.epsilons:
            started = time.perf_counter()
            for row in covered(estimator, problem, totals, true, epsilon):
                rows.append(
                    {"estimator": estimator.name, "epsilon": epsilon, "units": arguments.units}
                    | row
                    | {
                        "repetitions": arguments.repetitions,
                        "seed": arguments.seed,
                        "seconds": round(time.perf_counter() - started, 1),
                        "machine": machine(),
                        "commit": commit,
                        "command": "python -m benchmarks.quality.query_coverage PROJECT",
                    }
                )
    FILE.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(table(rows))


def portions(source: EpisodeSource) -> tuple[Tensor, ...]:
    """All units, some at a time."""
    return torch.split(torch.arange(source.units), 200)


def covered(
    estimator: Behaviour | ModelCheck, problem: Problem, totals: Tensor, truth: list[float], epsilon: float
) -> list[dict[str, Any]]:
    """For each number that the estimator says: how often its interval holds the truth, and its median half width."""
    plan = estimator.plan(problem, 1 / solve_noise_multiplier(epsilon, problem.delta, 1.0, 1, ()))
    hits: list[list[bool]] = [[] for _ in truth]
    halves: list[list[float]] = [[] for _ in truth]
    errors: list[list[float]] = [[] for _ in truth]
    names: list[str] = []
    for total in totals:
        state = EvaluationState(estimator.stepped(problem, {}, plan.release((total,))[0], 0))
        said = estimator.estimates(problem, plan, state)
        names = [estimate.what for estimate in said]
        for i, (estimate, true) in enumerate(zip(said, truth, strict=True)):
            assert estimate.ci95 is not None
            low, high = estimate.ci95
            hits[i].append(low <= true <= high)
            halves[i].append((high - low) / 2)
            errors[i].append(abs(estimate.value - true))
    return [
        {
            "what": name,
            "truth": truth[i],
            "coverage": statistics.fmean(hits[i]),
            "half_width": statistics.median(halves[i]),
            "absolute_error": statistics.fmean(errors[i]),
        }
        for i, name in enumerate(names)
    ]


def behaviour_truth(problem: Problem, source: EpisodeSource) -> list[float]:
    """The population's mean return and quantiles."""
    x = torch.cat([scaled_returns(problem, Episodes.read(source, units)) for units in portions(source)])
    returns = (problem.return_low + problem.return_high) / 2 + x * (problem.return_high - problem.return_low) / 2
    quantiles = np.quantile(returns.numpy(), QUANTILES, method="inverted_cdf")
    return [float(returns.mean()), *map(float, quantiles)]


def check_truth(problem: Problem, source: EpisodeSource) -> list[float]:
    """The population's root mean square errors, in the order of the estimates."""
    parts = [MODEL_CHECK.errors(problem, Episodes.read(source, units)) for units in portions(source)]
    errors, has = (torch.cat(part) for part in zip(*parts, strict=True))
    return (errors.sum(0) / has.sum(0)[:, None, None]).sqrt().flatten().tolist()


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each number, coverage and half width at each ε."""
    epsilons = sorted({row["epsilon"] for row in rows})
    cells = {(row["what"], row["epsilon"]): f"{row['coverage']:.3f} ± {row['half_width']:.3g}" for row in rows}
    lines = [
        "| number | truth | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " |",
        "|---" * (2 + len(epsilons)) + "|",
    ]
    for what, truth in {row["what"]: row["truth"] for row in rows}.items():
        lines.append(f"| {what} | {truth:.3g} | " + " | ".join(cells[what, e] for e in epsilons) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
