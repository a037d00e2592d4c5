"""Figures of an evaluation: returns over epochs or users, and the answers of a private evaluation.

Importing this module imports matplotlib.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from primorl.base.files import replaced_file
from primorl.base.paths import ONLINE_CURVE, ONLINE_FIGURE, ONLINE_METRICS
from primorl.evaluate.private.results import Answer, PrivateEvaluation, Verdict
from primorl.evaluate.statistics import Estimate, MeanInterval, ModelValue
from primorl.evaluate.summary import OnlineSummary, write_online_curve
from primorl.evaluate.wording import WHOSE, guarantee, model_check, source
from primorl.privacy.accounting.rounding import at_most

_COLOURS = {
    "behaviour": "C7",
    "clone": "C2",
    "policy": "C3",
    "random": "C0",
    "zero_action": "C0",
    "model": "C0",
}


def draw_returns(
    path: Path, final: Estimate, curve: Sequence[Estimate], summary: Mapping[str, Any]
) -> None:
    """Draw the value of the policy of every epoch and of the final one, as a PNG.

    Args:
        path: the file to write.
        final: mean return and its 95% interval; or the value in the model and the range over its members.
        curve: the same of every epoch, first epoch first; the last one is ``final``.
        summary: the content of ``metrics/summary.json``.
    """
    if isinstance(final, ModelValue):
        what = "value in the released model (not measured)"
        spread = f"range over its {summary['model_value_members']} members"
        count, fewer = f"{summary['model_value_rollouts']} rollouts in each", "rollouts"
    else:
        what, spread = _return_in(summary["env_id"]), "95% interval"
        count, fewer = f"{summary['episodes']} episodes", "episodes"
    seeds = len(summary.get("seeds", ()))
    name = f"final policies of {seeds} seeds" if seeds > 1 else "final policy"
    if seeds > 1 and isinstance(final, ModelValue):
        spread, count = f"{spread}, mean over {seeds} seeds", f"{count} for each"
    elif seeds > 1:
        spread, count = f"mean and {spread} over {seeds} seeds", f"{count} each"
    behaviour, level = summary.get("public_return_mean"), None
    if behaviour is not None:
        words = f"behaviour in the log: {behaviour:.4g}, {summary['public_trajectories']} public trajectories"
        level = (behaviour, words)
    draw_curve(
        path,
        (range(1, len(curve)), curve[:-1], f"after each epoch, {spread}, of fewer {fewer}"),
        (
            len(curve),
            final,
            f"{name}: {final.mean:.4g} [{final.low:.4g}, {final.high:.4g}], {count}",
        ),
        labels=("SAC epoch", what),
        title=f"{summary['dataset']} · {summary['variant']}\n{guarantee(summary)}",
        level=level,
    )


def draw_curve(
    path: Path,
    curve: tuple[Sequence[int], Sequence[Estimate], str],
    final: tuple[int, Estimate, str],
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
    errors = [[last.mean - last.low], [last.high - last.mean]]
    axes.errorbar(
        [place], [last.mean], errors, fmt="D", color="C3", markersize=5, capsize=4, label=last_name
    )
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    # below the axes: nowhere inside is sure to be free
    figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize=9)
    axes.set_title(title, fontsize=11, wrap=True)
    _save(figure, path)


def draw_online(
    path: Path, users: Sequence[int], returns: Sequence[MeanInterval], summary: OnlineSummary
) -> None:
    """Draw the return against the users so far, as a PNG.

    Args:
        path: the file to write.
        users: so many had been met; 0 first.
        returns: of the policy then.
        summary: of the run; its returns, over more episodes, are those of the first and the final policy.
    """
    if not summary.met:
        draw_text(path, "Nobody was met: online.users and online.arrivals are null.")
        return
    assert summary.return_before is not None
    assert summary.return_mean is not None
    assert summary.return_ci95 is not None
    before, final = summary.return_before, MeanInterval(summary.return_mean, *summary.return_ci95)
    name = "offline policy" if summary.start == "policy" else "new policy"
    figures = f"{final.mean:.4g} [{final.low:.4g}, {final.high:.4g}]"
    draw_curve(
        path,
        (users, returns, "policy so far, 95% interval"),
        (users[-1], final, f"final policy: {figures}, {summary.episodes} episodes"),
        labels=(f"users so far ({summary.cohort} to an update)", _return_in(str(summary.env_id))),
        title=f"online {summary.algorithm}\n{summary.promise}",
        level=(before, f"{name}: {before:.4g}"),
    )


def _return_in(environment: str) -> str:
    return (
        f"return in {environment.rpartition(':')[2].rpartition('/')[2]}"  # the rest names a module
    )


def draw_text(path: Path, text: str) -> None:
    """Draw one line of text as a PNG, where there is nothing to show."""
    figure = Figure(figsize=(7, 1.5), dpi=120)
    figure.text(0.5, 0.5, text, ha="center", va="center")
    _save(figure, path)


def write_online(summary: OnlineSummary, users: list[int], returns: list[MeanInterval]) -> None:
    """Write the results of online learning: curve, figure and summary."""
    with replaced_file(ONLINE_CURVE) as fresh:
        write_online_curve(fresh, users, returns)
    with replaced_file(ONLINE_FIGURE) as fresh:
        draw_online(fresh, users, returns, summary)
    summary.write(ONLINE_METRICS)


def draw_evaluation(path: Path, record: PrivateEvaluation) -> None:
    """Draw the answers as a PNG: a forest plot of the values, the histogram of returns, and the model's errors."""
    values = tuple(sorted(record.values(), key=lambda answer: list(_COLOURS).index(answer.of)))
    errors = [answer for answer in record.estimates if answer.of == "model"]
    if not record.estimates:
        draw_text(path, "Nothing was asked: evaluation.private.estimators is empty.")
        return
    panels = 1 + bool(record.histograms) + bool(errors)
    figure = Figure(
        figsize=(7, 1.6 + 0.34 * len(values) + 2.6 * (panels - 1)), dpi=120, layout="constrained"
    )
    heights = [0.34 * len(values) + 0.8, *[2.6] * (panels - 1)]
    axes = figure.subplots(panels, 1, height_ratios=heights, squeeze=False)[:, 0]
    _forest(axes[0], values)
    for histogram in record.histograms[:1]:
        axes[1].stairs(
            histogram.shares, histogram.edges, fill=True, color=_COLOURS["behaviour"], alpha=0.5
        )
        axes[1].set(xlabel=histogram.what, ylabel="share of the units")
        axes[1].spines[["top", "right"]].set_visible(False)
    if errors:
        _errors(axes[-1], errors, record.verdict)
    figure.suptitle(f"{record.dataset}: {_price(record)}", fontsize=11)
    _save(figure, path)


