"""``metrics/summary.json`` and ``online.json``: results beside the privacy that paid for them,
their curves and log.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from primorl.base.files import (
    ONLINE_CURVE,
    ONLINE_METRICS,
    file_sha256,
    replaced_file,
)
from primorl.base.records import (
    Count,
    FileRecord,
    Hexadecimal,
    Line,
    StatedDelta,
    StatedEpsilon,
    record,
)
from primorl.base.reporting import RunContent, StageLog
from primorl.evaluate.private.results import Answer, PrivateEvaluation, Verdict
from primorl.evaluate.recommendation import Recommendation
from primorl.evaluate.wording import guarantee, singular
from primorl.model.architecture import Variant
from primorl.privacy.statement import SpentOnDataset, Statement

if TYPE_CHECKING:
    from torch import Tensor

Score = Callable[[float], float]
"""From a mean return to the normalised score that the dataset declares."""

_COMPARED = ("dataset", "env_id", "variant", "seed", "private", "epsilon", "delta", "unit", "units")
_REPEATED = (
    "private",
    "epsilon",
    "epsilon_rdp",
    "delta",
    "unit",
    "units",
    "void",
    "spent_on_dataset",
)
_REMEDY = "run `primorl run`, which says first what it charges, or, in a clone, `dvc pull`"


NOTE = (
    "the policy's mean return in the released model, not measured in the world: wrong wherever "
    "the model is, and likely too high, for the policy was trained in this model"
)
"""Reliability of a value in the model, in words."""
_MEASURED = ("return_mean", "return_low", "return_high")
_MODELLED = ("model_value", "model_low", "model_high")


@dataclass(frozen=True)
class Estimate:
    """The value of a policy: a measured mean return with its two-sided 95% Student-t interval; or
    the value in the released model, the mean over the members with the least and greatest of
    theirs.
    """

    mean: float
    low: float
    high: float
    measured: bool = True

    @classmethod
    def of(cls, sample: npt.NDArray[np.float64]) -> Self:
        """Compute mean ± t(0.975, n - 1)·s/√n of n independent values.

        Raises:
            ValueError: fewer than two values, which have no spread.
        """
        count = len(sample)
        if count < 2:
            raise ValueError(f"an interval needs at least 2 values, found {count}")
        from scipy.special import stdtrit  # readers of a summary do without it

        mean = float(sample.mean())
        half = float(stdtrit(count - 1, 0.975) * sample.std(ddof=1) / np.sqrt(count))
        return cls(mean, mean - half, mean + half)

    @classmethod
    def in_model(cls, by_member: "Tensor") -> Self:
        """Summarise the members' values, ``[N]``."""
        return cls(float(by_member.mean()), float(by_member.min()), float(by_member.max()), False)

    @classmethod
    def over(cls, seeds: Sequence[Self]) -> Self:
        """Average several policies' values: with the interval of their spread if they are
        measured, else with the range of all; keep a single policy's.
        """
        if len(seeds) == 1:
            return seeds[0]
        means = [own.mean for own in seeds]
        if seeds[0].measured:
            return cls.of(np.array(means))
        ends = min(own.low for own in seeds), max(own.high for own in seeds)
        return cls(fmean(means), *ends, measured=False)


@dataclass(frozen=True)
class Evaluation:
    """Every seed's values, and how they were found.

    Attributes:
        curves: of each seed, in their order, the values of its policy after every epoch; the last
            is the final policy's.
        method: keys of the summary that say how: episodes, or the model's members, rollouts and
            horizon.
        score: of the dataset, if it declares one.
    """

    curves: tuple[tuple[Estimate, ...], ...]
    method: Mapping[str, Any]
    score: Score | None

    @property
    def overall(self) -> tuple[Estimate, ...]:
        """Average the curves over the seeds."""
        return tuple(Estimate.over(same) for same in zip(*self.curves, strict=True))

    def figures(self, value: Estimate) -> dict[str, float]:
        """Return the numbers of a value by name, with the score of a measured return."""
        names = _MEASURED if value.measured else _MODELLED
        found = dict(zip(names, (value.mean, value.low, value.high), strict=True))
        if value.measured and self.score is not None:
            found["normalized_score"] = self.score(value.mean)
        return found

    def summarise(self, value: Estimate) -> dict[str, Any]:
        """Make the summary's keys for the value of a policy."""
        mean, ends = value.mean, (value.low, value.high)
        if not value.measured:
            unmeasured = dict.fromkeys(("return_mean", "return_ci95", "normalized_score"))
            return {**unmeasured, "model_value": mean, "model_value_range": ends}
        normalized = self.score(mean) if self.score else None
        return {"return_mean": mean, "return_ci95": ends, "normalized_score": normalized}


