"""Checks of the figures of a statement (profile, groups, attacks, replace-one) against its own event."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from primorl.base.errors import PipelineError
from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.accounting.figures import deltas, figures
from primorl.privacy.composition import check_parts, joint_event
from primorl.privacy.statement import FILE, Accountant, Statement, our_accountant

OURS = our_accountant()
ROUNDING = 1e-9  # of each number, between two machines with one version of the accountant
FILTER_ROUNDING = 2e-5  # of a total by the privacy filter, whose bisection stops at 1e-5
_DELTA_ROUNDING = 1e-13  # of a δ, a difference of sums near 1, however small it is; seen: 7e-16
TOLERANCE = 1e-3  # the same for an accountant of another version, whose grid may be finer
_EDITED = "was it edited? `dvc repro` makes it again"


def check_with_parts(
    folder: Path, statement: Statement, parts: Mapping[str, Statement], *, near_clone: bool
) -> None:
    """Check a policy's statement against those of model and clone, and all figures against their events.

    Args:
        folder: of the policy.
        statement: its own, private.
        parts: statements by folder, the model's first, then the clone's.
        near_clone: the policy was chosen near the clone, so its statement must count both.
    """
    path = folder / FILE
    _refuse_without_clone(path, statement, near_clone=near_clone)
    for place, each in {str(folder): statement, **parts}.items():
        if each.private:
            check_epsilon(Path(place) / FILE, each)
    try:
        check_parts(path, statement, parts)
    except ValueError as broken:
        raise PipelineError(f"{path}: event: {broken}; `dvc repro` makes it again") from None
    _refuse_misstated(path, statement)


def check_alone(path: Path, statement: Statement, *, near_clone: bool) -> None:
    """Check a private statement where the releases that it was made from are not there: all figures by its event."""
    _refuse_without_clone(path, statement, near_clone=near_clone)
    check_epsilon(path, statement)
    if statement.mechanisms:
        try:
            joint = event_to_json(joint_event([part.event for part in statement.mechanisms]))
        except ValueError as broken:
            raise PipelineError(
                f"{path}: mechanisms: {broken}; `dvc repro` makes it again"
            ) from None
        if statement.event != joint:
            raise PipelineError(
                f"{path}: event: not that of the mechanisms in the same file together; {_EDITED}"
            )
    _refuse_misstated(path, statement)


def _refuse_without_clone(path: Path, statement: Statement, *, near_clone: bool) -> None:
    if near_clone and not statement.mechanisms:
        raise PipelineError(
            f"{path}: mechanisms: found none, yet the policy was chosen near a clone; run `dvc repro`"
        )


def _refuse_misstated(path: Path, statement: Statement) -> None:
    wrong = misstated(statement)
    if wrong is not None:
        raise PipelineError(
            f"{path}: {wrong}: not what the accountant makes of the event in the same file; {_EDITED}"
        )


def check_epsilon(path: Path, statement: Statement) -> None:
    """Refuse an ε of a private statement below the accountant's ε of the event in the same file."""
    try:
        epsilon = compose([event_from_json(statement.event)], statement.delta or 0.0).epsilon_pld
    except ValueError as broken:
        raise PipelineError(f"{path}: event: {broken}; `dvc repro` makes it again") from None
    if not _covers(
        statement.epsilon, epsilon, ROUNDING if statement.accountant == OURS else TOLERANCE
    ):
        raise PipelineError(
            f"{path}: epsilon: found {statement.epsilon!r}, less than the accountant makes of the event in the same "
            f"file ({epsilon!r}); {_EDITED}"
        )


def misstated(statement: Statement) -> str | None:
    """Name the first key of a private statement that is missing or not as the accountant finds it; None: none.

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
    if not _points_agree(
        [(group.units, group.epsilon) for group in statement.groups], found.groups, accountant
    ):
        return "groups"
    attacks = [
        (attack.false_positive_rate, attack.true_positive_rate) for attack in statement.attacks
    ]
    if not _points_agree(attacks, found.attacks, accountant):
        return "attacks"
    return None if _profile_holds(statement, found.profile) else "profile"


def agrees(
    stated: float | None,
    accounted: float | None,
    accountant: Accountant,
    *,
    least: float = 0.0,
    rounding: float = ROUNDING,
) -> bool:
    """Tell whether a stated number (None: infinite) is the accountant's, up to ``least``.

    The same version makes the same number up to ``rounding``, relative. One of another version may be higher, and lower
    by `TOLERANCE`.
    """
    if accountant != OURS:
        return _covers(stated, accounted, TOLERANCE)
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


def _profile_holds(statement: Statement, found: Sequence[tuple[float, float]]) -> bool:
    """Tell whether the pairs are those that the accountant finds; another version may use another grid."""
    stated = [(point.epsilon, point.delta) for point in statement.profile]
    epsilons = [epsilon for epsilon, _ in stated]
    if len(stated) != len(found) or epsilons != sorted(epsilons) or (epsilons and epsilons[0] != 0):
        return False
    if statement.accountant == OURS:
        return all(
            agrees(mine[0], its[0], OURS) and agrees(mine[1], its[1], OURS, least=_DELTA_ROUNDING)
            for mine, its in zip(stated, found, strict=True)
        )
    assert statement.epsilon is not None
    known = deltas(event_from_json(statement.event), statement.epsilon, epsilons)
    own = (statement.epsilon, statement.delta)  # its ε is the accountant's, to the last digit
    return all(
        point == own or _covers(point[1], delta, TOLERANCE)
        for point, delta in zip(stated, known, strict=True)
    )


def _covers(stated: float | None, accounted: float | None, tolerance: float) -> bool:
    """Tell whether a stated number (None: infinite) is at least the accounted one."""
    return stated is None or (accounted is not None and accounted <= stated * (1 + tolerance))
