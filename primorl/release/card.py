"""The card of a bundle: model, policy and statement explained to people who are not experts.

Every number comes from the files of the bundle, so anybody can make the card again and compare.
``declared.json`` has the texts of people. The words are in ``templates``, one item a line: ``#
title``, the guarantee without a mark, ``## heading``, ``- point``, ``^ head | of a table``, and
``| name | value | ..``. A line that is indented by two spaces goes on with the item before it.
Every value is escaped: a name in a file cannot bring markup along.
"""

import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError

from primorl.base import PipelineError
from primorl.base.files import file_sha256
from primorl.base.records import to_json
from primorl.base.reporting import in_lines
from primorl.evaluate import wording
from primorl.evaluate.description import Shown, describe_trial, find_today, gain
from primorl.evaluate.private.results import (
    AS_DRAWN,
    MEAN_RETURN,
    Answer,
    Conduct,
    Verdict,
    find_answer,
)
from primorl.evaluate.summary import PolicyResult
from primorl.model.architecture import ModelConfig
from primorl.policy.config import PolicyConfig
from primorl.privacy.accounting.figures import posterior, true_positive_rate
from primorl.privacy.accounting.rounding import at_least, at_most, percent_at_most, rest_of
from primorl.privacy.composition import combine
from primorl.privacy.statement import MechanismStatement, Statement
from primorl.release import contents

DECLARED_TEXTS = {
    "owner": "owner",
    "purpose": "purpose",
    "contact": "contact",
    "licence": "licence of the data",
}
"""Names of the texts that people declare, by key."""
_CURVE = (0.0, 0.002, 0.005, *(j / 100 for j in range(1, 10)), *(j / 50 for j in range(5, 51)))
_GENERATED_NAME = re.compile(r"(observation_|action_)?\d+")
_MOST_COLUMNS, _MOST_ACTIONS = 60, 12
_ORDER = list(wording.WHOSE)  # of answers
_MARKDOWN = re.compile(r"([\\`*_\[\]|~])|^(?=[#+-]|\d+[.)]\s)")
_LINK = re.compile(r"https?:|www\.", re.IGNORECASE)  # becomes a link by itself in many readers
_BAR = "\x1f"  # stands for a bar within a value

Row = tuple[str, ...]


class Section(NamedTuple):
    """Points in plain text, and a table with its head."""

    points: list[str]
    head: list[Row]
    rows: list[Row]


def render(bundle: contents.Bundle) -> str:
    """Write the card from the other files of a bundle.

    Raises:
        PipelineError: a card cannot state these figures.
    """
    files = sorted(bundle.names - {contents.CARD})
    try:
        return write_card(bundle, [(name, file_sha256(bundle.folder / name)) for name in files])
    except (ArithmeticError, LookupError, TypeError, ValueError, TemplateError) as wrong:
        raise PipelineError(
            f"{bundle.folder}: found figures, or a text with an address, that no card can state "
            f"({type(wrong).__name__}); make the bundle again"
        ) from None


def describe_guarantee(bundle: contents.Bundle) -> str:
    """State the guarantee of a whole checked bundle in one line."""
    return _combine(bundle)[1]


def _combine(bundle: contents.Bundle) -> tuple[Statement, str]:
    """Compute the guarantee of a bundle, and state it with what it counts beside the model."""
    ledger, whole = bundle.ledger, combine([*bundle.charged.values()], bundle.ledger.delta)
    labels = {} if bundle.declared is None else bundle.declared.labels
    whole = replace(whole, unit=wording.singular(whole.unit, labels))
    included = [] if bundle.clone is None else ["clone of the behaviour"]
    included += [] if bundle.answers is None else ["private evaluation"]
    promise = wording.guarantee(whole.epsilon, whole.delta, whole.unit, whole.void)
    promise += f", {' and '.join(included)} included" if included else ""
    own = {statement.charge for statement in bundle.charged.values()}
    if {each.id for each in ledger.records} - own:
        total = "no bound" if ledger.epsilon is None else f"ε = {at_most(ledger.epsilon)}"
        promise += (
            ". Together with all other results about them, and where this one was picked among "
            f"these: {total}"
        )
    return whole, promise


