"""The card of a bundle: model, policy and statement explained to people who are not experts.

Every number comes from the files of the bundle, so anybody can make the card again and compare.
``declared.json`` has the texts of people. The words are in ``templates``, one item a line: ``#
title``, the guarantee without a mark, ``## heading``, ``- point``, ``^ head | of a table``, and
``| name | value | ..``. A line that is indented by two spaces goes on with the item before it.
Every value is escaped: a name in a file cannot bring markup along.

Here is also the guarantee of a bundle or a report as a whole: model, clone and the private units'
answers, one after another.
"""

import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError

from primorl.base import PipelineError
from primorl.base.files import file_sha256, read_json
from primorl.base.reporting import in_lines
from primorl.evaluate import wording
from primorl.evaluate.private.results import AS_DRAWN, MEAN_RETURN, Verdict
from primorl.privacy.accounting.epsilon import event_from_json
from primorl.privacy.accounting.figures import posterior, true_positive_rate
from primorl.privacy.accounting.privacy_filter import DELTAS, Cost, cost, total
from primorl.privacy.accounting.rounding import at_least, at_most, percent_at_most, rest_of
from primorl.privacy.composition import count_once
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

Content = Mapping[str, Any]
"""The content of a JSON file."""
Row = tuple[str, ...]


class Section(NamedTuple):
    """Points in plain text, and a table with its head."""

    points: list[str]
    head: list[Row]
    rows: list[Row]


def render(folder: Path) -> str:
    """Write the card from the other files of the bundle in ``folder``, which were checked before.

    Raises:
        PipelineError: a card cannot state these figures.
    """
    files = sorted(
        {*contents.list_files(folder)} - {contents.CARD, contents.MANIFEST, contents.SIGNATURE}
    )
    try:
        return write_card(_read(folder), [(name, file_sha256(folder / name)) for name in files])
    except (ArithmeticError, LookupError, TypeError, ValueError, TemplateError) as wrong:
        raise PipelineError(
            f"{folder}: found figures, or a text with an address, that no card can state "
            f"({type(wrong).__name__}); make the bundle again"
        ) from None


def describe_guarantee(folder: Path) -> str:
    """State the guarantee of a whole checked bundle in one line."""
    return _combine(_name_people(_read(folder)))[1]


def _read(folder: Path) -> dict[str, Content]:
    names = [name for name in contents.list_files(folder) if name.endswith(".json")]
    return {name: read_json(folder / name) for name in names}


def _name_people(content: Mapping[str, Content]) -> dict[str, Content]:
    labels = content.get(contents.DECLARED, {}).get("labels", {})
    return {name: wording.name_people(own, labels) for name, own in content.items()}


def _combine(content: Mapping[str, Content]) -> tuple[Content, str]:
    """Compute the guarantee of a bundle, and state it with what it counts beside the model."""
    ledger, answers = content[contents.LEDGER], content.get(contents.ANSWERS)
    clone = content.get(contents.CLONE)
    included = [] if clone is None else ["clone of the behaviour"]
    included += [] if answers is None else ["private evaluation"]
    bundle = combine(content[contents.MODEL[2]], clone, answers, ledger["delta"])
    promise = wording.guarantee(bundle)
    promise += f", {' and '.join(included)} included" if included else ""
    counted = [content[contents.MODEL[2]], *([] if clone is None else [clone])]
    counted += [] if answers is None else answers["statements"].values()
    own = {part.get("charge") for part in _list_mechanisms(counted)}
    if ledger["epsilon"] is not None and {each.get("id") for each in ledger["records"]} - own:
        promise += (
            ". Together with all other results about them, and where this one was picked among "
            f"these: ε = {at_most(ledger['epsilon'])}"
        )
    return bundle, promise


def write_card(content: Mapping[str, Content], digests: Sequence[tuple[str, str]] = ()) -> str:
    """Write the card of a bundle in Markdown, with tables as GitHub has them.

    Args:
        content: of its JSON files, by name.
        digests: SHA-256 of the files that the card describes, by name.
    """
    content = _name_people(content)
    bundle, promise = _combine(content)
    sound = bundle["private"] and not bundle["void"]
    lines: list[str] = []
    for mark, text in _items(
        "card",
        bundle=bundle,
        sound=sound,
        promise=promise,
        studied="this bundle",
        success=bound_success(bundle) if sound else None,
        digests=digests,
        **_facts(content),
    ):
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


