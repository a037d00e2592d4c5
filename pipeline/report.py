"""Stage ``report``: one page for people who decide about a policy, from released and public files
alone.
"""

import sys

from pipeline.runner import run_stage
from primorl.base.files import REPORT, replaced_file
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.report.page import read_facts, write_page


def body(params: Params, log: StageLog) -> None:
    """Write ``reports/report.html``."""
    facts = read_facts(params)
    with replaced_file(REPORT) as fresh:
        fresh.write_text(write_page(facts), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_stage("report", __doc__, body))
