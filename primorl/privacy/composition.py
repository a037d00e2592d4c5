"""Statements of several releases together, and the check of a statement: it agrees with itself, and
promises no more than the accountant finds in its events.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from primorl.base import PipelineError
from primorl.base.files import BEHAVIOUR, MODEL
from primorl.privacy.accounting import DpEvent, dp
from primorl.privacy.accounting.epsilon import (
    Training,
    compose,
    event_from_json,
    event_to_json,
    flat,
)
from primorl.privacy.accounting.figures import deltas, figures, state_figures, true_positive_rate
from primorl.privacy.accounting.privacy_filter import DELTAS, Cost, cost, total
from primorl.privacy.statement import (
    NO_ROUNDS,
    Accountant,
    AttackPoint,
    MechanismStatement,
    ProfilePoint,
    Statement,
    our_accountant,
)

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

MOST_ROUNDS, LEAST_NOISE = 10**6, 0.1
"""Of an event that the accountant takes, so that it answers in a bounded time."""
ROUNDING = 1e-9  # of each number, between two machines with one version of the accountant
FILTER_ROUNDING = 2e-5  # of a total by the privacy filter, whose bisection stops at 1e-5
_LEAST = 1e-13  # of a δ, a difference of sums near 1, however small it is; seen: 7e-16
TOLERANCE = 1e-3  # the same for an accountant of another version, whose grid may be finer

Part = TypeVar("Part", bound=Statement | MechanismStatement)


def mechanism(what: str, statement: Statement) -> MechanismStatement:
    """Make the entry of one mechanism from its own statement."""
    _, *others = fields(MechanismStatement)  # all but ``what``
    own = {each.name: getattr(statement, each.name) for each in others}
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
                    f"{what}/privacy.json: {key}: not that of the other releases; run `dvc repro`"
                )
    spent = [own.spent_on_dataset for own in statements.values() if own.spent_on_dataset]
    last = max(spent, key=lambda account: account.charges, default=None)
    return replace(_one_after_another(first, statements, BEFOREHAND), spent_on_dataset=last)


def list_held_by_clone(model: Statement) -> dict[str, Statement]:
    """Return the releases whose answers the files of a clone hold: those of the model, if private
    people told it the scales that the clone begins with and acts in.
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
            f"{path}: mechanisms: not those of {' and '.join(held)} and of its own; run `dvc repro`"
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
            f"{path}: of {' and '.join(parts)}, found {' and '.join(found) or 'none'}; "
            "run `dvc repro`"
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
        each for of, own in statements.items() for each in own.mechanisms or (mechanism(of, own),)
    )
    event = joint_event([each.event for each in mechanisms])
    spent = None
    if facts.delta is not None and not isinstance(event, dp.NonPrivateDpEvent):
        spent = compose([event], facts.delta)
    return replace(
        facts,
        private=all(statement.private for statement in statements.values()),
        **state_figures(event, spent),
        **NO_ROUNDS,
        clipping=None,
        public_assumptions=_unite(
            [*(each.public_assumptions for each in statements.values()), (assumption,)]
        ),
        void=_unite(statement.void for statement in statements.values()),
        charge=None,
        mechanisms=tuple(mechanisms),
    )


def count_once(mechanisms: Iterable[Part]) -> list[Part]:
    """List the mechanisms of several statements, each once: what has charge and event in common is
    one. Those that name no charge all count.
    """
    found: dict[tuple[object, str], Part] = {}
    for each in mechanisms:
        found.setdefault((each.charge or object(), json.dumps(each.event, sort_keys=True)), each)
    return list(found.values())


def combine(statements: Sequence[Statement], delta: float) -> Statement:
    """Compute the guarantee against anyone who has several results, such as a whole bundle: the
    first statement, with the figures of all.

    ε is the privacy filter's, so it holds however later results were chosen after looking at
    earlier ones. The attacks are bounded by the filter's ε at several δ, which is a little more
    than the profile of fixed mechanisms would say.

    Args:
        statements: the model's, then those of clone and answers.
        delta: δ of the account.
    """
    first, *others = statements
    if not others:
        return first
    combined = replace(first, void=_unite(each.void for each in statements))
    if not all(each.private for each in statements):
        return _drop_bounds(combined)
    costs = [cost(event_from_json(each.event)) for each in _list_mechanisms(statements)]
    return _with_figures(combined, total(costs), delta)


