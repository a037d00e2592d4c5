"""``python -m pipeline.audit``: does the plan of params.yaml leak more than it claims? Reads the public split alone."""

import sys

from pipeline.runner import run_stage
from primorl.base.files import replaced_file, write_json
from primorl.base.paths import AUDIT_FIGURE, AUDIT_REPORT
from primorl.config.params import Params
from primorl.paid import audits
from primorl.privacy.accounting.rounding import at_most
from primorl.tracking import StageRun


def body(params: Params, run: StageRun) -> None:
    """Audit the mechanism and one run of training; write the report and its figure.

    Raises:
        PipelineError: a lower bound lies above the claim, after everything is written and logged.
    """
    half = 1 - (1 - audits.CONFIDENCE) / 2  # two audits share one error
    mechanism = audits.of_mechanism(params, audits.MECHANISM_CANARIES, None, half)
    one_run = audits.of_one_run(params, audits.ONE_RUN_CANARIES, half)
    report = {
        "confidence": audits.CONFIDENCE,
        "mechanism": audits.report(mechanism),
        "one_run": audits.report(one_run),
    }
    write_json(AUDIT_REPORT, report)
    with replaced_file(AUDIT_FIGURE) as fresh:
        audits.draw_bounds(
            fresh,
            mechanism.claimed,
            {
                f"{audit}: {bound.name}": bound.epsilon
                for audit, found in (("mechanism", mechanism), ("one run", one_run))
                for bound in found.bounds
            },
            f"Lower bounds on ε at δ = {at_most(mechanism.delta)}, all together at {100 * audits.CONFIDENCE:.6g}%",
        )
    audits.log_bounds(run, mechanism)
    audits.log_bounds(run, one_run)
    for file in (AUDIT_REPORT, AUDIT_FIGURE):
        run.artifact(file)
    audits.refuse(mechanism)
    audits.refuse(one_run)


if __name__ == "__main__":
    sys.exit(run_stage("audit", "Check the plan's claim by canaries; reads no private data.", body))
