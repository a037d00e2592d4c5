"""The figure of a private evaluation: values with their intervals, how returns are spread, how wrong the model is."""

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from primorl.evaluation.private.results import Answer, PrivateEvaluation
from primorl.evaluation.wording import WHOSE
from primorl.privacy.accounting.rounding import at_most

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"behaviour": "C7", "clone": "C2", "policy": "C3", "random": "C0", "zero_action": "C0", "model": "C0"}


def draw_evaluation(path: Path, record: PrivateEvaluation) -> None:
    """Draw the answers as a PNG: a forest plot of the values, and a panel for each histogram and for the model's error.

    Args:
        path: the file to write.
        record: what is drawn.
    """
    from matplotlib.figure import Figure

    values = tuple(sorted(record.values(), key=lambda answer: list(_COLOURS).index(answer.of)))
    errors = [answer for answer in record.estimates if answer.of == "model"]
    if not record.estimates:
        figure = Figure(figsize=(7, 1.5), dpi=120)
        figure.text(0.5, 0.5, "Nothing was asked: evaluation.private.estimators is empty.", ha="center", va="center")
        figure.savefig(path, format="png", metadata={"Software": None})
        return
    panels = 1 + bool(record.histograms) + bool(errors)
    figure = Figure(figsize=(7, 1.6 + 0.34 * len(values) + 2.6 * (panels - 1)), dpi=120, layout="constrained")
    heights = [0.34 * len(values) + 0.8, *[2.6] * (panels - 1)]
    axes = figure.subplots(panels, 1, height_ratios=heights, squeeze=False)[:, 0]
    _forest(axes[0], values)
    if record.histograms:
        _histogram(axes[1], record)
    if errors:
        _errors(axes[-1], errors, record.verdict)
    figure.suptitle(f"{record.dataset}: {_price(record)}", fontsize=11)
    figure.savefig(path, format="png", metadata={"Software": None})


def _price(record: PrivateEvaluation) -> str:
    total = record.total
    if total is None or total.epsilon is None:
        return "no guarantee is left for the people in the data"
    charges = f"{total.charges} charge{'s' if total.charges != 1 else ''}"
    return f"ε = {at_most(total.epsilon)} in all, δ = {at_most(total.delta)} per {record.unit} ({charges})"


def _forest(axes: "Axes", values: tuple[Answer, ...]) -> None:
    for place, answer in enumerate(reversed(values)):
        low, high = answer.ci95 or (answer.value, answer.value)
        spread = [[max(answer.value - low, 0.0)], [max(high - answer.value, 0.0)]]
        free = answer.epsilon is None
        axes.errorbar(
            [answer.value],
            [place],
            xerr=None if answer.ci95 is None else spread,
            color=_COLOURS[answer.of],
            marker="o" if free else "D",
            markerfacecolor="white" if free else None,
            markersize=6,
            capsize=3,
            linestyle="none",
        )
        if answer.of == "behaviour":
            axes.axvline(answer.value, color=_COLOURS["behaviour"], linewidth=1, linestyle=":")
    axes.set_yticks(range(len(values)), [_label(answer) for answer in reversed(values)], fontsize=9)
    axes.set_ylim(-0.6, len(values) - 0.4)
    axes.set_xlabel("mean return per unit, 95% interval (open circle: by the model, free)", fontsize=9)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _label(answer: Answer) -> str:
    price = "free" if answer.epsilon is None else f"ε {at_most(answer.epsilon)}"
    return f"{WHOSE[answer.of]}, {answer.estimator} ({price})"


def _histogram(axes: "Axes", record: PrivateEvaluation) -> None:
    histogram = record.histograms[0]
    axes.stairs(histogram.shares, histogram.edges, fill=True, color=_COLOURS["behaviour"], alpha=0.5)
    axes.set_xlabel(histogram.what)
    axes.set_ylabel("share of the units")
    axes.spines[["top", "right"]].set_visible(False)


def _errors(axes: "Axes", errors: list[Answer], verdict: str | None) -> None:
    """The model's errors, and on the same line those of a trivial prediction (`model_check.TRIVIAL`)."""
    names = list(dict.fromkeys(_base(answer) for answer in errors))[::-1]
    for trivial, colour, marker, label in ((False, "C1", "s", "the model"), (True, "C7", "o", "a trivial prediction")):
        own = [answer for answer in errors if (_base(answer) != answer.what) is trivial]
        ends = [answer.ci95 or (answer.value, answer.value) for answer in own]
        axes.errorbar(
            [answer.value for answer in own],
            [names.index(_base(answer)) + (0.14 if trivial else -0.14) for answer in own],
            xerr=[
                [max(answer.value - low, 0.0) for answer, (low, _) in zip(own, ends, strict=True)],
                [max(high - answer.value, 0.0) for answer, (_, high) in zip(own, ends, strict=True)],
            ],
            color=colour,
            marker=marker,
            markersize=5,
            capsize=3,
            linestyle="none",
            label=label,
        )
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel("error in the private data, in public scales", fontsize=9)
    axes.set_title("" if verdict is None else "\n".join(wrap(verdict, 78)), fontsize=9)
    axes.legend(loc="best", frameon=False, fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _base(answer: Answer) -> str:
    """What an error is of, whoever predicts."""
    return answer.what.partition(", of ")[0]
