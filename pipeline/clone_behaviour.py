"""Stage ``clone_behaviour``: how people in the log act, as a policy; charged, and idle unless an ε is given for it."""

import sys
from functools import partial

from pipeline.runner import run_stage
from primorl.base.paths import BEHAVIOUR, PARTITIONS
from primorl.config.params import Params, plain
from primorl.paid.clone import CLONING, clone_asked
from primorl.paid.compute import is_worker, run_worker
from primorl.paid.partitions import Partitions
from primorl.paid.training import paid_training, work_for_first, write_behaviour, write_nothing
from primorl.tracking import StageRun


def body(params: Params, run: StageRun) -> None:
    """Pay, clone, then write ``models/behaviour`` with its privacy statement; or write there that none was made."""
    if not clone_asked(params):
        write_nothing(BEHAVIOUR)
        return
    partitions = Partitions.open(PARTITIONS, params)
    run.params({"seed": params.seed, "behaviour": plain(params.behaviour)})
    with paid_training(CLONING, params, partitions, run) as paid:
        write_behaviour(BEHAVIOUR, params, partitions, paid, run)


if __name__ == "__main__":
    description = "Clone the behaviour in the log under trajectory-level differential privacy."
    worker = partial(work_for_first, stage=CLONING, folder=PARTITIONS)
    sys.exit(run_worker("clone_behaviour", worker) if is_worker() else run_stage("clone_behaviour", description, body))
