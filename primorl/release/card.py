"""The card of a bundle: model, policy and statement explained to people who are not experts.

Every number comes from the files of the bundle, so anybody can make the card again and compare.
``declared.json`` has the texts of people. The words are in ``templates``. Here is also the
guarantee of a bundle or a report as a whole: model, clone and the private units' answers, one after
another.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256, read_json
from primorl.evaluate.private.results import MEAN_RETURN, Verdict
from primorl.evaluate.wording import (
    ADVICE,
    WHOSE,
    comparable,
    guarantee,
    model_check,
    plural,
    public_facts,
    source,
    unprotected,
)
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.accounting.figures import true_positive_rate
from primorl.privacy.accounting.privacy_filter import Cost, cost, total
from primorl.privacy.accounting.rounding import percent_at_most
from primorl.privacy.composition import joint_event
from primorl.release.contents import (
    ANSWERS,
    CARDS,
    CLONE,
    DECLARED,
    EVALUATION,
    LEDGER,
    MANIFEST,
    MODEL,
    ONLINE,
    POLICY,
    SIGNATURE,
    files_of,
)
from primorl.release.document import Document, Row, Section, written

_CURVE = (0.0, 0.002, 0.005, *(j / 100 for j in range(1, 10)), *(j / 50 for j in range(5, 51)))
_GENERATED_NAME = re.compile(r"(observation_|action_)?\d+")
_MOST_COLUMNS = 60
DECLARED_TEXTS = {
    "owner": "owner",
    "purpose": "purpose",
    "contact": "contact",
    "licence": "licence of the data",
}
"""Names of the texts that people declare, by key."""
_STUDIED = "this bundle"
_CLONING = "clone_behaviour"  # the stage of its charges
_DELTAS = (1e-4, 1e-3, 1e-2, 0.02, 0.05, 0.1, 0.2)

Content = Mapping[str, Any]
"""The content of a JSON file."""


def render(folder: Path) -> dict[str, str]:
    """Write the card, by file name, from the other files of the bundle in ``folder``, which were
    checked before.

    Raises:
        PipelineError: a card cannot state these figures.
    """
    files = sorted({*files_of(folder)} - {*CARDS, MANIFEST, SIGNATURE})
    content = {name: read_json(folder / name) for name in files if name.endswith(".json")}
    try:
        made = card(content, [(name, file_sha256(folder / name)) for name in files])
        return dict(zip(CARDS, (made.markdown(), made.html()), strict=True))
    except (ArithmeticError, LookupError, TypeError, ValueError, TemplateError) as wrong:
        raise PipelineError(
            f"{folder}: found figures, or a text with an address, that no card can state "
            f"({type(wrong).__name__}); make the bundle again"
        ) from None


def promised(folder: Path) -> str:
    """State the guarantee of a whole checked bundle in one line."""
    files = [name for name in files_of(folder) if name.endswith(".json")]
    return _promise(*_counted({name: read_json(folder / name) for name in files}))


def _counted(content: Mapping[str, Content]) -> tuple[Content, list[str]]:
    """The guarantee of a bundle, and what it counts beside the model."""
    if ONLINE in content:
        return content[POLICY[2]], []
    ledger, answers = content[LEDGER], content.get(ANSWERS)
    clone = counted_clone(content.get(CLONE), ledger)
    included = [] if clone is None else ["clone of the behaviour"]
    included += [] if answers is None else ["private evaluation"]
    return whole(content[MODEL[2]], clone, answers, ledger["delta"]), included


def _promise(bundle: Content, included: Sequence[str]) -> str:
    return guarantee(bundle) + (f", {' and '.join(included)} included" if included else "")


def card(content: Mapping[str, Content], digests: Sequence[Row] = ()) -> Document:
    """Make the card of a bundle.

    Args:
        content: of its JSON files, by name.
        digests: SHA-256 of the files that the card describes, by name.
    """
    bundle, included = _counted(content)
    sound = bundle["private"] and not bundle["void"]
    words: dict[str, Any] = {
        "bundle": bundle,
        "sound": sound,
        "promise": _promise(bundle, included),
        "studied": _STUDIED,
        "success": success(bundle) if sound else None,
        "digests": digests,
    }
    if ONLINE in content:
        statement = content[POLICY[2]]
        words |= {"units": plural(statement["unit"]), "statement": statement}
        made = written("online", summary=content[ONLINE], **words)
    else:
        made = written("card", **words, **_facts(content))
    made.sound = sound
    return made


def _facts(content: Mapping[str, Content]) -> dict[str, Any]:
    """The variables of the card of a policy with its model."""
    statement, policy, summary = content[MODEL[2]], content[POLICY[1]], content[EVALUATION]
    answers, declared = content.get(ANSWERS), content.get(DECLARED, {})
    ledger, clone = content[LEDGER], content.get(CLONE)
    asked, discount = (answers["estimates"], answers["discount"]) if answers else ((), 1.0)
    verdict = Verdict.of(answers["verdict"]) if answers else None
    believable = verdict is None or verdict.believed
    estimates = [each for each in asked if believable or each["estimator"] != "model"]
    estimates.sort(key=lambda answer: list(WHOSE).index(answer["of"]))
    doubts: dict[str, dict[str, None]] = {}
    for answer in estimates:
        doubts.setdefault(answer["bias"], {})[source(answer)] = None
    mechanisms = [] if clone is None else [("clone of the behaviour", clone)]
    for name, own in (answers["statements"] if answers else {}).items():
        mechanisms.append((f"private evaluation: {name}", own))
    compared: Sequence[str] = ()
    if summary.get("recommendation"):
        beside = {**summary, "unit": statement["unit"], "private_evaluation": estimates}
        compared = practice(beside, discount).points
    return {
        "statement": statement,
        "model": content[MODEL[1]],
        "policy": policy,
        "summary": summary,
        "ledger": ledger,
        "answers": answers,
        "declared": {key: text for key, text in declared.items() if key in DECLARED_TEXTS},
        "names": DECLARED_TEXTS,
        "units": plural(statement["unit"]),
        "observation_names": _given_names(policy.get("observation_names")),
        "action_names": _given_names(policy.get("action_names")),
        "columns": columns(policy),
        "charges": _charges(ledger),
        "estimates": estimates,
        "doubts": doubts,
        "mechanisms": mechanisms,
        "advice_words": ADVICE,
        "whose": WHOSE,
        "mean_return": MEAN_RETURN,
        "believable": believable,
        "checked": "" if verdict is None else ". ".join(model_check(verdict)),
        "facts": public_facts(statement),
        "unprotected": unprotected(statement) if statement["private"] else "",
        "compared": compared,
    }


def success(statement: Content) -> float | None:
    """In percent, how often at most a guess at even odds is right: (1 + δ(0)) / 2.

    None: the profile is missing.
    """
    for point in statement.get("profile", ()):
        if point["epsilon"] == 0:
            return float(percent_at_most((1 + point["delta"]) / 2).rstrip("%"))
    return None


def curve(statement: Content) -> tuple[tuple[float, float], ...]:
    """The trade-off curve: false positive rates, and the largest true positive rates that the
    profile allows.
    """
    profile = [(point["epsilon"], point["delta"]) for point in statement.get("profile", ())]
    return tuple((rate, true_positive_rate(profile, rate)) for rate in _CURVE) if profile else ()


def meaning(statement: Content, studied: str) -> Section:
    """Write the section on the success of an attack on ``studied``."""
    return written(
        "meaning", bundle=statement, studied=studied, units=plural(statement["unit"])
    ).sections[0]


def columns(policy: Content) -> list[Row]:
    """List the names of observations and actions with their public ranges; empty where the data
    name none.
    """
    seen, done = policy.get("observation_names") or (), policy.get("action_names") or ()
    if not _given_names((*seen, *done)):
        return []
    lows, highs = (
        policy.get(f"observation_{side}") or [None] * len(seen) for side in ("low", "high")
    )
    rows = []
    for name, low, high in zip(seen, lows, highs, strict=False):
        rows.append(
            (name, "observed" if low is None or high is None else f"observed, {low:g} to {high:g}")
        )
    for name in done:
        rows.append((name, "an action" if policy["discrete_actions"] else "set by the policy"))
    if len(rows) > _MOST_COLUMNS:
        rows = [
            *rows[:_MOST_COLUMNS],
            (f"and {len(rows) - _MOST_COLUMNS} more", "see config.json of the policy"),
        ]
    return rows


def practice(summary: Content, discount: float = 1.0) -> Section:
    """Write the section on what the comparison with today's practice does not show.

    Args:
        summary: ``evaluation.json`` or ``metrics/summary.json``.
        discount: γ of the private units' answers.
    """
    rows = comparable(summary, discount)
    answers = summary.get("private_evaluation") or ()
    asked = any(each["of"] == "behaviour" and each["what"] == MEAN_RETURN for each in answers)
    return written(
        "compared",
        summary=summary,
        known=asked or summary.get("public_return_ci95") is not None,
        today=next((row.ends for row in rows if not row.of_policy and not row.by_model), None),
        policy=next((row.ends for row in rows if row.of_policy and not row.by_model), None),
    ).sections[0]


def _given_names(names: Sequence[str] | None) -> Sequence[str]:
    """The names of columns or actions; empty where all were generated, such as ``3`` or
    ``observation_3``.
    """
    return () if all(map(_GENERATED_NAME.fullmatch, names or ())) else names or ()


def _charges(ledger: Content) -> list[tuple[Content, list[str]]]:
    """The ledger's charges with their days; those that differ in nothing else are one."""
    alike: dict[tuple[Any, ...], tuple[Content, list[str]]] = {}
    for record in ledger["records"]:
        key = tuple(record[name] for name in ("stage", "epsilon", "delta", "state", "same_version"))
        alike.setdefault(key, (record, []))[1].append(record["day"])
    return list(alike.values())