def write_card(bundle: contents.Bundle, digests: Sequence[tuple[str, str]] = ()) -> str:
    """Write the card of a bundle in Markdown, with tables as GitHub has them.

    Args:
        bundle: its JSON files.
        digests: SHA-256 of the files that the card describes, by name.
    """
    lines: list[str] = []
    for mark, text in _items("card", **_facts(bundle), digests=digests):
        if mark in ("^", "|"):
            cells = [_escape(cell) for cell in text.split(" | ")]
            rule = "|---" * len(cells) + "|"
            if mark == "^":
                lines += ["", f"| {' | '.join(cells)} |", rule]
                continue
            if not lines[-1].startswith("|"):
                lines += ["", "| " * len(cells) + "|", rule]
            lines.append(f"| {' | '.join(cells)} |")
        elif mark == "-":
            lines.append(f"- {_escape(text)}")
        else:
            lines += ["", f"{mark} {_escape(text)}" if mark else f"**{_escape(text)}**", ""]
    return "\n".join(lines).strip() + "\n"


def _facts(bundle: contents.Bundle) -> dict[str, Any]:
    """Collect the variables of the card's template."""
    declared: dict[str, Any] = {} if bundle.declared is None else to_json(bundle.declared)
    labels, answers, policy = declared.get("labels", {}), bundle.answers, bundle.policy
    whole, promise = _combine(bundle)
    statement = replace(bundle.of_model, unit=whole.unit)
    verdict = Verdict() if answers is None else answers.verdict or Verdict()
    conduct = None if answers is None else answers.conduct
    asked = () if answers is None else answers.estimates
    beside = compare_with_today(bundle.evaluation, statement, asked, verdict, conduct, bundle.model)
    estimates = sorted(asked, key=lambda answer: _ORDER.index(answer.of))
    if not verdict.believed:
        estimates = [each for each in estimates if each.estimator != "model"]
    if conduct and conduct.outcomes:  # returns lie at few values
        estimates = [each for each in estimates if not each.what.startswith("quantile")]
    doubts: dict[str, dict[str, None]] = {}
    for answer in estimates:
        doubts.setdefault(answer.bias, {})[wording.source(answer)] = None
    mechanisms: list[tuple[str, Statement | MechanismStatement, float | None]] = []
    if (clone := bundle.clone) is not None:  # without what else its files hold
        own = (clone.mechanisms or (clone,))[-1]
        mechanisms.append(("clone of the behaviour", own, clone.delta))
    for name, asked_for in ({} if answers is None else answers.statements).items():
        mechanisms.append((f"private evaluation: {name}", asked_for, asked_for.delta))
    return {
        **beside,
        "bundle": whole,
        "sound": whole.sound,
        "promise": promise,
        "studied": "this bundle",
        "success": bound_success(whole) if whole.sound else None,
        "statement": statement,
        "model": bundle.model,
        "policy": policy,
        "summary": bundle.evaluation,
        "ledger": bundle.ledger,
        "answers": None if answers is None else replace(answers, unit=whole.unit),
        "declared": declared,
        "labels": labels,
        "observation_names": _describe_names(policy.observation_names, labels),
        "action_names": _describe_names(policy.action_names, labels),
        "estimates": estimates,
        "doubts": doubts,
        "mechanisms": mechanisms,
        "facts": wording.public_facts(statement),
        "unprotected": wording.describe_public(statement) if statement.private else "",
    }


