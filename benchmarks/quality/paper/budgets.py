"""The paper's figure 6: how many rounds fit within an ε, by noise multiplier and sampling probability. Accounting only.

python -m benchmarks.quality.paper.budgets

About three minutes; writes benchmarks/results/paper/budgets.json, which the report draws.
"""

import json
from typing import Any

from benchmarks.machine import RESULTS, command, machine
from primorl.base.files import replaced_file
from primorl.privacy.accounting.solving import solve_rounds

FILE = RESULTS / "paper" / "budgets.json"
EPSILONS = (0.01, 0.1, 1.0)
PROBABILITIES = (1e-4, 1e-3, 1e-2, 1e-1)
MULTIPLIERS = (0.5, 0.7, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
DELTA = 1e-5
MOST = 100_000
"""Rounds of a point at most: of more, the grid of the PLD makes ε larger than it is, and nobody runs them."""


def main() -> None:
    """Solve for every point."""
    points = [
        {
            "epsilon": epsilon,
            "sampling_probability": probability,
            "noise_multiplier": multiplier,
            "rounds": rounds,
        }
        for epsilon in EPSILONS
        for probability in PROBABILITIES
        for multiplier, rounds in _line(epsilon, probability)
    ]
    same = {
        "delta": DELTA,
        "machine": machine(),
        "command": command("benchmarks.quality.paper.budgets"),
    }
    with replaced_file(FILE) as fresh:
        fresh.write_text(json.dumps(same | {"points": points}, indent=1) + "\n", encoding="utf-8")


def _line(epsilon: float, probability: float) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    for multiplier in MULTIPLIERS:
        try:
            rounds = solve_rounds(epsilon, DELTA, probability, multiplier)
        except ValueError:  # not even one
            continue
        if rounds > MOST:
            break
        found.append((multiplier, rounds))
    return found


def read() -> list[dict[str, Any]]:
    """The points on disk."""
    points: list[dict[str, Any]] = (
        json.loads(FILE.read_text(encoding="utf-8"))["points"] if FILE.exists() else []
    )
    return points


if __name__ == "__main__":
    main()
