"""The part of a model card on private evaluation: the answers, and the ε of model, policy and answers together."""

import json
from collections.abc import Mapping
from typing import Any

from primorl.evaluation.private.results import MEAN_RETURN
from primorl.evaluation.wording import WHOSE, source
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.together import joint_event
from primorl.release.card import Row, Section
from primorl.setup.clone_work import STAGE as CLONING


def counted_clone(clone: Mapping[str, Any] | None, ledger: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The clone that a guarantee counts: the bundle's, or else all that the ledger has on these data.

    A policy shows by itself no more of the clone that it was made near than its ``config.json`` says, which a stranger
    may have changed. So a clone that was paid for is counted also where the bundle lacks its statement.

    Args:
        clone: ``privacy.json`` of the clone; None: the bundle has none.
        ledger: ``ledger-statement.json``.

    Returns:
        What `primorl.release.guaranteed.whole` needs of a statement; None: no clone with a guarantee was ever paid for.
    """
    if clone is not None:
        return clone
    events = [
        record["event"]
        for record in ledger["records"]
        if record["stage"] == CLONING and record["same_version"] and record["epsilon"] is not None
    ]
    return {"event": event_to_json(joint_event(events)), "private": True, "void": []} if events else None


def included(clone: Mapping[str, Any] | None, answers: Mapping[str, Any] | None) -> str:
    """What the guarantee of a bundle covers beside model and policy, as the end of a sentence."""
    parts = [
        *([] if clone is None else ["clone of the behaviour"]),
        *([] if answers is None else ["private evaluation"]),
    ]
    return f", {' and '.join(parts)} included" if parts else ""


def answered(answers: Mapping[str, Any], units: str) -> Section:
    """The answers: values, then how wrong the model is.

    Args:
        answers: ``private-evaluation.json``.
        units: plural of the unit.
    """
    discount, horizon = answers["discount"], answers["horizon"]
    steps = "" if horizon is None else f", of at most {horizon:,} steps"
    discounted = "not discounted" if discount == 1 else f"discounted by γ = {json.dumps(discount)} a step"
    points = [
        f"Mean return of the {answers['units']:,} private {units}, {discounted}{steps}: what they got, and what they "
        "would get, as far as their records and the model tell. The policy was never tried out on them.",
        "An answer with an ε was asked of the private data through noise and charged to the ledger; a free one "
        "comes from the released model alone.",
    ]
    if answers["verdict"] is not None:
        points.append(f"Check of the model: {answers['verdict']}")
    ordered = sorted(answers["estimates"], key=lambda answer: list(WHOSE).index(answer["of"]))
    by_bias: dict[str, list[str]] = {}
    for answer in ordered:
        by_bias.setdefault(answer["bias"], []).append(source(answer))
    points += [
        f"What else may be wrong in answers by {' and '.join(dict.fromkeys(by))}: {bias}"
        for bias, by in by_bias.items()
    ]
    return Section("What people get today, and under the policy", tuple(points), tuple(map(_answer, ordered)))


def together(answers: Mapping[str, Any]) -> str:
    """What model, policy and evaluation cost together with all that came before, as the ledger composed it."""
    spent = answers["total"]
    runs = f"{spent['charges']:,} run{'s' if spent['charges'] != 1 else ''}"
    if spent["epsilon"] is None:
        return f"Up to the private evaluation of this policy, {runs}: one without a guarantee is among them."
    return (
        f"Up to the private evaluation of this policy, it included: ε = {at_most(spent['epsilon'])} at "
        f"δ = {at_most(spent['delta'])} in {runs}."
    )


def expert_rows(clone: Mapping[str, Any] | None, answers: Mapping[str, Any] | None) -> dict[str, str]:
    """The mechanisms of the clone and of each estimator, by name."""
    named = {} if clone is None else {"clone of the behaviour": clone}
    if answers is not None:
        named |= {f"private evaluation: {name}": own for name, own in answers["statements"].items()}
    names = {
        "epsilon": "ε",
        "delta": "δ",
        "sampling_probability": "sampling probability",
        "noise_multiplier": "noise multiplier",
        "clipping_norm": "clipping norm",
        "rounds": "rounds",
    }
    return {
        name: "; ".join(
            (
                *(f"{text} {json.dumps(statement[key])}" for key, text in names.items()),
                *(
                    f"query {each['what']}, noise multiplier {each['noise_multiplier']}"
                    for each in statement["queries"]
                ),
                f"charge {statement['charge']}",
            )
        )
        for name, statement in named.items()
    }


def _answer(answer: Mapping[str, Any]) -> Row:
    what = "" if answer["what"] == MEAN_RETURN else f"{answer['what']}: "
    if answer["ci95"] is None:
        interval = "no interval"
    else:
        low, high = answer["ci95"]
        interval = f"95% interval {low:.4g} to {high:.4g}, which covers {answer['covers']}"
    return (
        f"{WHOSE[answer['of']]}, by {source(answer)}",
        f"{what}{answer['value']:.4g}; {interval}",
    )
