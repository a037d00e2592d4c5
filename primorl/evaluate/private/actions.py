"""What a policy does beside today's practice: its actions, where they differ most, and how often
episodes end by themselves, in rollouts of the released model. All is released, so free.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.evaluate.private.model_values import Rollouts
from primorl.evaluate.private.problem import Problem
from primorl.evaluate.private.results import ActionUse, Conduct, Contrast, Outcome

_LEAST_SIDE = 0.1  # share of the states that a side of a median must have
_LITTLE = 0.05  # of the steps, or of the range of an action
_ALIKE = 0.8  # share of the largest difference from which on it is said to be everywhere


@dataclass(frozen=True)
class PaidActions:
    """The people's mean actions ``[A]``, or shares of discrete ones, by a charged query of the
    model, and the standard error of a share by its public noise; None: actions are in a box.
    """

    mean: Tensor
    error: float | None


def compare_actions(
    problem: Problem,
    own: Rollouts,
    today: Rollouts,
    names: tuple[Sequence[str] | None, Sequence[str] | None],
    paid: PaidActions | None,
    outcomes: Sequence[str] = (),
    *,
    always_ends: bool = False,
) -> Conduct:
    """Compare what the policy does with today's practice, by rollouts and what was paid for.

    Args:
        problem: has the policy and the model.
        own: the policy's.
        today: those of a clone of today's practice.
        names: of observations and actions; None: they have none.
        paid: what people do; None: it was not asked for.
        outcomes: names of the ends with the least and the largest reward; empty: they have none.
            Discounted or impossible returns do not tell them.
        always_ends: whether every trajectory of the people has one of them.
    """
    seen = names[0] or [f"observation_{place}" for place in range(problem.observation_size)]
    done = names[1] or [str(place) for place in range(problem.action_size)]
    done = [f"action {name}" if name.isdigit() else name for name in done]
    discrete = problem.bounds.discrete_actions
    uses = []
    for place, name in enumerate(done):
        of_clone, of_policy = today.action[:, place], own.action[:, place]
        uses.append(
            ActionUse(
                name=name,
                today=None if paid is None else _short(paid.mean[place]),
                clone=_short(of_clone.mean()),
                policy=_short(of_policy.mean()),
                clone_range=None if discrete else _range(of_clone),
                policy_range=None if discrete else _range(of_policy),
            )
        )
    ends = problem.bounds.reward_low, problem.bounds.reward_high
    told = problem.discount == 1 and all(each.returns.isfinite().all() for each in (own, today))
    shares = zip(_share_outcomes(today, *ends), _share_outcomes(own, *ends), strict=True)
    named = [
        Outcome(name=name, reward=reward, clone=clone, policy=policy)
        for name, reward, (clone, policy) in zip(
            outcomes if told else (), ends, shares, strict=False
        )
    ]
    return Conduct(
        discrete=discrete,
        actions=tuple(uses),
        today_error=None if paid is None else paid.error,
        contrast=_contrast(problem, today, seen, done),
        clone_ended=None if today.ended is None else _short(today.ended),
        policy_ended=None if own.ended is None else _short(own.ended),
        outcomes=tuple(named),
        always_ends=always_ends,
    )


def _share_outcomes(rollouts: Rollouts, low: float, high: float) -> tuple[float, float]:
    """Return the shares that ended with the least and with the largest reward, if these two are all
    that trajectories earn: what ended e and earned v in the mean has v = low p + high q.
    """
    ended, value = rollouts.ended or 0.0, float(rollouts.returns.mean())
    largest = min(max((value - low * ended) / (high - low), 0.0), ended)
    return _short(ended - largest), _short(largest)


def _contrast(
    problem: Problem, today: Rollouts, seen: Sequence[str], done: Sequence[str]
) -> Contrast | None:
    """Find the action, and the side of a column's median, where the policy's mean action differs
    most from today's in the same states; None: it differs little.
    """
    observation, bounds = today.observation, problem.bounds
    policy = problem.policy(observation).double()
    width = bounds.action_high - bounds.action_low
    scale = torch.ones_like(width) if bounds.discrete_actions else width
    differs = (policy - today.action.double()) / scale
    median = observation.median(0).values
    above = (observation > median).double()
    sides = torch.cat((above, 1 - above), 1)  # [R, 2 S]
    counts = sides.sum(0)
    means = (sides.T @ differs) / counts.clamp(min=1)[:, None]
    means[counts < _LEAST_SIDE * len(sides)] = 0.0
    side, action = divmod(int(means.abs().argmax()), len(done))
    if abs(means[side, action]) < _LITTLE:
        return None
    everywhere, column = differs.mean(0)[action], side % len(seen)
    alike = abs(everywhere) >= _ALIKE * abs(means[side, action])
    rows = torch.ones(len(sides), dtype=torch.bool) if alike else sides[:, side] > 0
    return Contrast(
        action=done[action],
        column=None if alike else seen[column],
        above=side < len(seen),
        threshold=_short(median[column]),
        clone=_short(today.action[rows, action].mean()),
        policy=_short(policy[rows, action].mean()),
    )


def _range(values: Tensor) -> tuple[float, float]:
    low, high = (_short(values.quantile(level)) for level in (0.1, 0.9))
    return low, high


def _short(number: Tensor | float) -> float:
    """Round to what a page shows."""
    return float(f"{float(number):.3g}")
