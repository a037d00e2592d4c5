"""What a bundle or a report guarantees as a whole: model, clone and the private units' answers, one after another."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.accounting.figures import true_positive_rate
from primorl.privacy.accounting.privacy_filter import Cost, cost, total
from primorl.privacy.together import joint_event

_CLONING = "clone_behaviour"  # the stage of its charges
_DELTAS = (1e-4, 1e-3, 1e-2, 0.02, 0.05, 0.1, 0.2)


def counted_clone(clone: Mapping[str, Any] | None, ledger: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The clone that a guarantee counts: the bundle's, or else all that the ledger has on these data.

    A policy shows by itself no more of the clone that it was made near than its ``config.json`` says, which a stranger
    may have changed. So a clone that was paid for is counted also where the bundle lacks its statement.

    Args:
        clone: ``privacy.json`` of the clone; None: the bundle has none.
        ledger: ``ledger-statement.json``.

    Returns:
        What `whole` needs of a statement; None: no clone with a guarantee was ever paid for.
    """
    if clone is not None:
        return clone
    events = [
        record["event"]
        for record in ledger["records"]
        if record["stage"] == _CLONING and record["same_version"] and record["epsilon"] is not None
    ]
    return {"event": event_to_json(joint_event(events)), "private": True, "void": []} if events else None


def whole(
    statement: Mapping[str, Any], clone: Mapping[str, Any] | None, answers: Mapping[str, Any] | None, delta: float
) -> Mapping[str, Any]:
    """The guarantee against anyone who has all of a bundle: the keys of a statement that a card explains.

    ε is the privacy filter's, so it holds however the questions were chosen after looking at the model. The attacks are
    bounded by the filter's ε at several δ, which is a little more than the profile of fixed mechanisms would say.

    Args:
        statement: ``privacy.json`` of the model.
        clone: the same of the clone of the behaviour, or see `counted_clone`; None: none
            was made.
        answers: ``private-evaluation.json``; None: nothing was asked.
        delta: δ of the ledger's statement.
    """
    own = [*([] if clone is None else [clone]), *({} if answers is None else answers["statements"]).values()]
    if not own:
        return statement
    void = dict.fromkeys((*statement["void"], *(reason for each in own for reason in each["void"])))
    combined = {
        **statement,
        "void": list(void),
        "private": statement["private"] and all(each["private"] for each in own),
    }
    if not combined["private"]:
        return _unbounded(combined)
    return _of_cost(combined, total([cost(event_from_json(each["event"])) for each in (statement, *own)]), delta)


def with_account(
    released: Mapping[str, Any], own: Sequence[Mapping[str, Any]], charged: Mapping[str, Cost], delta: float
) -> Mapping[str, Any]:
    """The guarantee against anyone who has the results of all charges on the same units, beside what `whole` counts.

    Args:
        released: what `whole` returned.
        own: the statements that it counted. One that the ledger does not have is counted as well.
        charged: the cost of every charge of the account, by its id.
        delta: δ of all.
    """
    if not released["private"]:
        return released
    stated = [(each["charge"], cost(event_from_json(each["event"]))) for each in own]
    spent = total([*charged.values(), *(each for charge, each in stated if charge not in charged)])
    # The figures of this run's statements are tighter. They hold alone where the ledger has nothing else and no more.
    nothing_else = charged.keys() <= {charge for charge, _ in stated}
    if nothing_else and spent.epsilon(delta) <= total([each for _, each in stated]).epsilon(delta) * (1 + 1e-9):
        return released
    return _of_cost(released, spent, delta) if math.isfinite(spent.epsilon(delta)) else _unbounded(released)


def _of_cost(statement: Mapping[str, Any], spent: Cost, delta: float) -> Mapping[str, Any]:
    """A statement with the figures of what the filter counted, at several δ from ``delta`` on."""
    epsilon = spent.epsilon(delta)
    pairs = [(spent.epsilon(d), d) for d in (delta, *(d for d in _DELTAS if d > delta))]
    profile = [(0.0, min(_at_zero(e, d) for e, d in pairs)), *sorted(pair for pair in pairs if pair[0] > 0)]
    rates = [attack["false_positive_rate"] for attack in statement.get("attacks", ())]
    return {
        **statement,
        "epsilon": epsilon,
        "delta": delta,
        "profile": [{"epsilon": e, "delta": d} for e, d in profile],
        "groups": [],
        "attacks": [
            {"false_positive_rate": rate, "true_positive_rate": true_positive_rate(profile, rate)} for rate in rates
        ],
    }


def _unbounded(statement: Mapping[str, Any]) -> Mapping[str, Any]:
    """A statement of which nothing is guaranteed any more."""
    nothing: dict[str, Any] = {"epsilon": None, "delta": None, "profile": [], "groups": [], "attacks": []}
    return {**statement, "private": False} | nothing


def _at_zero(epsilon: float, delta: float) -> float:
    """δ(0), the total variation, that (ε, δ) allows: (e^ε - 1 + 2δ) / (e^ε + 1), rounded up."""
    half = epsilon / 2
    return min(1.0, (math.tanh(half) + delta * (1 - math.tanh(half))) * (1 + 1e-12))
