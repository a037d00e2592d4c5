"""The figures of a report as Plotly's specifications: plain dictionaries, each with the table of what it shows."""

import math
from collections.abc import Callable, Iterator

from primorl.evaluation.wording import WHOSE, discounted, plural, source
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import at_most, left_of, percent_at_most
from primorl.privacy.statement import Statement
from primorl.release.card_meaning import curve
from primorl.report.drawing import BLUE, GREEN, GREY, RED, Figure, box, layout, line, shown
from primorl.report.facts import Facts

_POINTS = 12  # of ε against rounds


def figures(facts: Facts) -> dict[str, Figure]:
    """All figures that these facts allow, by name."""
    makers: tuple[Callable[[Facts], Figure | None], ...] = (
        _attack,
        _values,
        _learning,
        _model_error,
        _rollouts,
        _first_states,
        _actions,
        _rounds,
        _budget,
        _others,
    )
    return {figure.name: figure for make in makers if (figure := make(facts)) is not None}


def _attack(facts: Facts) -> Figure | None:
    points = curve(facts.released) if facts.sound else ()
    if not points:
        return None
    x, y = zip(*points, strict=True)
    unit = facts.statement.unit
    data = [
        line(x, y, "best possible attack", RED, hover="%{text}")
        | {"text": [f"names {rate:.1%} wrongly, finds at most {percent_at_most(power)}" for rate, power in points]},
        line((0, 1), (0, 1), "blind guessing", GREY, dash="dash"),
    ]
    listed = [(rate, power) for rate, power in points if round(rate, 3) in (0.01, 0.05, 0.1, 0.2, 0.5)]
    return Figure(
        "attack",
        f"What an attack can find out about one {unit}",
        f"An attack says of each {unit} whether it was in the data. The nearer the orange line is to the dashed one, "
        f"the less an attack learns from {facts.counted}. No attack on them can be above the orange line.",
        layout(
            data,
            f"named, of {plural(unit)} not in the data",
            "found, of those in the data",
            percent=True,
        ),
        ("wrongly named", "found, at most"),
        tuple((f"{rate:.0%}", percent_at_most(power)) for rate, power in listed),
    )


def _values(facts: Facts) -> Figure | None:
    marked = discounted(facts.discount)
    rows = [
        (f"{WHOSE[each['of']]}, by {source(each)}{marked}", each["value"], each["ci95"])
        for each in facts.summary.get("private_evaluation", ())
        if (each["of"], each["estimator"]) != ("policy", "model")  # below, with its range
    ]
    answered = bool(rows)
    summary = facts.summary
    if summary["return_mean"] is not None:
        rows.append(("the policy, in the simulator", summary["return_mean"], summary["return_ci95"]))
    elif summary.get("model_value") is not None:
        rows.append(("the policy, in the model", summary["model_value"], summary["model_value_range"]))
    if summary.get("public_return_mean") is not None:
        count = summary["public_trajectories"]
        rows.append((f"today's practice, {count} public", summary["public_return_mean"], summary["public_return_ci95"]))
    if not rows:
        return None
    names, means = [name for name, _, _ in rows], [mean for _, mean, _ in rows]
    ends = [interval or (mean, mean) for _, mean, interval in rows]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": means,
            "y": names,
            "marker": {"size": 10, "color": [BLUE if "policy" in name else GREY for name in names]},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [high - mean for mean, (_, high) in zip(means, ends, strict=True)],
                "arrayminus": [mean - low for mean, (low, _) in zip(means, ends, strict=True)],
                "color": GREY,
            },
            "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
            "showlegend": False,
        }
    ]
    spec = layout(data, "mean return", "")
    spec["layout"] |= {"height": 140 + 45 * len(rows)}
    spec["layout"]["yaxis"] |= {"automargin": True, "autorange": "reversed"}
    return Figure(
        "values",
        "What people get today, and under the policy",
        "Mean return of each, with its 95% interval where there is one; in the model the range over the members of the "
        f"ensemble.{' What is discounted does not compare with what is not.' if answered and marked else ''}",
        spec,
        ("whose", "mean return", "interval"),
        tuple(
            (name, f"{mean:.4g}", "none" if interval is None else f"[{interval[0]:.4g}, {interval[1]:.4g}]")
            for name, mean, interval in rows
        ),
    )


