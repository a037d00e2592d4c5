"""The content of a report, from files of the run that are released or public.

Reads nothing private.

The ledger's history is given by `primorl report` alone: it is no part of a stage's inputs.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.paths import (
    CURVES,
    MODEL,
    PARAMS,
    POLICY,
    PRIVATE_EVALUATION,
    SUMMARY,
)
from primorl.base.records import to_json
from primorl.config.params import Params
from primorl.evaluate.summary import Summary
from primorl.evaluate.wording import plural
from primorl.model.architecture import ModelConfig
from primorl.model.ensemble import GaussianEnsemble
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.privacy_filter import Cost
from primorl.privacy.statement import Statement
from primorl.release.card import whole, with_account
from primorl.run import Run

_MOST_ROWS = 16384
_LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
_NEAR = 0.01  # of an action's range: the policy is at its bound


@dataclass(frozen=True)
class Epoch:
    """The value of the policy after an epoch, and its interval."""

    number: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Actions:
    """Actions in the public rows, and those of the policy in the same states.

    Attributes:
        names: of the action's dimensions, or of the discrete actions.
        discrete: whether actions are discrete.
        recorded: in the rows: of each dimension five levels (least, quartiles, greatest) from 0 at
            the lower bound to 1 at the upper; of each discrete action its share, one number.
        chosen: the policy's, likewise.
        at_bound: of each dimension the share of rows within 1% of the range of a bound, recorded
            and chosen; discrete actions have none.
    """

    names: tuple[str, ...]
    discrete: bool
    recorded: tuple[tuple[float, ...], ...]
    chosen: tuple[tuple[float, ...], ...]
    at_bound: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())


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
        curve: after every epoch.
        model_error: of each target on the public split, in units of its variance.
        spending: of the ledger, if it was asked for.
        actions: of the public rows and of the policy, if they have finite bounds.
        mlflow: where the run is found.
        policy: content of ``config.json`` of the policy.
        declared: texts that people declared for the card, by key.
        discount: of the private units' answers.
        day: of the report.
        link: from the page to the file with all answers.
    """

    summary: Mapping[str, Any]
    statement: Statement
    training: Statement
    released: Mapping[str, Any]
    counted: str
    curve: Sequence[Epoch]
    model_error: Mapping[str, float] = field(default_factory=dict)
    spending: Spending | None = None
    actions: Actions | None = None
    mlflow: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    discount: float = 1.0
    day: date = field(default_factory=date.today)
    link: str = f"../{PRIVATE_EVALUATION}"

    @property
    def void(self) -> tuple[str, ...]:
        """Reasons not to rely on the results that the page counts, or on a part of them."""
        return tuple(
            dict.fromkeys((*self.statement.void, *self.summary["void"], *self.released["void"]))
        )

    @property
    def sound(self) -> bool:
        """Whether everything that the page counts has a guarantee, and no part of it is void."""
        return self.statement.private and bool(self.released["private"]) and not self.void


def read_facts(params: Params, *, spending: Spending | None = None, mlflow: str = "") -> Facts:
    """Read the run's files in the working directory.

    Args:
        params: have the dataset and its declared texts.
        spending: see `Facts`.
        mlflow: see `Facts`.

    Raises:
        PipelineError: a file is missing or broken, or the results are of another dataset, model or
            policy, or the public rows or the curve are of another run; one line.
    """
    run, points = Run.read(params), _curve(CURVES)
    found, answers, training, clone = run.evaluated, run.answers, run.model, run.clone
    statement, config, public = run.policy, run.config, run.public
    if found.dataset != params.dataset:
        raise PipelineError(
            f"{PARAMS}: dataset: found {params.dataset!r}, and {SUMMARY} has the results of "
            f"{found.dataset!r}; run `dvc repro`, or change it back"
        )
    _refuse_another_curve(found, points)
    released = whole(
        training.to_json(),
        None if clone is None else clone.to_json(),
        to_json(answers) if answers.asked else None,
        training.delta or 0.0,
    )
    parts = [
        "model",
        *([] if clone is None else ["clone"]),
        "policy",
        *(["answers"] if answers.asked else []),
    ]
    counted = f"this run's {', '.join(parts[:-1])} and {parts[-1]}"
    if spending is not None:
        own = [training, *([] if clone is None else [clone]), *answers.statements.values()]
        delta = min(spending.delta, released["delta"] or spending.delta)
        stated = [each.to_json() for each in own]
        released = with_account(released, stated, spending.costs, delta)
        counted = f"the results of all charges on these {plural(training.unit)} in the ledger"
    facts = Facts(
        summary=found.to_json(),
        statement=statement,
        training=training,
        released=released,
        counted=counted,
        curve=points,
        spending=spending,
        mlflow=mlflow,
        policy=to_json(config),
        declared=params.chosen.card.stated,
        discount=answers.discount,
    )
    if public.units == 0:
        return facts
    ensemble = GaussianEnsemble.load(MODEL, torch.device("cpu"))
    names, (inputs, targets) = _names(ModelConfig.read(MODEL)), public.flat()
    policy = DeterministicPolicy.load(POLICY)
    return replace(
        facts,
        model_error=_errors(ensemble, inputs, targets, names),
        actions=compared_actions(policy, inputs, config.action_names),
    )


