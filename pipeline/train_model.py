"""Stage ``train_model``: the dynamics ensemble, trained on the private partition."""

import sys

from pipeline.runner import run_stage
from primorl.base.paths import MODEL, PARTITIONS
from primorl.base.processes import is_worker
from primorl.base.records import to_json
from primorl.base.reporting import exit_status
from primorl.config.params import Params, load
from primorl.tracking import StageRun
from primorl.work import training
from primorl.work.desk import Desk
from primorl.work.jobs import Order, RunPlan, paid_plan
from primorl.work.training import training_setup, work_for_first, write_model


def body(params: Params, run: StageRun) -> None:
    """Pay, train, then write ``models/dynamics`` with its privacy statement.

    Everything that can be refused without private data is refused before the ledger is asked.
    """
    with Desk.open(params, run) as desk:
        data, manifest = desk.partitions, desk.partitions.manifest
        plan = RunPlan.read(params, data)
        order = Order.of(plan.model, data)
        bill = desk.quote(params, plan)
        if bill.orders[0] in bill.unpaid:  # a model that is paid for is restored at no cost
            bill.refuse_beyond_budget()
        plan.write(paid_plan(params, data))  # once paid, the stage `plan` keeps to these numbers
        run.params({"model": to_json(plan.model)})

        setup = training_setup(plan.model, data, params.compute)
        training.check_before_charge(setup, MODEL)
        with desk.pay(order, training.begin(setup), training.restore_for(setup)) as paid:
            trained = training.train_for(paid, setup, data, run)
            training.refuse_diverged(paid, trained, "dynamics")
            engine = training.begun_by(paid)
            paid.finish(
                MODEL,
                paid.state_privacy(setup.mechanism, manifest.info.termination),
                lambda folder: write_model(folder, plan, setup, trained, manifest, engine),
                logged=["config.json"],
            )


if __name__ == "__main__":
    description = "Train the dynamics ensemble under trajectory-level differential privacy."
    if is_worker():  # sums over its units, without an MLflow run or files
        sys.exit(
            exit_status("train_model", lambda: work_for_first(load(), PARTITIONS), debug=False)
        )
    sys.exit(run_stage("train_model", description, body))
