"""Stage ``clone_behaviour``: how people in the log act, as a policy; charged, and idle unless the
plan has a clone.
"""

import sys

from pipeline.runner import run_stage
from primorl.base.files import BEHAVIOUR, MODEL, PLAN
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.policy.config import write_nothing
from primorl.privacy.statement import Statement
from primorl.work.jobs import RunPlan


def idle(_: Params) -> bool:
    """Write that no clone was made, if the plan has none."""
    if RunPlan.read(PLAN).clone is not None:
        return False
    write_nothing(BEHAVIOUR)
    return True


def body(params: Params, log: StageLog) -> None:
    """Pay, clone, then write ``models/behaviour`` with its privacy statement."""
    from primorl.engine.training import TrainingState
    from primorl.privacy.composition import count_held, list_held_by_clone
    from primorl.stages import training
    from primorl.work.desk import Desk
    from primorl.work.jobs import request_for

    desk = Desk.open(params)
    data, job = desk.partitions, desk.read_plan(params).clone
    assert job is not None
    setup = training.prepare_clone(job, data, params.compute)
    training.check_before_charge(setup, BEHAVIOUR)

    begin = TrainingState.begin(setup)
    with desk.pay(request_for(job, data), begin) as paid:
        trained = training.train_for(paid, setup, data, log)
        training.refuse_diverged(setup, trained)
        own = paid.state_privacy(setup.mechanism, data.manifest.info.termination)
        held = {} if job.scaled_by is None else list_held_by_clone(Statement.read(MODEL))
        with paid.finish(BEHAVIOUR, count_held(own, held)) as folder:
            training.write_clone(folder, job, setup, trained, data.manifest)


if __name__ == "__main__":
    sys.exit(run_stage("clone_behaviour", __doc__, body, idle))
