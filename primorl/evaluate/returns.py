"""Values of policies: measured in the true environment, or computed in the released model.

The policies of all seeds and epochs are evaluated side by side.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from primorl.base import PipelineError
from primorl.evaluate.summary import NOTE, Estimate, Evaluation
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.pessimism import NOT_FINITE, returns_by_member, step_weights
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.loaded import EPOCHS, FINAL
from primorl.simulators.environments import GymBatch

_ENVIRONMENTS_AT_ONCE = 256


def in_environment(
    environment: str,
    folders: Sequence[Path],
    *,
    episodes: int,
    epoch_episodes: int,
    seed: int,
    horizon: int | None,
) -> Evaluation:
    """Measure the policies' returns in the true environment, side by side.

    Args:
        environment: a registered Gymnasium id.
        folders: of the policies, one a seed.
        episodes: of each final policy.
        epoch_episodes: of each epoch's policy.
        seed: of the environments' resets.
        horizon: steps after which an episode ends; None: the environment's own limit.

    Raises:
        PipelineError: see `episode_returns` and `DeterministicPolicy.load`.
    """
    final, epochs = _policies(folders)
    returns = episode_returns(environment, final, episodes, seed, horizon)
    by_epoch = episode_returns(environment, epochs, epoch_episodes, seed, horizon)
    curves = _curves([Estimate.of(own) for own in returns], [Estimate.of(own) for own in by_epoch])
    return Evaluation(curves, {"episodes": episodes})


def in_model(
    ensemble: GaussianEnsemble,
    folders: Sequence[Path],
    starts: Tensor,
    *,
    rollouts: int,
    epoch_rollouts: int,
    seed: int,
    horizon: int,
    survival: Tensor | None,
) -> Evaluation:
    """Compute the policies' values in the released model, where no environment can measure them.

    Args:
        ensemble: the released model, on the CPU.
        folders: of the policies, one a seed.
        starts: first states in the environment's units, ``[n, S]``.
        rollouts: of each final policy in each member.
        epoch_rollouts: of each epoch's policy in each member.
        seed: of the draws.
        horizon: steps of a rollout that does not terminate.
        survival: how much each step counts, see `PublicTrajectories`; None: every step counts.

    Raises:
        PipelineError: a file is missing or broken, or the model predicts something that is not a
            finite number.
    """
    weights = step_weights(horizon, survival=survival)

    def values(policy: DeterministicPolicy, count: int) -> list[Estimate]:
        found = returns_by_member(
            ensemble, policy, starts, rollouts=count, weights=weights, seed=seed
        )
        if not found.isfinite().all():
            raise PipelineError(f"models/dynamics: {NOT_FINITE}; train another one")
        return [Estimate.in_model(by_member) for by_member in found.mean(-1)]

    final, epochs = _policies(folders)
    method = {
        "episodes": None,
        "model_value_members": ensemble.architecture.members,
        "model_value_rollouts": rollouts,
        "model_value_horizon": horizon,
        "model_value_note": NOTE,
    }
    return Evaluation(_curves(values(final, rollouts), values(epochs, epoch_rollouts)), method)


def _curves(
    final: Sequence[Estimate], epochs: Sequence[Estimate]
) -> tuple[tuple[Estimate, ...], ...]:
    """Make each seed's curve, whose last value is the final policy's; the epochs are listed seed
    after seed.
    """
    each = len(epochs) // len(final)
    return tuple(
        (*epochs[number * each : (number + 1) * each - 1], own) for number, own in enumerate(final)
    )


def _policies(folders: Sequence[Path]) -> tuple[DeterministicPolicy, DeterministicPolicy]:
    """Load the final policies of all seeds side by side, and those of all epochs, seed
    after seed.
    """
    final, epochs = (
        DeterministicPolicy.stack([DeterministicPolicy.load(folder, name) for folder in folders])
        for name in (FINAL, EPOCHS)
    )
    return final, epochs


def episode_returns(
    environment_id: str,
    policy: DeterministicPolicy,
    episodes: int,
    seed: int,
    limit: int | None = None,
) -> npt.NDArray[np.float64]:
    """Measure undiscounted returns of whole episodes, from reset to termination or truncation.

    Episode e starts from the same reset seed for every policy (common random numbers: differences
    between policies are not differences between starts), and from the same one for any
    ``episodes``.

    Args:
        environment_id: a registered Gymnasium id.
        policy: P policies.
        episodes: E, of each policy.
        seed: of the environments' resets.
        limit: steps after which an episode counts as over; None: the environment's own limit.

    Returns:
        ``[P, E]``.

    Raises:
        PipelineError: the environment cannot be built, its spaces are not the policy's, or nothing
            says that its episodes end.
    """
    # the seed of an episode's reset does not depend on the number of episodes
    seeds = [int(drawn) for drawn in np.random.SeedSequence(seed).generate_state(episodes)]
    at_once = min(episodes, max(1, _ENVIRONMENTS_AT_ONCE // policy.policies))
    batch = GymBatch(environment_id)
    batch.refuse_sizes(policy.observation_size, policy.action_size, policy.discrete_actions)
    if limit is None and batch.step_limit is None:
        raise PipelineError(
            f"environment {environment_id!r}: its episodes have no step limit and may never end; "
            "declare one, datasets/NAME.yaml: horizon"
        )
    parts = [
        _returns(batch, policy, seeds[at : at + at_once], at_once, limit)
        for at in range(0, episodes, at_once)
    ]
    return np.concatenate(parts, axis=1)


def _returns(
    batch: GymBatch, policy: DeterministicPolicy, seeds: list[int], count: int, limit: int | None
) -> npt.NDArray[np.float64]:
    """Measure returns ``[P, len(seeds)]`` of ``count`` environments for each policy; where seeds
    are fewer, the others run idle: sizes of products stay the same.
    """
    alive = np.tile(np.arange(count) < len(seeds), policy.policies)
    observations = batch.begin([*seeds, *seeds[:1] * (count - len(seeds))] * policy.policies)
    totals, steps = np.zeros(len(alive)), 0
    while alive.any() and steps != limit:
        rows = torch.from_numpy(observations).view(policy.policies, count, -1)
        actions = policy.act(rows).flatten(0, 1)
        if policy.discrete_actions:
            actions = actions.argmax(1)
        stepped = batch.step(actions.numpy().astype(batch.action_dtype, copy=False))
        observations, rewards, terminated, truncated = stepped
        totals[alive] += rewards[alive]
        alive = alive & ~(terminated | truncated)
        steps += 1
    return totals.reshape(policy.policies, count)[:, : len(seeds)]
