"""The page: one HTML file that fetches nothing and runs nothing; and its facts, from files of the
run that are released or public.

Its words and its figure are in the template. The ledger's history is given by `primorl report`
alone: it is no part of a stage's inputs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import primorl
from primorl.base import PipelineError
from primorl.base.files import MODEL, PARAMS, SUMMARY
from primorl.config.params import Params
from primorl.evaluate import wording
from primorl.evaluate.private.results import Conduct, Verdict
from primorl.evaluate.summary import Summary
from primorl.model.architecture import ModelConfig
from primorl.policy.config import PolicyConfig
from primorl.privacy.accounting.privacy_filter import Cost
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.composition import add_account, combine
from primorl.privacy.ledger.history import Budget
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.release import card
from primorl.run import VerifiedRun

_LENGTHS = "lengths"  # the query that tells how long recordings are, as statements name it
_MOST_CHARGES = 12  # that are listed, the latest
_ROUNDING = 1.001  # between the accountant of one release and the ledger's filter


@dataclass(frozen=True)
class Spending:
    """The ledger's history of the dataset's units.

    Attributes:
        charges: stage, day, and ε of all charges up to and with it.
        budget: of all; None: there is no bound.
        budget_changes: how it changed, in words.
        delta: δ of all.
        costs: of each charge in the privacy filter's currencies, by its id.
    """

    charges: tuple[tuple[str, str, float], ...]
    budget: Budget | None
    budget_changes: Sequence[str]
    delta: float
    costs: Mapping[str, Cost]


@dataclass(frozen=True)
class Facts:
    """The content of a report; unknown values are empty or None.

    Attributes:
        summary: of the run.
        statement: of the policy.
        training: statement of the model, with its rounds.
        released: the guarantee of the results in `counted`.
        counted: the results that the bounds on attacks count, in words: this run's, or all in the
            ledger.
        policy: sizes and names of the policy.
        model: likewise of the model.
        spending: of the ledger, if it was asked for.
        declared: texts that people declared for the card, by key.
        day: of the report.
        newer_data: whether people joined, left or withdrew since the run.
        conduct: what the policy does beside today's practice.
    """

    summary: Summary
    statement: Statement
    training: Statement
    released: Statement
    counted: str
    policy: PolicyConfig
    model: ModelConfig
    spending: Spending | None = None
    declared: Mapping[str, Any] = field(default_factory=dict)
    day: date = field(default_factory=date.today)
    newer_data: bool = False
    conduct: Conduct | None = None


def read_facts(
    params: Params,
    *,
    spending: Spending | None = None,
    allow_newer_data: bool = False,
) -> Facts:
    """Read the run's files in the working directory.

    Args:
        params: have the dataset and its declared texts.
        spending: see `Facts`.
        allow_newer_data: see `VerifiedRun.read`.

    Raises:
        PipelineError: a file is missing or broken, or the results are of another dataset, model or
            policy; one line.
    """
    run = VerifiedRun.read(params, allow_newer_data=allow_newer_data)
    found, answers, training, clone = run.evaluated, run.answers, run.model, run.clone
    if found.dataset != params.dataset:
        other = f"found {params.dataset!r}, and {SUMMARY} has the results of {found.dataset!r}"
        raise PipelineError(f"{PARAMS}: dataset: {other}; run `dvc repro`, or change it back")
    own = [training, *([] if clone is None else [clone]), *answers.statements.values()]
    released = combine(own, training.delta or 0.0)
    parts = ["model", *(["clone"] if clone else []), "policy", *["answers"] * answers.asked]
    counted = f"this run's {', '.join(parts[:-1])} and {parts[-1]}"
    if spending is not None:
        delta = min(spending.delta, released.delta or spending.delta)
        released = add_account(released, own, spending.costs, delta)
        noun = wording.singular(training.unit, params.chosen.card.labels)
        counted = f"all results ever released about these {wording.plural(noun)}"
    return Facts(
        summary=found,
        statement=run.policy,
        training=training,
        released=released,
        counted=counted,
        policy=run.config,
        model=ModelConfig.read(MODEL),
        spending=spending,
        declared=params.chosen.texts,
        conduct=answers.conduct,
    )


def write_page(facts: Facts) -> str:
    """Write the report as HTML.

    Styles are inside, there are no scripts, and a policy in its head forbids to fetch anything.
    """
    statement, declared, summary = facts.statement, facts.declared, facts.summary
    labels = declared.get("labels", {})
    unit = wording.singular(facts.training.unit, labels)
    training, released = (replace(each, unit=unit) for each in (facts.training, facts.released))
    void = tuple(dict.fromkeys((*statement.void, *summary.void, *released.void)))
    sound = statement.private and released.private and not void
    # ε and δ of everything that the page counts, or of the policy where no bound holds for all
    leading = released if released.private else summary
    answers, verdict = summary.private_evaluation or (), summary.model_verdict or Verdict()
    beside = card.compare_with_today(
        summary, training, answers, verdict, facts.conduct, facts.model
    )
    lengths = any(each.what == _LENGTHS for each in training.queries)
    template = card.environment("primorl.report", autoescape=True).get_template("report.html.j2")
    told = {
        **beside,
        **_list_spending(facts),
        "day": f"{facts.day.day} {facts.day:%B %Y}",
        "sound": sound,
        "unit": unit,
        "promise": wording.guarantee(leading.epsilon, leading.delta, unit, void),
        "success": card.bound_success(released) if sound else None,
        "curve": card.trace_curve(released) if sound else (),
        "unprotected": wording.describe_public(training) if statement.private else "",
        "public_facts": wording.public_facts(statement),
        "lengths_known": lengths or bool(training.public_units),
        "meaning": card.write_meaning(released, training, facts.counted),
        "conduct": card.write_conduct(beside, labels),
        "responsible": [
            (said, declared.get(key, "not stated")) for key, said in card.DECLARED_TEXTS.items()
        ],
        "columns": card.list_columns(facts.policy, labels),
        "explained": wording.list_explained(facts.model, labels),
        "version": primorl.__version__,
    }
    return template.render(vars(facts) | told)


def _list_spending(facts: Facts) -> dict[str, Any]:
    """State what was spent on the units, in the ledger if it was asked for, else by the end of the
    run; and list the last charges: stage, day, and ε of all up to and with it.
    """
    spending = facts.spending
    if spending is None or not spending.charges:
        account, own = facts.summary.spent_on_dataset, facts.released.epsilon
        more = False
        if account is not None and own is not None:
            more = account.epsilon is None or account.epsilon > own * _ROUNDING
        return {"spent": wording.account(account), "charged": (), "more_was_spent": more}
    charges = spending.charges
    epsilon, delta = charges[-1][2], spending.delta
    spent = SpentOnDataset(epsilon=epsilon, delta=delta, charges=len(charges))
    last = charges[-_MOST_CHARGES:]
    charged = [(*own, at_most(of) if math.isfinite(of) else "no bound") for *own, of in last]
    return {"spent": wording.account(spent), "charged": charged, "more_was_spent": False}