def _refuse_another_curve(summary: Summary, curve: Sequence[Epoch]) -> None:
    """Refuse a curve that does not end at the summary's value: `evaluate` writes both from one
    result.
    """
    measured = summary.return_mean is not None
    value, ends = (
        (summary.return_mean, summary.return_ci95)
        if measured
        else (summary.model_value, summary.model_value_range)
    )
    last = curve[-1] if curve else None
    if last is None or (last.value, (last.low, last.high)) != (value, ends):
        found = "no epoch" if last is None else f"{last.value!r} after the last epoch"
        raise PipelineError(
            f"{CURVES}: found {found}, and {SUMMARY} says {value!r}: they are not of one "
            "evaluation; run `dvc repro evaluate`"
        )


def _names(model: ModelConfig) -> list[str]:
    return [
        *(model.observation_names or (f"observation {i}" for i in range(model.observation_size))),
        "reward",
    ]


def _errors(
    ensemble: GaussianEnsemble, inputs: Tensor, targets: Tensor, names: Sequence[str]
) -> dict[str, float]:
    """Mean squared error of the members' mean prediction, in units of the target's variance."""
    stride = -(-len(inputs) // _MOST_ROWS)
    inputs, targets, S = inputs[::stride], targets[::stride], ensemble.architecture.observation_size
    with torch.no_grad():
        mean, _, _ = ensemble.predict(inputs[:, :S], inputs[:, S:])
    wanted = targets[:, : S + 1]
    variance = wanted.var(0)
    error = (mean.mean(0) - wanted).square().mean(0) / variance.where(variance > 0, 1.0)
    return dict(zip(names, error.tolist(), strict=True))


def compared_actions(
    policy: DeterministicPolicy, inputs: Tensor, names: Sequence[str] | None
) -> Actions | None:
    """Compare the actions of public rows, ``[R, S + A]`` in the log's units, with the policy's in
    the same states.
    """
    S = policy.observation_size
    low, width = policy.action_low, policy.action_high - policy.action_low
    if not (torch.isfinite(width) & (width > 0)).all():
        return None
    called = tuple(names or (f"action {i}" for i in range(policy.action_size)))
    done = torch.cat([policy.act(rows[None, :, :S])[0] for rows in torch.split(inputs, _MOST_ROWS)])
    recorded, chosen = (inputs[:, S:] - low) / width, (done - low) / width
    if policy.discrete_actions:
        return Actions(
            called, True, _rows_of(recorded.mean(0)[:, None]), _rows_of(chosen.mean(0)[:, None])
        )
    return Actions(
        called, False, _levels(recorded), _levels(chosen), at_bound=(_ends(recorded), _ends(chosen))
    )


def _levels(values: Tensor) -> tuple[tuple[float, ...], ...]:
    """Least, quartiles and greatest of each column of ``[R, C]``."""
    # torch.quantile refuses more than 2**24 numbers
    return _rows_of(torch.from_numpy(np.quantile(values.numpy(), _LEVELS, axis=0).T))


def _ends(actions: Tensor) -> tuple[float, ...]:
    """Share of rows at either bound, for each dimension."""
    return tuple(((actions < _NEAR) | (actions > 1 - _NEAR)).double().mean(0).tolist())


def _rows_of(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))


def _curve(path: Path) -> list[Epoch]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        kind = "model" if rows and rows[0]["return_mean"] == "" else "return"
        names = ("model_value" if kind == "model" else "return_mean", f"{kind}_low", f"{kind}_high")
        return [Epoch(int(row["epoch"]), *(float(row[name]) for name in names)) for row in rows]
    except (OSError, KeyError, TypeError, ValueError) as broken:
        raise PipelineError(
            f"{path}: not a curve ({type(broken).__name__}); run `dvc repro evaluate`"
        ) from None
