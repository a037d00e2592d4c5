"""The page itself: one HTML file that fetches nothing and runs nothing.

Its words and its figure are in the template.
"""

import math
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

import primorl
from primorl.evaluate.private.results import Verdict
from primorl.evaluate.wording import (
    ADVICE,
    GAIN_NOTE,
    account,
    comparable,
    describe_discount,
    describe_public,
    gain,
    guarantee,
    list_explained,
    model_check,
    plural,
    public_facts,
    stop_rule,
    today_note,
    value,
)
from primorl.privacy.accounting.rounding import at_least, at_most, left_of
from primorl.release.card import (
    DECLARED_TEXTS,
    bound_success,
    list_columns,
    trace_curve,
    write_conduct,
    write_meaning,
    write_practice,
)
from primorl.report.facts import Facts

_LENGTHS = "lengths"  # the query that tells how long recordings are, as statements name it
_MOST_CHARGES = 12  # that are listed, the latest


def write_page(facts: Facts) -> str:
    """Write the report as HTML.

    Styles are inside, there are no scripts, and a policy in its head forbids to fetch anything.
    """
    summary = facts.summary
    # ε and δ of everything that the page counts, or of the policy where no bound holds for all
    leading = facts.released if facts.released["private"] else summary
    verdict, stated = Verdict.of(summary.get("model_verdict")), facts.training.to_json()
    advised = summary.get("recommendation")
    believed = verdict is None or verdict.believed
    today = next((row for row in comparable(summary, facts.discount) if not row.of_policy), None)
    return _template().render(
        facts=facts,
        day=f"{facts.day.day} {facts.day:%B %Y}",
        summary=summary,
        statement=facts.statement,
        training=facts.training,
        units=plural(facts.statement.unit),
        verdict=guarantee(
            {
                **summary,
                "epsilon": leading["epsilon"],
                "delta": leading["delta"],
                "void": facts.void,
            }
        ),
        success=bound_success(facts.released) if facts.sound else None,
        unprotected=describe_public(stated) if facts.statement.private else "",
        spent=_describe_spending(facts),
        public_facts=public_facts(facts.statement.to_json()),
        advice=ADVICE,
        gain=gain,
        gain_note=GAIN_NOTE,
        today=today,
        today_note=today_note(summary),
        stop="" if advised is None else stop_rule(advised, today, plural(facts.statement.unit)),
        gamma=describe_discount(facts.discount),
        lengths_known=bool(stated.get("public_units"))
        or any(each.what == _LENGTHS for each in facts.training.queries),
        checked=None if verdict is None else model_check(verdict),
        meaning=write_meaning(facts.released, facts.counted),
        practice=write_practice(summary, facts.discount, believed=believed),
        conduct=write_conduct(
            facts.conduct,
            facts.model,
            today,
            plural(facts.statement.unit),
            believed=believed,
        ),
        responsible=[
            (name, facts.declared.get(key, "not stated")) for key, name in DECLARED_TEXTS.items()
        ],
        columns=list_columns(facts.policy),
        explained=[(column.name, column) for column in list_explained(facts.model)],
        curve=trace_curve(facts.released) if facts.sound else (),
        charged=_list_charges(facts)[-_MOST_CHARGES:],
        version=primorl.__version__,
    )


def _describe_spending(facts: Facts) -> str:
    """State what was spent on the units: in the ledger if it was asked for, or else by the end of
    the run.
    """
    spending = facts.spending
    if spending is None or not spending.charges:
        return account(facts.summary)
    spent, count = (
        {"epsilon": spending.charges[-1][2], "delta": spending.delta},
        len(spending.charges),
    )
    return account({"spent_on_dataset": spent | {"charges": count}})


def _list_charges(facts: Facts) -> list[tuple[str, ...]]:
    """List the ledger's charges: the stage, the day, and ε of all up to and with it."""
    charges = () if facts.spending is None else facts.spending.charges
    return [
        (stage, day, at_most(total) if math.isfinite(total) else "no bound")
        for stage, day, total in charges
    ]


@cache
def _template() -> Template:
    made = Environment(
        loader=PackageLoader("primorl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"at_most": at_most, "at_least": at_least}
    made.globals |= {"left_of": left_of, "with_interval": value}
    return made.get_template("report.html.j2")
