"""The figures of a report as Plotly's specifications.

Titles and captions are in the page's template.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from primorl.evaluate.wording import believed, comparable, plural
from primorl.privacy.accounting.rounding import at_most, percent_at_most
from primorl.release.card import curve
from primorl.report.facts import Facts

# Okabe and Ito's colours, which people with any colour vision can tell apart
BLUE, RED, GREY = "#0072B2", "#D55E00", "#666666"
_LINE = 20  # characters of a row's name
Figure = dict[str, Any]
"""``data`` and ``layout`` of Plotly."""


def figures(facts: Facts) -> dict[str, Figure]:
    """All figures that these facts allow, by name."""
    makers = (_attack, _values, _learning, _actions, _budget)
    drawn = {make.__name__.removeprefix("_"): make(facts) for make in makers}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _attack(facts: Facts) -> Figure | None:
    points = curve(facts.released) if facts.sound else ()
    if not points:
        return None
    x, y = zip(*points, strict=True)
    best = _line(x, y, "no attack is above this line", RED, hover="%{text}")
    best["text"] = [
        f"names {rate:.1%} wrongly, finds at most {percent_at_most(power)}"
        for rate, power in points
    ]
    guessing = _line((0, 1), (0, 1), "blind guessing", GREY, dash="dash")
    units = plural(facts.statement.unit)
    found = "found, of those in it"
    return _layout([best, guessing], f"named, of {units} not in it", found, percent=True)


def _values(facts: Facts) -> Figure | None:
    rows = comparable(facts.summary, facts.discount)
    if not rows:
        return None
    labels = [row.name.replace(", ", ",<br>") for row in rows]
    data: list[dict[str, Any]] = []
    for by_model, legend in (
        (False, "with its 95% interval"),
        (True, "in the model, range over its members"),
    ):
        for policy, color in ((False, GREY), (True, BLUE)):
            own = []
            for label, row in zip(labels, rows, strict=True):
                if (row.by_model, row.of_policy) == (by_model, policy):
                    low, high = row.ends or (row.value, row.value)
                    own.append((label, row.value, low, high))
            if own:
                shown_before = any(each["name"] == legend for each in data)
                trace = _spread(own, legend, color, hollow=by_model, interval=not by_model)
                data.append(trace | {"legendgroup": legend, "showlegend": not shown_before})
    spec = _layout(data, "mean return", "")
    spec["layout"] |= _named_rows(labels, each=45)
    return spec


def _learning(facts: Facts) -> Figure | None:
    in_model = facts.summary["return_mean"] is None
    # where the model's values of recordings' length are shown, those of whole rollouts would be a
    # second value
    if not facts.curve or (
        in_model and (not believed(facts.summary) or facts.summary.get("private_evaluation"))
    ):
        return None
    *before, final = facts.curve
    data = []
    if before:
        epochs, values = [point.number for point in before], [point.value for point in before]
        interval = "range over members" if in_model else "95% interval"
        edge = [*(point.high for point in before), *(point.low for point in before[::-1])]
        area = {
            "fill": "toself",
            "fillcolor": "rgba(0,114,178,0.15)",
            "line": {"width": 0},
            "hoverinfo": "skip",
        }
        data += [
            _line([*epochs, *epochs[::-1]], edge, interval, BLUE) | area,
            _line(
                epochs,
                values,
                "after each epoch",
                BLUE,
                mode="lines+markers",
                hover="epoch %{x}: %{y:.4g}",
            ),
        ]
    behaviour = facts.summary.get("public_return_mean")
    if behaviour is not None:
        ends = (facts.curve[0].number, final.number)
        data.append(_line(ends, (behaviour, behaviour), "today, public", GREY, dash="dash"))
    last = _line(
        (final.number,),
        (final.value,),
        "final policy",
        RED,
        mode="markers",
        hover="final policy: %{y:.4g}",
    )
    last["marker"] |= {"symbol": "diamond", "size": 11}
    rise, fall = [final.high - final.value], [final.value - final.low]
    last["error_y"] = {
        "type": "data",
        "symmetric": False,
        "array": rise,
        "arrayminus": fall,
        "color": RED,
    }
    spec = _layout([*data, last], "epoch", "value")
    spec["layout"]["xaxis"] |= _whole_axis(final.number)
    return spec


def _actions(facts: Facts) -> Figure | None:
    found = facts.actions
    if found is None:
        return None
    sides = (("today, public", GREY, found.recorded), ("the policy", BLUE, found.chosen))
    names = list(map(_wrapped, found.names))
    if found.discrete:
        data = [
            _bars(names, [share for (share,) in side], color, who) for who, color, side in sides
        ]
    else:
        data = [_box(names, side, color, who) for who, color, side in sides]
    spec = _layout(
        data,
        "share of the rows" if found.discrete else "place between the bounds",
        "",
        percent=True,
    )
    spec["layout"] |= _named_rows(names, each=44, more=150) | {"boxmode": "group"}
    return spec


def _budget(facts: Facts) -> Figure | None:
    spending = facts.spending
    if spending is None or not spending.charges:
        return None
    numbers, totals = (
        list(range(1, len(spending.charges) + 1)),
        [total for _, _, total in spending.charges],
    )
    # ε is infinite after a run without a guarantee, and JSON has no such number
    drawn = [total if math.isfinite(total) else None for total in totals]
    spent = _line(numbers, drawn, "spent", BLUE, mode="lines+markers", hover="%{text}")
    spent["line"] = {"shape": "hv", "color": BLUE}
    spent["text"] = [
        f"{stage}, {day}: ε {at_most(total)} in all" for stage, day, total in spending.charges
    ]
    data = [spent]
    if spending.budget is not None:
        ends = (numbers[0], numbers[-1])
        data.append(_line(ends, (spending.budget, spending.budget), "budget", RED, dash="dash"))
    spec = _layout(data, "charge", "ε in all")
    spec["layout"]["xaxis"] |= _whole_axis(len(numbers))
    spec["layout"]["yaxis"] |= {"rangemode": "tozero"}
    return spec


# Parts of figures


def _line(
    x: Sequence[float],
    y: Sequence[float | None],
    name: str,
    color: str,
    *,
    mode: str = "lines",
    dash: str = "solid",
    hover: str = "",
) -> dict[str, Any]:
    """A trace of points, joined or not; ``hover`` is shown over a point instead of the name."""
    drawn: dict[str, Any] = {
        "type": "scatter",
        "mode": mode,
        "x": list(x),
        "y": list(y),
        "name": name,
    }
    drawn |= {"line": {"color": color, "dash": dash}, "marker": {"color": color, "size": 7}}
    return drawn | (
        {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "name"}
    )


def _layout(data: list[dict[str, Any]], x: str, y: str, *, percent: bool = False) -> dict[str, Any]:
    """Traces with a layout that all figures share; x and y are the titles of the axes."""
    axis: dict[str, Any] = {"gridcolor": "#dddddd", "zerolinecolor": "#bbbbbb", "automargin": True}
    if percent:
        axis["tickformat"] = ".0%"
    drawn: dict[str, Any] = {
        side: {**axis, "title": {"text": text, "standoff": 8}}
        for side, text in (("xaxis", x), ("yaxis", y))
    }
    drawn |= {
        "margin": {"l": 20, "r": 20, "t": 10, "b": 20},
        "height": 340,
    }  # beside what axes and legend need
    drawn["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
    drawn["font"] = {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"}
    return {"data": data, "layout": drawn | {"paper_bgcolor": "white", "plot_bgcolor": "white"}}


def _wrapped(name: str) -> str:
    """Break a name after its separators into lines of about 20 characters, for which a telephone
    has room.
    """
    lines = [""]
    for part in re.split(r"(?<=[_ =:/-])", name):
        if lines[-1] and len(lines[-1]) + len(part) > _LINE:
            lines.append("")
        lines[-1] += part
    return "<br>".join(lines)


def _named_rows(names: Sequence[str], *, each: int, more: int = 140) -> dict[str, Any]:
    """Parts of a layout: one row for each name, first name at the top; ``each`` row has this height
    in pixels.
    """
    rows: dict[str, Any] = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": list(names),
    }
    rows |= {"range": [len(names) - 0.5, -0.5], "gridcolor": "#dddddd", "automargin": True}
    return {"yaxis": rows, "height": more + each * len(names)}


def _spread(
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
        hollow: draw rings.
        interval: draw bars at the ends of the whiskers.
    """
    names, values, low, high = (list(same) for same in zip(*rows, strict=True))
    bars: dict[str, Any] = {"type": "data", "symmetric": False, "color": color}
    bars |= {"thickness": 2, "width": 5} if interval else {"thickness": 1, "width": 0}
    bars["array"] = [end - value for end, value in zip(high, values, strict=True)]
    bars["arrayminus"] = [value - end for end, value in zip(low, values, strict=True)]
    drawn = _line(values, (), name, color, mode="markers", hover="%{y}: %{x:.4g}") | {
        "y": names,
        "error_x": bars,
    }
    symbol = {"symbol": "circle-open" if hollow else "circle", "line": {"width": 2, "color": color}}
    return drawn | {"marker": {"size": 10, "color": color, **symbol}}


