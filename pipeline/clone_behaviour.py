"""Stage ``clone_behaviour``: how people in the log act, as a policy; charged, and idle unless the
plan has a clone.
"""

import sys

from pipeline.runner import run_stage
from primorl.base.paths import BEHAVIOUR, PARTITIONS
from primorl.base.records import to_json
from primorl.config.params import Params
from primorl.policy.config import write_nothing
from primorl.tracking import StageRun
from primorl.work.jobs import RunPlan
from primorl.work.partitions import Partitions


def idle(_: Params) -> bool:
    """Write that no clone was made, if the plan has none."""
    if RunPlan.load().clone is not None:
        return False
    write_nothing(BEHAVIOUR)
    return True


def body(params: Params, run: StageRun) -> None:
    """Pay, clone, then write ``models/behaviour`` with its privacy statement."""
    from primorl.work.training import paid_training, write_behaviour

    partitions = Partitions.open(PARTITIONS, params)
    plan = RunPlan.read(params, partitions)
    assert plan.clone is not None
    run.params({"clone": to_json(plan.clone)})
    with paid_training(plan.clone, params, partitions, run) as paid:
        write_behaviour(BEHAVIOUR, partitions, paid, run)


if __name__ == "__main__":
    description = "Clone the behaviour in the log under trajectory-level differential privacy."
    sys.exit(run_stage("clone_behaviour", description, body, idle))
