"""What the trainings of model and clone share as paid work. Reads no private byte; loading it needs no torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.setup.partitions import Partitions
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitStore

if TYPE_CHECKING:
    from primorl.dynamics.ensemble import Bounds
    from primorl.setup.compute import Place
    from primorl.tracking import StageRun
    from primorl.training.queries import ObservationColumns
    from primorl.training.setup import TrainingSetup
    from primorl.training.training import Trained

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PrivateStage:
    """A stage that pays for one private training: what it trains, and the rules of its payment.

    Attributes:
        name: of the stage, as the ledger, errors and processes name it.
        output: folder of what it trains.
        what: it trains, as errors name it.
        setup: from params.yaml, the manifest and the public split; refuses what can be refused without private data.
        identity: a digest of everything that determines the result but chance and code. Equal digests are one piece of
            paid work.
        asked: whether the settings ask for a private training: all processes agree on it without the ledger.
        pooled: trains the non-private baseline, for variant mopo; None: that variant does not reach this stage.
        diverged: the error for weights that are not finite: the key, and the remedy.
        must_learn: whether a result that is no better than a constant is refused.
    """

    name: str
    output: Path
    what: str
    setup: "Callable[[Params, Manifest, UnitStore, Place], TrainingSetup]"
    identity: Callable[[Params, Partitions], str]
    asked: Callable[[Params], bool]
    pooled: "Callable[[Params, TrainingSetup, Partitions, StageRun], Trained] | None"
    diverged: str
    must_learn: bool


def from_public(setup: "TrainingSetup", public: UnitStore) -> "TrainingSetup":
    """Begin the rounds with weights that the public split makes; see `primorl.training.pooled`."""
    from primorl.training.pooled import public_start

    normaliser = setup.make_normaliser(setup.public_of(public.flat()), {})
    source, beta = setup.source_of(public), setup.local.beta_nll
    return replace(setup, start=public_start(setup.architecture, normaliser, source, setup.seed, beta))


def observation_bounds(params: Params, manifest: Manifest, public: UnitStore) -> tuple[Floats, Floats]:
    """Bound model states, [S] each: as declared, or by the environment or the public split; never by private data.

    Raises:
        PipelineError: the bounds are infinite, or of another number of dimensions.
    """
    declared, spaces, size = params.chosen.bounds.observation, manifest.info.spaces, public.observation_size
    key = f"datasets/{params.dataset}.yaml: bounds.observation"
    if declared == "public":
        inputs, targets = public.arrays()
        seen = np.concatenate((inputs[:, :size], inputs[:, :size] + targets[:, :size]))
        low, high = seen.min(0), seen.max(0)
    else:
        own = (spaces.observation_low, spaces.observation_high)
        low, high = (
            np.asarray(side, np.float32) for side in (own if declared == "space" else (declared.low, declared.high))
        )
    if len(low) != size:
        raise PipelineError(f"{key}: found {len(low)} dimensions, the data has {size}")
    if not np.isfinite((low, high)).all():
        raise PipelineError(
            f"{key}: found an unbounded observation space, allowed are finite bounds; set it to public, or declare "
            "{low: [..], high: [..]}"
        )
    return low, high


def model_bounds(params: Params, manifest: Manifest, public: UnitStore) -> "Bounds":
    """Bound model states (see `observation_bounds`), actions and rewards, those as declared or by the public split."""
    import torch

    from primorl.dynamics.ensemble import Bounds

    spaces, reward = manifest.info.spaces, params.chosen.bounds.reward
    low, high = map(torch.from_numpy, observation_bounds(params, manifest, public))
    if reward == "public":
        rewards = public.flat()[1][:, public.observation_size]
        reward = (float(rewards.min()), float(rewards.max()))
    actions = (torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    return Bounds(low, high, *actions, *reward, discrete_actions=spaces.discrete_actions)


def observation_columns(manifest: Manifest) -> "ObservationColumns":
    """Tell how the normaliser treats each dimension of an observation."""
    from primorl.training.queries import ObservationColumns

    spaces = manifest.info.spaces
    return ObservationColumns(spaces.observation_size, spaces.one_hot, spaces.discrete_actions)


def check_declared(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse parts of different datasets, public statistics where nobody is public, and infinite bounds of actions.

    Raises:
        PipelineError: names the first such choice.
    """
    if public.info != manifest.info:
        raise PipelineError("data/partitions: its parts are of different datasets; run `dvc repro partition`")
    declared, normaliser = params.chosen.bounds, params.privacy.statistics.normaliser
    dataset = f"datasets/{params.dataset}.yaml"
    sides = (*manifest.info.spaces.action_low, *manifest.info.spaces.action_high)
    if normaliser != "public" and not all(map(math.isfinite, sides)):
        raise PipelineError(
            f"params.yaml: privacy.statistics.normaliser: found {normaliser}, which standardises actions by their "
            f"declared bounds, and those of dataset {params.dataset} are infinite; declare them, or use public"
        )
    for key, found, allowed in (
        ("params.yaml: privacy.statistics.normaliser", normaliser, "bounds (the declared ones), private (charged)"),
        (f"{dataset}: bounds.observation", declared.observation, "space, {low, high}"),
        (f"{dataset}: bounds.reward", declared.reward, "[low, high]"),
    ):
        if found == "public" and not manifest.public_units:
            raise needs_public(key, found, allowed)


def needs_public(key: str, found: object, allowed: str) -> PipelineError:
    """Build the refusal of a choice that needs public units where there are none."""
    return PipelineError(
        f"{key}: found {found}, which needs public units, and data/partitions has none (where partition in params.yaml "
        f"was changed since, run `dvc repro partition`); allowed: {allowed}"
    )
