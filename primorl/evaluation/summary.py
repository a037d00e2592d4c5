"""``metrics/summary.json``: the results of a run beside the privacy statement they were paid for with."""

import csv
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from primorl.evaluation.model_value import NOTE, ModelValue
from primorl.evaluation.results import Estimate, Evaluation, Result
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.project.logs import Log, StageLog

Score = Callable[[float], float]
"""From a mean return to the normalised score that the dataset declares."""

STATED = ("private", "epsilon", "epsilon_rdp", "delta", "unit", "units", "void", "spent_on_dataset")
"""Keys of the privacy statement that the summary repeats."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The content of ``metrics/summary.json``; its only writer and reader. Optional keys are left out where None.

    Attributes:
        dataset: name in params.yaml.
        env_id: Gymnasium id; None if there is no simulator.
        variant: ``private``, ``no_privacy``, ``no_clip`` or ``mopo``.
        private: whether the privacy statement promises anything.
        epsilon: of this run, by privacy loss distributions; None without a guarantee.
        epsilon_rdp: the same by Rényi differential privacy.
        delta: that ε holds at.
        unit: the privacy unit.
        units: K, the declared number of private units.
        void: reasons for which the statement is void.
        spent_on_dataset: what all runs had spent on the same units when the model was made.
        seed: of params.yaml.
        return_mean: mean return of the final policies; None if nothing could be measured.
        return_ci95: its 95% interval.
        normalized_score: of the mean return; None if the dataset declares no score.
        episodes: measured for each final policy.
        model_value: value in the released model, where nothing can be measured.
        model_value_range: the least and the most that a member of the ensemble says.
        model_value_members: members of the ensemble.
        model_value_rollouts: in each member.
        model_value_horizon: steps of a rollout.
        model_value_note: what the value is worth.
        seeds: of params.yaml's ``policy.seeds``.
        by_seed: the same figures for each seed.
        policy_sha256: digest of the final policy's file (of the first seed).
        seconds: wall time of each stage.
    """

    FORMAT: ClassVar[int] = 1

    dataset: str
    env_id: str | None
    variant: str
    private: bool
    epsilon: float | None
    epsilon_rdp: float | None
    delta: float
    unit: str
    units: int
    void: list[str]
    spent_on_dataset: Mapping[str, Any]
    seed: int
    return_mean: float | None
    return_ci95: list[float] | None
    normalized_score: float | None
    episodes: int | None
    policy_sha256: str
    seconds: Mapping[str, float]
    model_value: float | None = None
    model_value_range: list[float] | None = None
    model_value_members: int | None = None
    model_value_rollouts: int | None = None
    model_value_horizon: int | None = None
    model_value_note: str | None = None
    seeds: list[int] | None = None
    by_seed: list[dict[str, Any]] | None = None

    @classmethod
    def of(
        cls,
        evaluation: Evaluation,
        folders: Sequence[Path],
        *,
        score: Score | None,
        seeds: Sequence[int] | None,
        **others: Any,
    ) -> Self:
        """Summarise an evaluation.

        Args:
            evaluation: of the policies in ``folders``.
            folders: one a seed.
            score: of the dataset, if it declares one.
            seeds: of params.yaml; None if it lists none.
            others: the fields that come from elsewhere.
        """
        listed = None
        if seeds:
            listed = [
                {"seed": seed, **_value(result.final, score), "policy_sha256": _digest(folder)}
                for seed, result, folder in zip(seeds, evaluation.by_seed, folders, strict=True)
            ]
        return cls(
            **_value(evaluation.overall.final, score),
            **evaluation.method,
            seeds=list(seeds) if seeds else None,
            by_seed=listed,
            policy_sha256=_digest(folders[0]),
            **others,
        )

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        optional = {entry.name for entry in fields(self) if entry.default is not MISSING}
        content = {key: value for key, value in asdict(self).items() if key not in optional or value is not None}
        return {"format": self.FORMAT, **content}

    def write(self, path: Path) -> None:
        """Write the file, atomically."""
        write_json(path, self.to_json())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file.

        Raises:
            PipelineError: if it is missing, broken, of another format, or lacks keys.
        """
        content = read_json(path)
        remedy = "run `dvc repro evaluate`"
        if (found := content.pop("format", 1)) != cls.FORMAT:
            named = found if isinstance(found, int) else "an unknown one"
            raise PipelineError(f"{path}: found format {named}, this version reads {cls.FORMAT}; {remedy}")
        known = {entry.name: entry.default is MISSING for entry in fields(cls)}
        if missing := [key for key, needed in known.items() if needed and key not in content]:
            raise PipelineError(f"{path}: no {', '.join(missing)}; {remedy}")
        return cls(**{key: value for key, value in content.items() if key in known})


def write_curve(path: Path, curve: Sequence[Estimate], score: Score | None) -> None:
    """Write one CSV row an epoch. What was not measured stays empty; a value in the model has columns of its own."""
    measured = ["return_mean", "return_low", "return_high", "normalized_score"]
    of_model = isinstance(curve[0], ModelValue)
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["epoch", *measured, *(["model_value", "model_low", "model_high"] if of_model else [])])
        for epoch, point in enumerate(curve, start=1):
            numbers = [point.mean, point.low, point.high]
            if of_model:
                rows.writerow([epoch, *[None] * len(measured), *numbers])
            else:
                rows.writerow([epoch, *numbers, _score(point.mean, score)])


def log_summary(
    run: StageLog,
    pipeline: Log,
    summary: Summary,
    evaluation: Evaluation,
    *,
    fingerprint: str,
    score: Score | None,
    artifacts: Sequence[Path],
    statement: Path,
) -> None:
    """Log an evaluation.

    Args:
        run: the stage's run; it gets everything.
        pipeline: the pipeline's run; it gets what pipelines are compared by.
        summary: of the evaluation.
        evaluation: of every seed; each of several seeds gets a run inside the stage's.
        fingerprint: keyed, of the dataset.
        score: of the dataset.
        artifacts: files for the stage's run.
        statement: the privacy statement's file, for both runs.
    """
    overall, plain = evaluation.overall, summary.to_json()
    for log in (run, pipeline):
        _log_choices(log, plain, fingerprint)
        log.artifact(statement)
        if summary.epsilon is not None:
            log.metric("epsilon", summary.epsilon)
    _log_result(run, overall, score)
    _log_result(pipeline, Result(overall.final, ()), score)
    for file in artifacts:
        run.artifact(file)
    for seed, result in zip(summary.seeds or (), evaluation.by_seed, strict=False):
        with run.nested(f"seed {seed}") as inner:
            _log_choices(inner, plain | {"seed": seed}, fingerprint)
            _log_result(inner, result, score)


def _log_choices(log: Log, summary: Mapping[str, Any], fingerprint: str) -> None:
    log.params({key: summary[key] for key in ("dataset", "env_id", "variant", "seed", "private", "epsilon", "delta")})
    log.tag("dataset_fingerprint", fingerprint)


def _log_result(log: Log, result: Result, score: Score | None) -> None:
    final, of_model = result.final, isinstance(result.final, ModelValue)
    name, kind = ("model_value", "model") if of_model else ("return_mean", "return")
    if of_model:
        log.tag("model_value_note", NOTE)
    for key, value in {name: final.mean, f"{kind}_low": final.low, f"{kind}_high": final.high}.items():
        log.metric(key, value)
    if not of_model and score is not None:
        log.metric("normalized_score", score(final.mean))
    for epoch, point in enumerate(result.curve, start=1):
        log.metric(f"curve.{name}", point.mean, epoch)


def _value(final: Estimate, score: Score | None) -> dict[str, Any]:
    """The summary's keys for the value of a policy: its measured return, or its value in the model."""
    if isinstance(final, ModelValue):
        unmeasured = dict.fromkeys(("return_mean", "return_ci95", "normalized_score"))
        return unmeasured | {"model_value": final.mean, "model_value_range": [final.low, final.high]}
    return {
        "return_mean": final.mean,
        "return_ci95": [final.low, final.high],
        "normalized_score": _score(final.mean, score),
    }


def _score(mean: float, score: Score | None) -> float | None:
    return None if score is None else score(mean)


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "policy.safetensors").read_bytes()).hexdigest()
