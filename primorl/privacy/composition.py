"""Composition: the statement of a result of several releases."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dp_accounting import dp_event

from primorl.base.errors import PipelineError
from primorl.privacy.accounting.epsilon import compose, flat
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.accounting.figures import stated
from primorl.privacy.statement import NO_ROUNDS, MechanismStatement, Statement

SHARED = (
    "unit",
    "units",
    "neighboring_relation",
    "dataset_fingerprint",
    "accountant",
    "delta",
    "public_units",
)
"""Keys that are the same in all statements of one version of the data."""

FIGURES = ("epsilon", "epsilon_rdp", "epsilon_replace_one", "profile", "groups", "attacks")
"""Keys that the accountant computes from the event."""

BEFOREHAND = (
    "that the settings of all mechanisms were fixed before any result was seen; else "
    "spent_on_dataset holds"
)
"""Assumption of the ε of several mechanisms together; `Statement.spent_on_dataset` does
without it.
"""


HOLDS_SCALES = (
    "that models/dynamics is released as well: these files hold its scales, whose cost is in its "
    "own statement; of both together spent_on_dataset holds"
)
"""Assumption of the ε of a clone that acts in the scales of the released model."""


def mechanism(what: str, statement: Statement) -> MechanismStatement:
    """Make the entry of one mechanism from its own statement."""
    own = {
        each.name: getattr(statement, each.name)
        for each in fields(MechanismStatement)
        if each.name != "what"
    }
    return MechanismStatement(what=what, **own)


def compose_statement(statements: Mapping[str, Statement]) -> Statement:
    """Make the statement of a result of several releases, by folder, and of nothing else.

    Post-processing of all outputs is as private as all mechanisms one after another, so ε, profile,
    groups and attacks are those of the composed event. Reasons to distrust one are reasons to
    distrust the whole.

    Raises:
        PipelineError: two statements are not about the same data, or not at the same δ.
    """
    first, *_ = statements.values()
    for what, statement in statements.items():
        for key in SHARED:
            if getattr(statement, key) != getattr(first, key):
                raise PipelineError(
                    f"{what}/privacy.json: {key}: differs from that of the releases it is used "
                    "with; run `dvc repro`"
                )
    spent = [
        statement.spent_on_dataset
        for statement in statements.values()
        if statement.spent_on_dataset is not None
    ]
    return replace(
        _one_after_another(first, statements, BEFOREHAND),
        spent_on_dataset=max(spent, key=lambda account: account.charges, default=None),
    )


def check_parts(path: Path, whole: Statement, parts: Mapping[str, Statement]) -> None:
    """Check that a statement at ``path`` is of the releases in other folders: the first one's, or
    of several together.

    Figures of several together (`FIGURES`) are left to the accountant.

    Raises:
        PipelineError: a release is gone or is another one, or a key is not that of these releases
            together.
        ValueError: an event is not of a kind that this project accounts.
    """
    names = [each.what for each in whole.mechanisms] or list(parts)[:1]
    if not names or names != [each for each in parts if each in names]:
        raise PipelineError(
            f"{path}: mechanisms: found {' and '.join(names) or 'none'}; there are statements of "
            f"{' and '.join(parts) or 'none'}, and each counts once, in this order; run `dvc repro`"
        )
    several = bool(whole.mechanisms)
    expected = (
        compose_statement({name: parts[name] for name in names}) if several else parts[names[0]]
    )
    for key in (each.name for each in fields(Statement)):
        if getattr(whole, key) != getattr(expected, key) and not (several and key in FIGURES):
            of = " and ".join(f"{name}/privacy.json" for name in names)
            raise PipelineError(
                f"{path}: {key}: not that of {of}: of another run, or edited; run `dvc repro`"
            )


def after_offline(offline: Statement, online: Statement) -> Statement:
    """Make the statement of a policy that was trained offline and went on learning from users.

    Its ε is of a person in the log and among the users: of both mechanisms, one after the other.
    For a person in one of them only, the ε of that one holds; ``mechanisms`` has it.

    Raises:
        ValueError: they are not at the same δ.
    """
    if offline.delta not in (None, online.delta):
        raise ValueError("the statements are at different δ, so their figures do not compare")
    both = (
        f"that a user who is in the log as well is one {offline.unit} of it; epsilon is of "
        "somebody who is both"
    )
    whole = _one_after_another(online, {"models/policy": offline, "models/online": online}, both)
    return replace(whole, charge=online.charge, spent_on_dataset=online.spent_on_dataset)


def _one_after_another(
    facts: Statement, statements: Mapping[str, Statement], assumption: str
) -> Statement:
    event = joint_event([statement.event for statement in statements.values()])
    spent = None
    if facts.delta is not None and not isinstance(event, dp_event.NonPrivateDpEvent):
        spent = compose([event], facts.delta)
    mechanisms: list[MechanismStatement] = []
    for what, statement in statements.items():
        mechanisms += statement.mechanisms or (mechanism(what, statement),)
    return replace(
        facts,
        private=all(statement.private for statement in statements.values()),
        **stated(event, spent),
        **NO_ROUNDS,
        clipping=None,
        public_assumptions=(
            *_unite(statement.public_assumptions for statement in statements.values()),
            assumption,
        ),
        void=_unite(statement.void for statement in statements.values()),
        charge=None,
        mechanisms=tuple(mechanisms),
    )


def joint_event(events: Sequence[dict[str, Any]]) -> dp_event.DpEvent:
    """Compose several accounted events, one after another."""
    parts = tuple(flat(map(event_from_json, events)))
    if any(isinstance(part, dp_event.NonPrivateDpEvent) for part in parts):
        return dp_event.NonPrivateDpEvent()
    return dp_event.ComposedDpEvent(parts)


def _unite(lines: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for own in lines for line in own))