def compare_with_today(
    result: PolicyResult,
    people: Statement,
    answers: Sequence[Answer],
    verdict: Verdict,
    conduct: Conduct | None,
    model: ModelConfig,
) -> dict[str, Any]:
    """Decide what stands beside today's practice: variables of the card and of the report.

    Args:
        result: of the run.
        people: statement of the model; its unit is in plain words.
        answers: of the private units.
        verdict: about the model.
        conduct: what the policy does; None: unknown.
        model: names actions that nobody takes.
    """
    advice, units = result.recommendation, wording.plural(people.unit)
    today = find_today(result, answers, units)
    uses = conduct.actions if conduct else ()
    farthest = sorted(uses, key=lambda use: abs(use.policy - use.clone), reverse=True)
    return {
        "units": units,
        "today": today,
        "trial": describe_trial(advice, today, people.units, units),
        "against": wording.describe_signs(verdict),
        "practice": write_practice(result, answers, today, believed=verdict.believed),
        "believed": verdict.believed and (advice is None or advice.answer != "more_data"),
        "conduct": conduct,
        "uses": [use for use in uses if use in farthest[:_MOST_ACTIONS]],
        "rare": [uses[place].name for place in model.rare_actions if uses],
        "asked_outcomes": _share_outcomes(conduct, today),
    }


def bound_success(statement: Statement) -> float | None:
    """Compute how often at most a guess at even odds is right, (1 + δ(0)) / 2 in percent.

    None: the profile is missing.
    """
    at_zero = [each.delta for each in statement.profile if each.epsilon == 0]
    return float(percent_at_most((1 + at_zero[0]) / 2).rstrip("%")) if at_zero else None


def trace_curve(statement: Statement) -> tuple[tuple[float, float], ...]:
    """Compute the trade-off curve: false positive rates, and the largest true positive rates that
    the profile allows.
    """
    profile = [(point.epsilon, point.delta) for point in statement.profile]
    return tuple((rate, true_positive_rate(profile, rate)) for rate in _CURVE) if profile else ()


def write_meaning(whole: Statement, model: Statement, studied: str) -> Section:
    """Write the section on the success of an attack on ``studied``, which has the guarantee
    ``whole``.
    """
    units = wording.plural(whole.unit)
    return _section("meaning", bundle=whole, statement=model, studied=studied, units=units)


def write_practice(
    result: PolicyResult, answers: Sequence[Answer], today: Shown | None, *, believed: bool
) -> Section:
    """Write the section on what the comparison with today's practice does not show.

    Args:
        result: of the run.
        answers: of the private units.
        today: return of today's practice.
        believed: whether values in the model may be shown.
    """
    counted = find_answer(answers, "behaviour", MEAN_RETURN)
    modelled = find_answer(answers, "clone", AS_DRAWN)
    return _section(
        "compared",
        summary=result,
        today=None if today is None else today.ends,
        policy=result.return_ci95,
        modelled=modelled.value if modelled and counted and believed else None,
        counted=counted,
    )


def write_conduct(beside: Mapping[str, Any], labels: Mapping[str, str]) -> Section:
    """Write the section on what the policy does beside today's practice; empty where that is not
    known.

    Args:
        beside: see `compare_with_today`.
        labels: declared words for columns and actions.
    """
    if beside["conduct"] is None:
        return Section([], [], [])
    return _section("conduct", **beside, labels=labels)


def _share_outcomes(
    conduct: Conduct | None, today: Shown | None
) -> list[tuple[float, float] | None]:
    """Return the interval of the share of the people who end in each named way, by their mean
    return; None: it does not tell.

    It does where all of them end in one of the two, or where the other one earns nothing.
    """
    if today is None or today.ends is None or not conduct or not conduct.outcomes:
        return [None, None]
    low, high = (each.reward for each in conduct.outcomes)
    least, most = (min(max((end - low) / (high - low), 0.0), 1.0) for end in today.ends)
    both = conduct.always_ends
    return [
        (1 - most, 1 - least) if both or high == 0 else None,
        (least, most) if both or low == 0 else None,
    ]


