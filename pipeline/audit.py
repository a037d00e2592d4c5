"""``python -m pipeline.audit``: does the plan of params.yaml leak more than it claims? Reads the public split alone."""

import sys

from pipeline.runner import run_stage
from primorl.attacks.figure import draw_bounds
from primorl.config.params import Params
from primorl.project.files import replaced_file, write_json
from primorl.project.paths import AUDIT_FIGURE, AUDIT_REPORT
from primorl.setup import audits
from primorl.tracking import StageRun


def body(params: Params, run: StageRun) -> None:
    """Audit the mechanism and one run of training; write the report and its figure.

    Raises:
        PipelineError: a lower bound lies above the claim, after everything is written and logged.
    """
    mechanism = audits.of_mechanism(params, audits.MECHANISM_CANARIES, audits.MECHANISM_RUNS)
    one_run = audits.of_one_run(params, audits.ONE_RUN_CANARIES)
    report = {"mechanism": audits.mechanism_report(mechanism), "one_run": audits.one_run_report(one_run)}
    write_json(AUDIT_REPORT, report)
    with replaced_file(AUDIT_FIGURE) as fresh:
        draw_bounds(
            fresh,
            mechanism.claimed,
            {
                "mechanism, guesses alone": mechanism.epsilon,
                "mechanism, Gaussian rounds": mechanism.epsilon_gaussian,
                "one run, every round": one_run.rounds.epsilon,
                "one run, released model": one_run.model.epsilon,
            },
            f"Lower bounds on ε at δ = {mechanism.delta:g}, each audit at {audits.CONFIDENCE:.0%}",
        )
    audits.log_mechanism(run, mechanism)
    audits.log_one_run(run, one_run)
    for file in (AUDIT_REPORT, AUDIT_FIGURE):
        run.artifact(file)
    audits.refuse(mechanism)
    audits.refuse(one_run)


if __name__ == "__main__":
    sys.exit(run_stage("audit", "Check the plan's claim by canaries; reads no private data.", body))
