"""The cards of a bundle: model, policy and statement explained to people who are not experts.

Every number comes from the files of the bundle, so anybody can make the cards again and compare. ``declared.json`` has
the texts of people. The words are in ``templates/words``. Here is also the guarantee of a bundle or a report as a
whole: model, clone and the private units' answers, one after another.
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
from primorl.evaluate.summary import OnlineSummary
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
from primorl.privacy.statement import Statement
from primorl.release.contents import (
    ANSWERS,
    CARDS,
    CLONE,
    DECLARED,
    EVALUATION,
    FILES,
    LEDGER,
    MODEL,
    OPTIONAL,
    POLICY,
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

_ON_FRONT = {
    "What is recommended",
    "Who answers for it, and what for",
    "What is protected, and against whom",
    "What is void",
    "Beside today's practice",
    "What it must not be used for, and what is not covered",
}
"""Sections that the first page has in other words."""
_PERFORMANCE = "How well it performs"

Content = Mapping[str, Any]
"""The content of a JSON file."""


def render(folder: Path, *, earlier: bool = False) -> dict[str, str]:
    """Both cards by name, from the other files of the bundle in ``folder``, which were checked before.

    They name the digest of every file that they speak of. With ``earlier`` they are laid out as earlier versions did.

    Raises:
        PipelineError: a card cannot state these figures.
    """
    files = [name for name in sorted({*FILES, *OPTIONAL} - {*CARDS}) if (folder / name).exists()]
    try:
        content = {name: read_json(folder / name) for name in files if name.endswith(".json")}
        return both_forms(
            model_card(
                *(content[name] for name in (MODEL[2], MODEL[1], POLICY[1], EVALUATION, LEDGER)),
                clone=content.get(CLONE),
                answers=content.get(ANSWERS),
                declared=content.get(DECLARED),
                digests=[(name, file_sha256(folder / name)) for name in files],
                earlier=earlier,
            )
        )
    except (ArithmeticError, LookupError, TypeError, ValueError, TemplateError) as wrong:
        raise PipelineError(
            f"{folder}: found figures that no card can state ({type(wrong).__name__}); make the bundle again"
        ) from None


def both_forms(card: Document) -> dict[str, str]:
    """The text of a card by the name of its file."""
    return dict(zip(CARDS, (card.markdown(), card.html()), strict=True))


def promised(folder: Path) -> str:
    """State the guarantee of a whole checked bundle in one line."""
    clone, answers = (
        read_json(folder / name) if (folder / name).exists() else None for name in (CLONE, ANSWERS)
    )
    ledger = read_json(folder / LEDGER)
    counted = counted_clone(clone, ledger)
    return _promise(
        whole(read_json(folder / MODEL[2]), counted, answers, ledger["delta"]), counted, answers
    )


def _promise(bundle: Content, clone: Content | None, answers: Content | None) -> str:
    included = []
    if clone is not None:
        included.append("clone of the behaviour")
    if answers is not None:
        included.append("private evaluation")
    return guarantee(bundle) + (f", {' and '.join(included)} included" if included else "")


def model_card(
    statement: Content,
    model: Content,
    policy: Content,
    summary: Content,
    ledger: Content,
    *,
    clone: Content | None = None,
    answers: Content | None = None,
    declared: Content | None = None,
    digests: Sequence[Row] = (),
    earlier: bool = False,
) -> Document:
    """The card of a bundle, from its files.

    Args:
        statement: ``privacy.json`` of the model.
        model: ``config.json`` of the dynamics model.
        policy: ``config.json`` of the policy.
        summary: ``evaluation.json``.
        ledger: ``ledger-statement.json``.
        clone: ``privacy.json`` of the clone, if one was made. The bundle's guarantee counts it, and the answers.
        answers: ``private-evaluation.json``, if something was asked.
        declared: ``declared.json``, if somebody declared something.
        digests: SHA-256 of the files that the card describes, by name.
        earlier: lay it out as earlier versions did, without a first page.
    """
    counted = counted_clone(clone, ledger)
    bundle = whole(statement, counted, answers, ledger["delta"])
    sound = bundle["private"] and not bundle["void"]
    asked = Verdict.of(answers["verdict"]) if answers else None
    believable = asked is None or asked.believed
    hidden = () if believable else ("model",)
    estimates = [
        each
        for each in (answers["estimates"] if answers else ())
        if each["estimator"] not in hidden
    ]
    estimates.sort(key=lambda answer: list(WHOSE).index(answer["of"]))
    doubts: dict[str, dict[str, None]] = {}
    for answer in estimates:
        doubts.setdefault(answer["bias"], {})[source(answer)] = None
    words: dict[str, Any] = {
        "statement": statement,
        "model": model,
        "policy": policy,
        "summary": summary,
        "ledger": ledger,
        "answers": answers,
        "declared": {key: text for key, text in (declared or {}).items() if key in DECLARED_TEXTS},
        "digests": digests,
        "bundle": bundle,
        "sound": sound,
        "promise": _promise(bundle, counted, answers),
        "studied": _STUDIED,
        "earlier": earlier,
        "units": plural(statement["unit"]),
        "observation_names": _given_names(policy.get("observation_names")),
        "action_names": _given_names(policy.get("action_names")),
        "columns": columns(policy),
        "charges": _charges(ledger),
        "estimates": estimates,
        "doubts": doubts,
        "mechanisms": _mechanisms(clone, answers),
        "advice_words": ADVICE,
        "whose": WHOSE,
        "mean_return": MEAN_RETURN,
        "believable": believable,
        "checked": ". ".join(model_check(asked)) if asked is not None else "",
        "facts": public_facts(statement),
        **_compared(
            answers["estimates"] if answers else (),
            answers["discount"] if answers else 1.0,
            cloned=policy["policy"] == "models/behaviour",
        ),
    }
    card = written("model_card", **words)
    if not earlier:
        front = written(
            "front",
            **words,
            verdict=card.verdict,
            success=success(bundle) if sound else None,
            unprotected=unprotected(statement) if bundle["private"] else "",
            names=DECLARED_TEXTS,
            compared=practice(
                {**summary, "unit": statement["unit"], "private_evaluation": estimates},
                answers["discount"] if answers else 1.0,
            ).points
            if summary.get("recommendation")
            else (),
        )
        again = (
            {_PERFORMANCE} if answers and summary["return_mean"] is None else set()
        )  # a second value of the policy
        front.appendix = [each for each in card.sections if each.heading not in _ON_FRONT | again]
        front.unit, card = statement["unit"], front
    return _with_attack(card, bundle, sound)


def online_cards(statement: Statement, summary: OnlineSummary) -> dict[str, str]:
    """Write the card of a policy that learned from users, in both forms."""
    content = statement.to_json()
    card = written(
        "online_card",
        statement=statement,
        summary=summary,
        bundle=content,
        sound=statement.sound,
        promise=guarantee(content),
        studied=_STUDIED,
        earlier=True,
        units=f"{statement.unit}s",
    )
    return both_forms(_with_attack(card, content, statement.sound))


def _with_attack(card: Document, statement: Content, sound: bool) -> Document:
    card.sound = sound
    if sound:
        card.success, card.curve = success(statement), curve(statement)
    return card


def success(statement: Content) -> float | None:
    """In percent, how often at most a guess at even odds is right: (1 + δ(0)) / 2. None: the profile is missing."""
    for point in statement.get("profile", ()):
        if point["epsilon"] == 0:
            return float(percent_at_most((1 + point["delta"]) / 2).rstrip("%"))
    return None


def curve(statement: Content) -> tuple[tuple[float, float], ...]:
    """The trade-off curve: false positive rates, and the largest true positive rates that the profile allows."""
    profile = [(point["epsilon"], point["delta"]) for point in statement.get("profile", ())]
    return tuple((rate, true_positive_rate(profile, rate)) for rate in _CURVE) if profile else ()


def meaning(statement: Content, studied: str) -> Section:
    """Write the section on the success of an attack on ``studied``."""
    return written(
        "meaning", bundle=statement, studied=studied, units=plural(statement["unit"]), earlier=False
    ).sections[0]


def columns(policy: Content) -> list[Row]:
    """List the names of observations and actions with their public ranges; empty where the data name none."""
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


def _compared(estimates: Sequence[Content], discount: float, *, cloned: bool) -> dict[str, Any]:
    asked = [
        each for each in estimates if each["what"] == MEAN_RETURN and each["epsilon"] is not None
    ]
    return {
        "today": [each for each in asked if each["of"] == "behaviour"],
        "learned": [each for each in asked if each["of"] == "policy" and not cloned],
        "discount": discount,
    }


def _given_names(names: Sequence[str] | None) -> Sequence[str]:
    """The names of columns or actions; empty where all were generated, such as ``3`` or ``observation_3``."""
    return () if all(map(_GENERATED_NAME.fullmatch, names or ())) else names or ()


def _charges(ledger: Content) -> list[tuple[Content, list[str]]]:
    """The ledger's charges with their days; those that differ in nothing else are one."""
    alike: dict[tuple[Any, ...], tuple[Content, list[str]]] = {}
    for record in ledger["records"]:
        key = tuple(record[name] for name in ("stage", "epsilon", "delta", "state", "same_version"))
        alike.setdefault(key, (record, []))[1].append(record["day"])
    return list(alike.values())


