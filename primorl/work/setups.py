"""The training that a job of ``data/plan.json`` describes, ready for its data.

Reads no private byte.
"""

from dataclasses import replace
from typing import Literal

import torch

from primorl.base.errors import PipelineError
from primorl.base.paths import MODEL, PLAN
from primorl.config.blocks import Compute
from primorl.config.datasets import Bounds as DeclaredBounds
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine.public import make_start
from primorl.engine.queries import ObservationColumns
from primorl.engine.setup import CloningSetup, TrainingSetup
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from primorl.privacy.statement import Statement
from primorl.work.compute import execution
from primorl.work.jobs import CloneJob, ModelJob
from primorl.work.partitions import Partitions
from primorl.work.public_checks import observation_bounds


def training_setup(
    job: ModelJob | CloneJob, partitions: Partitions, compute: Compute
) -> TrainingSetup:
    """Set up a job's training on the data that the partitions describe.

    Raises:
        PipelineError: the clone takes the scales of a released model, which is missing or another
            one.
    """
    setup: TrainingSetup
    if isinstance(job, ModelJob):
        setup = _model_setup(job, partitions, compute)
    else:
        setup = _clone_setup(job, partitions, compute)
    return from_public(setup, partitions.public) if job.start == "public" else setup


def _model_setup(job: ModelJob, partitions: Partitions, compute: Compute) -> TrainingSetup:
    manifest, public = partitions.manifest, partitions.public
    assert job.normaliser != "model"
    return TrainingSetup(
        plan=job.plan(manifest),
        architecture=job.architecture(manifest),
        bounds=model_bounds(job.bounds, manifest, public),
        columns=_observation_columns(manifest),
        normaliser=job.normaliser,
        local=job.local,
        server=job.server,
        seed=job.seed,
        execution=execution(compute),
        horizon=manifest.info.horizon,
    )


def _clone_setup(job: CloneJob, partitions: Partitions, compute: Compute) -> CloningSetup:
    manifest, public = partitions.manifest, partitions.public
    scales: Literal["public"] | Normaliser = "public"
    if job.normaliser == "model":
        scales = _released_scales(job, partitions)
    return CloningSetup(
        plan=job.plan(manifest),
        architecture=job.network(manifest),
        bounds=model_bounds(job.bounds, manifest, public),
        columns=_observation_columns(manifest),
        normaliser=scales,
        local=job.local,
        server=job.server,
        seed=job.seed,
        execution=execution(compute),
        taught=job.taught,
    )


def from_public(setup: TrainingSetup, public: UnitStore) -> TrainingSetup:
    """Begin the rounds with weights that the public split makes; see
    `primorl.engine.public`.
    """
    normaliser = setup.make_normaliser(setup.view_public(public.flat()), {})
    source, beta = setup.view(public), setup.local.beta_nll
    start = make_start(setup.architecture, normaliser, source, setup.seed, beta)
    return replace(setup, start=start)


def model_bounds(declared: DeclaredBounds, manifest: Manifest, public: UnitStore) -> Bounds:
    """Bound model states (see `observation_bounds`), actions and rewards, those as declared or by
    the public split.
    """
    spaces, reward = manifest.info.spaces, declared.reward
    low, high = map(torch.from_numpy, observation_bounds(declared, manifest, public))
    if reward == "public":
        rewards = public.flat()[1][:, public.observation_size]
        reward = (float(rewards.min()), float(rewards.max()))
    actions = (torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    return Bounds(low, high, *actions, *reward, discrete_actions=spaces.discrete_actions)


def _observation_columns(manifest: Manifest) -> ObservationColumns:
    spaces = manifest.info.spaces
    return ObservationColumns(spaces.observation_size, spaces.one_hot, spaces.discrete_actions)


def _released_scales(job: CloneJob, partitions: Partitions) -> Normaliser:
    """Read the normaliser of the released model, which must be the one that the job names.

    Raises:
        PipelineError: the model is missing or broken, or it is another one.
    """
    charge = Statement.read(MODEL).charge
    paid = [each.id for each in partitions.account.charges if each.identity == job.scaled_by]
    if charge not in paid:
        raise PipelineError(
            f"{MODEL}: of other numbers or data than {PLAN} says, and the clone would take its "
            "scales; run `dvc repro train_model`"
        )
    return GaussianEnsemble.load(MODEL, torch.device("cpu")).normaliser