def _learning(facts: Facts) -> Figure | None:
    if not facts.curve:
        return None
    epochs = [point.number for point in facts.curve]
    low, high = [point.low for point in facts.curve], [point.high for point in facts.curve]
    values = [point.value for point in facts.curve]
    where = "in the simulator" if facts.summary["return_mean"] is not None else "in the released model"
    band = {
        "type": "scatter",
        "x": [*epochs, *reversed(epochs)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": "rgba(0,114,178,0.15)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "name": "interval",
    }
    data = [band, line(epochs, values, f"value {where}", BLUE, mode="lines+markers", hover="epoch %{x}: %{y:.4g}")]
    behaviour = facts.summary.get("public_return_mean")
    if behaviour is not None:
        data.append(
            line((epochs[0], epochs[-1]), (behaviour, behaviour), "today's practice, public", GREY, dash="dash")
        )
    return Figure(
        "learning",
        "How the policy was learned",
        f"Value of the policy {where} after each epoch, with its interval. The last point is the final policy. The "
        "others are averages over `evaluation.epoch_episodes` episodes or rollouts; with few of them they vary more.",
        layout(data, "epoch", "value"),
        ("epoch", "value", "interval"),
        tuple((str(p.number), f"{p.value:.4g}", f"[{p.low:.4g}, {p.high:.4g}]") for p in facts.curve),
    )


def _model_error(facts: Facts) -> Figure | None:
    if not facts.model_error:
        return None
    names, errors = list(facts.model_error), list(facts.model_error.values())
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": errors,
        "y": names,
        "marker": {"color": BLUE},
        "hovertemplate": "%{y}: %{x:.2%}<extra></extra>",
        "showlegend": False,
    }
    spec = layout([bars], "error, as a share of what varies", "")
    spec["layout"]["xaxis"] |= {"type": "log", "tickformat": "~%"}
    spec["layout"]["yaxis"] |= {"automargin": True, "autorange": "reversed"}
    spec["layout"] |= {"height": 140 + 26 * len(names)}
    return Figure(
        "model_error",
        "How well the model predicts the next step",
        "Mean squared error on the public split, one bar for each measurement and the reward. At 100% the model knows "
        "no more than the average.",
        spec,
        ("what", "error"),
        tuple((name, shown(error, ".2%")) for name, error in facts.model_error.items()),
    )


