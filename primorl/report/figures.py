"""The figures of a report as Plotly's specifications.

Titles and captions are in the page's template.
"""

import math
from collections.abc import Sequence
from typing import Any

from primorl.evaluate.wording import plural
from primorl.privacy.accounting.rounding import at_most, percent_at_most
from primorl.release.card import trace_curve
from primorl.report.facts import Facts

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


def _figure(data: list[Trace], x: str, y: str, **axes: Any) -> Figure:
    """Add the layout that all figures share; x and y are the titles of the axes."""
    sides = {"xaxis": x, "yaxis": y}
    drawn = {side: {**_AXIS, **axes, "title": {"text": text}} for side, text in sides.items()}
    return {"data": data, "layout": {**_LAYOUT, **drawn, "height": 340}}