@record
class PolicyValue:
    """The value of one policy: its measured return, or its value in the released model.

    Optional keys are left out of files where they are null.
    """

    return_mean: float | None
    """Mean return of its episodes; `null`: nothing could be measured."""
    return_ci95: tuple[float, float] | None
    """Its 95% interval."""
    normalized_score: float | None
    """Score of the mean return; `null`: the dataset declares none."""
    policy_sha256: Hexadecimal
    """SHA-256 of the policy's file."""
    model_value: float | None = None
    """Value in the released model, where nothing can be measured."""
    model_value_range: tuple[float, float] | None = None
    """Least and greatest value over the members."""


@record
class SeedSummary(PolicyValue):
    """The result of one seed of several."""

    seed: int
    """The seed."""


@record
class PolicyResult(PolicyValue):
    """The value of a run's policy, how it was found, and what to compare it with."""

    dataset: Line
    """Name of the dataset."""
    env_id: Line | None
    """Gymnasium id; `null`: there is no simulator."""
    episodes: Count | None
    """Episodes measured for each final policy."""
    model_value_members: Count | None = None
    """Members of the ensemble."""
    model_value_rollouts: Count | None = None
    """Rollouts in each member."""
    model_value_horizon: Count | None = None
    """Steps of a rollout."""
    model_value_note: Line | None = None
    """How far the value can be relied on."""
    public_return_mean: float | None = None
    """Mean return of the public trajectories: what the behaviour in the log earns."""
    public_return_ci95: tuple[float, float] | None = None
    """Its 95% interval."""
    public_trajectories: Count | None = None
    """Number of public trajectories."""
    seeds: tuple[int, ...] | None = None
    """Seeds that were trained; one policy is the first one's."""
    recommendation: Recommendation | None = None
    """What to do with the policy; left out where an environment measured it."""


