"""Episode returns in the true environment, many policies and episodes side by side."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pipeline.errors import PipelineError
from pipeline.policy.exported import DeterministicPolicy

_ENVIRONMENTS_AT_ONCE = 256


def episode_returns(
    environment_id: str, policy: DeterministicPolicy, episodes: int, seed: int
) -> npt.NDArray[np.float64]:
    """Undiscounted returns of whole episodes, from reset to termination or truncation.

    Episode e starts from the same reset seed for every policy (common random numbers: differences between
    policies are not differences between starts), and from the same one whatever ``episodes`` is.

    Args:
        environment_id: a registered Gymnasium id; episodes must end, by termination or a time limit.
        policy: P policies.
        episodes: E, of each policy.
        seed: of the environments' resets.

    Returns:
        ``[P, E]``.

    Raises:
        PipelineError: the environment cannot be built, or its spaces are not the policy's.
    """
    seeds = np.random.SeedSequence(seed).generate_state(episodes).tolist()
    at_once = min(episodes, max(1, _ENVIRONMENTS_AT_ONCE // policy.policies))
    environments = _build(environment_id, policy, policy.policies * at_once)
    try:
        parts = [
            _returns(environments, policy, seeds[start : start + at_once]) for start in range(0, episodes, at_once)
        ]
    finally:
        environments.close()
    return np.concatenate(parts, axis=1)


def _returns(environments: SyncVectorEnv, policy: DeterministicPolicy, seeds: list[int]) -> npt.NDArray[np.float64]:
    """Returns ``[P, len(seeds)]`` of one batch; the environments left over in a last, smaller batch run idle."""
    count = environments.num_envs // policy.policies
    counted = np.zeros((policy.policies, count), dtype=bool)
    counted[:, : len(seeds)] = True
    alive = counted.ravel()
    resets: list[int | None] = [*seeds, *seeds[:1] * (count - len(seeds))]
    observations, _ = environments.reset(seed=resets * policy.policies)
    totals = np.zeros(environments.num_envs)
    action_type = environments.single_action_space.dtype
    while alive.any():
        batch = torch.as_tensor(observations, dtype=torch.float32).view(policy.policies, count, -1)
        actions = policy.act(batch).flatten(0, 1).numpy().astype(action_type, copy=False)
        observations, rewards, terminated, truncated, _ = environments.step(actions)
        totals[alive] += rewards[alive]
        alive = alive & ~(terminated | truncated)  # the next episode of a finished environment counts for nothing
    return totals.reshape(policy.policies, count)[:, : len(seeds)]


def _build(environment_id: str, policy: DeterministicPolicy, count: int) -> SyncVectorEnv:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(environment_id)

    try:
        environments = SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.NEXT_STEP)
    except (gymnasium.error.Error, ImportError) as unknown:
        reason = " ".join(str(unknown).split())
        raise PipelineError(
            f"environment {environment_id!r}: Gymnasium cannot build it ({reason}); allowed is a registered id, "
            "or module:id to import the module that registers it"
        ) from None
    found = (environments.single_observation_space.shape, environments.single_action_space.shape)
    expected = ((policy.observation_size,), (policy.action_size,))
    if found != expected:
        environments.close()
        raise PipelineError(
            f"environment {environment_id!r}: found observations and actions of shapes {found[0]} and {found[1]}, "
            f"the policy was trained for {expected[0]} and {expected[1]}; evaluate in the environment of its dataset"
        )
    return environments
