"""Stage ``train_model``: the dynamics ensemble, trained on the private partition."""

import sys
from functools import partial

from pipeline.runner import run_stage
from primorl.base.paths import MODEL, PARTITIONS
from primorl.base.processes import is_worker
from primorl.config.params import Params, plain
from primorl.paid.bill import never, next_bill, next_run
from primorl.paid.compute import run_worker
from primorl.paid.fitting import MODEL_TRAINING, check_verdict, say_fit
from primorl.paid.partitions import Partitions
from primorl.paid.public_checks import check_public
from primorl.paid.training import paid_training, work_for_first, write_model
from primorl.tracking import StageRun


def body(params: Params, run: StageRun) -> None:
    """Pay, train, then write ``models/dynamics`` with its privacy statement; see
    `paid_training`.
    """
    partitions = Partitions.open(PARTITIONS, params)
    warnings = check_public(params, partitions.manifest, partitions.public)
    chosen, fit, plan = next_run(params, partitions)
    say_fit("train_model", chosen, fit)
    check_verdict(params, fit)
    next_bill(params, partitions, plan, never).refuse()
    run.params(
        {"seed": params.seed, "privacy": plain(chosen.privacy), "dynamics": plain(chosen.dynamics)}
    )
    run.pipeline.params(chosen.values(params.unfitted - chosen.unfitted))
    run.tag("can_learn", fit.answer)
    with paid_training(MODEL_TRAINING, params, partitions, run) as paid:
        if fit.answer == "no":
            warnings = (*warnings, fit.reason)
        write_model(MODEL, chosen, fit.answer, warnings, partitions, paid, run)


if __name__ == "__main__":
    description = "Train the dynamics ensemble under trajectory-level differential privacy."
    worker = partial(work_for_first, stage=MODEL_TRAINING, folder=PARTITIONS)
    sys.exit(
        run_worker("train_model", worker)
        if is_worker()
        else run_stage("train_model", description, body)
    )
