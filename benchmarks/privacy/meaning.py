"""What ε means: tables and figures of docs/concepts.md. ``python -m benchmarks.privacy.meaning``.

By the accountant's own trade-off curve, for a run of the default shape (everybody in each of 60 rounds) at several ε.
The peer is riskcal (Kulynych et al. 2024), which reads the rates off the same privacy loss distribution by another
method.
"""

from importlib.metadata import version

import numpy as np
from matplotlib.figure import Figure
from riskcal import analysis

from benchmarks.machine import ROOT, put, row, write
from primorl.privacy.accounting.epsilon import Training, accountant_near
from primorl.privacy.accounting.figures import FALSE_POSITIVE_RATES, deltas, true_positive_rates
from primorl.privacy.accounting.figures import figures as meaning_of
from primorl.privacy.accounting.rounding import at_most, percent_at_most
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.ledger.account import total_of

COMMAND = "python -m benchmarks.privacy.meaning"
DELTA, SAMPLING_PROBABILITY, ROUNDS = 1e-5, 1.0, 60
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
DEFAULT = 0.5
BUDGET, RUNS = 1.0, 5
DOCS = ROOT / "docs"
PAGE = DOCS / "concepts.md"
_RATES = np.geomspace(1e-4, 1, 60)


def main() -> None:
    """Compute, keep the table, draw the figures."""
    runs = {epsilon: run(epsilon) for epsilon in EPSILONS}
    write("meaning", [found for epsilon, event in runs.items() for found in rows(epsilon, event)])
    put(PAGE, "meaning", table(runs))
    figures = {
        "attacks": attacks(runs),
        "seed": seed(runs[DEFAULT]),
        "budget": budget(runs[DEFAULT]),
        "units": units(runs[DEFAULT]),
    }
    for name, figure in figures.items():
        figure.savefig(DOCS / "figures" / f"meaning-{name}.png", metadata={"Software": None})


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
        "| ε at δ = 1e-5 | found of 1,000 who were there, with 1 in 1,000 others named | with 10 in 1,000 "
        "| with 100 in 1,000 | advantage | right about the coin |",
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


def seed(training: Training) -> Figure:
    """What somebody recovers of one person's contribution to one released sum, without and with the noise's seed."""
    noise = np.random.default_rng(0).normal(
        scale=training.noise_multiplier, size=20_000
    )  # a drawing, not a release
    figure = Figure(figsize=(6.4, 3.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.hist(1 + noise, bins=80, density=True, color="C0", alpha=0.6, label="noise unknown")
    axes.axvline(1, color="C3", linewidth=2, label="seed of the noise known: exact")
    axes.set(
        xlabel="estimate of one person's contribution, in clipping norms (the truth is 1)",
        yticks=[],
    )
    axes.set_title(f"One round, noise multiplier {training.noise_multiplier:.3g}")
    axes.legend(fontsize=9)
    return _plain(figure)


def budget(training: Training) -> Figure:
    """ε of the first runs together, and the limit."""
    spent = {
        str(runs): total_of([training.event] * runs, DELTA).epsilon for runs in range(1, RUNS + 1)
    }
    figure = _bars(spent, f"runs of ε = {DEFAULT:g} on the same people")
    axes = figure.axes[0]
    axes.axhline(BUDGET, color="black", linestyle="--", linewidth=1)
    axes.set_title(f"A budget of ε = {BUDGET:g}: grey would exceed it, and is refused")
    return figure


def units(training: Training) -> Figure:
    """ε of one person with several trajectories, where the unit is the trajectory."""
    groups = {
        str(size): epsilon or 0.0 for size, epsilon in meaning_of(training.event, DELTA).groups
    }
    figure = _bars({"1": DEFAULT, **groups}, "trajectories of one person", most=np.inf)
    figure.axes[0].set_title(f"unit: trajectory, at ε = {DEFAULT:g}: what the person is promised")
    return figure


def _bars(values: dict[str, float], label: str, most: float = BUDGET) -> Figure:
    figure = Figure(figsize=(6.4, 3.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    colors = ["C0" if value <= most else "0.75" for value in values.values()]
    bars = axes.bar(list(values), list(values.values()), color=colors, width=0.6, alpha=0.7)
    axes.bar_label(bars, [at_most(value) for value in values.values()], label_type="center")
    axes.set(xlabel=label, ylabel="ε at δ = 1e-5", ylim=(0, 1.1 * max(values.values())))
    return _plain(figure)


def _plain(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
