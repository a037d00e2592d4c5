"""Figures of the released model: how wrong it is on public and on private data, and what it promises."""

from primorl.evaluation.private.results import Answer
from primorl.report.drawing import (
    BLUE,
    GREY,
    RED,
    Figure,
    layout,
    line,
    log_axis,
    named_rows,
    shown,
    spread,
    whole_axis,
    wrapped,
)
from primorl.report.facts import Facts

_LEAST = 1e-4
"""The least error that is drawn; the axis is logarithmic."""


def model_error(facts: Facts) -> Figure | None:
    """Errors of the next step on the public split, beside those of the average."""
    if not facts.model_error:
        return None
    names, errors = list(facts.model_error), list(facts.model_error.values())
    labels = list(map(wrapped, names))
    drawn = [max(error, _LEAST) for error in errors]
    dots = line(drawn, (), "the model", BLUE, mode="markers") | {"y": labels, "showlegend": False}
    dots["marker"] |= {"size": 10}
    dots |= {"text": [f"{error:.2%}" for error in errors], "hovertemplate": "%{y}: %{text}<extra></extra>"}
    spec = layout([dots], "error, as a share of what varies", "")
    spec["layout"] |= named_rows(labels, each=28)
    spec["layout"]["xaxis"] |= log_axis([*drawn, 1.0]) | {"tickformat": "~%"}
    average = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    average |= {"line": {"color": GREY, "dash": "dash"}, "name": "the average alone", "showlegend": True}
    spec["layout"] |= {"shapes": [average], "showlegend": True}
    least = f" What is below {_LEAST:.2%} is drawn there." if min(errors) < _LEAST else ""
    return Figure(
        "model_error",
        "How well the model predicts the next step",
        "Mean squared error on the public split, one dot for each measurement and the reward; further left is better. "
        f"At the dashed line, 100%, the model knows no more than the average.{least}",
        spec,
        ("what", "error"),
        tuple((name, shown(error, ".2%")) for name, error in facts.model_error.items()),
    )


def checks(facts: Facts) -> Figure | None:
    """The private units' answers on the errors of open-loop predictions, beside those of a trivial prediction."""
    if not facts.checks:
        return None
    names = list(dict.fromkeys(_base(answer) for answer in facts.checks))
    data = []
    for trivial, legend, color in ((False, "the model", BLUE), (True, "a guess without a model", GREY)):
        own = [answer for answer in facts.checks if (_base(answer) != answer.what) is trivial]
        if own:
            ends = [answer.ci95 or (answer.value, answer.value) for answer in own]
            rows = [(_base(a), a.value, low, high) for a, (low, high) in zip(own, ends, strict=True)]
            said = [f"{answer.what}: {answer.value:.3g}" for answer in own]
            shift = 0.13 if trivial else -0.13
            places = [names.index(_base(answer)) + shift for answer in own]
            hover = {"y": places, "text": said, "hovertemplate": "%{text}<extra></extra>"}
            data.append(spread(rows, legend, color, hollow=trivial) | hover)
    spec = layout(data, "error, in the model's scales", "")
    spec["layout"] |= {"height": 140 + 45 * len(names)}
    rows_axis = {"tickmode": "array", "tickvals": list(range(len(names)))}
    rows_axis |= {"ticktext": [name.replace(" error, ", ",<br>", 1) for name in names]}
    spec["layout"]["yaxis"] |= rows_axis | {"range": [len(names) - 0.5, -0.5], "zeroline": False}
    most = max(end for answer in facts.checks for end in (answer.value, *(answer.ci95 or ())))
    spec["layout"]["xaxis"] |= {"range": [-0.03 * most, 1.03 * most]}
    return Figure(
        "checks",
        "How wrong the model is for the private units",
        "Error of the model's predictions so many steps ahead, asked of the private units through noise, with 95% "
        "intervals. The guess takes the usual reward for a reward, and no change for a state. The model has learned "
        "something where its point is surely left of the guess. Errors are root mean squares in the "
        "scales of the model's normaliser.",
        spec,
        ("what", "error", "95% interval"),
        tuple((answer.what, f"{answer.value:.3g}", _interval(answer)) for answer in facts.checks),
    )


def _base(answer: Answer) -> str:
    """What an error is of, whoever predicts."""
    return answer.what.partition(", of ")[0]


def _interval(answer: Answer) -> str:
    return "none" if answer.ci95 is None else f"[{answer.ci95[0]:.3g}, {answer.ci95[1]:.3g}]"


def rollouts(facts: Facts) -> Figure | None:
    """Reward along rollouts in the model, and the penalty on it; where λ is not known, the uncertainty."""
    found = facts.rollouts
    if found is None:
        return None
    steps = list(range(1, len(found.reward) + 1))
    hover = "step %{x}: %{y:.4g}"
    data = [line(steps, found.reward, "reward", BLUE, hover=hover)]
    right, name = found.uncertainty, "uncertainty"
    if found.penalised is not None:
        right, name = tuple(r - p for r, p in zip(found.reward, found.penalised, strict=True)), "penalty"
        data.append(line(steps, found.penalised, "reward less penalty", BLUE, dash="dot", hover=hover))
    data.append(line(steps, right, f"{name} (right)", RED, dash="dash", hover=hover) | {"yaxis": "y2"})
    spec = layout(data, "step", "reward")
    spec["layout"]["xaxis"] |= whole_axis(len(steps))
    axis = {"overlaying": "y", "side": "right", "rangemode": "tozero", "tickmode": "auto", "nticks": 6}
    axis |= {"title": {"text": name, "standoff": 8, "font": {"color": RED}}, "tickfont": {"color": RED}}
    spec["layout"]["yaxis2"] = axis | {"showgrid": False, "zeroline": False, "automargin": True}
    spec["layout"]["yaxis"] |= {"tickfont": {"color": BLUE}}
    spec["layout"]["yaxis"]["title"] |= {"font": {"color": BLUE}}
    every = max(1, len(steps) // 10)
    rows = list(zip(steps, found.reward, found.uncertainty, right, strict=True))[::every]
    columns = ("step", "reward", "uncertainty", "penalty")[: 3 if found.penalised is None else 4]
    taken = (
        "" if found.penalised is None else " The penalty, λ times the uncertainty, is taken off the reward in training."
    )
    return Figure(
        "rollouts",
        "What the model promises along the way",
        f"Mean reward and mean {name} at each step of rollouts of the policy in the model, from public first states. "
        f"The uncertainty is {found.measure}.{taken} Where it grows, the model has less to go by.",
        spec,
        columns,
        tuple((str(row[0]), *(shown(value, ".4g") for value in row[1 : len(columns)])) for row in rows),
    )
