"""Rollouts of policies in the released model: their values, and what they do beside today's
practice. All is released, so free.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.evaluate.private import results
from primorl.evaluate.private.problem import Problem
from primorl.model.pessimism import (
    NOT_FINITE,
    PessimisticModel,
    Policies,
    draw_starts,
    step_weights,
    walk,
)

_NAME = "model"  # that answers give as their estimator
_SLACK = 1e-6  # of the range of returns, for rounding
_WHOSE = {"random": "random actions", "clone": "today's practice"}
_MOST_ROWS = 200_000  # that are kept of all rollouts of a policy
_ROWS = 20_000  # drawn of them


class RandomPolicy:
    """Actions drawn uniformly within their bounds, float32; one-hot where they are discrete."""

    policies = 1

    def __init__(self, problem: Problem):
        self._bounds, self._size = problem.bounds, problem.action_size
        self._generator = torch.Generator().manual_seed(problem.seed)

    def act(self, observation: Tensor) -> Tensor:
        """Return the actions ``[1, B, A]`` for observations ``[1, B, S]``."""
        shape, bounds = observation.shape[:2], self._bounds
        if bounds.discrete_actions:
            chosen = torch.randint(self._size, shape, generator=self._generator)
            return torch.nn.functional.one_hot(chosen, self._size).float()
        drawn = torch.rand(*shape, self._size, generator=self._generator)
        return (bounds.action_low + (bounds.action_high - bounds.action_low) * drawn).float()


@dataclass(frozen=True)
class Rollouts:
    """Rollouts of one policy in every member of the released model alone.

    Rows are drawn as people's are recorded: every rollout counts once, and is cut where a recording
    may be.

    Attributes:
        returns: of each rollout, float64 ``[N, rollouts]``; NaN where the member predicts something
            that is not a finite number.
        ended: share of the rollouts that ended by themselves; None: the model has no ends.
        observation: ``[R, S]``.
        action: ``[R, A]``.
        following: the states that they led to, ``[R, S]``.
        known: whether the model could predict these, bool ``[R]``.
    """

    returns: Tensor
    ended: float | None
    observation: Tensor
    action: Tensor
    following: Tensor
    known: Tensor

    def share_beyond(self, other: "Rollouts") -> float:
        """Compute the share of the rows that lie beyond another policy's.

        Beyond is a row in which some dimension of the action or of the state after it is below the
        1% quantile, or above the 99% quantile, of the other's, or which the model cannot predict.
        Members that were trained on the same rows are wrong alike there, so that their spread does
        not show it.
        """
        own, seen = (torch.cat((each.following, each.action), 1).double() for each in (self, other))
        low, high = seen.quantile(0.01, 0), seen.quantile(0.99, 0)
        far = ((own < low) | (own > high)).any(1)
        return float((far | ~self.known).double().mean())


@torch.no_grad()
def roll_out(problem: Problem, policy: Policies, rollouts: int) -> Rollouts:
    """Roll a policy out; nothing is asked of the private units.

    First states are public or released ones (`Problem.starts`). All policies share them and the
    model's random numbers, so that members can be compared one by one. Returns count step t by S(t)
    (`Problem.survival`), as the people's own do.

    Args:
        problem: the question.
        policy: a single one.
        rollouts: in each member.
    """
    members, survival = problem.ensemble.architecture.members, problem.survival
    weights = step_weights(problem.horizon, survival=survival)
    lasts = torch.ones_like(weights) if survival is None else survival
    steps = int(weights.count_nonzero())  # weights descend
    begin = draw_starts(problem.starts.float(), rollouts, problem.seed)
    generator = torch.Generator().manual_seed(problem.seed)
    kept = min(rollouts, max(1, _MOST_ROWS // (steps * members)))
    length = (lasts > torch.rand(kept, 1, generator=generator)).sum(1)  # of the recording
    returns = torch.zeros(members, rollouts, dtype=torch.float64)
    ended: float | None = None
    rows, shares = [], []
    for n in range(members):
        model = PessimisticModel.without_penalty(problem.ensemble.member(n))
        inside = []
        for t, visit in enumerate(walk(model, policy, begin, steps, problem.seed)):
            step = visit.step
            earned = float(weights[t]) * torch.where(step.known, step.reward, torch.nan)
            returns[n] += torch.where(visit.alive, earned, 0.0)
            if step.terminated is not None:
                ends = (visit.alive & step.terminated).double().mean()
                ended = (ended or 0.0) + float(lasts[t] * ends) / members
            inside.append(visit.alive[:kept] & (t < length))
            row = (visit.observation, visit.action, step.next_observation, step.known[:, None])
            rows.append(torch.cat(row, 1)[:kept])
        own = torch.stack(inside).float()
        shares.append(own / own.sum(0).clamp(min=1))
    chosen = torch.multinomial(torch.cat(shares).flatten(), _ROWS, True, generator=generator)
    sizes = [problem.observation_size, problem.action_size, problem.observation_size, 1]
    observation, action, following, known = torch.split(torch.cat(rows)[chosen], sizes, 1)
    return Rollouts(returns, ended, observation, action, following, known[:, 0] > 0)


def values_in_model(
    policy: Rollouts, random: Rollouts, clone: Rollouts | None = None
) -> tuple[results.Answer, ...]:
    """Value the policy, random actions, and the clone if there is one: mean returns of rollouts in
    each member of the released model.
    """
    found = [_value("policy", policy.returns), _value("random", random.returns)]
    if clone is not None:
        found.append(_value("clone", clone.returns, results.AS_DRAWN))
        found.append(_beyond(policy.share_beyond(clone), clone.share_beyond(clone)))
    return tuple(found)


def _value(of: results.Of, returns: Tensor, what: str = results.MEAN_RETURN) -> results.Answer:
    members = returns.mean(1)
    covers = (
        f"no interval: the members of the model say {float(members.min()):.4g} to "
        f"{float(members.max()):.4g}"
    )
    bias = (
        "wrong wherever the model is, and likely too high for a policy that was trained in this "
        "model"
    )
    return results.Answer.unpaid(
        _NAME, of, what, float(members.mean()), None, covers, bias, tuple(members.tolist())
    )


def signs_against(problem: Problem, values: Sequence[results.Answer]) -> list[results.Veto]:
    """List what the values in the model say against it, for nothing.

    A return that nobody can have is a proof against the model, as is a prediction that is no finite
    number. So is a world in which random actions are worth at least as much as what people do, if
    each member says so: where members differ, noise or features alone can make it look so.
    """
    found = []
    low, high = problem.return_low, problem.return_high
    slack = _SLACK * (high - low)
    known = [each for each in values if each.finite]
    if len(known) < len(values):
        found.append(results.Veto(kind="not_finite", reason=NOT_FINITE))
    of_mean = [each for each in known if each.what in (results.MEAN_RETURN, results.AS_DRAWN)]
    for each in of_mean:
        ends = each.members or (each.value,)
        beyond = [end for end in ends if not low - slack <= end <= high + slack]
        if beyond:
            side = f"above {high:.4g}" if max(beyond) > high else f"below {low:.4g}"
            whose = _WHOSE.get(each.of, "the policy")
            reason = f"of {whose} the model says a mean return {side}, which nobody can have"
            found.append(results.Veto(kind="beyond_bounds", reason=reason))
            break
    if (sign := judge_chance(known)) is not None:
        found.append(sign)
    return found


def judge_chance(values: Sequence[results.Answer]) -> results.Veto | None:
    """Return the sign that random actions are worth at least as much as today's practice in each
    member; None: some member says otherwise, or nobody asked.
    """
    today = results.find_answer(values, "clone", results.AS_DRAWN)
    chance = results.find_answer(values, "random", results.MEAN_RETURN)
    if today is None or chance is None:
        return None
    pairs = zip(chance.members or (chance.value,), today.members or (today.value,), strict=True)
    if any(own < practice for own, practice in pairs):
        return None
    reason = (
        f"in the model random actions are worth {chance.value:.4g}, at least as much as a clone "
        f"of today's practice, {today.value:.4g}"
    )
    return results.Veto(kind="random_as_good", reason=reason)


def _beyond(policy: float, clone: float) -> results.Answer:
    covers = (
        f"no interval: {policy:.4g} of the policy's steps, {clone:.4g} of those of the clone with "
        "drawn actions"
    )
    bias = "states are the model's own, which may be wrong where the policy goes"
    return results.Answer.unpaid(
        _NAME, "policy", results.BEYOND, policy - clone, None, covers, bias
    )


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
) -> results.Conduct:
    """Compare what the policy does with today's practice, by rollouts and what was paid for.

    Args:
        problem: has the policy and the model.
        own: the policy's.
        today: those of a clone of today's practice.
        names: of observations and actions; None: they have none.
        paid: what people do; None: it was not asked for.
        outcomes: names of the ends with the least and the largest reward; empty: they have none.
            Impossible returns do not tell them.
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
            results.ActionUse(
                name=name,
                today=None if paid is None else _short(paid.mean[place]),
                clone=_short(of_clone.mean()),
                policy=_short(of_policy.mean()),
                clone_range=None if discrete else _range(of_clone),
                policy_range=None if discrete else _range(of_policy),
            )
        )
    ends = problem.bounds.reward_low, problem.bounds.reward_high
    told = all(each.returns.isfinite().all() for each in (own, today))
    shares = zip(_share_outcomes(today, *ends), _share_outcomes(own, *ends), strict=True)
    named = [
        results.Outcome(name=name, reward=reward, clone=clone, policy=policy)
        for name, reward, (clone, policy) in zip(
            outcomes if told else (), ends, shares, strict=False
        )
    ]
    return results.Conduct(
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
) -> results.Contrast | None:
    """Find the action whose mean differs most between policy and clone in the same states, and the
    side of a column's median where it does; None: nothing differs, not on one side either.
    """
    observation, bounds = today.observation, problem.bounds
    policy = problem.policy.act(observation[None])[0].double()
    width = bounds.action_high - bounds.action_low
    scale = torch.ones_like(width) if bounds.discrete_actions else width
    differs = (policy - today.action.double()) / scale
    median = observation.median(0).values
    above = (observation > median).double()
    sides = torch.cat((above, 1 - above), 1)  # [R, 2 S]
    counts = sides.sum(0)
    means = (sides.T @ differs) / counts.clamp(min=1)[:, None]
    means[counts < _LEAST_SIDE * len(sides)] = 0.0
    overall = differs.mean(0)
    if overall.abs().max() >= _LITTLE:
        means[:, overall.abs() < overall.abs().max()] = 0.0
    side, action = divmod(int(means.abs().argmax()), len(done))
    if abs(means[side, action]) < _LITTLE:
        return None
    everywhere, column = overall[action], side % len(seen)
    alike = abs(everywhere) >= _ALIKE * abs(means[side, action])
    rows = torch.ones(len(sides), dtype=torch.bool) if alike else sides[:, side] > 0
    return results.Contrast(
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