def _mechanisms(clone: Content | None, answers: Content | None) -> list[tuple[str, Content]]:
    """The statements of the clone and of each estimator, by name."""
    named = [] if clone is None else [("clone of the behaviour", clone)]
    for name, own in ({} if answers is None else answers["statements"]).items():
        named.append((f"private evaluation: {name}", own))
    return named


def counted_clone(clone: Content | None, ledger: Content) -> Content | None:
    """The clone that a guarantee counts: the bundle's, or else all that the ledger has on these data.

    A policy shows by itself no more of the clone that it was made near than its ``config.json`` says, which a stranger
    may have changed. So a clone that was paid for is counted also where the bundle lacks its statement.

    Args:
        clone: ``privacy.json`` of the clone; None: the bundle has none.
        ledger: ``ledger-statement.json``.

    Returns:
        The keys that `whole` needs of a statement; None: no clone with a guarantee was ever paid for.
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
    """Compute the guarantee against anyone with the whole bundle: the keys of a statement that a card explains.

    ε is the privacy filter's, so it holds however the questions were chosen after looking at the model. The attacks are
    bounded by the filter's ε at several δ, which is a little more than the profile of fixed mechanisms would say.

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
    """Compute the guarantee against anyone with the results of all charges on the same units, beside those in `whole`.

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
    # The figures of this run's statements are tighter. They hold alone where the ledger has nothing else and no more.
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
