"""Composition: the statement of a result of several releases."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from dp_accounting import dp_event

from primorl.base.errors import PipelineError
from primorl.base.paths import BEHAVIOUR, MODEL
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

Part = TypeVar("Part")


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


def held_by_clone(model: Statement) -> dict[str, Statement]:
    """Return the releases whose answers the files of a clone hold: those of the model, if private
    people told it the scales that the clone acts in.
    """
    told = any(query.what == "scales" for query in model.queries)  # `primorl.engine.heads.SCALES`
    return {str(MODEL): model} if told else {}


def count_held(clone: Statement, held: Mapping[str, Statement]) -> Statement:
    """Make the statement of a clone and of the releases whose answers its files hold, all of each;
    its charge stays its own.
    """
    if not held:
        return clone
    return replace(compose_statement({**held, str(BEHAVIOUR): clone}), charge=clone.charge)


def check_held(path: Path, statement: Statement, held: Mapping[str, Statement]) -> None:
    """Check that a statement at ``path`` of what one charge paid for counts, before that, the
    releases whose answers its files hold, and no other.
    """
    *others, own = statement.mechanisms or (statement,)
    counted = [mechanism(what, each) for what, each in held.items()]
    if others != counted or own.charge != statement.charge:
        raise PipelineError(
            f"{path}: mechanisms: not those of {' and '.join(held) or 'no other release'} and of "
            "its own charge: of another run, or edited; run `dvc repro`"
        )


def check_parts(path: Path, whole: Statement, parts: Mapping[str, Statement | None]) -> None:
    """Check that a statement at ``path`` is that of a release in another folder, or of several
    together.

    Figures of several together (`FIGURES`) are left to the accountant.

    Raises:
        PipelineError: a release is gone (None) or is another one, or a key is not that of these
            releases together.
        ValueError: an event is not of a kind that this project accounts.
    """
    found = {name: each for name, each in parts.items() if each is not None}
    if len(found) < len(parts):
        raise PipelineError(
            f"{path}: made of {' and '.join(parts)}, and there are statements of "
            f"{' and '.join(found) or 'none'}; run `dvc repro`"
        )
    several = len(found) > 1
    (expected,) = [compose_statement(found)] if several else found.values()
    for key in (each.name for each in fields(Statement)):
        if getattr(whole, key) != getattr(expected, key) and not (several and key in FIGURES):
            of = " and ".join(f"{name}/privacy.json" for name in found)
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
    mechanisms = count_once(
        each
        for what, statement in statements.items()
        for each in statement.mechanisms or (mechanism(what, statement),)
    )
    event = joint_event([each.event for each in mechanisms])
    spent = None
    if facts.delta is not None and not isinstance(event, dp_event.NonPrivateDpEvent):
        spent = compose([event], facts.delta)
    return replace(
        facts,
        private=all(statement.private for statement in statements.values()),
        **stated(event, spent),
        **NO_ROUNDS,
        clipping=None,
        public_assumptions=_unite(
            [*(statement.public_assumptions for statement in statements.values()), (assumption,)]
        ),
        void=_unite(statement.void for statement in statements.values()),
        charge=None,
        mechanisms=tuple(mechanisms),
    )


def count_once(mechanisms: Iterable[Part], get: Callable[[Part, str], Any] = getattr) -> list[Part]:
    """List the mechanisms of several statements, each once: what has charge and event in common is
    one.

    Args:
        mechanisms: to be listed; those that name no charge all count.
        get: reads a key of a mechanism.
    """
    found: dict[tuple[object, str], Part] = {}
    for each in mechanisms:
        charge = get(each, "charge") or object()
        found.setdefault((charge, json.dumps(get(each, "event"), sort_keys=True)), each)
    return list(found.values())


def joint_event(events: Sequence[dict[str, Any]]) -> dp_event.DpEvent:
    """Compose several accounted events, one after another."""
    parts = tuple(flat(map(event_from_json, events)))
    if any(isinstance(part, dp_event.NonPrivateDpEvent) for part in parts):
        return dp_event.NonPrivateDpEvent()
    return dp_event.ComposedDpEvent(parts)


def _unite(lines: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for own in lines for line in own))
