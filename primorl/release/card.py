"""The model card: one page for people who are not experts, printed from released files and nothing else.

Every number comes from ``privacy.json``, ``config.json``, ``metrics/summary.json`` or the ledger's statement.
Text from those files is escaped: a name cannot bring markup along.
"""

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primorl.evaluation.wording import guarantee
from primorl.privacy.accounting.rounding import at_most

EXACT_EPSILON = "ε, exactly"
_EXACT_IN_CARD = re.compile(
    rf"^\| {EXACT_EPSILON} \| (\S+) \|$|^<tr><th>{EXACT_EPSILON}</th><td>(\S+)</td></tr>$", re.M
)
_TAGS = "title|style|head|html|body|h1|h2|header|p|small|div|span|i|b|main|section|ul|li|table|tr|th|td"
_HARMLESS = re.compile(
    rf"</?(?:{_TAGS})>|<header class=\"(?:sound|void)\">|<div class=\"bar\">|<i style=\"width:[\d.]+%\">"
)
_MARKDOWN = re.compile(r"([\\`*_\[\]|~])|^(?=[#+-]|\d+[.)]\s)")
_CERTAIN = 99.9  # percent
_NO_PROTECTION = 20.0  # ε

Row = tuple[str, str]


@dataclass(frozen=True)
class Section:
    """A heading, then points, then a table of two columns; any of the last two may be empty."""

    heading: str
    points: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Card:
    """A card's content, in plain text.

    Attributes:
        title: what the card is of.
        verdict: the guarantee in one line.
        sound: whether that line may be relied on.
        certainty: percent; how sure anybody can become who thought it as likely as not. None: nothing bounds it.
        sections: the rest.
    """

    title: str
    verdict: str
    sound: bool
    certainty: float | None
    sections: tuple[Section, ...]

    def markdown(self) -> str:
        """The card as Markdown (tables as GitHub has them)."""
        lines = [f"# {_md(self.title)}", "", f"**{_md(self.verdict)}**"]
        for section in self.sections:
            lines += ["", f"## {_md(section.heading)}", ""]
            lines += [f"- {_md(point)}" for point in section.points]
            if section.rows:
                lines += [*([""] if section.points else []), "| | |", "|---|---|"]
                lines += [f"| {_md(name)} | {_md(value)} |" for name, value in section.rows]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """The card as one self-contained page: no script, nothing fetched, fit for print and narrow screens."""
        return _PAGE.format(
            head=_HEAD,
            title=html.escape(self.title),
            style=_STYLE,
            kind="sound" if self.sound else "void",
            verdict=html.escape(self.verdict),
            bars=_bars(self.certainty),
            sections="\n".join(_section(section) for section in self.sections),
        )


def make_card(
    statement: Mapping[str, Any],
    model: Mapping[str, Any],
    policy: Mapping[str, Any],
    summary: Mapping[str, Any],
    ledger: Mapping[str, Any],
) -> Card:
    """Put a release's files into words.

    Args:
        statement: ``privacy.json``.
        model: ``config.json`` of the dynamics model.
        policy: ``config.json`` of the policy.
        summary: ``metrics/summary.json``.
        ledger: ``ledger-statement.json``.
    """
    sound = statement["private"] and not statement["void"]
    epsilon = statement["epsilon"]
    return Card(
        title=f"Model card: {summary['dataset']}",
        verdict=_verdict(statement, sound),
        sound=sound,
        certainty=_certainty(epsilon) if sound else None,
        sections=(
            _what(statement, model, policy),
            _protected(statement),
            _meaning(statement),
            Section("What was taken as public", (*statement["public_assumptions"],) or ("Nothing was stated.",)),
            _spent(ledger),
            Section(
                "What is void",
                tuple(f"The statement must not be relied on: {reason}." for reason in statement["void"])
                or ("Nothing.",),
            ),
            _performance(summary),
            _limits(statement, summary),
            _expert(statement, policy),
        ),
    )


def stated_epsilon(card: str) -> str | None:
    """The exact ε (JSON) in the text of a card, Markdown or HTML; None where there is none or more than one."""
    found = _EXACT_IN_CARD.findall(card)
    return "".join(found[0]) if len(found) == 1 else None


