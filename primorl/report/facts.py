"""The content of a report, from files of the run that are released or public.

Reads nothing private.

The ledger's history is given by `primorl report` alone: it is no part of a stage's inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from primorl.base.errors import PipelineError
from primorl.base.paths import MODEL, PARAMS, PRIVATE_EVALUATION, SUMMARY
from primorl.base.records import to_json
from primorl.config.params import Params
from primorl.evaluate.wording import plural
from primorl.model.architecture import ModelConfig
from primorl.privacy.accounting.privacy_filter import Cost
from primorl.privacy.statement import Statement
from primorl.release.card import add_account, combine
from primorl.run import VerifiedRun


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
