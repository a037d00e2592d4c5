"""Noise against compute at one ε, over a grid of sampling probabilities and rounds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primorl.commands.printing import rendered
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.accounting.solving import solve_noise_multiplier

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_COLUMNS = ("T", "q", "z", "noise / C", "unit-updates", "transitions", "")
_LEAST_COHORT = 10  # expected units in a round; fewer would be nearly all noise
_STEPS = (0.25, 0.5, 1, 2, 4)  # of the rounds around the current ones
# Noise per coordinate, in units of C, of the frontier's runs in docs/results.md: from random weights, every run with at
# most the first kept 70% of the return of its MOPO, and with more than the second no run had a usable model.
BORNE, BORNE_BY_SOME = 0.025, 0.08


@dataclass(frozen=True)
class Point:
    """One way to spend the target ε.

    ``noise_multiplier`` is the least that keeps the target (None: none does), ``noise_per_coordinate`` the standard
    deviation z/(qK) of the noise in every coordinate of the released mean update, in units of the clipping norm C.
    ``unit_updates`` is the expected number of local trainings, qKT, and ``transitions`` how many transitions they read
    at most (None: unknown). ``current`` marks the point that is in use.
    """

    sampling_probability: float
    rounds: int
    noise_multiplier: float | None
    noise_per_coordinate: float | None
    unit_updates: float
    transitions: float | None
    current: bool


def around(units: int, sampling_probability: float | None, rounds: int) -> tuple[list[float], list[int]]:
    """The default grid: 1, 2, 5, 10, … thousandths, for cohorts of ten and more, and ¼ to 4 times the rounds."""
    steps = {step * 10.0**-decade for decade in (1, 2, 3) for step in (1, 2, 5)} | {1.0}
    probabilities = {round(step, 9) for step in steps if step * units >= _LEAST_COHORT or step == 1.0}
    probabilities |= set() if sampling_probability is None else {sampling_probability}
    return sorted(probabilities), sorted({max(1, round(step * rounds)) for step in _STEPS})


def frontier(
    target_epsilon: float,
    delta: float,
    units: int,
    grid: tuple[Sequence[float], Sequence[int]],
    *,
    current: tuple[float | None, int],
    transitions_per_unit: int | None,
    queries: tuple[float, ...],
    on_point: Callable[[], object],
) -> list[Point]:
    """Solve for the noise at every point of the grid, rounds by rounds.

    Args:
        target_epsilon: ε of every point, by PLD, if one unit is zeroed out.
        delta: δ of every point.
        units: number K of private units.
        grid: the sampling probabilities and the numbers of rounds.
        current: the pair (sampling probability, rounds) that is in use.
        transitions_per_unit: the most transitions that one local training reads; None if unknown.
        queries: noise multipliers of the queries before the rounds, which the same target pays for.
        on_point: called after every point.
    """
    points = []
    for probability, rounds in ((probability, rounds) for rounds in grid[1] for probability in grid[0]):
        try:
            multiplier: float | None = solve_noise_multiplier(target_epsilon, delta, probability, rounds, queries)
        except ValueError:
            multiplier = None
        updates = probability * units * rounds
        points.append(
            Point(
                sampling_probability=probability,
                rounds=rounds,
                noise_multiplier=multiplier,
                noise_per_coordinate=None if multiplier is None else multiplier / (probability * units),
                unit_updates=updates,
                transitions=None if transitions_per_unit is None else updates * transitions_per_unit,
                current=(probability, rounds) == current,
            )
        )
        on_point()
    return points


def table(points: Sequence[Point]) -> str:
    """The points as aligned columns; the one in use is marked."""
    return rendered(_COLUMNS, _rows(points), right=_COLUMNS[:-1])


def _rows(points: Sequence[Point]) -> Iterator[tuple[str, ...]]:
    """One row a point, an empty row between different numbers of rounds. The needed noise is rounded up."""
    last = points[0].rounds
    for point in points:
        if point.rounds != last:
            yield ("",) * len(_COLUMNS)
        last = point.rounds
        yield (
            str(point.rounds),
            at_most(point.sampling_probability, 4),
            "-" if point.noise_multiplier is None else at_most(point.noise_multiplier, 4),
            "-" if point.noise_per_coordinate is None else at_most(point.noise_per_coordinate),
            _figure(point.unit_updates, ".3g"),
            _figure(point.transitions, ".3g"),
            "◄ in use" if point.current else "",
        )


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def draw(path: Path, points: Sequence[Point], title: str) -> None:
    """Draw noise against sampling probability and against compute, a line for each number of rounds, as a PNG.

    Bands show the noise that the runs of docs/results.md could bear, `BORNE` and `BORNE_BY_SOME`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    solved = [point for point in points if point.noise_per_coordinate is not None]
    for axes, across in ((left, "sampling_probability"), (right, "unit_updates")):
        _lines(axes, solved, across)
        axes.set(xscale="log", yscale="log")
        axes.margins(x=0.18)
        _bands(axes)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    _ticks(left.xaxis, (1, 3))
    _ticks(left.yaxis, (1, 2, 5))
    left.set(xlabel="sampling probability q", ylabel="noise per coordinate of a mean update,\nz / (qK), in units of C")
    right.set(xlabel="expected local trainings, qKT")
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
        title="coloured: the noise of measured runs whose weights began at random",
        title_fontsize=9,
    )
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, format="png", metadata={"Software": None})


def _lines(axes: "Axes", solved: Sequence[Point], across: str) -> None:
    """A line for each number of rounds, with its number at the end, and the point in use."""
    rounds = sorted({point.rounds for point in solved})
    for i, count in enumerate(rounds):
        line = [(getattr(point, across), point.noise_per_coordinate) for point in solved if point.rounds == count]
        color = str(0.6 * (1 - i / max(1, len(rounds) - 1)))
        axes.plot(*zip(*line, strict=True), ".-", color=color)
        axes.annotate(
            f"T = {count}", line[-1], xytext=(6, 0), textcoords="offset points", va="center", fontsize=9, color=color
        )
    if marked := [(getattr(point, across), point.noise_per_coordinate) for point in solved if point.current]:
        axes.plot(*zip(*marked, strict=True), "D", color="C3", zorder=3, label="in use")


def _bands(axes: "Axes") -> None:
    """Colour what measured runs could bear; the axis is made long enough to show where that ends."""
    low, high = axes.get_ylim()
    low, high = min(low, BORNE / 2), max(high, BORNE_BY_SOME * 1.5)
    axes.set_ylim(low, high)
    axes.axhspan(low, BORNE, color="C2", alpha=0.15, linewidth=0, label=f"up to {BORNE:g}: all learned")
    some = f"up to {BORNE_BY_SOME:g}: some learned, and none above"
    axes.axhspan(BORNE, BORNE_BY_SOME, color="C1", alpha=0.15, linewidth=0, label=some)


def _ticks(axis: "Axis", digits: Sequence[float]) -> None:
    """Labels at these digits of every power of ten, and small ticks between them."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(LogLocator(subs=range(1, 10)))
    axis.set_minor_formatter(NullFormatter())
