"""NOT PRIVATE. The MOPO baseline's model, trained on the pooled private rows."""

import sys
from dataclasses import replace

from primorl.config.params import Params
from primorl.project.progress import progress_bar
from primorl.setup import charged_units
from primorl.setup.partitions import Partitions
from primorl.setup.reporting import log_evaluation
from primorl.tracking import StageRun
from primorl.training.pooled import train_pooled
from primorl.training.public_evaluation import PublicEvaluation
from primorl.training.setup import TrainingSetup
from primorl.training.training import Trained
from primorl.trajectories.storage.store import UnitStore


def train_baseline(params: Params, setup: TrainingSetup, partitions: Partitions, run: StageRun) -> Trained:
    """Train the baseline; its charge, without a guarantee, is already in the ledger.

    Where ``privacy.statistics.normaliser`` is ``private``, the raw private rows make the normaliser.
    """
    rows = charged_units.open_private(partitions.manifest, partitions.version, partitions.folder, sys.maxsize)
    assert isinstance(rows, UnitStore)
    public = partitions.public.flat() if partitions.public.units else None
    raw = setup.normaliser == "private"
    normaliser = (
        replace(setup, normaliser="public").make_normaliser(rows.flat(), {})
        if raw
        else setup.make_normaliser(public, {})
    )
    with progress_bar(params.dynamics.mopo.max_epochs, "train_model (mopo, not private)", "epoch") as bar:

        def on_epoch(evaluation: PublicEvaluation | None) -> None:
            bar.update()
            if evaluation is not None:
                log_evaluation(run, setup.architecture, evaluation)

        return train_pooled(
            setup.ensemble,
            rows.flat(),
            public,
            normaliser=normaliser,
            pooled=params.dynamics.mopo,
            seed=setup.seed,
            device=setup.execution.device,
            on_epoch=on_epoch,
        )
