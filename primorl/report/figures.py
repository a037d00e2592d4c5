"""The figures of a report as Plotly's specifications, each with the rows of a table of the same numbers.

Titles, captions and the tables' headers are in the page's template.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from primorl.evaluate.private.results import Answer
from primorl.evaluate.wording import believed, comparable, plural
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import at_most, percent_at_most
from primorl.release.card import curve
from primorl.report.facts import Facts

# Okabe and Ito's colours, which people with any colour vision can tell apart
BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
_LINE = 20  # characters of a row's name
_MOST_TICKS = 6  # of a logarithmic axis, which has to fit on a telephone
_POINTS = 12  # of ε against rounds
_LEAST_ERROR = 1e-4  # that is drawn; the axis is logarithmic
_LISTED_RATES = (0.01, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Figure:
    """`data` and `layout` of Plotly, and the rows of a table of the same numbers."""

    spec: dict[str, Any]
    rows: Sequence[tuple[str, ...]]


def figures(facts: Facts) -> dict[str, Figure]:
    """All figures that these facts allow, by name."""
    makers = (
        *(_attack, _values, _learning, _model_error, _checks, _rollouts),
        *(_first_states, _actions, _rounds, _budget, _others),
    )
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
    rows = [
        (f"{rate:.0%}", percent_at_most(power))
        for rate, power in points
        if round(rate, 3) in _LISTED_RATES
    ]
    return Figure(
        _layout(
            [best, guessing], f"named, of {units} not in it", "found, of those in it", percent=True
        ),
        rows,
    )


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
    return Figure(
        spec, [(row.name, f"{row.value:.4g}", _ends(row.ends, row.by_model)) for row in rows]
    )


def _ends(ends: Sequence[float] | None, by_model: bool = False) -> str:
    return (
        "none"
        if ends is None
        else f"{ends[0]:.4g} to {ends[1]:.4g}{' (members)' if by_model else ''}"
    )


def _learning(facts: Facts) -> Figure | None:
    in_model = facts.summary["return_mean"] is None
    # where the model's values of recordings' length are shown, those of whole rollouts would be a second value
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
    rows = [
        (str(point.number), f"{point.value:.4g}", _ends((point.low, point.high)))
        for point in facts.curve
    ]
    return Figure(spec, rows)


def _model_error(facts: Facts) -> Figure | None:
    if not facts.model_error:
        return None
    errors, labels = list(facts.model_error.values()), list(map(_wrapped, facts.model_error))
    drawn = [max(error, _LEAST_ERROR) for error in errors]
    dots = _line(drawn, (), "the model", BLUE, mode="markers", hover="%{y}: %{text}")
    dots |= {"y": labels, "showlegend": False, "text": [f"{error:.2%}" for error in errors]}
    dots["marker"] |= {"size": 10}
    spec = _layout([dots], "error, as a share of what varies", "")
    spec["layout"] |= _named_rows(labels, each=28)
    spec["layout"]["xaxis"] |= _log_axis([*drawn, 1.0]) | {"tickformat": "~%"}
    average = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    average |= {
        "line": {"color": GREY, "dash": "dash"},
        "name": "the average alone",
        "showlegend": True,
    }
    spec["layout"] |= {"shapes": [average], "showlegend": True}
    return Figure(spec, [(name, _shown(error, ".2%")) for name, error in facts.model_error.items()])


def _checks(facts: Facts) -> Figure | None:
    """The private units' answers on the errors of open-loop predictions, beside those of a trivial prediction."""
    if not facts.checks:
        return None
    names = list(dict.fromkeys(map(_predicted, facts.checks)))
    data = []
    for trivial, legend, color in (
        (False, "the model", BLUE),
        (True, "a guess without a model", GREY),
    ):
        own = [answer for answer in facts.checks if (_predicted(answer) != answer.what) is trivial]
        if own:
            rows = [
                (_predicted(each), each.value, *(each.ci95 or (each.value, each.value)))
                for each in own
            ]
            shift = 0.13 if trivial else -0.13
            trace = _spread(rows, legend, color, hollow=trivial)
            trace["y"] = [names.index(_predicted(answer)) + shift for answer in own]
            trace["text"] = [f"{answer.what}: {answer.value:.3g}" for answer in own]
            data.append(trace | {"hovertemplate": "%{text}<extra></extra>"})
    spec = _layout(data, "error, in the model's scales", "")
    spec["layout"]["height"] = 140 + 45 * len(names)
    ticks = {
        "tickvals": list(range(len(names))),
        "ticktext": [name.replace(" error, ", ",<br>", 1) for name in names],
    }
    spec["layout"]["yaxis"] |= ticks | {
        "tickmode": "array",
        "range": [len(names) - 0.5, -0.5],
        "zeroline": False,
    }
    most = max(end for answer in facts.checks for end in (answer.value, *(answer.ci95 or ())))
    spec["layout"]["xaxis"] |= {"range": [-0.03 * most, 1.03 * most]}
    intervals = [
        "none" if each.ci95 is None else f"[{each.ci95[0]:.3g}, {each.ci95[1]:.3g}]"
        for each in facts.checks
    ]
    rows_shown = zip(facts.checks, intervals, strict=True)
    return Figure(
        spec, [(answer.what, f"{answer.value:.3g}", interval) for answer, interval in rows_shown]
    )


