"""Importance sampling: the rewards of people who happened to be treated as the policy would have treated them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.private.rows import counted
from primorl.evaluation.private.weighting import SPREAD, SUMS, WeightedEstimator
from primorl.privacy.mechanism.queries import register_query

_TINY = 1e-12  # where neither weights nor steps are missing, 0 is divided by it


@register_query("importance" + SPREAD)
@register_query("importance" + SUMS)
@dataclass(frozen=True, kw_only=True)
class ImportanceSampling(WeightedEstimator):
    """Per-decision weighted importance sampling (Precup, Sutton and Singh 2000), by blocks of steps.

    Steps are cut into blocks 0, 1, 2-3, 4-7, … A unit contributes to each block its n = Σ_t γ^t w_t r_t, the mean d of
    its weights, its unweighted r = Σ_t γ^t r_t and the share a of the block's steps that were logged, each the mean
    over its trajectories. A trajectory that ends early keeps its last weight in the blocks that follow, with rewards of
    0. From the noisy means N, D, R and A follows, with M = max(1 - D, 0),

        V = Σ_blocks (N + M R / max(A, M)) / max(D, 1).

    Weights that are not cut have mean 1. So nothing is divided by a small number: what is missing of the weights, M,
    because they were cut or have died out, earns what the behaviour earns in trajectories that go on, for longer
    trajectories lose their weights first. Set ``lookback`` to the horizon here: a shorter one breaks that argument.
    """

    name: ClassVar[str] = "importance"

    def norm(self, problem: Problem) -> float:
        """Twice the largest weight. A unit with such weights in more than two blocks is scaled down as a whole."""
        return 2 * self.largest_weight

    def size(self, problem: Problem) -> int:
        """Four numbers for each block."""
        return 4 * len(_begins(problem))

    def row_bytes(self, problem: Problem) -> int:
        """See `Estimator.row_bytes`."""
        return 8 * (4 * (problem.observation_size + problem.action_size) + 4 * len(_begins(problem)) + 16)

    def vectors(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """See `WeightedEstimator.vectors`; rewards are in units of the largest return."""
        begins = _begins(problem).to(episodes.step.device)
        mine = counted(problem, episodes)
        block = torch.bucketize(episodes.step, begins, right=True) - 1
        weight = self.weights(problem, values, episodes) * mine
        reward = problem.reward(episodes.reward) * problem.discount**episodes.step * mine / _scale(problem)
        # Blocks are [begin, end); a trajectory's last weight stands for the steps after its end.
        ends = torch.cat((begins[1:], begins.new_tensor([problem.rollout_steps])))
        length = (ends - begins).double()
        after = (ends - torch.maximum(begins, episodes.step[..., None] + 1)).clamp(min=0) / length
        kept = torch.einsum("um,umb->ub", weight * episodes.ends, after)
        parts = [
            torch.zeros_like(kept).scatter_add_(1, block, rows)
            for rows in (weight * reward, weight / length[block], reward, mine / length[block])
        ]
        parts[1] += kept
        sums, weights, plain, alive = (part / episodes.trajectories[:, None] for part in parts)
        sums = sums.clamp(-self.largest_weight, self.largest_weight)
        return torch.cat((sums, weights, plain.clamp(-1, 1), alive), 1)

    def value(self, problem: Problem, mean: Tensor) -> tuple[float, Tensor]:
        """See `WeightedEstimator.value`."""
        with torch.enable_grad():
            point = mean.clone().requires_grad_()
            sums, weights, plain, alive = point.view(4, -1)
            missing = (1 - weights.clamp(min=0)).clamp(min=0)
            share = missing / torch.maximum(alive, missing).clamp(min=_TINY)
            value = ((sums + share * plain) / weights.clamp(min=1)).sum() * _scale(problem)
            (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient

    def bias(self) -> str:
        """See `WeightedEstimator.bias`."""
        source = f"; {self.doubt}" if self.doubt else ""
        return (
            f"weights above {self.largest_weight:g} are cut, and where few people were treated like the policy the "
            f"value goes over to the behaviour's{source}"
        )


def _scale(problem: Problem) -> float:
    """The largest return, the unit of rewards in a contribution."""
    return max(abs(problem.return_low), abs(problem.return_high))


def _begins(problem: Problem) -> Tensor:
    """The first step of every block: 0, 1, 2, 4, 8 …, int64."""
    return torch.tensor([0, *(2**power for power in range((problem.rollout_steps - 1).bit_length()))])