def add_account(
    combined: Statement, own: Sequence[Statement], charged: Mapping[str, Cost], delta: float
) -> Statement:
    """Compute the guarantee against anyone with the results of all charges on the same units,
    beside those in `combine`.

    Args:
        combined: the result of `combine`.
        own: the statements that it counted. One that the ledger does not have is counted as well.
        charged: the cost of every charge of the account, by its id.
        delta: δ of all.
    """
    if not combined.private:
        return combined
    stated = [(each.charge, cost(event_from_json(each.event))) for each in _list_mechanisms(own)]
    spent = total([*charged.values(), *(each for charge, each in stated if charge not in charged)])
    if not math.isfinite(spent.epsilon(delta)):
        return _drop_bounds(combined)
    # The figures of this run's statements are tighter. They hold alone where the ledger has nothing
    # else and no more.
    nothing_else = charged.keys() <= {charge for charge, _ in stated}
    own_epsilon = total([each for _, each in stated]).epsilon(delta)
    if nothing_else and spent.epsilon(delta) <= own_epsilon * (1 + 1e-9):
        return combined
    return _with_figures(combined, spent, delta)


def _list_mechanisms(statements: Sequence[Statement]) -> list[Statement | MechanismStatement]:
    return count_once(part for each in statements for part in each.mechanisms or (each,))


def _with_figures(statement: Statement, spent: Cost, delta: float) -> Statement:
    """Return a statement with the figures of the privacy filter, at several δ from ``delta`` on."""
    pairs = [(spent.epsilon(d), d) for d in (delta, *(d for d in DELTAS if d > delta))]
    profile = [(0.0, spent.total_variation()), *sorted(pair for pair in pairs if pair[0] > 0)]
    rates = [attack.false_positive_rate for attack in statement.attacks]
    return replace(
        statement,
        epsilon=spent.epsilon(delta),
        delta=delta,
        profile=tuple(ProfilePoint(epsilon=e, delta=d) for e, d in profile),
        groups=(),
        attacks=tuple(
            AttackPoint(
                false_positive_rate=rate, true_positive_rate=true_positive_rate(profile, rate)
            )
            for rate in rates
        ),
    )


def _drop_bounds(statement: Statement) -> Statement:
    """Return a statement of which nothing is guaranteed any more."""
    nothing: Any = {"private": False, "epsilon": None, "delta": None}
    return replace(statement, **nothing, profile=(), groups=(), attacks=())


def joint_event(events: Sequence[dict[str, Any]]) -> DpEvent:
    """Compose several accounted events, one after another."""
    parts = tuple(flat(map(event_from_json, events)))
    if any(isinstance(part, dp.NonPrivateDpEvent) for part in parts):
        return dp.NonPrivateDpEvent()
    return dp.ComposedDpEvent(parts)


def _unite(lines: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for own in lines for line in own))


# ---- the check


