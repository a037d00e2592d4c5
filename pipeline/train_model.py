"""Stage ``train_model``: the dynamics ensemble, trained on the private partition. Variant mopo is not private."""

import sys

from primorl.setup.model_training import pay_and_train, work_for_first
from primorl.setup.reports import RoundReport
from primorl.setup.written_model import write_model

from pipeline.runner import run_stage
from primorl.config.params import Params, plain
from primorl.project.paths import MODEL, PARTITIONS
from primorl.setup.compute import Place, is_worker
from primorl.setup.launcher import run_worker
from primorl.setup.partitions import Partitions
from primorl.setup.training import training_setup
from primorl.tracking import StageRun


def body(params: Params, run: StageRun) -> None:
    """Pay, train, then write ``models/dynamics`` with its privacy statement.

    Everything that can be refused without private data is refused before the ledger is asked. The ledger is asked
    before the private partition is opened.
    """
    partitions = Partitions.open(PARTITIONS)
    place = Place.of_training(params)
    setup = training_setup(params, partitions.manifest, partitions.public, place)
    run.params({"seed": params.seed, "privacy": plain(params.privacy), "dynamics": plain(params.dynamics)})
    with pay_and_train(params, setup, partitions, place, run, RoundReport(run, setup)) as paid:
        statement = write_model(MODEL, params, setup, partitions, paid)
    run.statement(statement, MODEL)


def worker(params: Params) -> None:
    """The part of every process but the first."""
    work_for_first(params, PARTITIONS)


if __name__ == "__main__":
    description = "Train the dynamics ensemble under trajectory-level differential privacy."
    sys.exit(run_worker("train_model", worker) if is_worker() else run_stage("train_model", description, body))
