"""Values of policies in the released model, by rollouts. All is released, so free."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from primorl.evaluate.private.problem import Act, Problem, in_float64
from primorl.evaluate.private.question import estimate
from primorl.evaluate.private.results import (
    AS_DRAWN,
    BEYOND,
    MEAN_RETURN,
    Answer,
    Of,
    Veto,
)
from primorl.model.numerics import SeedGenerators
from primorl.policy.behaviour import BehaviourPolicy, SampledClone, released
from primorl.policy.config import BehaviourConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.member_values import (
    NOT_FINITE,
    returns_by_member,
    share_beyond,
    step_weights,
)

_NAME = "model"  # that answers give as their estimator
_SLACK = 1e-6  # of the range of returns, for rounding
_WHOSE = {"random": "random actions", "zero_action": "zero actions", "clone": "today's practice"}


@dataclass(frozen=True)
class SinglePolicy:
    """One policy as `returns_by_member` takes it."""

    one: Act
    policies: int = 1

    def act(self, observation: Tensor) -> Tensor:
        """Return the actions ``[1, B, A]`` for observations ``[1, B, S]``."""
        return self.one(observation[0]).float()[None]


def act_of(policy: DeterministicPolicy | SampledClone) -> Act:
    """Wrap one policy as a function of observations; an exported one computes in float64."""
    exact = in_float64(policy) if isinstance(policy, DeterministicPolicy) else policy
    return lambda observation: exact.act(observation.double()[None])[0]


@dataclass(frozen=True)
class Clone:
    """The private clone of the behaviour.

    Attributes:
        released: the policy in ``models/behaviour``: its mean, or discrete actions drawn from its
            distribution.
        drawn: actions drawn from its distribution, as the people's are.
    """

    released: Act
    drawn: Act

    @classmethod
    def load(cls, folder: Path, seed: int) -> "Clone | None":
        """Load the clone from ``models/behaviour``; None: none was made.

        Args:
            folder: with its files.
            seed: of actions that are drawn.

        Raises:
            PipelineError: a file is missing or broken.
        """
        if not BehaviourConfig.read(folder).made:
            return None
        cpu = torch.device("cpu")
        behaviour, generators = BehaviourPolicy.load(folder, cpu), SeedGenerators.of([seed], cpu)
        return cls(
            released=act_of(released(behaviour, generators)),
            drawn=act_of(SampledClone(behaviour, generators)),
        )


def values_in_model(
    problem: Problem, rollouts: int, clone: Clone | None = None
) -> tuple[Answer, ...]:
    """Value the policy, the clone if there is one, random actions, and zero actions where actions
    are a box.

    Values are mean discounted returns of whole rollouts in each member of the released model:
    nothing is asked of the private units. First states are public or released ones
    (`Problem.starts`). All policies share them and the model's random numbers, so that members can
    be compared one by one. Step t counts S(t) (`Problem.survival`), as in the people's own returns.

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
        return returns_by_member(problem.ensemble, SinglePolicy(act), starts, **asked)[0]

    found = [_value("policy", returns(problem.policy))]
    if clone is not None:
        both = SinglePolicy(problem.policy), SinglePolicy(clone.drawn)
        found += [
            _value("clone", returns(clone.released)),
            _value("clone", returns(clone.drawn), AS_DRAWN),
            _beyond(*share_beyond(problem.ensemble, *both, starts, **asked)),
        ]
    generator = torch.Generator().manual_seed(problem.seed)
    uniform = returns(lambda observation: problem.uniform_actions(len(observation), generator))
    found.append(_value("random", uniform))
    if not problem.bounds.discrete_actions:  # zero, or the nearest action that the bounds allow
        zero = torch.zeros(problem.action_size)
        zero = zero.clamp(problem.bounds.action_low, problem.bounds.action_high)
        still = returns(lambda observation: zero.expand(len(observation), -1))
        found.append(_value("zero_action", still))
    return tuple(found)


def _value(of: Of, returns: Tensor, what: str = MEAN_RETURN) -> Answer:
    members = returns.mean(1)
    covers = (
        f"no interval: the members of the model say {float(members.min()):.4g} to "
        f"{float(members.max()):.4g}"
    )
    bias = (
        "wrong wherever the model is, and likely too high for a policy that was trained in this "
        "model"
    )
    return estimate(
        _NAME, of, what, float(members.mean()), None, covers, bias, tuple(members.tolist())
    )


def signs_against(problem: Problem, values: Sequence[Answer]) -> list[Veto]:
    """List what the values in the model say against it, for nothing.

    A return that nobody can have is a proof against the model, as is a prediction that is no finite
    number. So is a world in which random actions are worth at least as much as what people do.
    """
    found = []
    low, high = problem.return_low, problem.return_high
    slack = _SLACK * (high - low)
    known = [each for each in values if each.finite]
    if len(known) < len(values):
        found.append(Veto(kind="not_finite", reason=NOT_FINITE))
    of_mean = [each for each in known if each.what in (MEAN_RETURN, AS_DRAWN)]
    for each in of_mean:
        ends = each.members or (each.value,)
        beyond = [end for end in ends if not low - slack <= end <= high + slack]
        if beyond:
            farthest = max(beyond)
            reason = (
                f"the model says a mean return of {farthest:.4g} "
                f"({_WHOSE.get(each.of, 'the policy')}), where nobody can have less than "
                f"{low:.4g} or more than {high:.4g}"
            )
            found.append(Veto(kind="beyond_bounds", reason=reason))
            break
    today = next((each for each in of_mean if each.what == AS_DRAWN), None)
    chance = next((each for each in of_mean if each.of == "random"), None)
    if today is not None and chance is not None and chance.value >= today.value:
        reason = (
            f"in the model random actions are worth {chance.value:.4g}, at least as much as "
            f"today's practice, {today.value:.4g}"
        )
        found.append(Veto(kind="random_as_good", reason=reason))
    return found


def _beyond(policy: float, clone: float) -> Answer:
    covers = (
        f"no interval: {policy:.4g} of the policy's steps, {clone:.4g} of those of the clone with "
        "drawn actions"
    )
    bias = "states are the model's own, which may be wrong where the policy goes"
    return estimate(_NAME, "policy", BEYOND, policy - clone, None, covers, bias)
