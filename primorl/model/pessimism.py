"""The pessimistic MDP that policies are trained in (PriMORL, section 4.2), and rollouts of policies
in a model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from primorl.model.ensemble import GaussianEnsemble
from primorl.model.numerics import SeedGenerators
from primorl.model.termination import RULES

NOT_FINITE = "the model predicts something that is not a finite number"
Uncertainty = Callable[[Tensor, Tensor], Tensor]
"""Means and standard deviations of all members, ``[N, B, S + 1]`` each, to an uncertainty
``[B]``.
"""


def max_aleatoric(mean: Tensor, std: Tensor) -> Tensor:
    """Return u_MA(s, a) = max_i ‖Σ_i(s, a)‖_F, Σ_i being member i's diagonal covariance."""
    norms: Tensor = torch.linalg.vector_norm(std.square(), dim=-1)
    return norms.amax(0)


def max_pairwise_difference(mean: Tensor, std: Tensor) -> Tensor:
    """Return u_MPD(s, a) = max_{i,j} ‖μ_i(s, a) - μ_j(s, a)‖₂."""
    first, second = torch.triu_indices(mean.shape[0], mean.shape[0], offset=1, device=mean.device)
    gaps: Tensor = torch.linalg.vector_norm(mean[first] - mean[second], dim=-1)
    return gaps.amax(0)


def standardised_difference(mean: Tensor, std: Tensor) -> Tensor:
    """Return u_SD(s, a) = max_i ‖(μ_i(s, a) - μ̄(s, a)) / σ‖₂, without a unit; ``mean`` is already
    divided by the scale σ.
    """
    gaps: Tensor = torch.linalg.vector_norm(mean - mean.mean(0), dim=-1)
    return gaps.amax(0)


UNCERTAINTIES: dict[str, Uncertainty] = {
    "max_aleatoric": max_aleatoric,
    "max_pairwise_difference": max_pairwise_difference,
    "standardised_difference": standardised_difference,
}


@dataclass(frozen=True)
class Step:
    """One step of B rollouts.

    ``next_observation [B, S]``, penalised ``reward [B]``, ``uncertainty [B]``, and bool
    ``terminated [B]``: None where episodes never end by termination. ``known``, bool ``[B]``, tells
    whether all that the drawn member predicts and the uncertainty are finite numbers.
    """

    next_observation: Tensor
    reward: Tensor
    uncertainty: Tensor
    terminated: Tensor | None
    known: Tensor


class PessimisticModel:
    """r̃(s, a) = r̂(s, a) - λ·u(s, a) on the dynamics of a member drawn anew at every step.

    A post-processing of the released ensemble: no data enters. States and rewards are held within
    the ensemble's declared or public bounds (before the penalty), so that a rollout cannot run
    away. The next state is drawn; r̂ is the drawn member's mean, since a draw that is held within
    bounds has another mean than the member's. u is measured in the data's units, over
    (next_observation - observation, reward), as in the paper; only ``standardised_difference`` has
    no unit, and λ is then in units of the rewards' public scale.

    Where the drawn member predicts what is not a finite number, the rollout stays put. It gets the
    lowest reward there, and where another member does so and no doubt is known: a broken model must
    not look good.

    A learned termination is drawn from the probability of the member that gives the state and the
    reward. A declared rule sees the predicted state before it is held within the bounds, which may
    be narrower than the task's range.
    """

    def __init__(self, ensemble: GaussianEnsemble, *, uncertainty: str, penalty: float) -> None:
        self._ensemble = ensemble
        self.uncertainty, self.penalty = uncertainty, penalty
        self._uncertainty = UNCERTAINTIES[uncertainty]
        without_unit = self._uncertainty is standardised_difference
        self._scale = ensemble.normaliser.target_scale if without_unit else None
        self._penalty = penalty if self._scale is None else penalty * float(self._scale[-1])
        self._rule = RULES.get(ensemble.termination)
        self.bounds = bounds = ensemble.bounds
        self.action_low, self.action_high = bounds.action_low, bounds.action_high
        self.discrete_actions, size = bounds.discrete_actions, len(bounds.observation_low)
        self.observation_mean = ensemble.normaliser.input_mean[:size]
        self.observation_scale = ensemble.normaliser.input_scale[:size]

    @classmethod
    def without_penalty(cls, ensemble: GaussianEnsemble) -> "PessimisticModel":
        """Make the model as it is: the uncertainty, defined for one member too, has no say."""
        return cls(ensemble, uncertainty="max_aleatoric", penalty=0.0)

    @torch.no_grad()
    def step(self, observation: Tensor, action: Tensor, generators: SeedGenerators) -> Step:
        """Advance B rollouts, ``[B, S]`` and ``[B, A]``, an equal share for each seed of
        ``generators``.
        """
        mean, std, ends = self._ensemble.predict(observation, action)
        members, rollouts, targets = mean.shape
        member = generators.randint(members, rollouts)
        row = torch.arange(rollouts, device=observation.device)
        drawn = mean[member, row] + std[member, row] * generators.randn(rollouts, targets)
        known = drawn.isfinite().all(1)
        if ends is not None:
            known &= ends[member, row].isfinite()
        bounds = self.bounds
        predicted = observation + torch.where(known.unsqueeze(1), drawn[:, :-1], 0.0)
        following = bounds.hold(predicted, observation)
        reward = torch.where(known, mean[member, row, -1], bounds.reward_low)
        reward = reward.clamp(bounds.reward_low, bounds.reward_high)
        scaled = (mean, std) if self._scale is None else (mean / self._scale, std / self._scale)
        doubt = self._uncertainty(*scaled)
        terminated = None
        if ends is not None:
            terminated = generators.rand(rollouts) < ends[member, row]
        elif self._rule is not None:
            terminated = self._rule.ends(observation, action, predicted)
        known &= doubt.isfinite()  # a member that is not drawn may be broken too
        lowest = torch.full_like(reward, bounds.reward_low)
        reward = torch.where(known, reward - self._penalty * doubt, lowest)
        return Step(following, reward, doubt, terminated, known)