def counted_clone(clone: Content | None, ledger: Content) -> Content | None:
    """The clone that a guarantee counts: the bundle's, or else all that the ledger has on these
    data.

    A policy shows by itself no more of the clone that it was made near than its ``config.json``
    says, which a stranger may have changed. So a clone that was paid for is counted also where the
    bundle lacks its statement.

    Args:
        clone: ``privacy.json`` of the clone; None: the bundle has none.
        ledger: ``ledger-statement.json``.

    Returns:
        The keys that `whole` needs of a statement; None: no clone with a guarantee was ever paid
        for.
    """
    if clone is not None:
        return clone
    events = [
        record["event"]
        for record in ledger["records"]
        if record["stage"] == _CLONING and record["same_version"] and record["epsilon"] is not None
    ]
    return (
        {"event": event_to_json(joint_event(events)), "private": True, "void": []}
        if events
        else None
    )


def whole(
    statement: Content, clone: Content | None, answers: Content | None, delta: float
) -> Content:
    """Compute the guarantee against anyone with the whole bundle: the keys of a statement that a
    card explains.

    ε is the privacy filter's, so it holds however the questions were chosen after looking at the
    model. The attacks are bounded by the filter's ε at several δ, which is a little more than the
    profile of fixed mechanisms would say.

    Args:
        statement: ``privacy.json`` of the model.
        clone: the same of the clone of the behaviour, or see `counted_clone`; None: none was made.
        answers: ``private-evaluation.json``; None: nothing was asked.
        delta: δ of the ledger's statement.
    """
    own = [
        *([] if clone is None else [clone]),
        *({} if answers is None else answers["statements"]).values(),
    ]
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
    return _of_cost(
        combined, total([cost(event_from_json(each["event"])) for each in (statement, *own)]), delta
    )


