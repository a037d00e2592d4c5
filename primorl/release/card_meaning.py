"""The part of a model card that says what an attack can find out: from the privacy profile, never from ε and δ alone.

ε and δ do not say how often an attack is right. The figures of the statement do: they are computed by the accountant
(`primorl.privacy.accounting.figures`), and this module only puts them into words, every number rounded up.
"""

from collections.abc import Mapping
from typing import Any

from primorl.privacy.accounting.figures import posterior, true_positive_rate
from primorl.privacy.accounting.rounding import at_most, percent_at_most
from primorl.release.card import Row, Section

_PRIORS = (0.01, 0.1, 0.5)
_CURVE = (0.0, 0.002, 0.005, *(j / 100 for j in range(1, 10)), *(j / 50 for j in range(5, 51)))
_NO_PROTECTION = 20.0  # ε


def meaning(statement: Mapping[str, Any], units: str, what: str = "this bundle") -> Section:
    """What an attack on what was released can find out.

    Args:
        statement: ``privacy.json``.
        units: plural of the unit.
        what: the attack studies.
    """
    heading = "What an attack can find out"
    if not statement["private"]:
        return Section(heading, ("No bound holds: somebody who studies these files may learn single records.",))
    unit, epsilon = statement["unit"], statement["epsilon"]
    points = [
        f"An attack studies {what} and names {units} that it takes to have been in the data. The table bounds "
        "every attack, whatever its computing power and whatever else it knows.",
        "Blind guessing finds the same share that it wrongly names.",
    ]
    if statement["void"]:
        points.insert(0, "None of this may be relied on: see what is void.")
    if epsilon > _NO_PROTECTION:
        points.append(
            f"At ε = {at_most(epsilon)} there is next to no protection: an attack may be practically certain."
        )
    points += _groups(statement, unit, units)
    points.append(f"A smaller ε is stronger; at ε = 0 and δ = 0 {what} would tell nothing about any one of them.")
    return Section(heading, tuple(points), tuple(_attack(attack) for attack in statement.get("attacks", ())))


def success(statement: Mapping[str, Any]) -> float | None:
    """In percent, how often at most a guess at even odds is right: (1 + δ(0)) / 2. None: the profile is missing."""
    for point in statement.get("profile", ()):
        if point["epsilon"] == 0:
            return float(percent_at_most((1 + point["delta"]) / 2).rstrip("%"))
    return None


def curve(statement: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    """The trade-off curve: false positive rates, and the largest true positive rates that the profile allows."""
    profile = [(point["epsilon"], point["delta"]) for point in statement.get("profile", ())]
    return tuple((rate, true_positive_rate(profile, rate)) for rate in _CURVE) if profile else ()


def profile_row(statement: Mapping[str, Any]) -> str:
    """The privacy profile on one line; both numbers of a pair are rounded up, which leaves each pair true."""
    points = statement.get("profile", ())
    return "; ".join(f"({at_most(point['epsilon'])}, {at_most(point['delta'], 2)})" for point in points) or "not stated"


def _attack(attack: Mapping[str, Any]) -> Row:
    rate, power = attack["false_positive_rate"], attack["true_positive_rate"]
    crowd = round(max(100, 1 / rate))
    beliefs = ", ".join(f"{percent_at_most(posterior(prior, rate, power))} (from {prior:.0%})" for prior in _PRIORS)
    return (
        f"of {crowd:,} that were not in the data, it names {rate * crowd:.0f}",
        f"of {crowd:,} that were, it finds at most {at_most(power * crowd)}; belief that a named one was in the data "
        f"rises to at most {beliefs}",
    )


def _groups(statement: Mapping[str, Any], unit: str, units: str) -> list[str]:
    groups = statement.get("groups", ())
    if not groups:
        return [f"Somebody who is in the data as several {units} is protected less; by how much is not stated here."]
    listed = ", ".join(f"{at_most(group['epsilon'])} for {group['units']}" for group in groups)
    own, declared = at_most(statement["epsilon"]), statement.get("trajectories_per_person")
    most = () if declared is None else (f"As declared, nobody has more than {declared:,} trajectories in the data.",)
    return [
        f"Somebody who is in the data as several {units} is protected less: at the same δ, ε is {own} for one {unit}, "
        f"{listed}.",
        *most,
    ]