def _rollouts(facts: Facts) -> Figure | None:
    found = facts.rollouts
    if found is None:
        return None
    steps = list(range(1, len(found.reward) + 1))
    data = [
        line(steps, found.reward, "reward", BLUE, hover="step %{x}: %{y:.4g}"),
        line(steps, found.uncertainty, "uncertainty", RED, hover="step %{x}: %{y:.4g}") | {"yaxis": "y2"},
    ]
    spec = layout(data, "step", "reward")
    right = {"title": {"text": "uncertainty"}, "overlaying": "y", "side": "right", "rangemode": "tozero"}
    spec["layout"]["yaxis2"] = right | {"showgrid": False, "automargin": True}
    every = max(1, len(steps) // 10)
    return Figure(
        "rollouts",
        "What the model promises along the way",
        "Mean reward and mean uncertainty of the model at each step of rollouts of the policy, from public first "
        f"states. The uncertainty is `{found.measure}`. Where it grows, the model has less to go by.",
        spec,
        ("step", "reward", "uncertainty"),
        tuple(
            (str(step), shown(reward, ".4g"), shown(doubt, ".4g"))
            for step, reward, doubt in list(zip(steps, found.reward, found.uncertainty, strict=True))[::every]
        ),
    )


def _first_states(facts: Facts) -> Figure | None:
    if not facts.first_states:
        return None
    names, parts = list(facts.first_states), list(facts.first_states.values())
    spec = layout([box(names, parts, BLUE)], "value, in the log's units", "")
    spec["layout"]["yaxis"] |= {"automargin": True, "autorange": "reversed"}
    spec["layout"] |= {"height": 140 + 34 * len(names)}
    return Figure(
        "first_states",
        "Where trajectories begin",
        "First states of the public trajectories: least, quartiles and greatest of each measurement.",
        spec,
        ("measurement", "least", "quarter", "median", "three quarters", "greatest"),
        tuple((name, *(f"{value:.4g}" for value in part)) for name, part in facts.first_states.items()),
    )


def _actions(facts: Facts) -> Figure | None:
    found = facts.actions
    if found is None:
        return None
    sides = (("today, public", GREY, found.recorded), ("the policy", BLUE, found.chosen))
    size = {"height": 170 + 44 * min(len(found.names), 30), "margin": {"l": 60, "r": 20, "t": 40, "b": 60}}
    size |= {"legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"}}
    caption = "Actions in the rows of the public trajectories, and those of the policy in the same states"
    if found.discrete:
        bars = [
            {
                "type": "bar",
                "orientation": "h",
                "y": list(found.names),
                "x": [share for (share,) in side],
                "name": who,
                "marker": {"color": color},
                "hovertemplate": f"{who}, %{{y}}: %{{x:.1%}}<extra></extra>",
            }
            for who, color, side in sides
        ]
        spec = layout(bars, "share of the rows", "", percent=True)
        spec["layout"]["xaxis"] |= {"tickformat": ".0%"}
        spec["layout"]["yaxis"] |= {"automargin": True, "autorange": "reversed", "type": "category"}
        shares = zip(found.names, found.recorded, found.chosen, strict=True)
        return Figure(
            "actions",
            "What the policy would do differently",
            f"{caption}: the share of each.",
            spec | {"layout": spec["layout"] | size},
            ("action", *(who for who, _, _ in sides)),
            tuple((name, f"{today:.1%}", f"{chosen:.1%}") for name, (today,), (chosen,) in shares),
        )
    boxes = [box(found.names, side, color, name=who) for who, color, side in sides]
    spec = layout(boxes, "share of the range between the bounds", "", percent=True)
    spec["layout"] |= {"boxmode": "group", **size}
    spec["layout"]["yaxis"] |= {"automargin": True, "autorange": "reversed", "type": "category"}
    return Figure(
        "actions",
        "What the policy would do differently",
        f"{caption}: least, quartiles and greatest, from the lower bound (0%) to the upper (100%). Where the policy is "
        "often at a bound (within 1% of the range), check that the bound is safe and the model can be believed there.",
        spec,
        ("action", "whose", "least", "quarter", "median", "three quarters", "greatest", "at a bound"),
        tuple(
            (name, who, *(f"{level:.1%}" for level in side[at]), f"{found.at_bound[who_at][at]:.1%}")
            for at, name in enumerate(found.names)
            for who_at, (who, _, side) in enumerate(sides)
        ),
    )


def _rounds(facts: Facts) -> Figure | None:
    points = list(_epsilon_by_round(facts.training))
    if not points:
        return None
    rounds, epsilons = zip(*points, strict=True)
    return Figure(
        "rounds",
        "ε of the model by rounds",
        "What the training of the model had spent after so many rounds. All rounds are paid for beforehand, also where "
        "training ends early.",
        layout(
            [
                line(rounds, epsilons, "ε", BLUE, mode="lines+markers", hover="%{text}")
                | {"text": [f"{done} rounds: ε {at_most(epsilon)}" for done, epsilon in points]}
            ],
            "rounds",
            "ε",
        ),
        ("rounds", "ε"),
        tuple((str(done), at_most(epsilon)) for done, epsilon in points),
    )


