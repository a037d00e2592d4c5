"""Figures of the public trajectories: where they begin, and what the policy would do in their states."""

import math
from collections.abc import Sequence
from typing import Any

from primorl.report.drawing import BLUE, GREEN, GREY, Figure, box, layout, named_rows, wrapped
from primorl.report.facts import Facts


def first_states(facts: Facts) -> Figure | None:
    """Each measurement at the first row, on the scale of its range; of a category its share."""
    if not facts.first_states:
        return None
    ranges = _ranges(facts)
    labels = {
        name: wrapped(name) + ("" if name in facts.first_shares else f"<br>{low:.4g} to {high:.4g}")
        for name, (low, high) in ranges.items()
    }
    data = []
    if numbers := [name for name in facts.first_states if name not in facts.first_shares]:
        parts = [_placed(facts.first_states[name], ranges[name]) for name in numbers]
        data.append(box([labels[name] for name in numbers], parts, BLUE, name="measurement, place in its range"))
    if facts.first_shares:
        bars: dict[str, Any] = {
            "type": "bar",
            "orientation": "h",
            "marker": {"color": GREEN},
            "name": "category, share of first states",
        }
        bars |= {"x": list(facts.first_shares.values()), "y": [labels[name] for name in facts.first_shares]}
        data.append(bars | {"hovertemplate": "%{y}: %{x:.1%}<extra></extra>"})
    spec = layout(data, "place in range, or share", "", percent=True)
    spec["layout"] |= named_rows(list(labels.values()), each=40) | {"showlegend": True, "bargap": 0.5}
    spec["layout"]["xaxis"] |= {"range": [-0.02, 1.02]}
    return Figure(
        "first_states",
        "Where trajectories begin",
        "First states of the public trajectories. Of a measurement: least, quartiles and greatest, from the lower end "
        "of the range below its name (0%) to the upper (100%). It is the declared range, or that of the first states "
        "where none is declared. Of a category: its share.",
        spec,
        ("measurement", "least", "quarter", "median", "three quarters", "greatest", "share"),
        tuple(
            (name, *(f"{value:.4g}" for value in part), f"{share:.1%}" if share is not None else "")
            for name, part in facts.first_states.items()
            for share in (facts.first_shares.get(name),)
        ),
    )


def _ranges(facts: Facts) -> dict[str, tuple[float, float]]:
    """The declared range of each measurement, or that of its first states."""
    lows, highs = (facts.policy.get(f"observation_{side}") or () for side in ("low", "high"))
    found = {}
    for at, (name, part) in enumerate(facts.first_states.items()):
        declared = (lows[at], highs[at]) if at < min(len(lows), len(highs)) else (-math.inf, math.inf)
        found[name] = declared if all(map(math.isfinite, declared)) else (part[0], part[-1])
    return found


def _placed(part: Sequence[float], ends: tuple[float, float]) -> list[float]:
    """Values as shares of the way from one end to the other; the middle where both are the same."""
    low, high = ends
    return [(value - low) / (high - low) if high > low else 0.5 for value in part]


def actions(facts: Facts) -> Figure | None:
    """Actions in the public rows, and those of the policy in the same states."""
    found = facts.actions
    if found is None:
        return None
    sides = (("today, public", GREY, found.recorded), ("the policy", BLUE, found.chosen))
    names = list(map(wrapped, found.names))
    rows = named_rows(names, each=44, more=150)
    caption = "Actions in the rows of the public trajectories, and those of the policy in the same states"
    if found.discrete:
        bars = [
            {
                "type": "bar",
                "orientation": "h",
                "y": names,
                "x": [share for (share,) in side],
                "name": who,
                "marker": {"color": color},
                "hovertemplate": f"{who}, %{{y}}: %{{x:.1%}}<extra></extra>",
            }
            for who, color, side in sides
        ]
        spec = layout(bars, "share of the rows", "", percent=True)
        spec["layout"] |= rows
        shares = zip(found.names, found.recorded, found.chosen, strict=True)
        return Figure(
            "actions",
            "What the policy would do differently",
            f"{caption}: the share of each.",
            spec,
            ("action", *(who for who, _, _ in sides)),
            tuple((name, f"{today:.1%}", f"{chosen:.1%}") for name, (today,), (chosen,) in shares),
        )
    boxes = [box(names, side, color, name=who) for who, color, side in sides]
    spec = layout(boxes, "place between the bounds", "", percent=True)
    spec["layout"] |= {"boxmode": "group", **rows}
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
