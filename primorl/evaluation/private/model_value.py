"""Values of the policy, the clone and simple baselines in the released model. Costs nothing: all is released."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from primorl.evaluation.private.estimator import Estimate, Of
from primorl.evaluation.private.problem import Act, Problem
from primorl.evaluation.private.results import AS_DRAWN, DOUBT, GAIN, MEAN_RETURN
from primorl.evaluation.statistics import NORMAL_QUANTILE
from primorl.policy.member_values import returns_by_member, step_weights, uncertainty_of
from primorl.project.values import Steps


@dataclass(frozen=True)
class _One:
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


@dataclass(frozen=True)
class ModelBased:
    """Mean discounted return of whole rollouts in each member of the released model.

    It has no plan: the model is released, so nothing is asked of the private units. First states are public or
    released ones (`Problem.starts`). All policies share them and the model's random numbers, so that members can be
    compared one by one. Step t counts S(t) (`Problem.survival`), as in the people's own returns.

    Attributes:
        rollouts: of each member.
    """

    name: ClassVar[str] = "model"
    rollouts: Steps

    def estimates(self, problem: Problem, clone: Clone | None = None) -> tuple[Estimate, ...]:
        """Value the policy, the clone if there is one, random actions, and zero actions where actions are a box."""
        policy = self._returns(problem, problem.policy)
        found = [self._value(problem, "policy", policy)]
        if clone is not None:
            released = self._returns(problem, clone.released)
            found += [
                self._value(problem, "clone", released),
                self._value(problem, "clone", self._returns(problem, clone.drawn), AS_DRAWN),
                self._gain(policy - released),
                self._doubt(self._uncertainty(problem, problem.policy), self._uncertainty(problem, clone.released)),
            ]
        generator = torch.Generator().manual_seed(problem.seed)
        baselines: list[tuple[Of, Act]] = [
            ("random", lambda observation: problem.uniform_actions(len(observation), generator))
        ]
        if not problem.discrete_actions:
            baselines.append(("zero_action", zero_action(problem)))
        return (*found, *(self._value(problem, of, self._returns(problem, act)) for of, act in baselines))

    def _returns(self, problem: Problem, act: Act) -> Tensor:
        """Of one policy, ``[N, rollouts]``."""
        return returns_by_member(problem.ensemble, _One(act), **self._rollouts(problem))[0]

    def _uncertainty(self, problem: Problem, act: Act) -> float:
        return float(uncertainty_of(problem.ensemble, _One(act), **self._rollouts(problem)).mean())

    def _rollouts(self, problem: Problem) -> dict[str, Any]:
        return {
            "starts": problem.starts.float(),
            "rollouts": self.rollouts,
            "weights": step_weights(problem.rollout_steps, discount=problem.discount, survival=problem.survival),
            "seed": problem.seed,
        }

    def _doubt(self, policy: float, clone: float) -> Estimate:
        covers = f"no interval: {policy:.4g} where the policy goes, {clone:.4g} where the clone goes"
        bias = "members that were trained on the same rows may be wrong alike"
        return Estimate(self.name, "policy", DOUBT, policy - clone, None, covers, bias)

    def _value(self, problem: Problem, of: Of, returns: Tensor, what: str = MEAN_RETURN) -> Estimate:
        members = returns.mean(1).clamp(problem.return_low, problem.return_high)
        low, high = float(members.min()), float(members.max())
        covers = f"no interval: the members of the model say {low:.4g} to {high:.4g}"
        bias = "wrong wherever the model is, and likely too high for a policy that was trained in this model"
        value = float(members.mean())
        return Estimate(self.name, of, what, value, None, covers, bias, tuple(members.tolist()))

    def _gain(self, gains: Tensor) -> Estimate:
        """From the differences of the same rollouts, ``[N, rollouts]``: the least that a member says."""
        members = gains.mean(1)
        least = int(members.argmin())
        half = NORMAL_QUANTILE * float(gains[least].std()) / math.sqrt(gains.shape[1])
        value = float(members[least])
        ends = (value - half, value + half)
        covers = "luck of the simulated episodes in the member that says the least"
        bias = "wrong wherever the model is, though errors that both policies share cancel"
        return Estimate(self.name, "policy", GAIN, value, ends, covers, bias, tuple(members.tolist()))


def zero_action(problem: Problem) -> Act:
    """Act zero, or the nearest action that the bounds allow."""
    action = torch.zeros(problem.action_size).clamp(problem.action_low, problem.action_high)
    return lambda observation: action.expand(len(observation), -1)
