"""Log an evaluation to MLflow: the pipeline's run gets the results, the stage's run the curve and the files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from primorl.evaluation.results import Evaluation, Result
from primorl.evaluation.statistics import NOTE, ModelValue
from primorl.evaluation.summary import Score, Summary
from primorl.evaluation.wording import guarantee, text, worth
from primorl.project.logs import Log, StageLog

_COMPARED = ("dataset", "env_id", "variant", "seed", "private", "epsilon", "delta", "unit")


def log_summary(
    run: StageLog,
    pipeline: Log,
    summary: Summary,
    evaluation: Evaluation,
    *,
    fingerprint: str,
    score: Score | None,
    artifacts: Sequence[Path],
    statement_file: Path,
) -> None:
    """Log an evaluation.

    The metrics ``epsilon``, ``epsilon_spent_on_dataset``, ``return_mean`` and the like are those of the pipeline's run,
    and of no run of a stage, so that a search finds every result once. A run of one seed of several has its return. A
    void run has the tag ``void`` and no ``epsilon``: a search by ε must not find it. ``private_value`` is what the
    private units say, see `primorl.evaluation.wording.worth`.

    Args:
        run: the stage's run.
        pipeline: the pipeline's run.
        summary: of the evaluation.
        evaluation: of every seed; each of several seeds gets a run inside the stage's.
        fingerprint: keyed, of the dataset.
        score: of the dataset.
        artifacts: files, for both runs.
        statement_file: ``privacy.json``, for both runs.
    """
    overall, plain = evaluation.overall, summary.to_json()
    for log in (run, pipeline):
        _log_choices(log, plain, fingerprint)
        for file in (statement_file, *artifacts):
            log.artifact(file)
    pipeline.dataset(summary.dataset, fingerprint, {"private units": summary.units, "unit": summary.unit})
    pipeline.note(note(plain))
    if summary.void:
        pipeline.tag("void", "; ".join(summary.void))
    elif summary.epsilon is not None:
        pipeline.metric("epsilon", summary.epsilon)
    if summary.spent_on_dataset is not None and summary.spent_on_dataset.epsilon is not None:
        pipeline.metric("epsilon_spent_on_dataset", summary.spent_on_dataset.epsilon)
    for answer in summary.private_evaluation or ():
        name = f"private.{answer.of}.{answer.estimator}"
        pipeline.metric(name, answer.value)
        if answer.ci95 is not None:
            pipeline.metric(f"{name}.low", answer.ci95[0])
            pipeline.metric(f"{name}.high", answer.ci95[1])
    if (asked := worth(plain.get("private_evaluation") or ())) is not None:
        low, high = asked["ci95"] or (None, None)
        found = {"private_value": asked["value"], "private_value_low": low, "private_value_high": high}
        for name, value in found.items():
            if value is not None:
                pipeline.metric(name, value)
    _log_result(pipeline, overall, score)
    _log_curve(run, overall)
    for seed, result in zip(summary.seeds or (), evaluation.by_seed, strict=False):
        with run.nested(f"seed {seed}") as inner:
            _log_choices(inner, plain | {"seed": seed}, fingerprint)
            _log_result(inner, result, score)
            _log_curve(inner, result)


def note(summary: Mapping[str, Any]) -> str:
    """Describe a run in Markdown: its results, and how to get its files back.

    Args:
        summary: the content of ``metrics/summary.json``.
    """
    return f"""{guarantee(summary)}

```
{text(dict(summary))}
```

Files of this run: **Artifacts** has the summary, the privacy statement and the figures; the policy is under **Models**.
To have `models/` of this run again, set `params.yaml` to its parameters and run `dvc repro`. What was paid for is
restored and charged no second time.
"""


def _log_choices(log: Log, summary: Mapping[str, Any], fingerprint: str) -> None:
    if "recommendation" in summary:
        log.tag("recommendation", summary["recommendation"]["answer"])
        log.tag("recommendation_reason", summary["recommendation"]["reason"])
    log.params({key: summary[key] for key in _COMPARED})
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


def _log_curve(log: Log, result: Result) -> None:
    name = "model_value" if isinstance(result.final, ModelValue) else "return_mean"
    for epoch, point in enumerate(result.curve, start=1):
        log.metric(f"curve.{name}", point.mean, epoch)
