"""Bounds of a model, and how its observations are treated, as tensors. Reads no private byte."""

import torch

from primorl.config.params import Params
from primorl.dynamics.ensemble import Bounds
from primorl.setup.declared import observation_bounds
from primorl.training.normaliser_query import ObservationColumns
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore


def observation_columns(manifest: Manifest) -> ObservationColumns:
    """How the dimensions of an observation are treated."""
    spaces = manifest.info.spaces
    return ObservationColumns(spaces.observation_size, spaces.one_hot, spaces.discrete_actions)


def model_bounds(params: Params, manifest: Manifest, public: UnitStore) -> Bounds:
    """Bounds of model states and rewards: declared, the environment's or the public split's; never the private data's.

    Raises:
        PipelineError: the bounds of observations are infinite, or of another number of dimensions.
    """
    declared, spaces = params.chosen.bounds, manifest.info.spaces
    low, high = map(torch.from_numpy, observation_bounds(params, manifest, public))
    targets = public.flat()[1]
    rewards = targets[:, public.observation_size]
    reward = (float(rewards.min()), float(rewards.max())) if declared.reward == "public" else declared.reward
    actions = (torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    return Bounds(low, high, *actions, *reward, discrete_actions=spaces.discrete_actions)
