"""Values of policies in the released model, by rollouts. All is released, so free."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from primorl.evaluate.private.problem import Act, Problem
from primorl.evaluate.private.question import estimate
from primorl.evaluate.private.results import AS_DRAWN, BEYOND, DOUBT, GAIN, MEAN_RETURN, Answer, Of
from primorl.evaluate.statistics import NORMAL_QUANTILE
from primorl.policy.member_values import (
    returns_by_member,
    share_beyond,
    step_weights,
    uncertainty_of,
)

_NAME = "model"  # that answers give as their estimator


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
    """

    released: Act
    drawn: Act


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