def _whole_axis(most: int) -> dict[str, Any]:
    """Parts of an axis of the numbers 1, 2, .., ``most``: ticks at whole numbers alone."""
    power = 10 ** max(0, math.floor(math.log10(max(1, most) / 8)))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if most <= 8 * step)
    return {"tickformat": "d", "tick0": 1 if step == 1 else 0, "dtick": step}


def _box(
    names: Sequence[str], levels: Sequence[Sequence[float]], color: str, name: str
) -> dict[str, Any]:
    """A trace of boxes, one a name, from least, quartiles and greatest."""
    keys = ("lowerfence", "q1", "median", "q3", "upperfence")
    drawn = {key: list(same) for key, same in zip(keys, zip(*levels, strict=True), strict=True)}
    return {
        "type": "box",
        "orientation": "h",
        "y": list(names),
        "marker": {"color": color},
        "name": name,
        **drawn,
    }


def _bars(names: Sequence[str], shares: Sequence[float], color: str, name: str) -> dict[str, Any]:
    """A trace of bars, one a name."""
    drawn = {
        "type": "bar",
        "orientation": "h",
        "y": list(names),
        "x": list(shares),
        "marker": {"color": color},
    }
    return drawn | {"name": name, "hovertemplate": "%{y}: %{x:.1%}<extra>%{fullData.name}</extra>"}