def _facts(content: Mapping[str, Content]) -> dict[str, Any]:
    """Collect the variables of the card's template."""
    statement, model = content[contents.MODEL[2]], content[contents.MODEL[1]]
    policy, summary = content[contents.POLICY[1]], content[contents.EVALUATION]
    declared, answers = content.get(contents.DECLARED, {}), content.get(contents.ANSWERS)
    labels = declared.get("labels", {})
    asked = answers or {"estimates": (), "statements": {}}
    verdict, conduct = Verdict.of(asked.get("verdict")), asked.get("conduct")
    people = {"unit": statement["unit"], "units": statement["units"]}
    told = {**summary, **people, "private_evaluation": asked["estimates"]}
    beside = compare_with_today(told, verdict, conduct, model)
    estimates = sorted(asked["estimates"], key=lambda answer: _ORDER.index(answer["of"]))
    if not verdict.believed:
        estimates = [each for each in estimates if each["estimator"] != "model"]
    if conduct and conduct.get("outcomes"):  # returns lie at few values
        estimates = [each for each in estimates if not each["what"].startswith("quantile")]
    doubts: dict[str, dict[str, None]] = {}
    for answer in estimates:
        doubts.setdefault(answer["bias"], {})[wording.source(answer)] = None
    mechanisms = []
    if (clone := content.get(contents.CLONE)) is not None:  # without what else its files hold
        own = (clone.get("mechanisms") or [clone])[-1]
        mechanisms.append(("clone of the behaviour", {**clone, **own}))
    for name, own in asked["statements"].items():
        mechanisms.append((f"private evaluation: {name}", own))
    return {
        **beside,
        "statement": statement,
        "model": model,
        "policy": policy,
        "summary": summary,
        "ledger": content[contents.LEDGER],
        "answers": answers,
        "declared": declared,
        "labels": labels,
        "observation_names": _describe_names(policy.get("observation_names"), labels),
        "action_names": _describe_names(policy.get("action_names"), labels),
        "estimates": estimates,
        "doubts": doubts,
        "mechanisms": mechanisms,
        "facts": wording.public_facts(statement),
        "unprotected": wording.describe_public(statement) if statement["private"] else "",
    }


def compare_with_today(
    summary: Content, verdict: Verdict, conduct: Content | None, model: Content
) -> dict[str, Any]:
    """Decide what stands beside today's practice: variables of the card and of the report.

    Args:
        summary: of the run, with the private units' answers; its unit is in plain words.
        verdict: about the model.
        conduct: what the policy does (`primorl.evaluate.private.results.Conduct`); None: unknown.
        model: ``config.json`` of the model, which names actions that nobody takes.
    """
    today = wording.find_today(summary)
    advice, units = summary.get("recommendation"), wording.plural(summary["unit"])
    uses = conduct["actions"] if conduct else []
    farthest = sorted(uses, key=lambda use: abs(use["policy"] - use["clone"]), reverse=True)
    return {
        "units": units,
        "today": today,
        "trial": wording.describe_trial(advice, today, summary["units"], units) if advice else "",
        "against": wording.describe_signs(verdict),
        "practice": write_practice(summary, believed=verdict.believed),
        "believed": verdict.believed and (advice is None or advice["answer"] != "more_data"),
        "conduct": conduct,
        "uses": [use for use in uses if use in farthest[:_MOST_ACTIONS]],
        "rare": [uses[place]["name"] for place in model.get("rare_actions") or () if uses],
        "asked_outcomes": _share_outcomes(conduct, today),
    }


def bound_success(statement: Content) -> float | None:
    """Compute how often at most a guess at even odds is right, (1 + δ(0)) / 2 in percent.

    None: the profile is missing.
    """
    at_zero = [each["delta"] for each in statement.get("profile", ()) if each["epsilon"] == 0]
    return float(percent_at_most((1 + at_zero[0]) / 2).rstrip("%")) if at_zero else None


def trace_curve(statement: Content) -> tuple[tuple[float, float], ...]:
    """Compute the trade-off curve: false positive rates, and the largest true positive rates that
    the profile allows.
    """
    profile = [(point["epsilon"], point["delta"]) for point in statement.get("profile", ())]
    return tuple((rate, true_positive_rate(profile, rate)) for rate in _CURVE) if profile else ()


def write_meaning(statement: Content, studied: str) -> Section:
    """Write the section on the success of an attack on ``studied``."""
    units = wording.plural(statement["unit"])
    return _section("meaning", bundle=statement, studied=studied, units=units)


def write_practice(summary: Content, *, believed: bool = True) -> Section:
    """Write the section on what the comparison with today's practice does not show.

    Args:
        summary: ``evaluation.json`` or ``metrics/summary.json``.
        believed: whether values in the model may be shown.
    """
    today, counted = wording.find_today(summary), wording.todays_answer(summary)
    answers = summary.get("private_evaluation") or ()
    modelled = next((each["value"] for each in answers if each["what"] == AS_DRAWN), None)
    return _section(
        "compared",
        summary=summary,
        today=None if today is None else today.ends,
        policy=summary["return_ci95"],
        modelled=modelled if counted and believed else None,
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
    conduct: Content | None, today: wording.Shown | None
) -> list[tuple[float, float] | None]:
    """Return the interval of the share of the people who end in each named way, by their mean
    return; None: it does not tell.

    It does where all of them end in one of the two, or where the other one earns nothing.
    """
    if today is None or today.ends is None or not conduct or not conduct.get("outcomes"):
        return [None, None]
    low, high = (each["reward"] for each in conduct["outcomes"])
    least, most = (min(max((end - low) / (high - low), 0.0), 1.0) for end in today.ends)
    both = conduct["always_ends"]
    return [
        (1 - most, 1 - least) if both or high == 0 else None,
        (least, most) if both or low == 0 else None,
    ]


