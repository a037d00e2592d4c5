"""What figures of a report are made of: Plotly's specifications as plain dictionaries, and their colours."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's colours, which people with any colour vision can tell apart
BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
_LINE = 20  # characters of a row's name
_MOST_TICKS = 6  # of a logarithmic axis, which has to fit on a telephone


@dataclass(frozen=True)
class Figure:
    """`data` and `layout` of Plotly, and the rows of a table of what they show."""

    spec: dict[str, Any]
    rows: Sequence[tuple[str, ...]]


def shown(number: float, form: str) -> str:
    """A number for a table, or "none" where it is not finite: no point of the figure shows it either."""
    return format(number, form) if math.isfinite(number) else "none"


def line(
    x: Sequence[float],
    y: Sequence[float | None],
    name: str,
    color: str,
    *,
    mode: str = "lines",
    dash: str = "solid",
    hover: str = "",
) -> dict[str, Any]:
    """A trace of points, joined or not; ``hover`` is what is shown over a point instead of the name."""
    drawn: dict[str, Any] = {"type": "scatter", "mode": mode, "x": list(x), "y": list(y), "name": name}
    drawn["line"] = {"color": color, "dash": dash}
    drawn["marker"] = {"color": color, "size": 7}
    return drawn | ({"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "name"})


def layout(data: list[dict[str, Any]], x: str, y: str, *, percent: bool = False) -> dict[str, Any]:
    """Traces with a layout that all figures share; x and y are the titles of the axes."""
    axis: dict[str, Any] = {"gridcolor": "#dddddd", "zerolinecolor": "#bbbbbb", "automargin": True}
    if percent:
        axis["tickformat"] = ".0%"
    return {
        "data": data,
        "layout": {
            "xaxis": {**axis, "title": {"text": x, "standoff": 8}},
            "yaxis": {**axis, "title": {"text": y, "standoff": 8}},
            "margin": {"l": 20, "r": 20, "t": 10, "b": 20},  # beside what axes and legend need
            "height": 340,
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
        },
    }


def wrapped(name: str) -> str:
    """A name on lines of about 20 characters, broken after its separators: long ones leave no room on a telephone."""
    lines = [""]
    for part in re.split(r"(?<=[_ =:/-])", name):
        if lines[-1] and len(lines[-1]) + len(part) > _LINE:
            lines.append("")
        lines[-1] += part
    return "<br>".join(lines)


def named_rows(names: Sequence[str], *, each: int, more: int = 140) -> dict[str, Any]:
    """Parts of a layout: one row for each name, first name at the top, and the height that they need.

    Args:
        names: as the traces have them.
        each: height of a row, in pixels.
        more: of axis and legend.
    """
    rows: dict[str, Any] = {"type": "category", "categoryorder": "array", "categoryarray": list(names)}
    rows |= {"range": [len(names) - 0.5, -0.5], "gridcolor": "#dddddd", "automargin": True}
    return {"yaxis": rows, "height": more + each * len(names)}


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float], name: str) -> dict[str, Any]:
    """A trace of the area between two lines."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": "rgba(0,114,178,0.15)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "name": name,
    }


def spread(
    rows: Sequence[tuple[str, float, float, float]],
    name: str,
    color: str,
    *,
    hollow: bool = False,
    interval: bool = True,
) -> dict[str, Any]:
    """A trace of points with whiskers beside their names.

    Args:
        rows: name, value, lower and upper end; both ends are the value where there are none.
        name: in the legend.
        color: of the points.
        hollow: whether points are drawn as rings.
        interval: whether the whiskers are an interval, which has bars at its ends; else they are thin.
    """
    names, values, low, high = (list(same) for same in zip(*rows, strict=True))
    marker: dict[str, Any] = {"size": 10, "color": color, "symbol": "circle-open" if hollow else "circle"}
    marker["line"] = {"width": 2, "color": color}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": names,
        "name": name,
        "marker": marker,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [end - value for end, value in zip(high, values, strict=True)],
            "arrayminus": [value - end for end, value in zip(low, values, strict=True)],
            "color": color,
            "thickness": 2 if interval else 1,
            "width": 5 if interval else 0,
        },
        "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
    }


def log_axis(values: Sequence[float]) -> dict[str, Any]:
    """Parts of a logarithmic axis that holds ``values``, with few ticks at plain numbers.

    Args:
        values: what is not above 0 or not finite has no place on it.
    """
    drawn = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = math.log10(min(drawn)), math.log10(max(drawn))
    room = max(0.1, (high - low) * 0.05)
    low, high = low - room, high + room
    decades = range(math.floor(low), math.ceil(high) + 1)
    for steps, stride in (((1, 2, 5), 1), ((1,), 1), ((1,), 1 + len(decades) // 6)):
        ticks = [step * 10.0**power for power in decades[::stride] for step in steps]
        ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
        if len(ticks) <= _MOST_TICKS:
            break
    return {"type": "log", "range": [low, high], "tickmode": "array", "tickvals": ticks}


def whole_axis(most: int) -> dict[str, Any]:
    """Parts of an axis of the numbers 1, 2, .., ``most``: ticks at whole numbers alone."""
    power = 10 ** max(0, math.floor(math.log10(max(1, most) / 8)))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if most <= 8 * step)
    return {"tickformat": "d", "tick0": 1 if step == 1 else 0, "dtick": step}


def box(names: Sequence[str], levels: Sequence[Sequence[float]], color: str, name: str) -> dict[str, Any]:
    """A trace of boxes, one a name, from least, quartiles and greatest."""
    least, quarter, median, three, greatest = (list(same) for same in zip(*levels, strict=True))
    return {
        "type": "box",
        "orientation": "h",
        "y": list(names),
        "lowerfence": least,
        "q1": quarter,
        "median": median,
        "q3": three,
        "upperfence": greatest,
        "marker": {"color": color},
        "name": name,
    }


def bars(names: Sequence[str], shares: Sequence[float], color: str, name: str) -> dict[str, Any]:
    """A trace of bars, one a name."""
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(names),
        "x": list(shares),
        "marker": {"color": color},
        "name": name,
        "hovertemplate": "%{y}: %{x:.1%}<extra>%{fullData.name}</extra>",
    }
