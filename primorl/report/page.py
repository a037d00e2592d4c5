"""The page: one HTML file that fetches nothing and runs nothing; and its facts, from files of the
run that are released or public.

Its words and its figure are in the template. The ledger's history is given by `primorl report`
alone: it is no part of a stage's inputs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

import primorl
from primorl.base.errors import PipelineError
from primorl.base.paths import MODEL, PARAMS, PRIVATE_EVALUATION, SUMMARY
from primorl.base.records import to_json
from primorl.config.params import Params
from primorl.evaluate.private.results import Verdict
from primorl.evaluate.wording import (
    ADVICE,
    GAIN_NOTE,
    account,
    comparable,
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
from primorl.model.architecture import ModelConfig
from primorl.privacy.accounting.privacy_filter import Cost
from primorl.privacy.accounting.rounding import at_least, at_most, left_of
from primorl.privacy.statement import Statement
from primorl.release.card import (
    DECLARED_TEXTS,
    add_account,
    bound_success,
    combine,
    list_columns,
    trace_curve,
    write_conduct,
    write_meaning,
    write_practice,
)
from primorl.run import VerifiedRun

_LENGTHS = "lengths"  # the query that tells how long recordings are, as statements name it
_MOST_CHARGES = 12  # that are listed, the latest


@dataclass(frozen=True)
class Spending:
    """The ledger's history of the dataset's units.

    Attributes:
        charges: stage, day, and ε of all charges up to and with it.
        budget: the most ε; None: there is no bound.
        delta: δ of all.
        costs: of each charge in the privacy filter's currencies, by its id.
    """

    charges: tuple[tuple[str, str, float], ...]
    budget: float | None
    delta: float
    costs: Mapping[str, Cost]


@dataclass(frozen=True)
class Facts:
    """The content of a report, as plain values; unknown ones are empty or None.

    Attributes:
        summary: content of ``metrics/summary.json``.
        statement: of the policy.
        training: statement of the model, with its rounds.
        released: keys of a statement about the results in `counted`.
        counted: the results that the bounds on attacks count, in words: this run's, or all in the
            ledger.
        spending: of the ledger, if it was asked for.
        mlflow: where the run is found.
        policy: content of ``config.json`` of the policy.
        model: likewise of the model.
        declared: texts that people declared for the card, by key.
        discount: of the private units' answers.
        day: of the report.
        link: from the page to the file with all answers.
        newer_data: whether people joined, left or withdrew since the run.
        conduct: what the policy does beside today's practice.
    """

    summary: Mapping[str, Any]
    statement: Statement
    training: Statement
    released: Mapping[str, Any]
    counted: str
    spending: Spending | None = None
    mlflow: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    discount: float = 1.0
    day: date = field(default_factory=date.today)
    link: str = f"../{PRIVATE_EVALUATION}"
    newer_data: bool = False
    conduct: Mapping[str, Any] | None = None

    @property
    def void(self) -> tuple[str, ...]:
        """Reasons not to rely on the results that the page counts, or on a part of them."""
        reasons = (*self.statement.void, *self.summary["void"], *self.released["void"])
        return tuple(dict.fromkeys(reasons))

    @property
    def sound(self) -> bool:
        """Whether everything that the page counts has a guarantee, and no part of it is void."""
        return self.statement.private and bool(self.released["private"]) and not self.void


def read_facts(
    params: Params,
    *,
    spending: Spending | None = None,
    mlflow: str = "",
    allow_newer_data: bool = False,
) -> Facts:
    """Read the run's files in the working directory.

    Args:
        params: have the dataset and its declared texts.
        spending: see `Facts`.
        mlflow: see `Facts`.
        allow_newer_data: see `VerifiedRun.read`.

    Raises:
        PipelineError: a file is missing or broken, or the results are of another dataset, model or
            policy; one line.
    """
    run = VerifiedRun.read(params, allow_newer_data=allow_newer_data)
    found, answers, training, clone = run.evaluated, run.answers, run.model, run.clone
    if found.dataset != params.dataset:
        raise PipelineError(
            f"{PARAMS}: dataset: found {params.dataset!r}, and {SUMMARY} has the results of "
            f"{found.dataset!r}; run `dvc repro`, or change it back"
        )
    cloned = None if clone is None else clone.to_json()
    asked = to_json(answers) if answers.asked else None
    released = combine(training.to_json(), cloned, asked, training.delta or 0.0)
    parts = ["model", *([] if clone is None else ["clone"]), "policy"]
    parts += ["answers"] if answers.asked else []
    counted = f"this run's {', '.join(parts[:-1])} and {parts[-1]}"
    if spending is not None:
        own = [training, *([] if clone is None else [clone]), *answers.statements.values()]
        delta = min(spending.delta, released["delta"] or spending.delta)
        stated = [each.to_json() for each in own]
        released = add_account(released, stated, spending.costs, delta)
        counted = f"all results ever released about these {plural(training.unit)}"
    return Facts(
        summary=found.to_json(),
        statement=run.policy,
        training=training,
        released=released,
        counted=counted,
        spending=spending,
        mlflow=mlflow,
        policy=to_json(run.config),
        model=to_json(ModelConfig.read(MODEL)),
        declared=params.chosen.texts,
        discount=answers.discount,
        newer_data=run.newer_data,
        conduct=to_json(answers).get("conduct"),
    )


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
        gamma="" if facts.discount == 1 else f", discounted by γ = {facts.discount:g}",
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
        explained=list_explained(facts.model),
        curve=trace_curve(facts.released) if facts.sound else (),
        charged=[
            (stage, day, at_most(total) if math.isfinite(total) else "no bound")
            for stage, day, total in (facts.spending.charges if facts.spending else ())
        ][-_MOST_CHARGES:],
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