def verify(path: Path, statement: Statement, *, curves: bool = True) -> None:
    """Check that a private statement, read from ``path``, agrees with itself, and account its
    events again.

    Args:
        path: for messages.
        statement: of one mechanism, or of several one after another.
        curves: check profile, groups and attacks as well, which takes seconds for a new event.

    Raises:
        PipelineError: one line.
    """
    delta, account = statement.delta or 0.0, statement.spent_on_dataset
    largest = delta if account is None else max(delta, account.delta)
    if largest >= 1 / statement.units and not statement.void:
        raise PipelineError(
            f"{path}: delta: {largest!r} is not below one over the units, and void does not say so"
        )
    for part in statement.mechanisms or (statement,):
        training = _training(path, part)
        if part.event != event_to_json(training.event):
            raise PipelineError(f"{path}: event: not that of the mechanism it describes")
        spent = training.compute_spent(delta)
        refuse_less(path, "epsilon", part.epsilon, spent.epsilon_pld, statement.accountant)
        for query in part.queries:
            alone = Training(1.0, query.noise_multiplier, 1).compute_spent(delta).epsilon_pld
            refuse_less(path, f"{query.what}: epsilon", query.epsilon, alone, statement.accountant)
    try:
        event = event_from_json(statement.event)
    except (TypeError, ValueError) as broken:
        raise PipelineError(f"{path}: event: no mechanism: {broken}") from None
    if statement.mechanisms:
        if event != joint_event([part.event for part in statement.mechanisms]):
            raise PipelineError(f"{path}: event: not that of its mechanisms together")
        spent = compose([event], delta)
        refuse_less(path, "epsilon", statement.epsilon, spent.epsilon_pld, statement.accountant)
    refuse_less(path, "epsilon_rdp", statement.epsilon_rdp, spent.epsilon_rdp, statement.accountant)
    if curves:
        _check_curves(path, statement, event, delta)


def _training(path: Path, mechanism: Statement | MechanismStatement) -> Training:
    """Rebuild the training run of a mechanism from its numbers."""
    q, z = mechanism.sampling_probability or 0.0, mechanism.noise_multiplier or 0.0
    queries, rounds = tuple(each.noise_multiplier for each in mechanism.queries), mechanism.rounds
    if rounds is None or rounds > MOST_ROUNDS:
        raise PipelineError(f"{path}: rounds: found {rounds}, allowed are up to {MOST_ROUNDS}")
    if q == 0 or min((z, *queries)) < LEAST_NOISE:
        raise PipelineError(
            f"{path}: private: true, yet rounds or a query without noise (≥ {LEAST_NOISE:g})"
        )
    return Training(q, z, rounds, queries)


def _check_curves(path: Path, statement: Statement, event: DpEvent, delta: float) -> None:
    """Check the replacement ε, groups, attacks and profile of a private statement."""
    found, accountant = figures(event, delta), statement.accountant
    replaced = statement.epsilon_replace_one
    refuse_less(path, "epsilon_replace_one", replaced, found.epsilon_replace_one, accountant)
    epsilons = [point.epsilon for point in statement.profile]
    whole = len(epsilons) == len(found.profile) and epsilons == sorted(epsilons)
    if not whole or (epsilons and epsilons[0] != 0):
        raise PipelineError(f"{path}: profile: points are missing or in disorder; run `dvc repro`")
    own = compose([event], delta).epsilon_pld
    known = deltas(event, own, epsilons) if epsilons else []
    # δ at its own ε, which is the accountant's to the last digit, is the stated one.
    exact, pairs = (own, statement.epsilon), zip(epsilons, known, strict=True)
    profile = tuple(
        ProfilePoint(epsilon=e, delta=min(d, delta) if e in exact else d) for e, d in pairs
    )
    curves = {"groups": found.groups, "attacks": found.attacks, "profile": profile}
    for key, points in curves.items():
        ours, theirs = ([*map(astuple, each)] for each in (points, getattr(statement, key)))
        if [place for place, _ in ours] != [place for place, _ in theirs]:
            raise PipelineError(f"{path}: {key}: points are missing; run `dvc repro`")
        for (_, least), (_, value) in zip(ours, theirs, strict=True):
            refuse_less(path, key, value, least, accountant)


def refuse_less(
    path: Path,
    key: str,
    stated: float | None,
    accounted: float | None,
    accountant: Accountant,
    rounding: float = ROUNDING,
) -> None:
    """Refuse a stated ε, δ or success of an attack below the accounted one (None: infinite).

    The same version makes the same number up to ``rounding``, relative; another one up to
    `TOLERANCE`.
    """
    slack = rounding if accountant == our_accountant() else TOLERANCE
    least = math.inf if accounted is None else accounted
    if (math.inf if stated is None else stated) < least * (1 - slack) - _LEAST:
        raise PipelineError(
            f"{path}: {key}: found {stated!r}, the accountant finds {least!r}; run `dvc repro`"
        )
