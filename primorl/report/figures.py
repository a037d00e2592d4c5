"""The figures of a report as Plotly's specifications.

Titles and captions are in the page's template.
"""

import math
from collections.abc import Sequence
from typing import Any

from primorl.evaluate.wording import list_explained, plural
from primorl.model.architecture import LITTLE_EXPLAINED
from primorl.privacy.accounting.rounding import at_most, percent_at_most
from primorl.release.card import trace_curve
from primorl.report.facts import EpochValue, Facts

# Okabe and Ito's colours, which people with any colour vision can tell apart
BLUE, RED, GREY = "#0072B2", "#D55E00", "#666666"
_AXIS = {"gridcolor": "#dddddd", "zerolinecolor": "#bbbbbb", "automargin": True}
_LAYOUT = {
    "margin": {"l": 20, "r": 20, "t": 10, "b": 20},  # beside what axes and legend need
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
}
Trace = dict[str, Any]
Figure = dict[str, Any]
"""``data`` and ``layout`` of Plotly."""


def draw_figures(facts: Facts) -> dict[str, Figure]:
    """Draw all figures that these facts allow, by name."""
    drawn = {
        "attack": _draw_attack(facts),
        "learning": _draw_learning(facts),
        "explained": _draw_explained(facts),
        "budget": _draw_budget(facts),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _draw_attack(facts: Facts) -> Figure | None:
    points = trace_curve(facts.released) if facts.sound else ()
    if not points:
        return None
    x, y = zip(*points, strict=True)
    best = _line(x, y, "no attack is above this line", RED)
    best["text"] = [
        f"names {rate:.1%} wrongly, finds at most {percent_at_most(power)}"
        for rate, power in points
    ]
    guessing = _line((0, 1), (0, 1), "blind guessing", GREY, dash="dash")
    units = plural(facts.statement.unit)
    titles = (f"named, of {units} not in the data", "found, of those in them")
    return _figure([best, guessing], *titles, tickformat=".0%")


def _draw_learning(facts: Facts) -> Figure | None:
    summary = facts.summary
    in_model = summary["return_mean"] is None
    # values of whole rollouts would be a second value beside the gain
    if not facts.curve or (in_model and summary.get("private_evaluation")):
        return None
    *before, final = facts.curve
    data = [_points(before, "after each epoch", BLUE)] if before else []
    behaviour = summary.get("public_return_mean")
    if behaviour is not None:
        ends = (facts.curve[0].number, final.number)
        data.append(_line(ends, (behaviour, behaviour), "today, public", GREY, dash="dash"))
    key, ends_key = "return_mean", "return_ci95"
    if in_model:
        key, ends_key = "model_value", "model_value_range"
    low, high = summary[ends_key]
    last = _points([EpochValue(final.number, summary[key], low, high)], "final policy", RED)
    last["marker"] |= {"symbol": "diamond", "size": 11}
    return _figure([*data, last], "epoch", "value")


def _draw_explained(facts: Facts) -> Figure | None:
    columns = list_explained(facts.model)
    if not columns:
        return None
    little = [each.share is not None and each.share < LITTLE_EXPLAINED for each in columns]
    bars: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": [each.share for each in columns],
        "y": [each.name for each in columns],
        "text": [str(each) for each in columns],
        "marker": {"color": [RED if few else BLUE for few in little]},
        "error_x": {"type": "data", "array": [each.error for each in columns], "color": GREY},
    }
    figure = _rows_figure([bars], "share of the variance", len(columns), tickformat=".0%")
    figure["layout"]["xaxis"]["range"] = [0, 1]
    return figure


def _draw_budget(facts: Facts) -> Figure | None:
    spending = facts.spending
    if spending is None or not spending.charges:
        return None
    numbers = range(1, len(spending.charges) + 1)
    # ε is infinite after a run without a guarantee, and JSON has no such number
    totals = [total if math.isfinite(total) else None for _, _, total in spending.charges]
    spent = _line(numbers, totals, "spent", BLUE)
    spent |= {"mode": "lines+markers", "line": {"shape": "hv", "color": BLUE}}
    spent["text"] = [
        f"{stage}, {day}: ε {at_most(total)} in all" for stage, day, total in spending.charges
    ]
    data = [spent]
    if spending.budget is not None:
        ends = (numbers[0], numbers[-1])
        data.append(_line(ends, (spending.budget, spending.budget), "budget", RED, dash="dash"))
    return _figure(data, "charge", "ε in all")


# Parts of figures


def _line(
    x: Sequence[float], y: Sequence[float | None], name: str, color: str, dash: str = "solid"
) -> Trace:
    """Make a trace of joined points."""
    line = {"color": color, "dash": dash}
    return {"type": "scatter", "mode": "lines", "x": [*x], "y": [*y], "name": name, "line": line}


def _points(values: Sequence[EpochValue], name: str, color: str, along: str = "y") -> Trace:
    """Make a trace of values with whiskers along an axis."""
    bars = {"type": "data", "symmetric": False, "color": color}
    bars["array"] = [each.high - each.value for each in values]
    bars["arrayminus"] = [each.value - each.low for each in values]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [each.number for each in values],
        "y": [each.value for each in values],
        "name": name,
        "marker": {"color": color, "size": 9},
        f"error_{along}": bars,
    }


def _figure(data: list[Trace], x: str, y: str, **axes: Any) -> Figure:
    """Add the layout that all figures share; x and y are the titles of the axes."""
    sides = {"xaxis": x, "yaxis": y}
    drawn = {side: {**_AXIS, **axes, "title": {"text": text}} for side, text in sides.items()}
    return {"data": data, "layout": {**_LAYOUT, **drawn, "height": 340}}


def _rows_figure(data: list[Trace], x: str, rows: int, **axes: Any) -> Figure:
    """Make a figure with one row for each name, the first one at the top."""
    figure = _figure(data, x, "", **axes)
    figure["layout"] |= {"height": 150 + 45 * rows, "yaxis": {**_AXIS, "autorange": "reversed"}}
    return figure