@record
class Summary(PolicyResult, FileRecord):
    """The results of a run (``metrics/summary.json``)."""

    REMEDY: ClassVar[str] = _REMEDY

    variant: Variant
    """`dynamics.variant` of params.yaml."""
    private: bool
    """Whether the release has an (ε, δ) guarantee."""
    epsilon: StatedEpsilon | None
    """ε of this release, by the PLD accountant; `null`: no guarantee."""
    epsilon_rdp: StatedEpsilon | None
    """ε by the RDP accountant."""
    delta: StatedDelta | None
    """δ at which ε is read."""
    unit: Line
    """What one unit of privacy is."""
    units: Count
    """K, the number of private units; public."""
    void: tuple[Line, ...]
    """Reasons not to rely on the statement."""
    spent_on_dataset: SpentOnDataset | None
    """What the ledger had recorded for the same units: the private evaluation included where
    something was asked.
    """
    seed: int
    """`seed` of params.yaml."""
    seconds: dict[str, float]
    """Wall time of each stage."""
    by_seed: tuple[SeedSummary, ...] | None = None
    """The same results for each seed."""
    model_sha256: Hexadecimal | None = None
    """SHA-256 of the model's file that the policy was trained in."""
    private_evaluation: tuple[Answer, ...] | None = None
    """Values by the private units and in the released model, where something was asked."""
    private_evaluation_sha256: Hexadecimal | None = None
    """SHA-256 of metrics/private_evaluation.json, whose answers were judged."""
    curve_sha256: Hexadecimal | None = None
    """SHA-256 of plots/curves.csv, the values after every epoch."""
    model_verdict: Verdict | None = None
    """What speaks against the model, and bars a trial."""

    @classmethod
    def of(
        cls,
        evaluation: Evaluation,
        folders: Sequence[Path],
        *,
        seeds: Sequence[int] | None,
        statement: Statement,
        answers: PrivateEvaluation,
        public_returns: npt.NDArray[np.float64],
        **others: Any,
    ) -> Self:
        """Summarise an evaluation.

        Args:
            evaluation: of the policies in ``folders``.
            folders: one a seed.
            seeds: of params.yaml; None if it lists none.
            statement: of the policies.
            answers: of the private units, about the first policy.
            public_returns: of the public trajectories; may be empty.
            others: the other fields.
        """
        digests = [file_sha256(folder / "policy.safetensors") for folder in folders]
        if seeds is not None:
            values = (evaluation.summarise(curve[-1]) for curve in evaluation.curves)
            others["seeds"] = tuple(seeds)
            others["by_seed"] = tuple(
                SeedSummary(seed=seed, **value, policy_sha256=digest)
                for seed, value, digest in zip(seeds, values, digests, strict=True)
            )
        if len(public_returns) > 1:
            mean = Estimate.of(public_returns)
            others |= {"public_return_mean": mean.mean, "public_return_ci95": (mean.low, mean.high)}
            others["public_trajectories"] = len(public_returns)
        return cls(
            **repeat(statement, answers),
            **evaluation.summarise(evaluation.overall[-1]),
            **evaluation.method,
            policy_sha256=digests[0],
            **others,
        )

    def other_files(self, model: Path, policy: Path) -> str | None:
        """Tell in a line which other files these folders hold than this is about; None: the same,
        or none at all.
        """
        named = {
            model / "model.safetensors": self.model_sha256,
            policy / "policy.safetensors": self.policy_sha256,
        }
        here = {file: file_sha256(file) for file in named if file.exists()}
        other = [str(f.parent) for f, digest in named.items() if digest not in (None, here.get(f))]
        if not here or not other:  # nothing was fetched, or all is here
            return None
        return (
            f"these results are of an earlier run: {' and '.join(other)} is another or gone; "
            f"{_REMEDY}"
        )


def repeat(statement: Statement, answers: PrivateEvaluation) -> dict[str, Any]:
    """Collect the keys that a summary repeats of the policy's statement and of the private units'
    answers.
    """
    repeated = {key: getattr(statement, key) for key in _REPEATED}
    repeated |= {"model_verdict": answers.verdict, "private_evaluation": None}
    if answers.asked:
        repeated |= {"spent_on_dataset": answers.total, "private_evaluation": answers.values()}
    return repeated


def write_curve(path: Path, evaluation: Evaluation) -> None:
    """Write one CSV row an epoch, the mean over all seeds.

    Unmeasured numbers stay empty; a value in the model has columns of its own.
    """
    curve, names = evaluation.overall, [*_MEASURED, "normalized_score"]
    if not curve[0].measured:
        names += _MODELLED
    rows = []
    for epoch, point in enumerate(curve, start=1):
        figures = evaluation.figures(point)
        rows.append([epoch, *(figures.get(name, "") for name in names)])
    _write_table(path, ["epoch", *names], rows)


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with replaced_file(path) as fresh, fresh.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def content_of(summary: Summary, evaluation: Evaluation, fingerprint: str) -> RunContent:
    """List what MLflow gets of an evaluation.

    A void run has the tag ``void`` and no ``epsilon``: a search by ε must not find it.
    ``gain_over_today`` is the recommendation's; no other value in the model is logged beside it.

    Args:
        summary: of the evaluation.
        evaluation: of every seed.
        fingerprint: keyed, of the dataset.
    """
    overall, plain = evaluation.overall, summary.to_json()
    promise = guarantee(summary.epsilon, summary.delta, singular(summary.unit), summary.void)
    tags = {"dataset_fingerprint": fingerprint}
    tags["mlflow.note.content"] = f"of the policy: {promise}"
    if summary.void:
        tags["void"] = "; ".join(summary.void)
    if summary.recommendation is not None:
        tags["recommendation"] = summary.recommendation.answer
        tags["recommendation_reason"] = summary.recommendation.reason
    if not overall[-1].measured:
        tags["model_value_note"] = NOTE
    log = StageLog()
    for name, value in _list_metrics(summary).items():
        if value is not None:
            log.metric(name, value)
    if summary.recommendation is None or not summary.private_evaluation:  # else the gain says it
        for name, number in evaluation.figures(overall[-1]).items():
            log.metric(name, number)
    name = "return_mean" if overall[-1].measured else "model_value"
    for epoch, point in enumerate(overall, start=1):
        log.metric(f"curve.{name}", point.mean, epoch)
    for seed, curve in zip(summary.seeds or (), evaluation.curves, strict=False):
        for name, number in evaluation.figures(curve[-1]).items():
            log.metric(f"seed_{seed}.{name}", number)
    compared = {key: plain[key] for key in _COMPARED}
    return RunContent(compared, tags, log.metrics)


