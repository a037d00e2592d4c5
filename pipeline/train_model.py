"""Stage ``train_model``: the dynamics ensemble, trained on the private partition."""

import sys

from pipeline.runner import run_stage
from primorl.base.files import MODEL
from primorl.base.processes import is_worker
from primorl.base.reporting import StageLog, exit_status
from primorl.config.params import Params, load
from primorl.engine.training import TrainingState
from primorl.stages import training
from primorl.stages.training import work_for_first
from primorl.tracking import check_store
from primorl.work.desk import Desk
from primorl.work.jobs import paid_plan, request_for


def body(params: Params, log: StageLog) -> None:
    """Pay, train, then write ``models/dynamics`` with its privacy statement.

    Everything that can be refused without private data is refused before anybody is charged.
    """
    desk = Desk.open(params)
    data, plan = desk.partitions, desk.read_plan(params)
    setup = training.prepare_model(plan.model, data, params.compute)
    training.check_before_charge(setup, MODEL)
    check_store(params)  # `evaluate` would fail after all is paid for
    plan.write(paid_plan(params, data))  # so that the stage `plan` stays with these numbers
    begin = TrainingState.begin(setup)
    with desk.pay(request_for(plan.model, data), begin) as paid:
        trained = training.train_for(paid, setup, data, log)
        training.refuse_diverged(setup, trained)
        statement = paid.state_privacy(setup.mechanism, data.manifest.info.termination)
        with paid.finish(MODEL, statement) as folder:
            training.write_model(folder, plan, setup, trained, data.manifest)


if __name__ == "__main__":
    if is_worker():  # sums over its units, and writes no file
        sys.exit(exit_status("train_model", lambda: work_for_first(load()), debug=False))
    sys.exit(run_stage("train_model", __doc__, body))