def _epsilon_by_round(statement: Statement) -> Iterator[tuple[int, float]]:
    q, z, T = statement.sampling_probability, statement.noise_multiplier, statement.rounds
    if not statement.sound or q is None or z is None or T is None or statement.delta is None:
        return
    queries = tuple(query.noise_multiplier for query in statement.queries)
    for done in sorted({max(1, round(T * step / _POINTS)) for step in range(1, _POINTS + 1)}):
        yield done, Training(q, z, done, queries).spent(statement.delta).epsilon_pld


def _budget(facts: Facts) -> Figure | None:
    spending = facts.spending
    if spending is None or not spending.charges:
        return None
    # ε is infinite after a run without a guarantee, and JSON has no such number
    drawn = [total if math.isfinite(total) else None for _, _, total in spending.charges]
    numbers = list(range(1, len(spending.charges) + 1))
    totals = [total for _, _, total in spending.charges]
    hovers = [f"{stage}, {day}: ε {at_most(total)} in all" for stage, day, total in spending.charges]
    data = [
        line(numbers, drawn, "spent", BLUE, mode="lines+markers")
        | {"line": {"shape": "hv", "color": BLUE}, "text": hovers, "hovertemplate": "%{text}<extra></extra>"}
    ]
    left = "There is no budget: privacy.budget.epsilon is null."
    if spending.budget is not None:
        most = spending.budget
        data.append(line((numbers[0], numbers[-1]), (most, most), "budget", RED, dash="dash"))
        left = f"The budget is ε {at_most(most)}; {left_of(most, totals[-1])} is left."
    spec = layout(data, "charge", "ε in all")
    spec["layout"]["xaxis"] |= {"tickformat": "d", "tick0": 1, "dtick": max(1, len(numbers) // 10)}
    spec["layout"]["yaxis"] |= {"rangemode": "tozero"}
    return Figure(
        "budget",
        "What was spent over time",
        f"ε of all charges on the same units, after each charge, at δ {at_most(spending.delta)}. {left}",
        spec,
        ("charge", "stage", "day", "ε in all"),
        tuple(
            (str(n), stage, day, at_most(total))
            for n, (stage, day, total) in zip(numbers, spending.charges, strict=True)
        ),
    )


def _others(facts: Facts) -> Figure | None:
    known, data = facts.compared, []
    for who, color in (("simulator", BLUE), ("private units", GREEN), ("model", GREY)):
        own = [(name, epsilon, value) for name, epsilon, value, by in known if by == who and epsilon is not None]
        if own:
            names, epsilons, values = zip(*own, strict=True)
            data.append(
                line(epsilons, values, f"by the {who}", color, mode="markers")
                | {
                    "text": [f"{name}<br>ε {at_most(e)}" for name, e in zip(names, epsilons, strict=True)],
                    "hovertemplate": "%{text}: %{y:.4g}<extra></extra>",
                }
            )
    if not data:
        return None
    spec = layout(data, "ε of the policy", "value")
    spec["layout"]["xaxis"] |= {"type": "log"}
    return Figure(
        "others",
        "Other results on the same data",
        "Value against ε of every result that MLflow knows of. Whoever picks one of them has seen all of them: what "
        f"counts then is the ε of all together. {_together(facts)}",
        spec,
        ("result", "ε", "value", "by"),
        tuple(
            (name, "none" if epsilon is None else at_most(epsilon), f"{value:.4g}", by)
            for name, epsilon, value, by in known
        ),
    )


def _together(facts: Facts) -> str:
    """What all results cost, and whether the bound at the top of the page counts them."""
    units = plural(facts.statement.unit)
    if facts.spending is None or not facts.spending.charges:
        return (
            "It is not known here: there is no ledger with charges on these data. The bound at the top of the page "
            f"counts {facts.counted}, and nothing else."
        )
    *_, epsilon = facts.spending.charges[-1]
    spent = f"ε = {at_most(epsilon)} at δ = {at_most(facts.spending.delta)}"
    bound = (
        "the bound at the top of the page counts them all" if facts.sound else "no bound holds for all that is shown"
    )
    return (
        f"All charges on these {units} in the ledger come to {spent}, and {bound}. A result that another ledger paid "
        "for comes on top."
    )
