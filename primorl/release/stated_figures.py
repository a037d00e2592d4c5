"""Whether the figures of a statement (profile, groups, attacks, replace-one) are those of its own event."""

from functools import partial

from primorl.privacy.accounting.epsilon import ACCOUNTANT
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.accounting.figures import deltas, figures
from primorl.privacy.statement import Accountant, Statement

_ROUNDING = 1e-9  # of each number, between two machines with one version of the accountant
_TOLERANCE = 1e-3  # the same for an accountant of another version


def understated(statement: Statement) -> str | None:
    """The first key of a private statement that is missing, or promises more than the accountant finds; None: none.

    Args:
        statement: whose ``event`` and ``epsilon`` were checked before.

    Raises:
        ValueError: the event is not of a kind that this project accounts.
    """
    assert statement.epsilon is not None
    assert statement.delta is not None
    event = event_from_json(statement.event)
    tolerance = _ROUNDING if statement.accountant == Accountant(**ACCOUNTANT) else _TOLERANCE
    covers = partial(_covers, tolerance)
    found = figures(event, statement.delta)
    if not covers(statement.epsilon_replace_one, found.epsilon_replace_one):
        return "epsilon_replace_one"
    if [group.units for group in statement.groups] != [units for units, _ in found.groups] or not all(
        covers(group.epsilon, epsilon) for group, (_, epsilon) in zip(statement.groups, found.groups, strict=True)
    ):
        return "groups"
    if [attack.false_positive_rate for attack in statement.attacks] != [rate for rate, _ in found.attacks] or not all(
        covers(attack.true_positive_rate, power)
        for attack, (_, power) in zip(statement.attacks, found.attacks, strict=True)
    ):
        return "attacks"
    epsilons = [point.epsilon for point in statement.profile]
    if len(epsilons) != len(found.profile) or epsilons != sorted(epsilons) or (epsilons and epsilons[0] != 0):
        return "profile"
    if epsilons:
        known = deltas(event, statement.epsilon, epsilons)
        for point, delta in zip(statement.profile, known, strict=True):
            # Its own point is ε and δ of the statement: ε is the accountant's, to its last digit.
            own = (point.epsilon, point.delta) == (statement.epsilon, statement.delta)
            if not own and not covers(point.delta, delta):
                return "profile"
    return None


def _covers(tolerance: float, stated: float | None, accounted: float | None) -> bool:
    """Whether a stated number (None: infinite) is at least the accounted one."""
    return stated is None or (accounted is not None and accounted <= stated * (1 + tolerance))
