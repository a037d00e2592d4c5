"""The card of a policy that learned from users: what each user is promised, and what she is not."""

import json
from collections.abc import Mapping
from typing import Any

from primorl.evaluation.online_results import OnlineSummary
from primorl.evaluation.wording import guarantee
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.statement import Statement
from primorl.release.card import EXACT_EPSILON, Card, Row, Section
from primorl.release.card_meaning import curve, meaning, success


def online_card(statement: Statement, summary: OnlineSummary) -> Card:
    """The content of the card.

    Args:
        statement: ``models/online/privacy.json``.
        summary: ``metrics/online.json``.
    """
    content = statement.to_json()
    plural = f"{statement.unit}s"
    verdict = guarantee(content)
    return Card(
        title=f"Policy card: {summary.env_id}, learned online",
        verdict=verdict if statement.sound else f"{verdict}. Do not rely on it",
        sound=statement.sound,
        success=success(content) if statement.sound else None,
        curve=curve(content) if statement.sound else (),
        sections=(
            _what(statement, summary),
            _users(statement),
            *_each(statement),
            meaning(content, plural),
            Section("What was taken as public", statement.public_assumptions),
            Section(
                "What is void",
                tuple(f"The statement must not be relied on: {reason}." for reason in statement.void) or ("Nothing.",),
            ),
            Section("For experts", rows=_rows(statement, content)),
        ),
    )


def user_epsilon(statement: Statement) -> float | None:
    """ε of somebody who is a user and not in the log; None: nothing may be relied on."""
    if not statement.sound:
        return None
    return statement.mechanisms[-1].epsilon if statement.mechanisms else statement.epsilon


def _what(statement: Statement, summary: OnlineSummary) -> Section:
    began = "the offline policy" if summary.start == "policy" else "a new policy"
    before, after = summary.return_before, summary.return_mean
    low, high = summary.return_ci95 or (0.0, 0.0)
    return Section(
        "What this is",
        (
            f"A control policy for {summary.env_id}. It began as {began} and learned from {summary.users} "
            f"{statement.unit}s who acted under it, {summary.cohort} for each of {summary.cohorts} updates "
            f"({summary.algorithm}).",
            f"Return before: {before:.4g}; after: {after:.4g}, 95% interval [{low:.4g}, {high:.4g}] over "
            f"{summary.episodes} episodes of its likeliest actions. The {statement.unit}s were simulated.",
        ),
    )


def _users(statement: Statement) -> Section:
    protocol, one = statement.online, statement.unit
    assert protocol is not None
    if not statement.private:
        return Section(
            f"What one {one} is promised", ("Nothing: the user's data went into the policy without protection.",)
        )
    releases = protocol.appearances * protocol.releases
    points = [
        f"The user's data went into at most {releases} noisy release{'' if releases == 1 else 's'} and was not kept.",
        "Anyone who sees all policies of the run, and everything that all other people received from them, learns no "
        "more about the user than the guarantee allows. This is joint differential privacy.",
        "The actions that the policy took for the user followed from the user's own data. The guarantee says nothing "
        "about them: anyone who watches the treatment sees them.",
    ]
    if statement.void:
        points.insert(0, "None of this may be relied on: see what is void.")
    return Section(f"What one {one} is promised", tuple(points))


def _each(statement: Statement) -> tuple[Section, ...]:
    """ε of those who are in the log only, of users only, and of somebody who is both."""
    if not statement.mechanisms:
        return ()
    rows = [
        (each.what, f"ε = {at_most(each.epsilon)}" if each.epsilon is not None else "no guarantee")
        for each in statement.mechanisms
    ]
    both = "no guarantee" if statement.epsilon is None else f"ε = {at_most(statement.epsilon)}"
    note = "The guarantee above is of somebody who is both in the log and a user. Others have the figures of one part."
    return (Section("The parts of the guarantee", (note,), (*rows, ("somebody who is both", both))),)


def _rows(statement: Statement, content: Mapping[str, Any]) -> tuple[Row, ...]:
    protocol = statement.online
    assert protocol is not None
    return (
        (EXACT_EPSILON, str(statement.epsilon)),
        ("δ", str(statement.delta)),
        ("neighbours", f"one {statement.unit} is replaced by an empty one; the cohort's size stays"),
        (
            "ε if the user is replaced by another one (sensitivity 2S)",
            "not stated" if statement.epsilon_replace_one is None else at_most(statement.epsilon_replace_one),
        ),
        ("accountant", f"{statement.accountant.name} {statement.accountant.version}"),
        ("releases of one cohort, cohorts of one user", f"{protocol.releases}, {protocol.appearances}"),
        ("event", json.dumps(content["event"])),
        ("charge", str(statement.charge)),
    )
