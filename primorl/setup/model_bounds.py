"""Where a model's states and rewards stay."""

import torch

from primorl.config.params import Params
from primorl.dynamics.ensemble import Bounds
from primorl.project.errors import PipelineError
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore


def model_bounds(params: Params, manifest: Manifest, public: UnitStore) -> Bounds:
    """Declared bounds, the environment's, or the public split's; never the private data's.

    Raises:
        PipelineError: those of observations are infinite, or of another number of dimensions.
    """
    declared = params.chosen.bounds
    spaces = manifest.info.spaces
    low, high = torch.tensor(spaces.observation_low), torch.tensor(spaces.observation_high)
    inputs, targets = public.flat()
    size = public.observation_size
    if declared.observation == "public":
        after = inputs[:, :size] + targets[:, :size]
        seen = torch.cat((inputs[:, :size], after))
        low, high = seen.amin(0), seen.amax(0)
    elif declared.observation != "space":
        low, high = torch.tensor(declared.observation.low), torch.tensor(declared.observation.high)
        if len(low) != size:
            raise PipelineError(
                f"datasets/{params.dataset}.yaml: bounds.observation: found {len(low)} dimensions, the data has {size}"
            )
    if not bool((low.isfinite() & high.isfinite()).all()):
        raise PipelineError(
            f"datasets/{params.dataset}.yaml: bounds.observation: found an unbounded observation space, allowed "
            "are finite bounds; set it to public, or declare {low: [..], high: [..]}"
        )
    rewards = targets[:, size]
    reward = (float(rewards.min()), float(rewards.max())) if declared.reward == "public" else declared.reward
    actions = (torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    return Bounds(low, high, *actions, *reward, discrete_actions=spaces.discrete_actions)