def _list_metrics(summary: Summary) -> dict[str, float | None]:
    """List ε, today's return and the gain over it, by the names of their metrics."""
    found: dict[str, float | None] = {} if summary.void else {"epsilon": summary.epsilon}
    if summary.spent_on_dataset is not None:
        found["epsilon_spent_on_dataset"] = summary.spent_on_dataset.epsilon
    for answer in summary.private_evaluation or ():
        if answer.of == "behaviour":
            low, high = answer.ci95 or (None, None)
            name = f"private.behaviour.{answer.estimator}"
            found |= {name: answer.value, f"{name}.low": low, f"{name}.high": high}
    if (advice := summary.recommendation) is not None and advice.interval is not None:
        found["gain_over_today"] = advice.gain
        found["gain_over_today_low"], found["gain_over_today_high"] = advice.interval
    return found


@record
class OnlineSummary(FileRecord):
    """Result of learning from users (``metrics/online.json``).

    Returns are of the likeliest actions.
    """

    REMEDY: ClassVar[str] = "run `dvc repro online`"

    met: bool
    """Whether any users were met: `users` of online.yaml asks for it."""
    env_id: Line | None = None
    """Gymnasium id of the environment that simulates the users."""
    algorithm: Line | None = None
    """Name of the update."""
    private: bool | None = None
    """Whether the policy has an (ε, δ) guarantee, and nothing is void."""
    epsilon: StatedEpsilon | None = None
    """ε of one user who is not in the log; `null`: no guarantee."""
    epsilon_in_all: StatedEpsilon | None = None
    """ε of somebody who is both in the log and a user."""
    delta: StatedDelta | None = None
    """δ at which both are read."""
    unit: Line | None = None
    """What one unit of privacy is."""
    users: Count | None = None
    """N, different users who were met."""
    cohort: Count | None = None
    """m, users of one update."""
    cohorts: Count | None = None
    """Updates."""
    void: tuple[Line, ...] = ()
    """Reasons not to rely on the statement."""
    return_before: float | None = None
    """Mean return of the policy to begin with."""
    return_before_ci95: tuple[float, float] | None = None
    """Its 95% interval."""
    return_mean: float | None = None
    """Mean return of the final policy."""
    return_ci95: tuple[float, float] | None = None
    """Its 95% interval."""
    episodes: Count | None = None
    """Episodes of each of the two."""
    policy_sha256: Hexadecimal | None = None
    """SHA-256 of the final policy's file."""
    seconds: float | None = None
    """Wall time of the stage."""

    @property
    def promise(self) -> str:
        """State the promise to one user, in one line."""
        if self.epsilon is None:
            return f"nothing is promised: {'; '.join(self.void)}"
        return guarantee(self.epsilon, self.delta, str(self.unit))


def write_online_results(summary: OnlineSummary, curve: Mapping[int, Estimate]) -> None:
    """Write the results of online learning: the return after so many users, and the summary."""
    rows: list[list[Any]] = []
    for users, each in curve.items():
        rows.append([users, *(f"{end:.6g}" for end in (each.mean, each.low, each.high))])
    _write_table(ONLINE_CURVE, ["users", *_MEASURED], rows)
    summary.write(ONLINE_METRICS)