def list_columns(policy: Content, labels: Mapping[str, str]) -> list[Row]:
    """List the names of observations and actions with their declared words and public ranges; empty
    where the data name none.
    """
    seen, done = policy.get("observation_names") or (), policy.get("action_names") or ()
    if not _given_names((*seen, *done), labels):
        return []
    ends = (policy.get(f"observation_{end}") or [None] * len(seen) for end in ("low", "high"))
    rows: list[Row] = []
    for name, low, high in zip(seen, *ends, strict=False):
        known = low is not None and high is not None
        rows.append((name, f"observed, {low:g} to {high:g}" if known else "observed"))
    rows += [
        (name, "an action" if policy["discrete_actions"] else "set by the policy") for name in done
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


# The guarantee as a whole


def combine(
    statement: Content, clone: Content | None, answers: Content | None, delta: float
) -> Content:
    """Compute the guarantee against anyone with the whole bundle: the keys of a statement that a
    card explains.

    ε is the privacy filter's, so it holds however the questions were chosen after looking at the
    model. The attacks are bounded by the filter's ε at several δ, which is a little more than the
    profile of fixed mechanisms would say.

    Args:
        statement: ``privacy.json`` of the model.
        clone: the same of the clone of the behaviour; None: none was made.
        answers: ``private-evaluation.json``; None: nothing was asked.
        delta: δ of the ledger's statement.
    """
    asked = {} if answers is None else answers["statements"]
    own = [*([] if clone is None else [clone]), *asked.values()]
    if not own:
        return statement
    everything = (statement, *own)
    void = dict.fromkeys(reason for each in everything for reason in each["void"])
    combined = {**statement, "void": list(void)}
    if not all(each["private"] for each in everything):
        return _drop_bounds(combined)
    costs = [cost(event_from_json(each["event"])) for each in _list_mechanisms(everything)]
    return _with_figures(combined, total(costs), delta)


def add_account(
    released: Content, own: Sequence[Content], charged: Mapping[str, Cost], delta: float
) -> Content:
    """Compute the guarantee against anyone with the results of all charges on the same units,
    beside those in `combine`.

    Args:
        released: the result of `combine`.
        own: the statements that it counted. One that the ledger does not have is counted as well.
        charged: the cost of every charge of the account, by its id.
        delta: δ of all.
    """
    if not released["private"]:
        return released
    stated = [
        (each.get("charge"), cost(event_from_json(each["event"]))) for each in _list_mechanisms(own)
    ]
    spent = total([*charged.values(), *(each for charge, each in stated if charge not in charged)])
    if not math.isfinite(spent.epsilon(delta)):
        return _drop_bounds(released)
    # The figures of this run's statements are tighter. They hold alone where the ledger has nothing
    # else and no more.
    nothing_else = charged.keys() <= {charge for charge, _ in stated}
    own_epsilon = total([each for _, each in stated]).epsilon(delta)
    if nothing_else and spent.epsilon(delta) <= own_epsilon * (1 + 1e-9):
        return released
    return _with_figures(released, spent, delta)


def _list_mechanisms(statements: Sequence[Content]) -> list[Content]:
    parts = (part for each in statements for part in each.get("mechanisms") or (each,))
    return count_once(parts, lambda part, key: part.get(key))


def _with_figures(statement: Content, spent: Cost, delta: float) -> Content:
    """Return a statement with the figures of the privacy filter, at several δ from ``delta`` on."""
    pairs = [(spent.epsilon(d), d) for d in (delta, *(d for d in DELTAS if d > delta))]
    profile = [(0.0, spent.total_variation()), *sorted(pair for pair in pairs if pair[0] > 0)]
    rates = [attack["false_positive_rate"] for attack in statement.get("attacks", ())]
    of_model = {key: statement.get(key) for key in ("epsilon", "delta", "groups")}
    return {
        **statement,
        "of_model": statement.get("of_model", of_model),
        "epsilon": spent.epsilon(delta),
        "delta": delta,
        "profile": [{"epsilon": e, "delta": d} for e, d in profile],
        "groups": [],
        "attacks": [
            {"false_positive_rate": r, "true_positive_rate": true_positive_rate(profile, r)}
            for r in rates
        ],
    }


def _drop_bounds(statement: Content) -> Content:
    """Return a statement of which nothing is guaranteed any more."""
    nothing = {"private": False, "epsilon": None, "delta": None}
    return {**statement, **nothing, "profile": [], "groups": [], "attacks": []}


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
        "gain": wording.gain,
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