def _price(record: PrivateEvaluation) -> str:
    total = record.total
    if total is None or total.epsilon is None:
        return "no guarantee is left for the people in the data"
    charges = f"{total.charges} charge{'s' if total.charges != 1 else ''}"
    return f"ε = {at_most(total.epsilon)} in all, δ = {at_most(total.delta)} per {record.unit} ({charges})"


def _forest(axes: Axes, values: tuple[Answer, ...]) -> None:
    for place, answer in enumerate(reversed(values)):
        marker, face = ("o", "white") if answer.epsilon is None else ("D", None)
        _mark(axes, answer, place, marker, color=_COLOURS[answer.of], markerfacecolor=face)
        if answer.of == "behaviour":
            axes.axvline(answer.value, color=_COLOURS["behaviour"], linewidth=1, linestyle=":")
    _rows(axes, [f"{WHOSE[answer.of]}, {source(vars(answer))}" for answer in reversed(values)])
    axes.set_xlabel(
        "mean return per unit, 95% interval (open circle: by the model, free)", fontsize=9
    )


def _errors(axes: Axes, errors: list[Answer], verdict: Verdict | None) -> None:
    """Draw the model's errors, and on the same line those of a trivial prediction (`model_check.TRIVIAL`)."""
    bases = [answer.what.partition(", of ")[0] for answer in errors]
    names = list(dict.fromkeys(bases))[::-1]
    labels = {"C1": "the model", "C7": "a trivial prediction"}
    for answer, base in zip(errors, bases, strict=True):
        colour, marker, below = ("C1", "s", -0.14) if base == answer.what else ("C7", "o", 0.14)
        _mark(
            axes,
            answer,
            names.index(base) + below,
            marker,
            color=colour,
            label=labels.pop(colour, None),
        )
    _rows(axes, names)
    axes.set_xlabel("error in the private data, in public scales", fontsize=9)
    title = "" if verdict is None else ". ".join(model_check(verdict))
    axes.set_title("\n".join(wrap(title, 78)), fontsize=9)
    axes.legend(loc="best", frameon=False, fontsize=8)


def _mark(axes: Axes, answer: Answer, place: float, marker: str, **look: Any) -> None:
    """Draw an answer with its interval, if it has one."""
    spread = None
    if answer.ci95 is not None:
        low, high = answer.ci95
        spread = [[max(answer.value - low, 0.0)], [max(high - answer.value, 0.0)]]
    axes.errorbar([answer.value], [place], xerr=spread, fmt=marker, capsize=3, markersize=6, **look)


def _rows(axes: Axes, names: list[str]) -> None:
    """Name the rows of a panel."""
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="png", metadata={"Software": None})
