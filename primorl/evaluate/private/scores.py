"""Scores: one bounded number for each unit and policy, by which `primorl select` chooses among policies."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from primorl.evaluate.private.problem import Episodes, Problem, in_blocks, in_float64
from primorl.model.ensemble import SeedGenerators
from primorl.model.pessimism import PessimisticModel
from primorl.policy.exported import DeterministicPolicy

_RIDGE = 1e-6  # of the mean of the Gram matrix's diagonal
_FAR = 0.5  # standardised observations are halved before they meet unit frequencies


@dataclass(frozen=True)
class CorrectedModel:
    """A policy's value in the released model, corrected by the model's errors on the unit's own rows.

    ψ = V̂(s_0) + Σ_t γ^t w(s_t, a_t) (r_t + γ V̂(s_t+1) - Q̂(s_t, a_t)), a mean over the unit's trajectories, with Q̂ the
    model's mean reward plus γ V̂ at the states that its members predict. V̂ is a ridge regression on random Fourier
    features of standardised observation and time left (Rahimi and Recht 2007), on returns of rollouts in the model.
    Every rollout begins with random actions, for a random while that is not counted, so that V̂ also knows states which
    the policy itself would avoid. The correction is that of the doubly robust estimator (Jiang and Li 2016), with the
    weight of the single action in place of the product over all steps before.

    The weight is 0 where the logged action is not the policy's. Discrete actions: one over the logged action's
    probability, or the number of actions if the log has none. Actions in a box: a Gaussian kernel of the
    distance, over its mean under uniform actions. At most ``largest_weight`` in either case.

    Attributes:
        features: of V̂.
        rollouts: in the model, of every policy.
        bandwidth: of the kernel, in half ranges of the action.
        largest_weight: the bound; 0 leaves the correction out.
    """

    name: ClassVar[str] = "corrected_model"
    bias: ClassVar[str] = (
        "errors of the model count where the data's states and actions are, not where the policy would go"
    )

    features: int
    rollouts: int
    bandwidth: float
    largest_weight: float

    def fitted(
        self, problem: Problem, policies: Sequence[DeterministicPolicy]
    ) -> "CorrectedScorer":
        """Fit V̂ of every policy to rollouts in the released model. Policies need not have one shape; P = 1 each."""
        generator = torch.Generator().manual_seed(problem.seed)
        size = problem.observation_size + 1
        basis = Basis(
            torch.randn(size, self.features, generator=generator, dtype=torch.float64),
            2 * math.pi * torch.rand(self.features, generator=generator, dtype=torch.float64),
        )
        exact = tuple(in_float64(policy) for policy in policies)
        weights = _fit(problem, exact, basis, self.rollouts)
        problem = replace(problem, ensemble=in_float64(problem.ensemble, problem.starts.device))
        return CorrectedScorer(self, problem, exact, basis, weights)


@dataclass(frozen=True)
class Basis:
    """Random Fourier features cos(ωx + b), and a constant.

    Attributes:
        frequencies: ω, ``[S + 1, D]``.
        phases: b, ``[D]``.
    """

    frequencies: Tensor
    phases: Tensor

    def of(self, problem: Problem, observation: Tensor, step: Tensor) -> Tensor:
        """Compute the features of ``[.., S]`` and of int64 steps that broadcast against it, float64 ``[.., D + 1]``."""
        left = problem.time_left(step)[..., None].expand(*observation.shape[:-1], 1)
        point = torch.cat((_FAR * problem.standardised(observation), left), -1)
        waves = torch.cos(point @ self.frequencies + self.phases)
        return torch.cat((waves, torch.ones_like(waves[..., :1])), -1)


@dataclass(frozen=True)
class CorrectedScorer:
    """`CorrectedModel`, fitted. Made from public and released values.

    A unit's score depends on its own rows alone, up to the rounding of float64, which stays within
    `primorl.privacy.mechanism.selection.ROUNDING`.

    Attributes:
        score: the settings.
        problem: the question.
        policies: k, in float64.
        basis: features of V̂.
        weights: of V̂, ``[D + 1, k]``.
    """

    score: CorrectedModel
    problem: Problem
    policies: tuple[DeterministicPolicy, ...]
    basis: Basis
    weights: Tensor

    @property
    def row_bytes(self) -> int:
        """Bound the memory of one logged row while `scores` works on it."""
        copies = 2 * self.problem.ensemble.architecture.members + 3
        return 8 * copies * (len(self.weights) + 4 * len(self.policies))

    @torch.no_grad()
    def values(self, observation: Tensor, step: Tensor) -> Tensor:
        """Compute V̂ within the bounds of a return, float64 ``[.., k]``."""
        found = self.basis.of(self.problem, observation, step) @ self.weights
        return found.clamp(self.problem.return_low, self.problem.return_high)

    @torch.no_grad()
    def scores(self, episodes: Episodes) -> Tensor:
        """Map ψ of each unit and policy from the bounds of a return to [0, 1], float64 ``[U, k]``; sensitive."""
        problem = self.problem
        value = self.values(episodes.observation, episodes.step).where(
            episodes.begins[..., None], 0.0
        )
        if self.score.largest_weight > 0:
            factor = problem.discounts(episodes.step) * episodes.own
            value = value + factor[..., None] * self.action_weights(episodes) * self.surprises(
                episodes
            )
        mean = value.sum(1) / episodes.trajectories.clamp(min=1)[:, None]
        low, high = problem.return_low, problem.return_high
        return ((mean - low) / (high - low)).nan_to_num(nan=0.0).clamp(0, 1)

    def surprises(self, episodes: Episodes) -> Tensor:
        """Compute the surprise r + γ V̂(s') - Q̂(s, a) of every row, ``[U, M, k]``."""
        problem = self.problem
        held, action = (
            problem.bounded_observation(episodes.observation),
            problem.bounded_action(episodes.action),
        )
        predicted, _, ends = problem.ensemble.predict(held.flatten(0, 1), action.flatten(0, 1))
        predicted = predicted.view(len(predicted), *held.shape[:2], -1)
        reward = problem.reward(predicted[..., -1]).mean(0)
        goes_on = problem.continues(episodes.step, torch.zeros_like(episodes.own))
        stays = 1.0 if ends is None else 1 - ends.view(-1, *held.shape[:2], 1)
        following = (stays * self.values(held + predicted[..., :-1], episodes.step + 1)).mean(0)
        logged = problem.continues(episodes.step, episodes.terminated)
        real = self.values(episodes.following, episodes.step + 1)
        gain = (problem.reward(episodes.reward) - reward)[..., None]
        return gain + problem.discount * (logged[..., None] * real - goes_on[..., None] * following)

    def action_weights(self, episodes: Episodes) -> Tensor:
        """Compute the weight w of every row and policy, ``[U, M, k]``."""
        problem, count = self.problem, len(self.policies)
        flat = problem.bounded_observation(episodes.observation)
        found = in_blocks(
            lambda rows: _acts(self.policies, [rows] * count).movedim(0, 1), flat.flatten(0, 1)
        )
        wanted = problem.centred(found.movedim(1, 0)).view(count, *episodes.own.shape, -1)
        logged = problem.centred(episodes.action)
        if problem.discrete_actions:
            same = (wanted * logged).sum(-1)
            chance = (
                1 / problem.action_size
                if episodes.probability is None
                else episodes.probability.clamp(min=1e-9)
            )
            weight = same / chance
        else:
            kernel = torch.exp(-0.5 * ((wanted - logged) / self.score.bandwidth).square().sum(-1))
            weight = (
                kernel
                / min(1.0, self.score.bandwidth * math.sqrt(math.pi / 2)) ** problem.action_size
            )
        return weight.clamp(0, self.score.largest_weight).movedim(0, -1)


def _acts(policies: Sequence[DeterministicPolicy], observations: Iterable[Tensor]) -> Tensor:
    """Compute actions of each policy in states of its own: ``[k, B, S]`` to float64 ``[k, B, A]``."""
    return torch.cat(
        [one.act(own[None].double()) for one, own in zip(policies, observations, strict=True)]
    )


@torch.no_grad()
def _fit(
    problem: Problem, policies: Sequence[DeterministicPolicy], basis: Basis, rollouts: int
) -> Tensor:
    """Regress returns in the model on features (ridge), for every policy: ``[D + 1, k]``.

    Without a horizon a rollout has twice as many steps, and only those of the first half are regressed on: the returns
    of later ones would lack rewards that count.
    """
    count, horizon = len(policies), problem.lived_steps
    model = PessimisticModel(problem.ensemble, uncertainty="max_aleatoric", penalty=0.0)
    generators = SeedGenerators.of([problem.seed] * count, problem.starts.device)
    begin = generators.randint(len(problem.starts), count * rollouts)
    observation = problem.starts[begin].float()
    low, high = problem.action_low.float(), problem.action_high.float()
    # Half of the rollouts follow the policy from the first state on.
    random_steps = generators.randint(horizon, count * rollouts) * generators.randint(
        2, count * rollouts
    )
    seen, rewards, alive = [observation], [], [torch.ones(len(observation), dtype=torch.bool)]
    for step in range(horizon if problem.horizon is not None else 2 * horizon):
        action = _acts(policies, observation.view(count, rollouts, -1)).flatten(0, 1).float()
        drawn = generators.rand(len(observation), problem.action_size)
        if problem.discrete_actions:
            drawn = torch.nn.functional.one_hot(drawn.argmax(-1), problem.action_size).float()
        else:
            drawn = low + drawn * (high - low)
        made = model.step(
            observation, torch.where((step < random_steps)[:, None], drawn, action), generators
        )
        rewards.append(made.reward.double().where(alive[-1], 0.0))
        alive.append(alive[-1] if made.terminated is None else alive[-1] & ~made.terminated)
        observation = made.next_observation
        seen.append(observation)
    size = len(basis.phases) + 1
    gram = torch.zeros(count, size, size, dtype=torch.float64)
    moment = torch.zeros(count, size, 1, dtype=torch.float64)
    total = torch.zeros(len(observation), dtype=torch.float64)
    chances = problem.chance_of_next(torch.arange(len(rewards))).tolist()
    for step in reversed(range(len(rewards))):
        total = rewards[step] + problem.discount * chances[step] * total
        if step >= horizon:
            continue
        used = (alive[step] & (step >= random_steps)).double()[:, None]
        at = torch.full((len(total),), step)
        rows = (used * basis.of(problem, seen[step], at)).view(count, rollouts, -1)
        gram += rows.mT @ rows
        moment += rows.mT @ total.view(count, rollouts, 1)
    ridge = _RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1.0)
    weights: Tensor = torch.linalg.solve(
        gram + ridge[:, None, None] * torch.eye(size, dtype=torch.float64), moment
    )
    return weights[..., 0].T