class Policies(Protocol):
    """P policies side by side, such as `DeterministicPolicy`."""

    @property
    def policies(self) -> int:
        """P."""

    def act(self, observation: Tensor) -> Tensor:
        """Return the actions ``[P, B, A]`` for observations ``[P, B, S]``."""


def step_weights(horizon: int, *, survival: Tensor | None = None) -> Tensor:
    """Compute the weight of every step's reward: S(t), float64 ``[horizon]``.

    Args:
        horizon: steps of a rollout that does not terminate.
        survival: S(t), ``[horizon]``, see evaluation's `PublicTrajectories`; None: 1, every rollout
            has all its steps.
    """
    return torch.ones(horizon, dtype=torch.float64) if survival is None else survival


@torch.no_grad()
def returns_by_member(
    ensemble: GaussianEnsemble,
    policy: Policies,
    starts: Tensor,
    *,
    rollouts: int,
    weights: Tensor,
    seed: int,
) -> Tensor:
    """Compute the weighted return Σ_t w_t r_t of rollouts, each in one member alone.

    The return is NaN where the member predicts something that is not a finite number. States and
    rewards are held within the ensemble's bounds, and rollouts end where the model says that the
    episode terminates. Members and policies share their start states, and policies the model's
    draws.

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
    members = map(ensemble.member, range(ensemble.architecture.members))
    models = map(PessimisticModel.without_penalty, members)
    begin = draw_starts(starts, rollouts, seed)

    def reward(visit: Visit) -> Tensor:
        return torch.where(visit.step.known, visit.step.reward, torch.nan)

    return torch.stack([_roll_out(one, policy, begin, weights, seed, reward) for one in models], 1)


@torch.no_grad()
def uncertainty_of(
    ensemble: GaussianEnsemble,
    policy: Policies,
    starts: Tensor,
    *,
    rollouts: int,
    weights: Tensor,
    seed: int,
) -> Tensor:
    """Compute the uncertainty σ_r Σ_t w_t u_t of rollouts, in units of rewards; σ_r is the rewards'
    public scale.

    The uncertainty is `standardised_difference`, 0 of one member. A member
    is drawn anew at every step. The arguments are those of `returns_by_member`; gives float64 ``[P,
    rollouts]``.
    """
    model = PessimisticModel(ensemble, uncertainty="standardised_difference", penalty=0.0)
    begin = draw_starts(starts, rollouts, seed)
    total = _roll_out(model, policy, begin, weights, seed, lambda visit: visit.step.uncertainty)
    return total * float(ensemble.normaliser.target_scale[-1])


@torch.no_grad()
def survival_in_model(
    ensemble: GaussianEnsemble,
    policy: Policies,
    starts: Tensor,
    *,
    rollouts: int,
    horizon: int,
    seed: int,
) -> Tensor:
    """Compute the share of a policy's rollouts that the model has not ended after t steps, float64
    ``[horizon]``; the other arguments are those of `returns_by_member`.
    """
    model = PessimisticModel.without_penalty(ensemble)
    begin, shares = draw_starts(starts, rollouts, seed), torch.zeros(horizon, dtype=torch.float64)
    shares[0] = 1.0
    for t, visit in enumerate(walk(model, policy, begin, horizon - 1, seed), start=1):
        assert visit.step.terminated is not None, "this model has no ends"
        shares[t] = (visit.alive & ~visit.step.terminated).double().mean()
    return shares


def draw_starts(starts: Tensor, rollouts: int, seed: int) -> Tensor:
    """Draw first states ``[rollouts, S]`` with replacement."""
    generator = torch.Generator().manual_seed(seed)
    return starts[torch.randint(len(starts), (rollouts,), generator=generator)]


class Visit(NamedTuple):
    """One step of rollouts: which have not ended before it, the states ``[P B, S]``, the actions,
    and what follows.
    """

    alive: Tensor
    observation: Tensor
    action: Tensor
    step: Step


def walk(
    model: PessimisticModel, policy: Policies, begin: Tensor, steps: int, seed: int
) -> Iterator[Visit]:
    """Roll P policies out from the same first states ``[B, S]``, for so many steps or until all
    have terminated.
    """
    generators = SeedGenerators.of([seed] * policy.policies, begin.device)
    observation = begin.repeat(policy.policies, 1)
    alive = torch.ones(len(observation), dtype=torch.bool)
    for _ in range(steps):
        if not alive.any():
            return
        action = policy.act(observation.view(policy.policies, len(begin), -1)).flatten(0, 1)
        step = model.step(observation, action, generators)
        yield Visit(alive, observation, action, step)
        if step.terminated is not None:
            alive = alive & ~step.terminated
        observation = step.next_observation


def _roll_out(
    model: PessimisticModel,
    policy: Policies,
    begin: Tensor,
    weights: Tensor,
    seed: int,
    term: Callable[[Visit], Tensor],
) -> Tensor:
    """Compute Σ_t w_t x_t of rollouts until they terminate; ``term`` takes x from a visit; float64
    ``[P, rollouts]``.
    """
    total = torch.zeros(policy.policies * len(begin), dtype=torch.float64)
    steps = int(weights.count_nonzero())  # weights descend
    for t, visit in enumerate(walk(model, policy, begin, steps, seed)):
        total += torch.where(visit.alive, float(weights[t]) * term(visit), 0.0)
    return total.view(policy.policies, -1)
