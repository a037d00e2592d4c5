"""Values of policies: measured in the true environment, or computed in the released model.

The policies of all seeds and epochs are evaluated side by side.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from primorl.base import PipelineError
from primorl.evaluate.summary import Estimate, Evaluation, Score
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.pessimism import NOT_FINITE, returns_by_member, step_weights
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.loaded import EPOCHS, FINAL
from primorl.simulators.environments import GymBatch

_ENVIRONMENTS_AT_ONCE = 256


Measure = Callable[[DeterministicPolicy, int], list[Estimate]]
"""From policies, and episodes or rollouts of each, to their values."""


def evaluate(
    folders: Sequence[Path],
    measure: Measure,
    *,
    final: int,
    epoch: int,
    method: Mapping[str, Any],
    score: Score | None,
) -> Evaluation:
    """Evaluate the final policies, and those of every epoch.

    Args:
        folders: of the policies, one a seed.
        measure: finds values.
        final: episodes, or rollouts in each member, of each final policy.
        epoch: the same of each epoch's policy.
        method: see `Evaluation`.
        score: see `Evaluation`.

    Raises:
        PipelineError: see `DeterministicPolicy.load`, and ``measure``.
    """
    last, epochs = (
        DeterministicPolicy.stack([DeterministicPolicy.load(folder, name) for folder in folders])
        for name in (FINAL, EPOCHS)
    )
    values, of_seed = measure(epochs, epoch), epochs.policies // len(folders)
    curves = []
    for number, own in enumerate(measure(last, final)):  # an epoch's policies: seed after seed
        curve = values[number * of_seed : (number + 1) * of_seed - 1]
        curves.append((*curve, own))
    return Evaluation(tuple(curves), method, score)


def in_environment(
    policies: DeterministicPolicy,
    episodes: int,
    *,
    environment: str,
    seed: int,
    horizon: int | None,
) -> list[Estimate]:
    """Measure policies in the true environment; see `episode_returns`."""
    returns = episode_returns(environment, policies, episodes, seed, horizon)
    return [Estimate.of(own) for own in returns]


def in_model(
    policies: DeterministicPolicy,
    rollouts: int,
    *,
    ensemble: GaussianEnsemble,
    starts: Tensor,
    seed: int,
    horizon: int,
    survival: Tensor | None,
) -> list[Estimate]:
    """Compute the policies' values in the released model, where no environment can measure them.

    Args:
        policies: to be valued.
        rollouts: of each policy in each member.
        ensemble: the released model, on the CPU.
        starts: first states in the environment's units, ``[n, S]``.
        seed: of the draws.
        horizon: steps of a rollout that does not terminate.
        survival: how much each step counts, see `PublicTrajectories`; None: every step counts.

    Raises:
        PipelineError: the model predicts something that is not a finite number.
    """
    weights = step_weights(horizon, survival=survival)
    found = returns_by_member(
        ensemble, policies, starts, rollouts=rollouts, weights=weights, seed=seed
    )
    if not found.isfinite().all():
        raise PipelineError(f"models/dynamics: {NOT_FINITE}; train another one")
    return [Estimate.in_model(by_member) for by_member in found.mean(-1)]


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