def list_columns(policy: PolicyConfig, labels: Mapping[str, str]) -> list[Row]:
    """List the names of observations and actions with their declared words and public ranges; empty
    where the data name none.
    """
    seen, done = policy.observation_names or (), policy.action_names or ()
    if not _given_names((*seen, *done), labels):
        return []
    rows: list[Row] = [(name, "observed") for name in seen]
    if policy.observation_low is not None and policy.observation_high is not None:
        ends = zip(seen, policy.observation_low, policy.observation_high, strict=False)
        rows = [(name, f"observed, {low:g} to {high:g}") for name, low, high in ends]
    rows += [
        (name, "an action" if policy.discrete_actions else "set by the policy") for name in done
    ]
    if labels:
        rows = [(name, wording.label(name, labels), what) for name, what in rows]
    left = len(rows) - _MOST_COLUMNS
    if left > 0:
        return [*rows[:_MOST_COLUMNS], (f"and {left} more", "see config.json of the policy")]
    return rows


def _given_names(names: Sequence[str], labels: Mapping[str, str]) -> Sequence[str]:
    """Return the names of columns or actions; without labels, empty where all were generated, such
    as ``3`` or ``observation_3``.
    """
    return names if labels or not all(map(_GENERATED_NAME.fullmatch, names)) else ()


def _describe_names(names: Sequence[str] | None, labels: Mapping[str, str]) -> list[str]:
    """List the given names, each with its declared words behind it."""
    given = _given_names(names or (), labels)
    pairs = [(name, wording.label(name, labels)) for name in given]
    return [name if text == name else f"{name} ({text})" for name, text in pairs]


# Words and escaping


def _items(template: str, **facts: Any) -> Iterator[Row]:
    """Fill in a template; yield the mark and the text of each item.

    Raises:
        ValueError: a fact has an address, which becomes a link by itself.
    """
    found = environment("primorl.release", finalize=_on_one_line)
    rendered = found.get_template(f"{template}.j2").render(facts)
    if _LINK.search(rendered):
        raise ValueError("found an address of the network in a text")
    for line in re.sub(r"\n {2,}", " ", rendered).splitlines():
        mark, _, text = line.partition(" ")
        if mark in ("#", "##", "-", "^", "|"):
            yield mark, text
        elif line:
            yield "", line


def _section(template: str, **facts: Any) -> Section:
    """Fill in the template of one section, in plain text."""
    found = Section([], [], [])
    for mark, text in _items(template, **facts):
        if mark in ("^", "|"):
            row = tuple(cell.replace(_BAR, "|") for cell in text.split(" | "))
            (found.head if mark == "^" else found.rows).append(row)
        elif mark == "-":
            found.points.append(text.replace(_BAR, "|"))
    return found


def _escape(text: str) -> str:
    """Write ``text`` as literal Markdown on one line, HTML included: Jinja has no such escaping."""
    plain = html.escape(" ".join(text.replace(_BAR, "|").split()), quote=False)
    return _MARKDOWN.sub(lambda found: f"\\{found[1] or ''}", plain)


def _on_one_line(fact: object) -> str:
    return " ".join(str(fact).splitlines()).replace("|", _BAR)


@cache
def environment(package: str, **options: Any) -> Environment:
    """Make the environment of a package's templates, with what they write figures by."""
    made = Environment(
        loader=PackageLoader(package),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    figures = (at_most, at_least, percent_at_most)
    for write in (*figures, wording.label, wording.plural, wording.source):
        made.filters[write.__name__] = write
    made.filters |= {
        "count": lambda number, what: f"{number:,} {what if number == 1 else wording.plural(what)}",
        "short": "{:.4g}".format,
        "grouped": "{:,}".format,
        "json": json.dumps,
        "figure": _figure,
    }
    made.globals |= {
        "posterior": posterior,
        "rest_of": rest_of,
        "inf": math.inf,
        "gain": gain,
        "gain_note": wording.GAIN_NOTE,
        "in_lines": in_lines,
        "with_interval": wording.value,
        "advice_words": wording.ADVICE,
        "whose": wording.WHOSE,
        "mean_return": MEAN_RETURN,
        "names": DECLARED_TEXTS,
    }
    return made


def _figure(number: float | None, *, down: bool = False) -> str:
    """Round to the side on which the promise is weaker."""
    if number is None:
        return "none"
    return at_least(number, 4) if down else at_most(number)
