"""A statement whose figures are not those of its event is found out, key by key."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from primorl.base.files import write_json
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.accounting.figures import figures
from primorl.privacy.statement import (
    AttackPoint,
    GroupPoint,
    ProfilePoint,
    Statement,
    our_accountant,
)
from primorl.privacy.verification import find_misstatement
from tests.statements import PRIVATE

EVENT = Training(0.1, 8.763, 150).event


@pytest.fixture(scope="module")
def statement(tmp_path_factory: pytest.TempPathFactory) -> Statement:
    folder = tmp_path_factory.mktemp("statement")
    write_json(folder / "privacy.json", PRIVATE)
    found = figures(EVENT, 1e-5)
    (epsilon,) = [epsilon for epsilon, delta in found.profile if delta == 1e-5]
    return replace(
        Statement.read(folder),
        epsilon=epsilon,
        event=event_to_json(EVENT),
        epsilon_replace_one=found.epsilon_replace_one,
        profile=tuple(ProfilePoint(epsilon=e, delta=d) for e, d in found.profile),
        groups=tuple(GroupPoint(units=k, epsilon=e) for k, e in found.groups),
        attacks=tuple(
            AttackPoint(false_positive_rate=a, true_positive_rate=b) for a, b in found.attacks
        ),
    )


def scaled(points: tuple[Any, ...], place: int, key: str, factor: float = 0.9) -> tuple[Any, ...]:
    changed = replace(points[place], **{key: factor * getattr(points[place], key)})
    return (*points[:place], changed, *points[place + 1 :])


LESS: list[tuple[str, Callable[[Any], object]]] = [
    ("epsilon_replace_one", lambda s: 0.9 * s.epsilon_replace_one),
    ("groups", lambda s: scaled(s.groups, 1, "epsilon")),
    ("groups", lambda s: s.groups[:2]),
    ("attacks", lambda s: scaled(s.attacks, 2, "true_positive_rate")),
    ("attacks", lambda _: ()),
    ("profile", lambda s: scaled(s.profile, 4, "epsilon")),
    ("profile", lambda s: s.profile[1:]),
    ("profile", lambda _: ()),
]
MORE: list[tuple[str, Callable[[Any], object]]] = [
    ("epsilon_replace_one", lambda s: 1.001 * s.epsilon_replace_one),
    ("groups", lambda s: scaled(s.groups, 1, "epsilon", 1.001)),
    ("attacks", lambda s: scaled(s.attacks, 2, "true_positive_rate", 1.001)),
]


def test_a_figure_that_promises_more_is_named_and_one_version_makes_the_same_figures(
    statement: Statement,
) -> None:
    """Twins: the accountant's own pass; of another version, a figure that promises less may be its
    own.
    """
    ours = replace(statement, accountant=our_accountant())
    assert find_misstatement(statement) is find_misstatement(ours) is None
    for key, change in LESS:
        assert find_misstatement(replace(statement, **{key: change(statement)})) == key
    for key, change in MORE:
        assert find_misstatement(replace(ours, **{key: change(statement)})) == key
        assert find_misstatement(replace(statement, **{key: change(statement)})) is None
    assert (
        find_misstatement(replace(ours, profile=scaled(ours.profile, 10, "delta", 1.001)))
        == "profile"
    )
