"""``models/dynamics``: the released model with its privacy statement."""

from dataclasses import replace
from pathlib import Path

from primorl.config.params import Params
from primorl.dynamics.config import ModelConfig
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.project.files import file_sha256, replaced_directory
from primorl.setup.fitting import Fit
from primorl.setup.paid_training import PaidModel
from primorl.setup.partitions import Partitions
from primorl.setup.statement import log_statement, privacy_statement
from primorl.tracking import StageRun
from primorl.training.setup import TrainingSetup


def write_model(
    folder: Path,
    params: Params,
    fit: Fit,
    setup: TrainingSetup,
    partitions: Partitions,
    paid: PaidModel,
    run: StageRun,
) -> None:
    """Replace ``folder`` by the trained model and its statement, log both, and commit the charge.

    The ledger gets the digest of every file. So a statement is bound to the bytes that it speaks of.

    Args:
        folder: of the model.
        params: every choice, fitted ones in place.
        fit: what was to be expected of it.
        setup: of the training.
        partitions: whose public facts the statement names.
        paid: the trained model and its charge.
        run: gets the statement as tags, and both JSON files.
    """
    info, trained, variant = partitions.manifest.info, paid.trained, params.dynamics.variant
    plan = None if variant == "mopo" else setup.plan
    statement = privacy_statement(plan, partitions.manifest, params).with_payment(paid.charge, paid.spent)
    ensemble = GaussianEnsemble(setup.ensemble, trained.weights, trained.normaliser, setup.bounds, info.termination)
    with replaced_directory(folder) as fresh:
        ensemble.save(
            fresh,
            environment=info.environment,
            variant=variant,
            rounds=trained.rounds,
            observation_names=info.spaces.observation_names,
            action_names=info.spaces.action_names,
            elapsed=info.spaces.elapsed,
            engine_version=paid.engine_version,
            public_loss=trained.public_loss,
        )
        replace(ModelConfig.read(fresh), can_learn=fit.answer if variant == "private" else None).write(fresh)
        starts = setup.start_model(trained.answers)
        if starts is not None:
            starts.save(fresh)
        statement.write(fresh)
        made = {file.name: file_sha256(file) for file in sorted(fresh.iterdir())}
        for file in ("config.json", "privacy.json"):
            run.artifact(fresh / file)
    paid.commit(made)
    log_statement(run, statement)