def is_inert(card: str) -> bool:
    """Whether a card that may come from a stranger holds nothing that runs, links or fetches, in any reader.

    A page must begin as ours do, with the policy that forbids all three, and every ``<`` must begin a tag without
    attributes of its own; Markdown must hold no tag and no link.
    """
    if card.startswith(_HEAD):
        return "<" not in _HARMLESS.sub("", card.removeprefix(_HEAD))
    # A bracket counts as escaped behind an odd number of backslashes; an address may become a link by itself.
    linked = re.search(r"(?<!\\)(?:\\\\)*[\[\]]", card) or re.search(r"https?:|www\.", card, re.IGNORECASE)
    return "<" not in card and linked is None


def _verdict(statement: Mapping[str, Any], sound: bool) -> str:
    if not statement["private"]:
        return "No protection: nothing is guaranteed about the data this was made from"
    return guarantee(statement) if sound else f"{guarantee(statement)}. Do not rely on it"


def _what(statement: Mapping[str, Any], model: Mapping[str, Any], policy: Mapping[str, Any]) -> Section:
    where = "learned from records, with no simulator"
    if policy["environment"] is not None:
        where = f"for the environment {policy['environment']}"
    answer = _count(policy["action_size"], "control value")
    if policy["discrete_actions"]:
        answer = f"one of {_count(policy['action_size'], 'action')}"
    return Section(
        "What this is",
        (
            f"A control policy {where}: it takes {policy['observation_size']} measurements and answers with {answer}.",
            f"The dynamics model it was trained in: {model['members']} neural networks that predict what happens next.",
            f"Both were made from {_count(statement['units'], 'private ' + statement['unit'])}"
            " and from what was taken as public, listed below.",
        ),
    )


def _protected(statement: Mapping[str, Any]) -> Section:
    unit = statement["unit"]
    if not statement["private"]:
        return Section("What is protected, and against whom", ("Nothing is protected, against nobody.",))
    return Section(
        "What is protected, and against whom",
        (
            f"Protected: whether any one private {unit} was in the data, and with that everything in it.",
            f"Against: anybody who gets this bundle, even who knows all other {_plural(unit)}, the program and every "
            "setting in it.",
            "Not against: people who can open the data themselves.",
        ),
    )


def _meaning(statement: Mapping[str, Any]) -> Section:
    heading = "What the numbers mean"
    if not statement["private"]:
        return Section(heading, ("There is no ε that holds: whoever studies these files may learn single records.",))
    epsilon, unit = statement["epsilon"], statement["unit"]
    certainty = _certainty(epsilon)
    sure = "practically certain" if certainty > _CERTAIN else f"at most {certainty:.1f}% sure"
    doubt = ("None of this may be relied on: see what is void.",) if statement["void"] else ()
    return Section(
        heading,
        (
            *doubt,
            f"ε bounds what this bundle can give away. Whatever odds somebody gave to “this {unit} was in the data”, "
            f"after studying it they change by {_factor(epsilon)} (e^ε).",
            f"Who held it as likely as not (50%) can become {sure}. At ε = 0 it would stay 50%: smaller is stronger.",
            f"δ = {statement['delta']:.3g}: with a probability of about 1 in {round(1 / statement['delta']):,}, "
            "that bound may fail.",
        ),
    )


def _spent(ledger: Mapping[str, Any]) -> Section:
    heading = "What was spent so far on this dataset"
    runs = _count(ledger["charges"], "run")
    if ledger["epsilon"] is None:
        total = (
            f"{runs} used these data, one without a guarantee among them: the results of all of them together, if all "
            "were given away, would promise nothing."
        )
    else:
        total = (
            f"{runs} used these data, this one included. To somebody who sees the results of all of them the bound is "
            f"ε = {at_most(ledger['epsilon'])} at δ = {ledger['delta']:.3g}: odds change by "
            f"{_factor(ledger['epsilon'])}."
        )
    groups: dict[tuple[Any, ...], list[str]] = {}
    for record in ledger["records"]:
        key = (record["stage"], record["epsilon"], record["delta"], record["state"], record["same_version"])
        groups.setdefault(key, []).append(record["day"])
    return Section(heading, (total,), tuple(_charge(*key, days=days) for key, days in groups.items()))


def _charge(
    stage: str, epsilon: float | None, delta: float, state: str, same_version: bool, *, days: Sequence[str]
) -> Row:
    when = days[0] if min(days) == max(days) else f"{min(days)} to {max(days)}"
    cost = "no guarantee" if epsilon is None else f"ε = {at_most(epsilon)}, δ = {delta:.3g} each"
    where = "" if same_version else ", on another version that shares data with this one"
    outcome = {"committed": "done", "reserved": "begun", "aborted": "failed, counted all the same"}[state]
    return f"{len(days)} × {stage}", f"{cost}; {outcome}{where}; {when}"