def _predicted(answer: Answer) -> str:
    """Name the subject of an error."""
    return answer.what.partition(", of ")[0]


def _rollouts(facts: Facts) -> Figure | None:
    """Reward along rollouts in the model, and the penalty on it."""
    found = facts.rollouts
    if found is None:
        return None
    steps, hover = list(range(1, len(found.reward) + 1)), "step %{x}: %{y:.4g}"
    penalty = [reward - less for reward, less in zip(found.reward, found.penalised, strict=True)]
    data = [
        _line(steps, found.reward, "reward", BLUE, hover=hover),
        _line(steps, found.penalised, "reward less penalty", BLUE, dash="dot", hover=hover),
        _line(steps, penalty, "penalty (right)", RED, dash="dash", hover=hover) | {"yaxis": "y2"},
    ]
    spec = _layout(data, "step", "reward")
    spec["layout"]["xaxis"] |= _whole_axis(len(steps))
    axis = {
        "overlaying": "y",
        "side": "right",
        "rangemode": "tozero",
        "tickmode": "auto",
        "nticks": 6,
    }
    axis |= {
        "title": {"text": "penalty", "standoff": 8, "font": {"color": RED}},
        "tickfont": {"color": RED},
    }
    spec["layout"]["yaxis2"] = axis | {"showgrid": False, "zeroline": False, "automargin": True}
    spec["layout"]["yaxis"] |= {"tickfont": {"color": BLUE}}
    spec["layout"]["yaxis"]["title"] |= {"font": {"color": BLUE}}
    columns = zip(steps, found.reward, found.uncertainty, penalty, strict=True)
    rows = [
        (str(step), *(_shown(number, ".4g") for number in numbers)) for step, *numbers in columns
    ]
    return Figure(spec, rows[:: max(1, len(steps) // 10)])


def _first_states(facts: Facts) -> Figure | None:
    """Each measurement at the first row, on the scale of its range; of a category its share."""
    if not facts.first_states:
        return None
    ranges = _ranges(facts)
    labels = {}
    for name, (low, high) in ranges.items():
        labels[name] = _wrapped(name) + (
            "" if name in facts.first_shares else f"<br>{low:.4g} to {high:.4g}"
        )
    data = []
    if numbers := [name for name in facts.first_states if name not in facts.first_shares]:
        parts = [_placed(facts.first_states[name], *ranges[name]) for name in numbers]
        data.append(
            _box([labels[name] for name in numbers], parts, BLUE, "measurement, place in its range")
        )
    if facts.first_shares:
        names = [labels[name] for name in facts.first_shares]
        data.append(
            _bars(
                names, list(facts.first_shares.values()), GREEN, "category, share of first states"
            )
        )
    spec = _layout(data, "place in range, or share", "", percent=True)
    spec["layout"] |= _named_rows(list(labels.values()), each=40) | {
        "showlegend": True,
        "bargap": 0.5,
    }
    spec["layout"]["xaxis"] |= {"range": [-0.02, 1.02]}
    rows = []
    for name, part in facts.first_states.items():
        share = f"{facts.first_shares[name]:.1%}" if name in facts.first_shares else ""
        rows.append((name, *(f"{value:.4g}" for value in part), share))
    return Figure(spec, rows)


def _ranges(facts: Facts) -> dict[str, tuple[float, float]]:
    """The declared range of each measurement, or that of its first states."""
    lows, highs = (facts.policy.get(f"observation_{side}") or () for side in ("low", "high"))
    found = {}
    for at, (name, part) in enumerate(facts.first_states.items()):
        declared = (
            (lows[at], highs[at]) if at < min(len(lows), len(highs)) else (-math.inf, math.inf)
        )
        found[name] = declared if all(map(math.isfinite, declared)) else (part[0], part[-1])
    return found


def _placed(part: Sequence[float], low: float, high: float) -> list[float]:
    """Values as shares of the way from one end to the other; the middle where both are the same."""
    return [(value - low) / (high - low) if high > low else 0.5 for value in part]


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
        rows: list[tuple[str, ...]] = []
        for name, (today,), (chosen,) in zip(
            found.names, found.recorded, found.chosen, strict=True
        ):
            rows.append((name, f"{today:.1%}", f"{chosen:.1%}"))
    else:
        data = [_box(names, side, color, who) for who, color, side in sides]
        rows = []
        for at, name in enumerate(found.names):
            for (who, _, side), at_bound in zip(sides, found.at_bound, strict=True):
                rows.append(
                    (name, who, *(f"{level:.1%}" for level in side[at]), f"{at_bound[at]:.1%}")
                )
    spec = _layout(
        data,
        "share of the rows" if found.discrete else "place between the bounds",
        "",
        percent=True,
    )
    spec["layout"] |= _named_rows(names, each=44, more=150) | {"boxmode": "group"}
    return Figure(spec, rows)


def _rounds(facts: Facts) -> Figure | None:
    statement = facts.training
    q, z, T = statement.sampling_probability, statement.noise_multiplier, statement.rounds
    if not statement.sound or q is None or z is None or T is None or statement.delta is None:
        return None
    queries = tuple(query.noise_multiplier for query in statement.queries)
    rounds = sorted({max(1, round(T * step / _POINTS)) for step in range(1, _POINTS + 1)})
    epsilons = [Training(q, z, done, queries).spent(statement.delta).epsilon_pld for done in rounds]
    rows = [(str(done), at_most(epsilon)) for done, epsilon in zip(rounds, epsilons, strict=True)]
    drawn = _line(rounds, epsilons, "ε", BLUE, mode="lines+markers", hover="%{text}")
    drawn["text"] = [f"{done} rounds: ε {epsilon}" for done, epsilon in rows]
    return Figure(_layout([drawn], "rounds", "ε"), rows)


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
    charges = zip(numbers, spending.charges, strict=True)
    return Figure(
        spec, [(str(number), stage, day, at_most(total)) for number, (stage, day, total) in charges]
    )


def _others(facts: Facts) -> Figure | None:
    known, data = facts.compared, []
    for who, color in (("simulator", BLUE), ("private units", GREEN), ("model", GREY)):
        own = [
            (name, epsilon, value)
            for name, epsilon, value, by in known
            if by == who and epsilon is not None
        ]
        if own:
            names, epsilons, values = zip(*own, strict=True)
            judge = plural(facts.statement.unit) if who == "private units" else who
            trace = _line(
                epsilons,
                values,
                f"by the {judge}",
                color,
                mode="markers",
                hover="%{text}: %{y:.4g}",
            )
            trace["text"] = [
                f"{name}<br>ε {at_most(epsilon)}"
                for name, epsilon in zip(names, epsilons, strict=True)
            ]
            data.append(trace)
    if not data:
        return None
    spec = _layout(data, "ε of the policy", "value")
    spec["layout"]["xaxis"] |= _log_axis(
        [epsilon for _, epsilon, _, _ in known if epsilon is not None]
    )
    rows = []
    for name, epsilon, value, by in known:
        judge = plural(facts.statement.unit) if by == "private units" else by
        rows.append((name, "none" if epsilon is None else at_most(epsilon), f"{value:.4g}", judge))
    return Figure(spec, rows)


# Parts of figures


def _shown(number: float, form: str) -> str:
    """Write a number for a table; one that is not finite is no point of the figure either."""
    return format(number, form) if math.isfinite(number) else "none"


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
    """Break a name after its separators into lines of about 20 characters, for which a telephone has room."""
    lines = [""]
    for part in re.split(r"(?<=[_ =:/-])", name):
        if lines[-1] and len(lines[-1]) + len(part) > _LINE:
            lines.append("")
        lines[-1] += part
    return "<br>".join(lines)


def _named_rows(names: Sequence[str], *, each: int, more: int = 140) -> dict[str, Any]:
    """Parts of a layout: one row for each name, first name at the top; ``each`` row has this height in pixels."""
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


def _log_axis(values: Sequence[float]) -> dict[str, Any]:
    """Parts of a logarithmic axis with few ticks at plain numbers; values that are not above 0 are left out."""
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
