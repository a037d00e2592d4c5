"""Stage ``clone_behaviour``: how people in the log act, as a policy; charged, and idle unless an ε
is given for it.
"""

import sys

from pipeline.runner import run_stage
from primorl.base.paths import BEHAVIOUR, PARTITIONS
from primorl.config.params import Params, plain
from primorl.policy.config import write_nothing
from primorl.tracking import StageRun


def idle(params: Params) -> bool:
    """Write that no clone was made, if none is asked for."""
    if params.clones:
        return False
    write_nothing(BEHAVIOUR)
    return True


def body(params: Params, run: StageRun) -> None:
    """Pay, clone, then write ``models/behaviour`` with its privacy statement."""
    from primorl.paid.clone import CLONING
    from primorl.paid.partitions import Partitions
    from primorl.paid.training import paid_training, write_behaviour

    partitions = Partitions.open(PARTITIONS, params)
    run.params({"seed": params.seed, "behaviour": plain(params.behaviour)})
    with paid_training(CLONING, params, partitions, run) as paid:
        write_behaviour(BEHAVIOUR, params, partitions, paid, run)


if __name__ == "__main__":
    description = "Clone the behaviour in the log under trajectory-level differential privacy."
    sys.exit(run_stage("clone_behaviour", description, body, idle))