def with_account(
    released: Content, own: Sequence[Content], charged: Mapping[str, Cost], delta: float
) -> Content:
    """Compute the guarantee against anyone with the results of all charges on the same units,
    beside those in `whole`.

    Args:
        released: the result of `whole`.
        own: the statements that it counted. One that the ledger does not have is counted as well.
        charged: the cost of every charge of the account, by its id.
        delta: δ of all.
    """
    if not released["private"]:
        return released
    stated = [(each.get("charge"), cost(event_from_json(each["event"]))) for each in own]
    spent = total([*charged.values(), *(each for charge, each in stated if charge not in charged)])
    # The figures of this run's statements are tighter. They hold alone where the ledger has nothing
    # else and no more.
    nothing_else = charged.keys() <= {charge for charge, _ in stated}
    if nothing_else and spent.epsilon(delta) <= total([each for _, each in stated]).epsilon(
        delta
    ) * (1 + 1e-9):
        return released
    return (
        _of_cost(released, spent, delta)
        if math.isfinite(spent.epsilon(delta))
        else _unbounded(released)
    )


def _of_cost(statement: Content, spent: Cost, delta: float) -> Content:
    """Return a statement with the figures of the privacy filter, at several δ from ``delta`` on."""
    epsilon = spent.epsilon(delta)
    pairs = [(spent.epsilon(d), d) for d in (delta, *(d for d in _DELTAS if d > delta))]
    profile = [
        (0.0, min(_at_zero(e, d) for e, d in pairs)),
        *sorted(pair for pair in pairs if pair[0] > 0),
    ]
    rates = [attack["false_positive_rate"] for attack in statement.get("attacks", ())]
    return {
        **statement,
        "epsilon": epsilon,
        "delta": delta,
        "profile": [{"epsilon": e, "delta": d} for e, d in profile],
        "groups": [],
        "attacks": [
            {"false_positive_rate": rate, "true_positive_rate": true_positive_rate(profile, rate)}
            for rate in rates
        ],
    }


def _unbounded(statement: Content) -> Content:
    """A statement of which nothing is guaranteed any more."""
    nothing: dict[str, Any] = {
        "epsilon": None,
        "delta": None,
        "profile": [],
        "groups": [],
        "attacks": [],
    }
    return {**statement, "private": False} | nothing


def _at_zero(epsilon: float, delta: float) -> float:
    """δ(0), the total variation, that (ε, δ) allows: (e^ε - 1 + 2δ) / (e^ε + 1), rounded up."""
    half = epsilon / 2
    return min(1.0, (math.tanh(half) + delta * (1 - math.tanh(half))) * (1 + 1e-12))
