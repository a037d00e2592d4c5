"""What ε means: the table and the figure of docs/privacy.md.

``python -m benchmarks.privacy.meaning``.

By the accountant's own trade-off curve, for a run of the default shape (everybody in each of 60
rounds) at several ε. The peer is riskcal (Kulynych et al. 2024), which reads the rates off the same
privacy loss distribution by another method.
"""

from importlib.metadata import version

import numpy as np
from matplotlib.figure import Figure
from riskcal import analysis

from benchmarks.machine import ROOT, put, row, write
from primorl.privacy.accounting.epsilon import Training, accountant_near
from primorl.privacy.accounting.figures import (
    FALSE_POSITIVE_RATES,
    deltas,
    solve_noise_multiplier,
    true_positive_rates,
)
from primorl.privacy.accounting.rounding import at_most, percent_at_most

COMMAND = "python -m benchmarks.privacy.meaning"
DELTA, SAMPLING_PROBABILITY, ROUNDS = 1e-5, 1.0, 60
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
DOCS = ROOT / "docs"
PAGE = DOCS / "privacy.md"
_RATES = np.geomspace(1e-4, 1, 60)


def main() -> None:
    """Compute, keep the table, draw the figure."""
    runs = {epsilon: run(epsilon) for epsilon in EPSILONS}
    write("meaning", [found for epsilon, event in runs.items() for found in rows(epsilon, event)])
    put(PAGE, "meaning", table(runs))
    attacks(runs).savefig(DOCS / "figures/meaning-attacks.png", metadata={"Software": None})


def run(epsilon: float) -> Training:
    """A run of the default shape with that ε."""
    multiplier = solve_noise_multiplier(epsilon, DELTA, SAMPLING_PROBABILITY, ROUNDS)
    return Training(SAMPLING_PROBABILITY, multiplier, ROUNDS)


def advantage(training: Training, epsilon: float) -> float:
    """The largest true positive rate minus false positive rate of any attack: δ at ε 0."""
    return deltas(training.event, epsilon, [0.0])[0]


def rows(epsilon: float, training: Training) -> list[dict[str, object]]:
    """The rates at one ε beside riskcal's, as the results hold them."""
    names = [
        f"true positives at {percent_at_most(rate)} false positives"
        for rate in FALSE_POSITIVE_RATES
    ]
    ours = [
        *true_positive_rates(training.event, epsilon, FALSE_POSITIVE_RATES),
        advantage(training, epsilon),
    ]
    losses = accountant_near(training.event, epsilon)._pld
    theirs = [
        1 - float(analysis.get_beta_from_pld(losses, alpha=rate)) for rate in FALSE_POSITIVE_RATES
    ]
    theirs.append(float(analysis.get_advantage_from_pld(losses)))
    return [
        row(
            COMMAND,
            f"ε {epsilon:g}: {what}",
            own,
            peer,
            f"riskcal {version('riskcal')}",
            own / peer,
            "share",
        )
        for what, own, peer in zip([*names, "advantage"], ours, theirs, strict=True)
    ]


def table(runs: dict[float, Training]) -> str:
    """The table of the page."""
    lines = [
        "| ε at δ = 1e-5 | found of 1,000 who were there, with 1 in 1,000 others named | with 10 "
        "in 1,000 | with 100 in 1,000 | advantage | right about the coin |",
        "|---|---|---|---|---|---|",
    ]
    for epsilon, training in runs.items():
        found = true_positive_rates(training.event, epsilon, FALSE_POSITIVE_RATES)
        gain = advantage(training, epsilon)
        cells = [
            *(at_most(1000 * rate) for rate in found),
            percent_at_most(gain),
            percent_at_most((1 + gain) / 2),
        ]
        lines.append(f"| {epsilon:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def attacks(runs: dict[float, Training]) -> Figure:
    """True positives against false positives of the best attack."""
    figure = Figure(figsize=(6.4, 4.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot(_RATES, _RATES, color="black", linestyle=":", label="blind guessing")
    for number, (epsilon, training) in enumerate(runs.items()):
        rates = true_positive_rates(training.event, epsilon, _RATES.tolist())
        axes.plot(_RATES, rates, color=f"C{number}", label=f"ε = {epsilon:g}")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(1e-4, 1),
        ylim=(1e-4, 1.1),
        title="The best attack at δ = 1e-5",
    )
    axes.set(
        xlabel="of those not in the data: the share named",
        ylabel="of those in the data: the share found",
    )
    axes.legend(fontsize=9)
    return _plain(figure)


def _plain(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
