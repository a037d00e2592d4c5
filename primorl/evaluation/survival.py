"""How long trajectories are, from public ones: what makes values in the model comparable with the people's returns.

Recordings end: a patient is discharged, a log is cut. A rollout in the model goes on to the declared horizon, so its
return has rewards that nobody in the log had. It is weighted by S(t), the chance that a trajectory which did not
terminate has more than t steps. Terminations are the model's own business, so they do not count as an end here.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from primorl.dynamics.termination import NONE
from primorl.evaluation.private.problem import Episodes, EpisodeSource, Problem

_SAME = 1e-6  # share of the widest bounds; returns that differ by less tell nothing about their spread


@dataclass(frozen=True)
class PublicTrajectories:
    """What public trajectories tell about lengths and returns; n of them.

    Attributes:
        length: steps of each, int64 ``[n]``.
        terminated: whether it ended in a terminal state, bool ``[n]``.
        weight: one over the number of its unit's trajectories, float64 ``[n]``: every unit counts once.
        reward: its rewards, float64 ``[n, M]``; 0 after its end.
    """

    length: Tensor
    terminated: Tensor
    weight: Tensor
    reward: Tensor

    @classmethod
    def of(cls, public: EpisodeSource) -> Self:
        """Read the public split, which must not be empty."""
        rows = Episodes.read(public, torch.arange(public.units))
        unit, last = rows.ends.nonzero(as_tuple=True)
        length = rows.step[unit, last] + 1
        place = torch.arange(int(length.max()))
        mine = place < length[:, None]
        begin = (last + 1 - length)[:, None]
        reward = rows.reward[unit[:, None], (begin + place).clamp(max=rows.own.shape[1] - 1)].where(mine, 0.0)
        return cls(length, rows.terminated[unit, last], 1 / rows.trajectories[unit].double(), reward)

    def in_rollouts(self, ends: str | None) -> Self:
        """As rollouts see them: where nothing terminates there, a recorded termination is an end like all others.

        Args:
            ends: ``none``: rollouts do not end by themselves; None: they end as the model says.
        """
        return replace(self, terminated=torch.zeros_like(self.terminated)) if ends == NONE else self

    def survival(self, horizon: int) -> Tensor:
        """S(t) for t below the horizon, float64 ``[horizon]``; the product-limit estimate (Kaplan and Meier 1958).

        After t steps, the share that ends there of those that have not terminated is taken off. Where nothing public
        is left to tell, S stays as it is.
        """
        cut = torch.zeros(horizon + 1, dtype=torch.float64)
        cut.index_add_(0, self.length.clamp(max=horizon), self.weight.where(~self.terminated, 0.0))
        longer = self.length[:, None] > torch.arange(horizon + 1)
        at_risk = (longer * self.weight[:, None]).sum(0) + cut
        stays = 1 - (cut / at_risk.clamp(min=1e-12))
        return stays[:horizon].clamp(0, 1).cumprod(0)

    def returns(self, problem: Problem) -> Tensor:
        """Return Σ_t γ^t r_t of each, as the problem counts it, float64 ``[n]``."""
        place = torch.arange(self.reward.shape[1])
        most = self.length if problem.horizon is None else self.length.clamp(max=problem.horizon)
        weights = problem.discount ** place.double() * (place < most[:, None])
        return (problem.reward(self.reward) * weights).sum(1)


def public_return_bounds(public: PublicTrajectories, problem: Problem) -> tuple[float, float] | None:
    """Bounds of a return from public ones: as far again beyond the least and the greatest as these are apart.

    Args:
        public: trajectories.
        problem: whose return bounds are what the bounds of the rewards allow, and are not left.

    Returns:
        The bounds; None: the returns are all the same, so they tell nothing.
    """
    returns = public.returns(problem)
    low, high = float(returns.min()), float(returns.max())
    spread = high - low
    if not spread > _SAME * (problem.return_high - problem.return_low):
        return None
    digits = 2 - math.floor(math.log10(spread))  # whole numbers of hundredths or so: another machine finds the same
    unit = 10.0**-digits
    low, high = math.floor((low - spread) / unit) * unit, math.ceil((high + spread) / unit) * unit
    return max(round(low, digits), problem.return_low), min(round(high, digits), problem.return_high)
