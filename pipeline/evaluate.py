"""Stage: the policy's return in the true environment; without one, its value in the released model.

Reads released things only.
"""

import sys
import time

from pipeline.runner import run_stage
from primorl.base.files import read_json, replaced_file
from primorl.base.paths import CURVES, POLICY, SUMMARY, seconds_of
from primorl.config.params import Params
from primorl.evaluate.summary import log_summary, write_curve
from primorl.run import VerifiedRun, evaluate, summarise
from primorl.tracking import StageRun

_STAGES = (
    "collect ingest partition plan train_model clone_behaviour optimize_policy evaluate_private"
)


def body(params: Params, run: StageRun) -> None:
    """Evaluate the final policies and those of every epoch; write the summary, the curve and its
    figure.
    """
    started = time.perf_counter()
    found = VerifiedRun.read(params, params.dynamics.variant)
    evaluation = evaluate(found, params)
    seconds = {stage: read_json(seconds_of(stage))["seconds"] for stage in _STAGES.split()}
    score = None if params.chosen.score is None else params.chosen.score.of
    with replaced_file(CURVES) as fresh:
        write_curve(fresh, evaluation.overall.curve, score)
    seconds["evaluate"] = round(time.perf_counter() - started, 3)
    summary = summarise(found, params, evaluation, seconds)
    summary.write(SUMMARY)
    log_summary(
        run,
        run.pipeline,
        summary,
        evaluation,
        fingerprint=found.policy.dataset_fingerprint,
        score=score,
        files=(POLICY / "privacy.json", SUMMARY, CURVES),
    )


if __name__ == "__main__":
    description = (
        "Measure the policy's return in the true environment; without one, its value in the "
        "released model."
    )
    sys.exit(run_stage("evaluate", description, body))
