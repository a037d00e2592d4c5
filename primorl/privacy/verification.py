"""The check of a privacy statement: it agrees with itself, and the accountant finds its figures in
its events.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from dp_accounting import dp_event

from primorl.base.errors import PipelineError
from primorl.base.files import finite
from primorl.base.records import printable
from primorl.privacy.accounting.epsilon import Training, compose
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.accounting.figures import deltas, figures
from primorl.privacy.composition import joint_event
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.statement import (
    Accountant,
    MechanismStatement,
    Statement,
    our_accountant,
)

OURS = our_accountant()
MOST_ROUNDS, LEAST_NOISE = 10**6, 0.1
"""Of an event that the accountant takes, so that it answers in a bounded time."""
ROUNDING = 1e-9  # of each number, between two machines with one version of the accountant
FILTER_ROUNDING = 2e-5  # of a total by the privacy filter, whose bisection stops at 1e-5
_DELTA_ROUNDING = 1e-13  # of a δ, a difference of sums near 1, however small it is; seen: 7e-16
TOLERANCE = 1e-3  # the same for an accountant of another version, whose grid may be finer

Value = TypeVar("Value")


def verify(path: Path, statement: Statement, *, curves: bool = True) -> None:
    """Check that a statement, read from ``path``, agrees with itself, and account its events again.

    Args:
        path: for messages.
        statement: of one mechanism, or of several one after another.
        curves: check profile, groups and attacks as well, which takes seconds for a new event.

    Raises:
        PipelineError: one line.
    """
    refuse_other_accountant(path, statement.accountant)
    delta = given(path, "delta", statement.delta)
    account = statement.spent_on_dataset
    largest = delta if account is None else max(delta, account.delta)
    if statement.private and largest >= 1 / statement.units and not statement.void:
        raise PipelineError(
            f"{path}: delta: {largest!r} is not below one over the units, and void does not say so"
        )
    try:
        event, numbers = _account_whole(path, statement, delta)
    except ValueError as broken:
        raise PipelineError(f"{path}: event: {broken}; `dvc repro` makes it again") from None
    if statement.event != event_to_json(event):
        what = "mechanisms in the same file together" if statement.mechanisms else "mechanism"
        raise PipelineError(f"{path}: event: not that of the {what} that the same file describes")
    for key, number in numbers.items():
        refuse_unless_equal(path, key, getattr(statement, key), number, statement.accountant)
    if curves and statement.private and (wrong := find_misstatement(statement)) is not None:
        raise PipelineError(
            f"{path}: {wrong}: not what the accountant makes of the event in the same file"
        )


def _account_whole(
    path: Path, statement: Statement, delta: float
) -> tuple[dp_event.DpEvent, dict[str, float | None]]:
    if not statement.mechanisms:
        return _account(path, statement, statement, delta)
    for number, part in enumerate(statement.mechanisms):
        if statement.private:
            event, numbers = _account(path, part, statement, delta)
            key = f"mechanisms.{number}"
            if part.event != event_to_json(event):
                raise PipelineError(f"{path}: {key}: event: not that of the mechanism it describes")
            refuse_unless_equal(
                path, f"{key}: epsilon", part.epsilon, numbers["epsilon"], statement.accountant
            )
    joint = joint_event([part.event for part in statement.mechanisms])
    if not statement.private:
        return joint, {}
    spent = compose([joint], delta)
    numbers = {"epsilon": finite(spent.epsilon_pld), "epsilon_rdp": finite(spent.epsilon_rdp)}
    return joint, numbers


def _account(
    path: Path, mechanism: Statement | MechanismStatement, by: Statement, delta: float
) -> tuple[dp_event.DpEvent, dict[str, float | None]]:
    """Account a mechanism in the statement ``by`` again from its numbers: its event, and its ε by
    both accountants.
    """
    multiplier = given(path, "noise_multiplier", mechanism.noise_multiplier)
    q = given(path, "sampling_probability", mechanism.sampling_probability)
    rounds = given(path, "rounds", mechanism.rounds)
    if rounds > MOST_ROUNDS:
        raise PipelineError(f"{path}: rounds: found {rounds}, allowed are up to {MOST_ROUNDS}")
    if not by.private:
        return dp_event.NonPrivateDpEvent(), {"epsilon": None, "epsilon_rdp": None}
    queries = tuple(query.noise_multiplier for query in mechanism.queries)
    if multiplier < LEAST_NOISE:
        raise PipelineError(f"{path}: private: true, yet without noise (≥ {LEAST_NOISE:g})")
    if min(queries, default=LEAST_NOISE) < LEAST_NOISE:
        raise PipelineError(f"{path}: private: true, yet a query without noise (≥ {LEAST_NOISE:g})")
    for query in mechanism.queries:
        alone = GaussianQuery(query.what, query.sensitivity, query.noise_multiplier)
        expected = alone.statement(delta).epsilon
        refuse_unless_equal(
            path, f"queries: {query.what}: epsilon", query.epsilon, expected, by.accountant
        )
    training = Training(q, multiplier, rounds, queries)
    spent = training.spent(delta)
    numbers = {"epsilon": finite(spent.epsilon_pld), "epsilon_rdp": finite(spent.epsilon_rdp)}
    return training.event, numbers


def find_misstatement(statement: Statement) -> str | None:
    """Name the first key of a private statement that is missing or not as the accountant finds it;
    None: none.

    Args:
        statement: with ``event`` and ``epsilon`` checked before.

    Raises:
        ValueError: the event is not of a kind that this project accounts.
    """
    assert statement.delta is not None
    accountant = statement.accountant
    found = figures(event_from_json(statement.event), statement.delta)
    if not agrees(statement.epsilon_replace_one, found.epsilon_replace_one, accountant):
        return "epsilon_replace_one"
    groups = [(group.units, group.epsilon) for group in statement.groups]
    if not _points_agree(groups, found.groups, accountant):
        return "groups"
    attacks = [
        (attack.false_positive_rate, attack.true_positive_rate) for attack in statement.attacks
    ]
    if not _points_agree(attacks, found.attacks, accountant):
        return "attacks"
    return None if _profile_holds(statement, len(found.profile)) else "profile"


def agrees(
    stated: float | None,
    accounted: float | None,
    accountant: Accountant,
    *,
    least: float = 0.0,
    rounding: float = ROUNDING,
) -> bool:
    """Tell whether a stated number (None: infinite) is the accountant's, up to ``least``.

    The same version makes the same number up to ``rounding``, relative. One of another version may
    be higher, and lower by `TOLERANCE`.
    """
    if accountant != OURS:
        return stated is None or (accounted is not None and accounted <= stated * (1 + TOLERANCE))
    if stated is None or accounted is None:
        return stated is accounted
    return math.isclose(stated, accounted, rel_tol=rounding, abs_tol=least)


def _points_agree(
    stated: Sequence[tuple[float, float | None]],
    found: Sequence[tuple[float, float | None]],
    accountant: Accountant,
) -> bool:
    if [place for place, _ in stated] != [place for place, _ in found]:
        return False
    return all(
        agrees(mine, its, accountant) for (_, mine), (_, its) in zip(stated, found, strict=True)
    )


def _profile_holds(statement: Statement, points: int) -> bool:
    """Tell whether δ at each stated ε is what the accountant finds, for so many points from 0."""
    epsilons = [point.epsilon for point in statement.profile]
    if len(epsilons) != points or epsilons != sorted(epsilons) or (epsilons and epsilons[0] != 0):
        return False
    assert statement.delta is not None
    event = event_from_json(statement.event)
    own = compose([event], statement.delta).epsilon_pld
    known = deltas(event, own, epsilons) if points else []
    for point, delta in zip(statement.profile, known, strict=True):
        # δ at its own ε, which is the accountant's to the last digit, is the stated one.
        if point.delta == statement.delta and point.epsilon in (own, statement.epsilon):
            continue
        if not agrees(point.delta, delta, statement.accountant, least=_DELTA_ROUNDING):
            return False
    return True


def given(path: Path, key: str, value: Value | None) -> Value:
    """Refuse null for a value of a statement that only a statement without a mechanism
    leaves out.
    """
    if value is None:
        raise PipelineError(
            f"{path}: not as declared: {key} (null); the statement of a mechanism has it"
        )
    return value


def refuse_other_accountant(path: Path, found: Accountant) -> None:
    """Refuse figures of another kind of accountant."""
    if found.name != OURS.name:
        raise PipelineError(
            f"{path}: accountant: name: found {printable(found.name)}, allowed is {OURS.name}"
        )


def refuse_unless_equal(
    path: Path,
    key: str,
    stated: float | None,
    accounted: float | None,
    accountant: Accountant,
    rounding: float = ROUNDING,
) -> None:
    """Refuse a stated number that is not the accounted one (None: infinite)."""
    if agrees(stated, accounted, accountant, least=1e-12, rounding=rounding):
        return
    less = accounted is None or (stated is not None and stated < accounted)
    version = "" if accountant == OURS else f" by version {printable(accountant.version)}"
    shown, allowed = (
        "infinite" if epsilon is None else repr(epsilon) for epsilon in (stated, accounted)
    )
    raise PipelineError(
        f"{path}: {key}: {'less' if less else 'more'} than the accountant makes of the events: "
        f"found {shown}{version}, allowed is {allowed}; was it edited? `dvc repro` makes it again"
    )
