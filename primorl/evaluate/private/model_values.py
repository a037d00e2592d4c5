"""Values in the released model: of policies by rollouts, and of actions by regression. All is released, so free."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from primorl.base.records import PositiveInt, Steps
from primorl.evaluate.private.estimator import Estimator, Values, estimate
from primorl.evaluate.private.problem import Act, Problem, in_float64
from primorl.evaluate.private.results import AS_DRAWN, BEYOND, DOUBT, GAIN, MEAN_RETURN, Answer, Of
from primorl.evaluate.statistics import NORMAL_QUANTILE
from primorl.model.ensemble import SeedGenerators
from primorl.model.pessimism import PessimisticModel
from primorl.policy.member_values import (
    returns_by_member,
    share_beyond,
    step_weights,
    uncertainty_of,
)

_NAME = "model"  # that answers give as their estimator
_WEIGHTS = "model_values"
_RIDGE = 1e-3  # per row, beside features of mean square 1
_MOST_ROWS = 20000  # of a member's regression


@dataclass(frozen=True)
class _SinglePolicy:
    """One policy as `returns_by_member` takes it."""

    one: Act
    policies: int = 1

    def act(self, observation: Tensor) -> Tensor:
        return self.one(observation[0]).float()[None]


@dataclass(frozen=True)
class Clone:
    """The private clone of the behaviour.

    Attributes:
        released: the policy in ``models/behaviour``: its mean, or discrete actions drawn from its distribution.
        drawn: actions drawn from its distribution, as the people's are.
        probabilities: of discrete actions, ``[B, S]`` to ``[B, A]``; None: actions are in a box.
    """

    released: Act
    drawn: Act
    probabilities: Act | None = None


def values_in_model(
    problem: Problem, rollouts: int, clone: Clone | None = None
) -> tuple[Answer, ...]:
    """Value the policy, the clone if there is one, random actions, and zero actions where actions are a box.

    Values are mean discounted returns of whole rollouts in each member of the released model: nothing is asked of the
    private units. First states are public or released ones (`Problem.starts`). All policies share them and the model's
    random numbers, so that members can be compared one by one. Step t counts S(t) (`Problem.survival`), as in the
    people's own returns.

    Args:
        problem: the question.
        rollouts: of each member.
        clone: of the behaviour.
    """
    weights = step_weights(
        problem.rollout_steps, discount=problem.discount, survival=problem.survival
    )
    starts = problem.starts.float()
    asked: dict[str, Any] = {"rollouts": rollouts, "weights": weights, "seed": problem.seed}

    def returns(act: Act) -> Tensor:
        """Roll one policy out, ``[N, rollouts]``."""
        return returns_by_member(problem.ensemble, _SinglePolicy(act), starts, **asked)[0]

    def uncertainty(act: Act) -> float:
        return float(uncertainty_of(problem.ensemble, _SinglePolicy(act), starts, **asked).mean())

    policy = returns(problem.policy)
    found = [_value(problem, "policy", policy)]
    if clone is not None:
        released = returns(clone.released)
        found += [
            _value(problem, "clone", released),
            _value(problem, "clone", returns(clone.drawn), AS_DRAWN),
            _gain(policy - released),
            _doubt(uncertainty(problem.policy), uncertainty(clone.released)),
            _beyond(
                *share_beyond(
                    problem.ensemble,
                    _SinglePolicy(problem.policy),
                    _SinglePolicy(clone.drawn),
                    starts,
                    **asked,
                )
            ),
        ]
    generator = torch.Generator().manual_seed(problem.seed)
    uniform = returns(lambda observation: problem.uniform_actions(len(observation), generator))
    found.append(_value(problem, "random", uniform))
    if not problem.discrete_actions:  # zero, or the nearest action that the bounds allow
        zero = torch.zeros(problem.action_size).clamp(problem.action_low, problem.action_high)
        found.append(
            _value(
                problem,
                "zero_action",
                returns(lambda observation: zero.expand(len(observation), -1)),
            )
        )
    return tuple(found)


def _value(problem: Problem, of: Of, returns: Tensor, what: str = MEAN_RETURN) -> Answer:
    members = returns.mean(1).clamp(problem.return_low, problem.return_high)
    covers = f"no interval: the members of the model say {float(members.min()):.4g} to {float(members.max()):.4g}"
    bias = "wrong wherever the model is, and likely too high for a policy that was trained in this model"
    return estimate(
        _NAME, of, what, float(members.mean()), None, covers, bias, tuple(members.tolist())
    )


def _gain(gains: Tensor) -> Answer:
    """Answer with the least gain of a member, from the differences of the same rollouts, ``[N, rollouts]``."""
    members = gains.mean(1)
    least = int(members.argmin())
    half = NORMAL_QUANTILE * float(gains[least].std()) / math.sqrt(gains.shape[1])
    value = float(members[least])
    covers = "luck of the simulated episodes in the member that says the least"
    bias = "wrong wherever the model is, though errors that both policies share cancel"
    ends = (value - half, value + half)
    return estimate(_NAME, "policy", GAIN, value, ends, covers, bias, tuple(members.tolist()))


def _doubt(policy: float, clone: float) -> Answer:
    covers = f"no interval: {policy:.4g} where the policy goes, {clone:.4g} where the clone goes"
    bias = "members that were trained on the same rows may be wrong alike"
    return estimate(_NAME, "policy", DOUBT, policy - clone, None, covers, bias)


def _beyond(policy: float, clone: float) -> Answer:
    covers = f"no interval: {policy:.4g} of the policy's steps, {clone:.4g} of those of the clone with drawn actions"
    bias = "states are the model's own, which may be wrong where the policy goes"
    return estimate(_NAME, "policy", BEYOND, policy - clone, None, covers, bias)


@dataclass(frozen=True)
class ModelQ:
    """Q̂_i(s, a, t) of every member i: r̂_i(s, a) + γ P(goes on) V̂_i(ŝ'_i, t + 1), the end of recordings included in P.

    V̂_i is a ridge regression of the policy's Monte Carlo returns in member i, from states that a mixture of the policy
    and uniform actions reaches, on random Fourier features (Rahimi and Recht 2007) of the state and the time left.
    All of it is made from the released model and a public seed. Whatever its errors, it is a fixed function, so an
    estimator that corrects it by data stays as sound as before.

    Attributes:
        problem: the question.
        features: random features of V̂.
        rollouts: of each member.
    """

    problem: Problem
    features: int
    rollouts: int

    @property
    def row_bytes(self) -> int:
        """Bound the memory of `action_values` for a logged row and the one after it."""
        members, size = self.problem.ensemble.architecture.members, self.problem.observation_size
        return 16 * members * (self.features + 4 * size + 200)

    def fit(self) -> dict[str, Tensor]:
        """Fit the regressions; their weights are public values of an estimator."""
        members = range(self.problem.ensemble.architecture.members)
        return {_WEIGHTS: torch.stack([self._fit_member(number) for number in members])}

    def values(self, fitted: Values, observation: Tensor, step: Tensor) -> Tensor:
        """Compute V̂_i ``[N, B]``, for ``[N, B, S]`` or ``[B, S]`` and steps ``[B]``, in the rewards' bounds."""
        problem, weights = self.problem, fitted[_WEIGHTS].to(observation.device)
        mean = (self._inputs(observation, step) @ weights[..., None]).squeeze(-1)
        return mean.clamp(problem.reward_low, problem.reward_high) * problem.rewards_left(step)

    @torch.no_grad()
    def action_values(
        self, fitted: Values, observation: Tensor, action: Tensor, step: Tensor
    ) -> Tensor:
        """Compute Q̂_i, float64 ``[N, B]`` for ``[B, S]``, ``[B, A]`` and steps ``[B]``; 0 after the horizon.

        Sums of members and products round by their number of rows: of private rows, see `row_by_row`.
        """
        problem, ensemble = self.problem, in_float64(self.problem.ensemble, observation.device)
        bounds = ensemble.bounds
        observation = problem.bounded_observation(observation)
        mean, _, ends = ensemble.predict(observation, problem.bounded_action(action))
        mean = mean.nan_to_num(nan=0.0)
        following = (observation + mean[..., :-1]).clamp(
            bounds.observation_low, bounds.observation_high
        )
        reward = mean[..., -1].clamp(problem.reward_low, problem.reward_high)
        goes_on = problem.chance_of_next(step) * (1.0 if ends is None else 1 - ends)
        left = problem.rewards_left(step) > 0
        return (
            reward + problem.discount * goes_on * self.values(fitted, following, step + 1)
        ).where(left, 0.0)

    def at_starts(self, fitted: Values) -> Tensor:
        """Compute each member's value of the policy's first actions in the public first states, ``[N, n]``."""
        states = self.problem.starts.double()
        steps = torch.zeros(len(states), dtype=torch.int64)
        return self.action_values(fitted, states, self.problem.actions(states), steps)

    def _inputs(self, observation: Tensor, step: Tensor) -> Tensor:
        """Compute the inputs: one, standardised state, time left, and their random Fourier features, ``[.., F]``."""
        problem = self.problem
        state = problem.standardised(observation)
        left = problem.time_left(step).to(state.device).expand(state.shape[:-1])[..., None]
        plain = torch.cat((torch.ones_like(left), state, 2 * left - 1), -1)
        generator = torch.Generator().manual_seed(problem.seed)
        size = plain.shape[-1] - 1
        frequencies = torch.randn(
            size, self.features, generator=generator, dtype=torch.float64
        ) * math.sqrt(2 / size)
        phases = torch.rand(self.features, generator=generator, dtype=torch.float64) * 2 * math.pi
        waves = torch.cos(
            plain[..., 1:] @ frequencies.to(state.device) + phases.to(state.device)
        ) * math.sqrt(2)
        return torch.cat((plain, waves), -1)

    @torch.no_grad()
    def _fit_member(self, number: int) -> Tensor:
        """Regress on rollouts that explore up to a step of their own, then follow the policy; only the latter counts.

        Without a horizon a rollout has twice as many steps, and only those of the first half are regressed on: the
        returns of later ones would lack rewards that count.
        """
        problem, steps = self.problem, self.problem.lived_steps
        generator = torch.Generator().manual_seed(problem.seed + number)
        model = PessimisticModel(
            problem.ensemble.member(number), uncertainty="max_aleatoric", penalty=0.0
        )
        draws, count = SeedGenerators([generator]), self.rollouts
        state = problem.starts[
            torch.randint(len(problem.starts), (count,), generator=generator)
        ].float()
        switch = torch.randint(-steps // 2, steps, (count,), generator=generator)
        random_share = torch.rand(count, generator=generator)
        alive = torch.ones(count, dtype=torch.bool)
        states, rewards, used = [], [], []
        for step in range(steps if problem.horizon is not None else 2 * steps):
            explores = (step < switch) & (torch.rand(count, generator=generator) < random_share)
            action = torch.where(
                explores[:, None],
                problem.uniform_actions(count, generator),
                problem.policy(state).float(),
            )
            moved = model.step(state, action, draws)
            states.append(state)
            rewards.append(torch.where(alive, moved.reward.double(), 0.0))
            used.append(alive & (step >= switch))
            if moved.terminated is not None:
                alive = alive & ~moved.terminated
            state = moved.next_observation
            if not alive.any():
                break
        to_go, returns = torch.zeros(count, dtype=torch.float64), []
        chances = problem.chance_of_next(torch.arange(len(rewards))).tolist()
        for reward, chance in zip(reversed(rewards), reversed(chances), strict=True):
            to_go = reward + problem.discount * chance * to_go
            returns.append(to_go)
        rows = torch.stack(used[:steps]).nonzero()
        rows = rows[torch.randperm(len(rows), generator=generator)[:_MOST_ROWS]]
        when, which = rows.unbind(1)
        inputs = self._inputs(torch.stack(states)[when, which], when)
        mean = torch.stack(returns[::-1])[when, which] / problem.rewards_left(when)
        ridge = _RIDGE * len(rows) * torch.eye(inputs.shape[1], dtype=torch.float64)
        weights: Tensor = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ mean)
        return weights


@dataclass(frozen=True, kw_only=True)
class ModelCorrection(Estimator):
    """Base of estimators that correct the policy's action-values in the model by the data.

    Attributes:
        model_features: random features of the members' values (`ModelQ`).
        rollouts: of each member (`ModelQ`).
    """

    model_features: PositiveInt
    rollouts: Steps

    def model(self, problem: Problem) -> ModelQ:
        """Return the action-values to correct."""
        return ModelQ(problem, self.model_features, self.rollouts)

    def row_bytes(self, problem: Problem) -> int:
        """See `Estimator.row_bytes`."""
        return self.model(problem).row_bytes
