"""Stage ``train_model``: the dynamics ensemble, trained on the private partition."""

import sys

from pipeline.runner import run_stage
from primorl.base.paths import MODEL, PARTITIONS
from primorl.base.processes import is_worker
from primorl.base.records import to_json
from primorl.config.params import Params
from primorl.tracking import StageRun
from primorl.work.bill import Bill
from primorl.work.compute import run_worker
from primorl.work.jobs import RunPlan, paid_plan
from primorl.work.partitions import Partitions
from primorl.work.training import paid_training, work_for_first, write_model


def body(params: Params, run: StageRun) -> None:
    """Pay, train, then write ``models/dynamics`` with its privacy statement; see
    `paid_training`.
    """
    partitions = Partitions.open(PARTITIONS, params)
    plan = RunPlan.read(params, partitions)
    Bill.of(params, plan, partitions).refuse()
    plan.write(paid_plan(params, partitions))
    run.params({"model": to_json(plan.model)})
    with paid_training(plan.model, params, partitions, run) as paid:
        write_model(MODEL, plan, partitions, paid, run)


def work(params: Params) -> None:
    """Sum over the units of this process, which is not the first."""
    work_for_first(params, PARTITIONS)


if __name__ == "__main__":
    description = "Train the dynamics ensemble under trajectory-level differential privacy."
    sys.exit(
        run_worker("train_model", work)
        if is_worker()
        else run_stage("train_model", description, body)
    )