def _performance(summary: Mapping[str, Any]) -> Section:
    seeds = summary.get("seeds", ())
    if seeds:  # the policy that leaves is the first one's: its own figures
        summary = {**summary, **summary["by_seed"][0]}
    if summary["return_mean"] is None:
        return Section("How well it performs", _in_the_model(summary))
    low, high = summary["return_ci95"]
    points = [
        f"Mean return in {summary['env_id']}: {summary['return_mean']:.4g}, 95% interval {low:.4g} to {high:.4g}, over "
        f"{_count(summary['episodes'], 'episode')}.",
        "The interval covers luck in the episodes, not in training: a policy trained again would differ.",
    ]
    if summary["normalized_score"] is not None:
        points.insert(1, f"Score on the scale declared for this environment: {summary['normalized_score']:.4g}.")
    if len(seeds) > 1:
        points.append(f"It is the first of {len(seeds)} trained alike with different seeds, not the best of them.")
    return Section("How well it performs", tuple(points))


def _in_the_model(summary: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = summary["model_value_range"]
    return (
        "This was not measured: there is no simulator of the task, and nobody tried the policy out.",
        f"Its value in the released model: {summary['model_value']:.4g}; the {summary['model_value_members']} networks "
        f"by themselves say {low:.4g} to {high:.4g} (mean return of {summary['model_value_rollouts']} simulated "
        f"episodes each, of at most {_count(summary['model_value_horizon'], 'step')}).",
        f"That is {summary['model_value_note']}.",
        "The range says how far the networks disagree. It is no confidence interval: they may be wrong together.",
    )


def _limits(statement: Mapping[str, Any], summary: Mapping[str, Any]) -> Section:
    unit = statement["unit"]
    untried = (
        "Not for decisions about people, patients or machines without a test of its own: it was tried out nowhere, "
        "and judged by the model alone that it was made in."
    )
    if summary["env_id"] is not None:
        untried = (
            f"Not for decisions outside {summary['env_id']}, nor for people, patients or machines, without a test of "
            "its own there: it was measured in that environment alone."
        )
    points = [
        untried,
        "Not for finding out about single records, nor as proof that somebody is or is not among them.",
    ]
    if statement["private"]:
        points += [
            f"Somebody behind several {_plural(unit)} is protected less: with two in the data, odds change by "
            f"{_factor(2 * statement['epsilon'])}.",
            "What the data show as a whole is not hidden: learning that is the purpose.",
            "Data declared public, and the facts taken as public above, are not protected at all.",
            "Results of the same data that the ledger never heard of, and anything else that leaked, add up with this.",
        ]
    return Section("What it must not be used for, and what is not covered", tuple(points))


def _expert(statement: Mapping[str, Any], policy: Mapping[str, Any]) -> Section:
    accountant = statement["accountant"]
    rows = {
        EXACT_EPSILON: json.dumps(statement["epsilon"]),
        "ε by Rényi accounting": json.dumps(statement["epsilon_rdp"]),
        "δ": json.dumps(statement["delta"]),
        "unit": statement["unit"],
        "neighbouring data": statement["neighboring_relation"].replace("_", " "),
        "accountant": f"{accountant['name']} {accountant['version']}",
        "sampling probability": json.dumps(statement["sampling_probability"]),
        "noise multiplier": json.dumps(statement["noise_multiplier"]),
        "clipping": f"{json.dumps(statement['clipping_norm'])}, {statement['clipping']}",
        "rounds reserved": json.dumps(statement["rounds"]),
        "queries before the rounds": "; ".join(map(_query, statement["queries"])) or "none",
        "how episodes end": statement["termination"],
        "variant": policy["variant"],
        "charge": statement["charge"],
        "keyed fingerprint of the data": statement["dataset_fingerprint"],
    }
    printed = (
        "Printed from privacy.json, config.json, metrics/summary.json and ledger-statement.json; nobody typed a number."
    )
    return Section("For the expert", (printed,), tuple(rows.items()))


def _query(query: Mapping[str, Any]) -> str:
    return f"{query['what']}, noise multiplier {json.dumps(query['noise_multiplier'])}"


def _certainty(epsilon: float) -> float:
    """e^ε / (1 + e^ε) in percent, rounded up: the most that prior odds of one can become."""
    return math.ceil(1000 / (1 + math.exp(-epsilon))) / 10


def _factor(epsilon: float) -> str:
    if epsilon > _NO_PROTECTION:
        return "factors of 480 million and more, which is next to no protection"
    return f"a factor of at most {at_most(math.exp(epsilon))}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what if number == 1 else _plural(what)}"


def _plural(what: str) -> str:
    return what[:-1] + "ies" if what.endswith("y") else what + "s"


def _md(text: str) -> str:
    """``text`` as literal Markdown on one line: no markup of its own, HTML included."""
    return _MARKDOWN.sub(lambda found: f"\\{found[1] or ''}", html.escape(" ".join(text.split()), quote=False))


def _section(section: Section) -> str:
    parts = [f"<section><h2>{html.escape(section.heading)}</h2>"]
    parts += _wrapped("ul", (f"<li>{html.escape(point)}</li>" for point in section.points))
    parts += _wrapped(
        "table",
        (f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in section.rows),
    )
    return "\n".join([*parts, "</section>"])


def _wrapped(tag: str, lines: Iterable[str]) -> list[str]:
    inside = list(lines)
    return [f"<{tag}>", *inside, f"</{tag}>"] if inside else []


def _bars(certainty: float | None) -> str:
    if certainty is None:
        return ""
    return (
        "<small>How sure anybody can become that one given record was in the data, starting from 50%</small>\n"
        + "\n".join(
            f'<div class="bar"><span>{when}</span><div><i style="width:{percent:.1f}%"></i></div>'
            f"<b>{words}{percent:.4g}%</b></div>"
            for when, words, percent in (("before", "", 50.0), ("after", "at most ", certainty))
        )
    )


_STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --soft: #5b6675; --line: #d9dee6; --page: #fff; --raised: #f5f7fa;
  --good: #0b6b4f; --bad: #a3241b; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ee; --soft: #9aa5b4; --line: #323a46; --page: #14181f;
  --raised: #1c222b; --good: #4ecb9f; --bad: #ff8b80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 46rem; padding: 2.5rem 1.25rem 4rem; background: var(--page); color: var(--text);
  font: .95rem/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7em; line-height: 1.2; margin: 0 0 1.25rem; }
