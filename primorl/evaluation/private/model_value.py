"""Values of the policy and of simple baselines in the released model. Reads nothing private and costs nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from primorl.evaluation.model_value import ModelValue, values_by_member
from primorl.evaluation.private.estimator import Estimate, Of
from primorl.evaluation.private.problem import Act, Problem
from primorl.project.values import Steps


@dataclass(frozen=True)
class _One:
    """One policy as `values_by_member` takes it."""

    one: Callable[[Tensor], Tensor]
    policies: int = 1

    def act(self, observation: Tensor) -> Tensor:
        return self.one(observation[0])[None]


@dataclass(frozen=True)
class ModelBased:
    """Mean discounted return of whole rollouts in each member of the released model.

    It has no plan: the model is released, so nothing is asked of the private units. First states are public or
    released ones (`Problem.starts`).

    Attributes:
        rollouts: of each member.
    """

    name: ClassVar[str] = "model"
    rollouts: Steps

    def estimates(self, problem: Problem) -> tuple[Estimate, ...]:
        """The policy, uniform random actions, and zero actions where actions are a box."""
        asked: list[tuple[Of, Act]] = [("policy", problem.policy), ("random", uniform_random(problem))]
        if not problem.discrete_actions:
            asked.append(("zero_action", zero_action(problem)))
        return tuple(self._estimate(problem, of, act) for of, act in asked)

    def _estimate(self, problem: Problem, of: Of, act: Act) -> Estimate:
        found = ModelValue.of(
            values_by_member(
                problem.ensemble,
                _One(lambda observation: act(observation).float()),
                problem.starts.float(),
                rollouts=self.rollouts,
                horizon=problem.rollout_steps,
                seed=problem.seed,
                discount=problem.discount,
            )[0]
        )
        value, low, high = (
            min(max(number, problem.return_low), problem.return_high) for number in (found.mean, found.low, found.high)
        )
        return Estimate(
            estimator=self.name,
            of=of,
            what="mean return",
            value=value,
            ci95=None,
            covers=f"no interval: the members of the model say {low:.4g} to {high:.4g}",
            bias="wrong wherever the model is, and likely too high for a policy that was trained in this model",
        )


def uniform_random(problem: Problem) -> Act:
    """Uniform actions, drawn from the problem's seed anew at every call."""
    generator = torch.Generator().manual_seed(problem.seed)
    low, high, size = problem.action_low, problem.action_high, problem.action_size

    def act(observation: Tensor) -> Tensor:
        if problem.discrete_actions:
            return one_hot(torch.randint(size, (len(observation),), generator=generator), size)
        return low + (high - low) * torch.rand(len(observation), size, generator=generator)

    return act


def zero_action(problem: Problem) -> Act:
    """Zero, or the nearest action that the bounds allow."""
    action = torch.zeros(problem.action_size).clamp(problem.action_low, problem.action_high)
    return lambda observation: action.expand(len(observation), -1)
