"""What the dataset's file and the manifest declare of the data, for every private training. Reads no private byte."""

import math

import numpy as np
import numpy.typing as npt

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitRows

Floats = npt.NDArray[np.float32]


def check_partitions(manifest: Manifest, public: UnitRows) -> None:
    """Check that the manifest and the public split are of one dataset.

    Raises:
        PipelineError: they are not.
    """
    if public.info != manifest.info:
        raise PipelineError("data/partitions: its parts are of different datasets; run `dvc repro partition`")


def observation_bounds(params: Params, manifest: Manifest, public: UnitRows) -> tuple[Floats, Floats]:
    """Bounds of model states, [S] each: declared, the environment's or the public split's; never the private data's.

    Raises:
        PipelineError: they are infinite, or of another number of dimensions.
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


def check_declared(params: Params, manifest: Manifest) -> None:
    """Refuse what needs the public split where there is none, and infinite bounds where they are needed.

    Raises:
        PipelineError: names the first such choice.
    """
    declared, chosen = params.chosen.bounds, params.privacy.statistics.normaliser
    dataset = f"datasets/{params.dataset}.yaml"
    sides = (*manifest.info.spaces.action_low, *manifest.info.spaces.action_high)
    if chosen != "public" and not all(map(math.isfinite, sides)):
        raise PipelineError(
            f"params.yaml: privacy.statistics.normaliser: found {chosen}, which standardises actions by their declared "
            f"bounds, and those of dataset {params.dataset} are infinite; declare them, or use public"
        )
    if manifest.public_units:
        return
    for key, found, allowed in (
        ("params.yaml: privacy.statistics.normaliser", chosen, "bounds (the declared ones), private (charged)"),
        (f"{dataset}: bounds.observation", declared.observation, "space, {low, high}"),
        (f"{dataset}: bounds.reward", declared.reward, "[low, high]"),
    ):
        if found == "public":
            raise needs_public(key, found, allowed)


def needs_public(key: str, found: object, allowed: str) -> PipelineError:
    """The refusal of a choice that needs public units where there are none."""
    return PipelineError(
        f"{key}: found {found}, which needs public units, and there are none (partition.public_fraction); "
        f"allowed: {allowed}"
    )
