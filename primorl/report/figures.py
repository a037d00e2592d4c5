"""The figures of a report as Plotly's specifications: plain dictionaries, each with the table of what it shows."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from primorl.evaluation.wording import WHOSE, discounted, plural, source
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import at_most, left_of, percent_at_most
from primorl.privacy.statement import Statement
from primorl.release.card import curve
from primorl.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    RED,
    Figure,
    band,
    layout,
    line,
    log_axis,
    named_rows,
    spread,
    whole_axis,
)
from primorl.report.facts import Facts
from primorl.report.model_figures import checks, model_error, rollouts
from primorl.report.public_figures import actions, first_states

_POINTS = 12  # of ε against rounds


def figures(facts: Facts) -> dict[str, Figure]:
    """All figures that these facts allow, by name."""
    makers: tuple[Callable[[Facts], Figure | None], ...] = (
        _attack,
        _values,
        _learning,
        model_error,
        checks,
        rollouts,
        first_states,
        actions,
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
        line(x, y, "no attack is above this line", RED, hover="%{text}")
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
            f"named, of {plural(unit)} not in it",
            "found, of those in it",
            percent=True,
        ),
        ("wrongly named", "found, at most"),
        tuple((f"{rate:.0%}", percent_at_most(power)) for rate, power in listed),
    )


def _values(facts: Facts) -> Figure | None:
    marked = discounted(facts.discount)
    summary = facts.summary
    rows = [
        (f"{WHOSE[each['of']]}, by {source(each)}{marked}", each["value"], each["ci95"], each["of"], False)
        for each in summary.get("private_evaluation", ())
        if each["estimator"] != "model"
    ]
    rows += [
        (f"{WHOSE[each['of']]}, in the model{marked}", each["value"], _range(each), each["of"], True)
        for each in summary.get("private_evaluation", ())
        if each["estimator"] == "model" and each["of"] != "policy"  # below, with its range
    ]
    answered = bool(rows)
    if summary["return_mean"] is not None:
        rows.append(("the policy, in the simulator", summary["return_mean"], summary["return_ci95"], "policy", False))
    elif summary.get("model_value") is not None:
        rows.append(("the policy, in the model", summary["model_value"], summary["model_value_range"], "policy", True))
    if summary.get("public_return_mean") is not None:
        named, mean = f"today's practice, {summary['public_trajectories']} public", summary["public_return_mean"]
        rows.append((named, mean, summary["public_return_ci95"], "behaviour", False))
    if not rows:
        return None
    rows.sort(key=lambda row: list(WHOSE).index(row[3]))
    labels = [name.replace(", ", ",<br>") for name, *_ in rows]
    data: list[dict[str, Any]] = []
    for by_model, legend in ((False, "with its 95% interval"), (True, "in the model, range over its members")):
        for policy, color in ((False, GREY), (True, BLUE)):
            own = [
                (label, mean, *(ends or (mean, mean)))
                for label, (_, mean, ends, of, free) in zip(labels, rows, strict=True)
                if (free, of == "policy") == (by_model, policy)
            ]
            if own:
                said = {"legendgroup": legend, "showlegend": not any(each["name"] == legend for each in data)}
                data.append(spread(own, legend, color, hollow=by_model, interval=not by_model) | said)
    spec = layout(data, "mean return", "")
    spec["layout"] |= named_rows(labels, each=55 if answered and marked else 45)
    return Figure(
        "values",
        "What people get today, and under the policy",
        "Mean return of each: a full circle with its 95% interval, or a ring where the released model computed it, "
        "with the range over the members of the ensemble, which is no interval. The policy is blue."
        f"{' What is discounted does not compare with what is not.' if answered and marked else ''}",
        spec,
        ("whose", "mean return", "interval or range"),
        tuple((name, f"{mean:.4g}", _ends(ends, free)) for name, mean, ends, _, free in rows),
    )


def _range(answer: Mapping[str, Any]) -> tuple[float, float] | None:
    members = answer.get("members")
    return (min(members), max(members)) if members else None


def _ends(ends: Sequence[float] | None, by_model: bool) -> str:
    return "none" if ends is None else f"[{ends[0]:.4g}, {ends[1]:.4g}]{' (members)' if by_model else ''}"


def _learning(facts: Facts) -> Figure | None:
    if not facts.curve:
        return None
    summary, (*before, final) = facts.summary, facts.curve
    measured = summary["return_mean"] is not None
    where = "in the simulator" if measured else "in the released model"
    interval = "95% interval" if measured else "range over members"
    most = summary.get("episodes" if measured else "model_value_rollouts")
    count = f"{most or 'more'} {'episodes' if measured else 'rollouts in each member'}"
    data = []
    if before:
        epochs, values = [point.number for point in before], [point.value for point in before]
        data += [
            band(epochs, [point.low for point in before], [point.high for point in before], interval),
            line(epochs, values, "after each epoch", BLUE, mode="lines+markers", hover="epoch %{x}: %{y:.4g}"),
        ]
    behaviour = summary.get("public_return_mean")
    if behaviour is not None:
        ends = (facts.curve[0].number, final.number)
        data.append(line(ends, (behaviour, behaviour), "today, public", GREY, dash="dash"))
    last = line((final.number,), (final.value,), "final policy", RED, mode="markers", hover="final policy: %{y:.4g}")
    last["marker"] |= {"symbol": "diamond", "size": 11}
    rise, fall = [final.high - final.value], [final.value - final.low]
    last["error_y"] = {"type": "data", "symmetric": False, "array": rise, "arrayminus": fall, "color": RED}
    spec = layout([*data, last], "epoch", "value")
    spec["layout"]["xaxis"] |= whole_axis(final.number)
    return Figure(
        "learning",
        "How the policy was learned",
        f"Value of the policy {where} after each epoch, with its {interval}. The diamond is the final policy, over "
        f"{count}; the points before it are averages over fewer (evaluation.epoch_episodes) and vary more. A step "
        "between the last point and the diamond may come from that alone.",
        spec,
        ("epoch", "value", "interval" if measured else "range"),
        tuple((str(p.number), f"{p.value:.4g}", f"[{p.low:.4g}, {p.high:.4g}]") for p in facts.curve),
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
    spec["layout"]["xaxis"] |= whole_axis(len(numbers))
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
    spec["layout"]["xaxis"] |= log_axis([epsilon for _, epsilon, _, _ in known if epsilon is not None])
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
