"""Rollouts of policies in the released model, and their values. All is released, so free."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
from primorl.model.pessimism import PessimisticModel
from primorl.policy.behaviour import BehaviourPolicy, SampledClone
from primorl.policy.config import BehaviourConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.member_values import (
    NOT_FINITE,
    draw_starts,
    step_weights,
    walk,
)

_NAME = "model"  # that answers give as their estimator
_SLACK = 1e-6  # of the range of returns, for rounding
_WHOSE = {"random": "random actions", "clone": "today's practice"}
_MOST_ROWS = 200_000  # that are kept of all rollouts of a policy
_ROWS = 20_000  # drawn of them


@dataclass(frozen=True)
class SinglePolicy:
    """One policy as `walk` takes it."""

    one: Act
    policies: int = 1

    def act(self, observation: Tensor) -> Tensor:
        """Return the actions ``[1, B, A]`` for observations ``[1, B, S]``."""
        return self.one(observation[0]).float()[None]


def act_of(policy: DeterministicPolicy | SampledClone) -> Act:
    """Wrap one policy as a function of observations; an exported one computes in float64."""
    exact = in_float64(policy) if isinstance(policy, DeterministicPolicy) else policy
    return lambda observation: exact.act(observation.double()[None])[0]


def load_clone(folder: Path, seed: int) -> Act | None:
    """Load the clone of today's practice, whose actions are drawn as the people's are; None: none
    was made.

    Args:
        folder: with its files.
        seed: of its actions.

    Raises:
        PipelineError: a file is missing or broken.
    """
    if not BehaviourConfig.read(folder).made:
        return None
    cpu = torch.device("cpu")
    generators = SeedGenerators.of([seed], cpu)
    return act_of(SampledClone(BehaviourPolicy.load(folder, cpu), generators))


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
def roll_out(problem: Problem, act: Act, rollouts: int) -> Rollouts:
    """Roll a policy out; nothing is asked of the private units.

    First states are public or released ones (`Problem.starts`). All policies share them and the
    model's random numbers, so that members can be compared one by one. Returns count step t by S(t)
    (`Problem.survival`), as the people's own do.

    Args:
        problem: the question.
        act: the policy.
        rollouts: in each member.
    """
    members, survival = problem.ensemble.architecture.members, problem.survival
    weights = step_weights(problem.rollout_steps, discount=problem.discount, survival=survival)
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
        # Without a penalty the uncertainty has no say; this one is defined for a single member.
        model = PessimisticModel(
            problem.ensemble.member(n), uncertainty="max_aleatoric", penalty=0.0
        )
        inside = []
        for t, visit in enumerate(walk(model, SinglePolicy(act), begin, steps, problem.seed)):
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
) -> tuple[Answer, ...]:
    """Value the policy, random actions, and the clone if there is one: mean returns of rollouts in
    each member of the released model.
    """
    found = [_value("policy", policy.returns), _value("random", random.returns)]
    if clone is not None:
        found.append(_value("clone", clone.returns, AS_DRAWN))
        found.append(_beyond(policy.share_beyond(clone), clone.share_beyond(clone)))
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
