"""What the dataset's file and the manifest declare of the data, for every private training. Reads no private byte."""

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitStore

if TYPE_CHECKING:
    from primorl.dynamics.ensemble import Bounds
    from primorl.training.queries import ObservationColumns

Floats = npt.NDArray[np.float32]


def observation_bounds(params: Params, manifest: Manifest, public: UnitStore) -> tuple[Floats, Floats]:
    """Bound model states, [S] each: as declared, or by the environment or the public split; never by private data.

    Raises:
        PipelineError: the bounds are infinite, or of another number of dimensions.
    """
    declared, spaces, size = params.chosen.bounds.observation, manifest.info.spaces, public.observation_size
    key = f"datasets/{params.dataset}.yaml: bounds.observation"
    low, high = (np.asarray(side, np.float32) for side in (spaces.observation_low, spaces.observation_high))
    if declared == "public":
        inputs, targets = public.arrays()
        seen = np.concatenate((inputs[:, :size], inputs[:, :size] + targets[:, :size]))
        low, high = seen.min(0), seen.max(0)
    elif declared != "space":
        low, high = (np.asarray(side, np.float32) for side in (declared.low, declared.high))
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
    if manifest.public_units:
        return
    for key, found, allowed in (
        ("params.yaml: privacy.statistics.normaliser", normaliser, "bounds (the declared ones), private (charged)"),
        (f"{dataset}: bounds.observation", declared.observation, "space, {low, high}"),
        (f"{dataset}: bounds.reward", declared.reward, "[low, high]"),
    ):
        if found == "public":
            raise needs_public(key, found, allowed)


def needs_public(key: str, found: object, allowed: str) -> PipelineError:
    """Build the refusal of a choice that needs public units where there are none."""
    return PipelineError(
        f"{key}: found {found}, which needs public units, and there are none (partition.public_fraction); "
        f"allowed: {allowed}"
    )
