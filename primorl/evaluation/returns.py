"""Episode returns in the true environment, many policies and episodes side by side."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from primorl.policy.exported import DeterministicPolicy
from primorl.project.errors import PipelineError
from primorl.simulators import environments

_ENVIRONMENTS_AT_ONCE = 256


def episode_returns(
    environment_id: str, policy: DeterministicPolicy, episodes: int, seed: int, limit: int | None = None
) -> npt.NDArray[np.float64]:
    """Undiscounted returns of whole episodes, from reset to termination or truncation.

    Episode e starts from the same reset seed for every policy (common random numbers: differences between
    policies are not differences between starts), and from the same one whatever ``episodes`` is.

    Args:
        environment_id: a registered Gymnasium id.
        policy: P policies.
        episodes: E, of each policy.
        seed: of the environments' resets.
        limit: steps after which an episode counts as over; None: the environment's own limit.

    Returns:
        ``[P, E]``.

    Raises:
        PipelineError: the environment cannot be built, its spaces are not the policy's, or nothing says that its
            episodes end.
    """
    seeds = reset_seeds(seed, episodes)
    at_once = min(episodes, max(1, _ENVIRONMENTS_AT_ONCE // policy.policies))
    envs = _build(environment_id, policy, limit, policy.policies * at_once)
    try:
        parts = [_returns(envs, policy, seeds[start : start + at_once], limit) for start in range(0, episodes, at_once)]
    finally:
        envs.close()
    return np.concatenate(parts, axis=1)


def reset_seeds(seed: int, episodes: int) -> list[int]:
    """The seed of each episode's reset; that of an episode is the same however many there are."""
    return [int(drawn) for drawn in np.random.SeedSequence(seed).generate_state(episodes)]


def _returns(
    envs: SyncVectorEnv, policy: DeterministicPolicy, seeds: list[int], limit: int | None
) -> npt.NDArray[np.float64]:
    """Returns ``[P, len(seeds)]`` of one batch; the environments left over in a last, smaller batch run idle."""
    count = envs.num_envs // policy.policies
    counted = np.zeros((policy.policies, count), dtype=bool)
    counted[:, : len(seeds)] = True
    alive = counted.ravel()
    resets: list[int | None] = [*seeds, *seeds[:1] * (count - len(seeds))]
    observations, _ = envs.reset(seed=resets * policy.policies)
    totals = np.zeros(envs.num_envs)
    steps = 0
    while alive.any() and steps != limit:
        batch = torch.as_tensor(observations, dtype=torch.float32).view(policy.policies, count, -1)
        actions = as_the_space_has_them(policy.act(batch).flatten(0, 1), envs.single_action_space)
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        totals[alive] += rewards[alive]
        alive = alive & ~(terminated | truncated)  # the next episode of a finished environment counts for nothing
        steps += 1
    return totals.reshape(policy.policies, count)[:, : len(seeds)]


def as_the_space_has_them(actions: Tensor, space: Any) -> npt.NDArray[Any]:
    """Vectors of a box as they are, one-hot ones ``[B, A]`` as the numbers of the actions, ``[B]``."""
    plain: npt.NDArray[Any] = actions.numpy()
    if isinstance(space, Discrete):
        plain = plain.argmax(axis=1) + space.start
    return plain.astype(space.dtype, copy=False)


def _build(environment_id: str, policy: DeterministicPolicy, limit: int | None, count: int) -> SyncVectorEnv:
    envs = SyncVectorEnv([lambda: environments.make(environment_id)] * count, autoreset_mode=AutoresetMode.NEXT_STEP)
    try:
        _check_spaces(environment_id, policy, envs)
        spec = envs.envs[0].spec
        if limit is None and (spec is None or spec.max_episode_steps is None):
            raise PipelineError(
                f"environment {environment_id!r}: its episodes have no step limit and may never end; declare one, "
                "datasets/NAME.yaml: horizon"
            )
    except PipelineError:
        envs.close()
        raise
    return envs


def _check_spaces(environment_id: str, policy: DeterministicPolicy, envs: SyncVectorEnv) -> None:
    observation, action = envs.single_observation_space, envs.single_action_space
    actions = f"{action.n} discrete actions" if isinstance(action, Discrete) else f"actions of shape {action.shape}"
    expected = f"actions of shape {(policy.action_size,)}"
    if policy.discrete_actions:
        expected = f"{policy.action_size} discrete actions"
    if observation.shape != (policy.observation_size,) or actions != expected:
        raise PipelineError(
            f"environment {environment_id!r}: found observations of shape {observation.shape} and {actions}, the "
            f"policy was trained for observations of shape {(policy.observation_size,)} and {expected}; evaluate in "
            "the environment of its dataset"
        )
