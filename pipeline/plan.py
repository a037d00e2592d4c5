"""Stage ``plan``: every number of the run's paid jobs and what each costs; charges nothing."""

import sys

from pipeline.runner import run_stage
from primorl.base import say
from primorl.base.files import PLAN
from primorl.base.reporting import StageLog, in_lines
from primorl.config.params import Params
from primorl.work.data import Partitions, check_labels
from primorl.work.resolve import decide_plan, refuse_useless


def body(params: Params, log: StageLog) -> None:
    """Write ``data/plan.json``, from settings, declared facts and the public split.

    Numbers that were paid for with the same settings and data stay, whatever this version would
    decide. A run that cannot learn is refused here, before anything is charged.
    """
    partitions = Partitions.open(params)
    check_labels(params, partitions.manifest.info.spaces)
    plan = decide_plan(params, partitions)
    for line in dict.fromkeys((*plan.warnings, plan.reason)):
        say("\n  ".join(in_lines(f"plan: {line}")))
    refuse_useless(params, plan)
    plan.write(PLAN)


if __name__ == "__main__":
    sys.exit(run_stage("plan", __doc__, body))
