"""What policies earn in each member of an ensemble alone: whole rollouts, unpenalised."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.pessimism import PessimisticModel, Step
from primorl.dynamics.seed_generators import SeedGenerators


class Policies(Protocol):
    """P policies side by side, such as `primorl.policy.exported.DeterministicPolicy`."""

    @property
    def policies(self) -> int:
        """P."""

    def act(self, observation: Tensor) -> Tensor:
        """Actions ``[P, B, A]`` for observations ``[P, B, S]``."""


def step_weights(horizon: int, *, discount: float = 1.0, survival: Tensor | None = None) -> Tensor:
    """How much the reward of every step counts: S(t) γ^t, float64 ``[horizon]``.

    Args:
        horizon: steps of a rollout that does not terminate.
        discount: γ.
        survival: S(t), ``[horizon]``, see evaluation's `PublicTrajectories`; None: 1, every rollout has all its steps.
    """
    weights = discount ** torch.arange(horizon, dtype=torch.float64)
    return weights if survival is None else weights * survival


@torch.no_grad()
def returns_by_member(
    ensemble: GaussianEnsemble, policy: Policies, starts: Tensor, *, rollouts: int, weights: Tensor, seed: int
) -> Tensor:
    """Weighted return Σ_t w_t r_t of rollouts, each in one member alone.

    States and rewards are held within the ensemble's bounds, and rollouts end where the model says that the
    episode terminates. Members and policies share their start states, and policies
    the model's draws: what one is worth does not depend on which others are there.

    Args:
        ensemble: on the CPU.
        policy: P policies.
        starts: first states in the environment's units, ``[n, S]``.
        rollouts: of each policy in each member, from starts drawn with replacement.
        weights: w_t of every step, float64 ``[T]``; a rollout that does not terminate has T steps.
        seed: of the draws.

    Returns:
        float64 ``[P, N, rollouts]``.
    """
    members = range(ensemble.architecture.members)
    # Without a penalty the uncertainty has no say; this one is defined for a single member.
    models = (PessimisticModel(ensemble.member(n), uncertainty="max_aleatoric", penalty=0.0) for n in members)
    return torch.stack(
        [_rolled_out(model, policy, starts, rollouts, weights, seed, lambda step: step.reward) for model in models],
        dim=1,
    )


@torch.no_grad()
def uncertainty_of(
    ensemble: GaussianEnsemble, policy: Policies, starts: Tensor, *, rollouts: int, weights: Tensor, seed: int
) -> Tensor:
    """Summed uncertainty σ_r Σ_t w_t u_t of rollouts, in units of rewards; σ_r is the rewards' public scale.

    The uncertainty is `primorl.dynamics.pessimism.standardised_difference`. A member is drawn anew at every step.

    Args:
        ensemble: on the CPU; of one member the uncertainty is 0.
        policy: P policies.
        starts: first states in the environment's units, ``[n, S]``.
        rollouts: of each policy, from starts drawn with replacement.
        weights: w_t of every step, float64 ``[T]``.
        seed: of the draws.

    Returns:
        float64 ``[P, rollouts]``.
    """
    model = PessimisticModel(ensemble, uncertainty="standardised_difference", penalty=0.0)
    total = _rolled_out(model, policy, starts, rollouts, weights, seed, lambda step: step.uncertainty)
    return total * float(ensemble.normaliser.target_scale[-1])


def _rolled_out(
    model: PessimisticModel,
    policy: Policies,
    starts: Tensor,
    rollouts: int,
    weights: Tensor,
    seed: int,
    term: Callable[[Step], Tensor],
) -> Tensor:
    """Σ_t w_t x_t of rollouts until they terminate, where ``term`` takes x from a step; float64 ``[P, rollouts]``."""
    begin = starts[torch.randint(len(starts), (rollouts,), generator=torch.Generator().manual_seed(seed))]
    generators = SeedGenerators.of([seed] * policy.policies, begin.device)
    observation = begin.repeat(policy.policies, 1)
    alive = torch.ones(len(observation), dtype=torch.bool)
    total = torch.zeros(len(observation), dtype=torch.float64)
    for weight in weights.tolist():
        if weight == 0 or not alive.any():
            break
        action = policy.act(observation.view(policy.policies, rollouts, -1)).flatten(0, 1)
        step = model.step(observation, action, generators)
        total += torch.where(alive, weight * term(step), 0.0)
        if step.terminated is not None:
            alive &= ~step.terminated
        observation = step.next_observation
    return total.view(policy.policies, rollouts)
