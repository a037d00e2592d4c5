"""How wide today's interval is where returns are declared 10, 100 and 1,000 times too wide:
``python -m benchmarks.quality.logs.bounds``.

Returns are those of the simulated logs, one trajectory a person. Beside the question as it is
stands the same noise within bounds that are taken as they are.
"""

import math
from functools import cache
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import RESULTS_PAGE, command, commit, keep, machine, put
from benchmarks.quality.logs import LOGS
from primorl.evaluate.private.behaviour import Behaviour, _haar
from primorl.work.jobs import RELEASES, solve_noise

PEOPLE, EPSILONS, WIDER, DRAWS = (1_500, 10_000), (0.16, 0.5), (1, 10, 100, 1000), 20
"""ε is of the question: about a sixth of a run's, which is 1 and 3."""
_DELTA, _SEED = 1e-5, 5
_BEHAVIOUR = Behaviour(levels=9)


def main() -> None:
    """Measure, keep the rows and write the table."""
    same = {"machine": machine(), "commit": commit()}
    same |= {"command": command("benchmarks.quality.logs.bounds")}
    rows = [
        {"log": name, "people": people, "epsilon": epsilon, "wider": wider}
        | measure(name, people, epsilon, wider)
        | same
        for name in LOGS
        for people in PEOPLE
        for epsilon in EPSILONS
        for wider in WIDER
    ]
    keep("bounds", rows)
    put(RESULTS_PAGE, "bounds", table(rows))


def measure(name: str, people: int, epsilon: float, wider: int) -> dict[str, float]:
    """Mean half widths of today's interval with the range found and with bounds as they are, and
    how often the first held the true mean.
    """
    log = LOGS[name]
    truth, least, most = describe(name)
    middle, half = (least + most) / 2, wider * (most - least) / 2
    noise = solve_noise(epsilon, _DELTA, 1.0, RELEASES) / people
    halves: dict[bool, list[float]] = {True: [], False: []}
    held = 0
    for draw in range(DRAWS):
        returns = torch.from_numpy(log.behaviour_returns(people, 100 + draw))
        for found in (True, False):
            problem: Any = SimpleNamespace(
                units=people,
                return_low=middle - half,
                return_high=middle + half,
                return_centre=middle,
                return_half=half,
                return_is_sum=found,
            )
            low, high = interval(problem, returns, noise, draw)
            halves[found].append((high - low) / 2)
            held += found and low <= truth <= high
    return {
        "half": fmean(halves[True]),
        "half_as_declared": fmean(halves[False]),
        "held": held / DRAWS,
    }


@cache
def describe(name: str) -> tuple[float, float, float]:
    """Mean, least and greatest return of 50,000 people of a log."""
    every = LOGS[name].behaviour_returns(50_000, _SEED)
    return float(every.mean()), float(every.min()), float(every.max())


def interval(problem: Any, returns: Tensor, noise: float, seed: int) -> tuple[float, float]:
    """Ask people with these returns, and return the interval of their mean."""
    generator = torch.Generator().manual_seed(seed)

    def release(parts: Tensor) -> Tensor:
        mean = parts.mean(0)
        return mean + noise * torch.randn(mean.shape, generator=generator, dtype=torch.float64)

    edges = _BEHAVIOUR._edges(problem)
    place = (torch.searchsorted(edges, returns, right=True) - 1).clamp(0, len(edges) - 2)
    first = release(_haar(_BEHAVIOUR.levels)[place] / math.sqrt(_BEHAVIOUR.levels))
    low, high = _BEHAVIOUR.find_range(problem, noise, first)
    x = ((2 * returns - low - high) / (high - low)).clamp(-1, 1)
    second = release(torch.stack((x, 1 - x**2), 1))
    ends = _BEHAVIOUR.estimates(problem, noise, torch.cat((first, second)))[0].ci95
    assert ends is not None
    return ends


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each number of people, ε and width; ratios are to the right bounds."""
    lines = [
        "| people | ε of the question | bounds too wide | half width, median log | worst log | "
        "bounds as declared, median | held |",
        "|---" * 7 + "|",
    ]
    right = {
        (row["log"], row["people"], row["epsilon"]): row["half"]
        for row in rows
        if row["wider"] == 1
    }
    for people in PEOPLE:
        for epsilon in EPSILONS:
            for wider in WIDER:
                key = {"people": people, "epsilon": epsilon, "wider": wider}
                same = [row for row in rows if row.items() >= key.items()]
                own = [right[row["log"], people, epsilon] for row in same]
                found = [row["half"] / base for row, base in zip(same, own, strict=True)]
                declared = [
                    row["half_as_declared"] / base for row, base in zip(same, own, strict=True)
                ]
                lines.append(
                    f"| {people:,} | {epsilon:g} | {wider:,} × | {median(found):.2f} | "
                    f"{max(found):.2f} | {median(declared):.3g} | "
                    f"{fmean(row['held'] for row in same):.0%} |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
