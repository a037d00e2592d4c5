"""Stage ``report``: one page for people who decide about a policy, from released and public files
alone.
"""

import sys

from pipeline.runner import run_stage
from primorl.base.files import replaced_file
from primorl.base.paths import REPORT
from primorl.config.params import Params
from primorl.report.facts import read_facts
from primorl.report.page import write_page
from primorl.tracking import StageRun


def body(params: Params, run: StageRun) -> None:
    """Write ``reports/report.html``."""
    mlflow_run = run.pipeline.run_id  # empty where the store was lost
    facts = read_facts(params, mlflow=f"MLflow run {mlflow_run}." if mlflow_run else "")
    with replaced_file(REPORT) as fresh:
        fresh.write_text(write_page(facts), encoding="utf-8")
    run.pipeline.artifact(REPORT)


if __name__ == "__main__":
    sys.exit(
        run_stage("report", "Write a report of the run: one page that needs no network.", body)
    )
