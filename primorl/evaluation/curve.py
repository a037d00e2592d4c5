"""The figure of a curve of estimates that ends in the final policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Spread(Protocol):
    """An estimate, and how low and how high it may be."""

    @property
    def mean(self) -> float:
        """The estimate."""

    @property
    def low(self) -> float:
        """Lower end."""

    @property
    def high(self) -> float:
        """Upper end."""


def draw_curve(
    path: Path,
    curve: tuple[Sequence[int], Sequence[Spread], str],
    final: tuple[int, Spread, str],
    *,
    labels: tuple[str, str],
    title: str,
    level: tuple[float, str] | None = None,
) -> None:
    """Draw a curve with its band, and the final policy at its end, as a PNG.

    Args:
        path: the file to write.
        curve: whole numbers on the horizontal axis, the estimate at each, and the legend's words; may be empty.
        final: number of the final policy on the horizontal axis, its estimate, and the legend's words.
        labels: of the horizontal axis, then of the vertical one.
        title: above the figure.
        level: a value to draw a horizontal line at, and the legend's words; None: no line.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    at, points, name = curve
    place, last, last_name = final
    figure = Figure(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    low, high = [point.low for point in points], [point.high for point in points]
    if points:
        axes.fill_between(at, low, high, color="C0", alpha=0.2, linewidth=0)
        axes.plot(at, [point.mean for point in points], color="C0", marker=".", label=name)
    if level is not None:
        axes.axhline(level[0], color="C7", linewidth=1, linestyle="--", label=level[1])
    axes.errorbar(
        [place],
        [last.mean],
        yerr=[[last.mean - last.low], [last.high - last.mean]],
        color="C3",
        marker="D",
        markersize=5,
        capsize=4,
        linestyle="none",
        label=last_name,
    )
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    # below the axes: nowhere inside is sure to be free
    figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize=9)
    axes.set_title(title, fontsize=11, wrap=True)
    figure.savefig(path, format="png", metadata={"Software": None})
