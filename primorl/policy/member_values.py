"""Compute returns of policies in each member of an ensemble, and choose among candidates by them.

A candidate's gain is reduced by `_DOUBT_SHARE` times its doubt: the uncertainty along its rollouts
less the clone's. Members that were trained on the same noised rounds are wrong alike, which their
spread does not show. So a gain counts only if it is larger than half of the model's error on the
clone itself, whose return public episodes tell within their own sampling error.

Candidates, clone and ensemble are released or made from released files, so the choice costs no
privacy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import PessimisticModel, Step
from primorl.policy.config import CandidateRecord
from primorl.policy.exported import DeterministicPolicy

DIVERGENCES = (0.3, 1.0, 3.0)
"""Targets κ of the candidates: from nearly the clone to where the clone hardly holds."""
DIVERGENCES_OF_HEADS = (0.1, 0.3, 1.0)
"""Targets in a model of linear heads, smaller: away from the data, polynomials extrapolate
badly.
"""
NOT_FINITE = "the model predicts something that is not a finite number"
_ROLLOUTS = 512
_DOUBT_SHARE, _SHARE_OF_ERROR, _SAMPLING_ERRORS = 3.0, 0.5, 2.0


class Policies(Protocol):
    """P policies side by side, such as `primorl.policy.exported.DeterministicPolicy`."""

    @property
    def policies(self) -> int:
        """P."""

    def act(self, observation: Tensor) -> Tensor:
        """Return the actions ``[P, B, A]`` for observations ``[P, B, S]``."""


def step_weights(horizon: int, *, discount: float = 1.0, survival: Tensor | None = None) -> Tensor:
    """Compute the weight of every step's reward: S(t) γ^t, float64 ``[horizon]``.

    Args:
        horizon: steps of a rollout that does not terminate.
        discount: γ.
        survival: S(t), ``[horizon]``, see evaluation's `PublicTrajectories`; None: 1, every rollout
            has all its steps.
    """
    weights = discount ** torch.arange(horizon, dtype=torch.float64)
    return weights if survival is None else weights * survival


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
    members = range(ensemble.architecture.members)
    # Without a penalty the uncertainty has no say; this one is defined for a single member.
    models = (
        PessimisticModel(ensemble.member(n), uncertainty="max_aleatoric", penalty=0.0)
        for n in members
    )
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

    The uncertainty is `primorl.model.pessimism.standardised_difference`, 0 of one member. A member
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
    model = PessimisticModel(ensemble, uncertainty="max_aleatoric", penalty=0.0)
    begin, shares = draw_starts(starts, rollouts, seed), torch.zeros(horizon, dtype=torch.float64)
    shares[0] = 1.0
    for t, visit in enumerate(walk(model, policy, begin, horizon - 1, seed), start=1):
        assert visit.step.terminated is not None, "this model has no ends"
        shares[t] = (visit.alive & ~visit.step.terminated).double().mean()
    return shares


def draw_starts(starts: Tensor, rollouts: int, seed: int) -> Tensor:
    """Draw first states ``[rollouts, S]`` with replacement."""
    return starts[
        torch.randint(len(starts), (rollouts,), generator=torch.Generator().manual_seed(seed))
    ]


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


@dataclass(frozen=True)
class CandidateComparison:
    """Compare candidate policies with the clone in every member of the released model.

    Attributes:
        ensemble: the released one, on the CPU.
        clone: the clone as it is released, on the CPU.
        starts: first states in the environment's units, ``[n, S]``.
        weights: w_t of every step, float64 ``[T]``: the share of episodes that are longer than t.
        seed: of the draws, which all policies share.
        observed: mean return of public episodes and its standard error; None: fewer than two are
            public.
        divergences: κ of every candidate, ascending.
    """

    ensemble: GaussianEnsemble
    clone: Policies
    starts: Tensor
    weights: Tensor
    seed: int
    observed: tuple[float, float] | None
    divergences: Sequence[float] = DIVERGENCES

    def compare(self, candidates: DeterministicPolicy) -> "CandidateChoice":
        """Roll the clone and all candidates out in every member: ``G = seeds · candidates``
        policies side by side.

        Raises:
            PipelineError: the model predicts something that is not a finite number.
        """
        clone_returns = self._measure(returns_by_member, self.clone)
        gains = (self._measure(returns_by_member, candidates) - clone_returns).mean(-1)
        error = 0.0
        if self.observed is not None:
            mean, standard_error = self.observed
            gap = abs(float(clone_returns.mean()) - mean)
            error = max(0.0, gap - _SAMPLING_ERRORS * standard_error)
        uncertainty = self._measure(uncertainty_of, candidates).mean(-1)
        doubts = uncertainty - self._measure(uncertainty_of, self.clone).mean(-1)
        if not bool(gains.isfinite().all() and doubts.isfinite().all()):
            raise PipelineError(f"models/dynamics: {NOT_FINITE}; train another one")
        count = len(self.divergences)
        gains, doubts = gains.view(-1, count, gains.shape[1]), doubts.view(-1, count)
        records = [
            tuple(
                CandidateRecord(
                    divergence=divergence,
                    gains=tuple(gains[seed, place].tolist()),
                    doubt=float(doubts[seed, place]),
                    chosen=place == chosen,
                )
                for place, divergence in enumerate(self.divergences)
            )
            for seed, chosen in enumerate(choose(gains, doubts, error))
        ]
        return CandidateChoice(tuple(records), error)

    def _measure(self, measure: Callable[..., Tensor], policy: Policies) -> Tensor:
        shared = {"rollouts": _ROLLOUTS, "weights": self.weights, "seed": self.seed}
        return measure(self.ensemble, policy, self.starts, **shared)


@dataclass(frozen=True)
class CandidateChoice:
    """The candidates of every seed, one of which is chosen.

    Attributes:
        candidates: of each seed, κ ascending.
        error: the difference between the model's value of the clone and the return of public
            episodes, less their sampling error.
    """

    candidates: tuple[tuple[CandidateRecord, ...], ...]
    error: float

    def policy(self, seed: int) -> int:
        """Return the index, among all policies, of the candidate chosen for seed number
        ``seed``.
        """
        own = self.candidates[seed]
        return seed * len(own) + [each.chosen for each in own].index(True)


def choose(gains: Tensor, doubts: Tensor, error: float) -> list[int]:
    """Choose for each seed the candidate with the largest smallest gain, less its doubt.

    If that is not larger than half of ``error``, choose the candidate with the smallest κ.

    Args:
        gains: mean return less the clone's, in each member: ``[seeds, candidates, N]``.
        doubts: uncertainty less the clone's, in units of the return: ``[seeds, candidates]``.
        error: see `CandidateChoice`.
    """
    doubted = gains.amin(-1) - _DOUBT_SHARE * doubts.clamp(min=0)
    largest, best = doubted.max(-1)
    return [int(place) for place in torch.where(largest > _SHARE_OF_ERROR * error, best, 0)]
