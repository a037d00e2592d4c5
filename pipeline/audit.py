"""Stage ``audit``: does the plan of params.yaml leak more than it claims? Reads the public split alone."""

import sys
from pathlib import Path

from pipeline.runner import run_stage
from primorl.attacks.figure import draw_bounds
from primorl.config.params import Params
from primorl.project.files import replaced_file, write_json
from primorl.setup.audits import (
    CONFIDENCE,
    MECHANISM_CANARIES,
    MECHANISM_RUNS,
    ONE_RUN_CANARIES,
    log_mechanism,
    log_one_run,
    mechanism_report,
    of_mechanism,
    of_one_run,
    one_run_report,
    refuse,
)
from primorl.tracking import StageRun

REPORT, FIGURE = Path("reports/audit.json"), Path("reports/audit.png")


def body(params: Params, run: StageRun) -> None:
    """Audit the mechanism and one run of training; write the report and its figure.

    Raises:
        PipelineError: a lower bound lies above the claim, after everything is written and logged.
    """
    mechanism = of_mechanism(params, MECHANISM_CANARIES, MECHANISM_RUNS)
    one_run = of_one_run(params, ONE_RUN_CANARIES)
    write_json(REPORT, {"mechanism": mechanism_report(mechanism), "one_run": one_run_report(one_run)})
    with replaced_file(FIGURE) as fresh:
        draw_bounds(
            fresh,
            mechanism.claimed,
            {
                "mechanism, guesses alone": mechanism.epsilon,
                "mechanism, Gaussian rounds": mechanism.epsilon_gaussian,
                "one run, every round": one_run.rounds.epsilon,
                "one run, released model": one_run.model.epsilon,
            },
            f"Lower bounds on ε at δ = {mechanism.delta:g}, each audit at {CONFIDENCE:.0%}",
        )
    log_mechanism(run, mechanism)
    log_one_run(run, one_run)
    for file in (REPORT, FIGURE):
        run.artifact(file)
    refuse(mechanism)
    refuse(one_run)


if __name__ == "__main__":
    sys.exit(run_stage("audit", "Check the plan's claim by canaries; reads no private data.", body))