header { border: 1px solid var(--line); border-left: .35rem solid var(--tone); border-radius: .5rem;
  background: var(--raised); padding: 1.1em 1.25em; }
header.sound { --tone: var(--good); }
header.void { --tone: var(--bad); }
header p { margin: 0; font-size: 1.3em; font-weight: 650; color: var(--tone); }
header small { display: block; margin: .8em 0 .4em; color: var(--soft); font-size: .9em; }
.bar { display: grid; grid-template-columns: 3.5em 1fr 8em; gap: .75em; align-items: center; font-size: .9em; }
.bar > div { height: .6em; border-radius: .3em; background: var(--line); overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--tone); }
.bar b { font-weight: 500; }
main { margin-top: 1.8em; }
section { margin-bottom: 1.6em; break-inside: avoid; }
h2 { font-size: 1.1em; margin: 0 0 .4em; }
ul { margin: 0; padding-left: 1.2em; }
li { margin: .25em 0; }
table { width: 100%; border-collapse: collapse; margin-top: .75em; font-size: .92em; }
th, td { text-align: left; vertical-align: top; padding: .3em .5em .3em 0; border-top: 1px solid var(--line); }
th { width: 12em; font-weight: 500; color: var(--soft); }
@media (max-width: 34rem) { body { padding-top: 1.25rem; } th, td { display: block; width: auto; padding: .3em 0 0; }
  td { border: 0; padding: 0 0 .3em; } .bar { grid-template-columns: 3.5em 1fr; } .bar b { grid-column: 2; } }
@media (min-width: 64rem) { body { max-width: 76rem; } main { columns: 2; column-gap: 3rem; } }
@media print { @page { margin: 12mm; } body { max-width: none; padding: 0; font-size: 8pt; line-height: 1.35; }
  h1 { margin-bottom: .6em; } main { margin-top: 1.2em; columns: 2; column-gap: 2em; }
  section { margin-bottom: 1.1em; } th { width: 9em; } }
"""

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
"""

_PAGE = """{head}<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<header class="{kind}">
<p>{verdict}</p>
{bars}
</header>
<main>
{sections}
</main>
</body>
</html>
"""
