"""Today's returns of the people in the data: their mean, their quantiles and a histogram."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from primorl.base.records import Share, Within
from primorl.evaluate.private.problem import Episodes, Problem, find_counted
from primorl.evaluate.private.question import Question, estimate, noisy_mean, pair, t_quantile
from primorl.evaluate.private.results import MEAN_RETURN, Answer, Histogram

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_ONE = 1 << 36
_SHOWN = 4  # levels of the histogram that is shown: 16 bins


@dataclass(frozen=True, kw_only=True)
class Behaviour(Question):
    """Mean, quantiles and histogram of the units' returns, from one noisy release.

    A unit's return is the mean over its trajectories, each held within the declared bounds and
    mapped to x in [-1, 1]. The unit contributes two blocks:

    - √w (x, 1 - x²), from which come the mean and the variance;
    - √((1 - w) / L) times its Haar coefficients: on each of L levels, 1 or -1 in the node that x is
      in, for its lower or its upper half. 2^L bins are made of them. A CDF takes one coefficient of
      each level, at most ½ of it, so its noise grows with L; in counts of 2^L bins it would grow
      with 2^(L/2) (Xiao et al. 2010, "Differential privacy via wavelet transforms").

    The blocks have squared norms of at most w and 1 - w, so that the joint norm is at most 1.

    Attributes:
        levels: L; the bounds of the return are cut into 2^L bins.
        mean_share: w, the mean's share of the privacy budget (of μ²); the rest is for the
            quantiles.
    """

    name: ClassVar[str] = "behaviour"
    about_model: ClassVar[bool] = False

    levels: Annotated[int, Within(ge=1, le=10)]
    mean_share: Share

    def row_bytes(self, problem: Problem) -> int:
        """See `Question.row_bytes`; a unit may have one row only."""
        return 8 * (3 * problem.observation_size + problem.action_size + 12 + (1 << self.levels))

    def contributions(self, problem: Problem, episodes: Episodes) -> Tensor:
        """See the class; float64 ``[U, 1 + 2^levels]``."""
        x = scale_returns(problem, episodes)
        bins = 1 << self.levels
        place = ((x + 1) / 2 * bins).long().clamp(0, bins - 1)
        nodes = _haar(self.levels).to(x.device)[place] * math.sqrt(
            (1 - self.mean_share) / self.levels
        )
        return torch.cat((pair(x) * math.sqrt(self.mean_share), nodes), 1)

    def histogram(self, problem: Problem, released: Tensor) -> Histogram:
        """Make the figure's histogram, a share for each bin."""
        every = 1 << (self.levels - min(self.levels, _SHOWN))
        shares, edges = self._cdf(released)[::every].diff(), self._edges(problem)[::every]
        return Histogram(
            estimator=self.name,
            what="return of a unit",
            edges=tuple(edges.tolist()),
            shares=tuple(shares.tolist()),
        )

    def estimates(self, problem: Problem, noise: float, released: Tensor) -> tuple[Answer, ...]:
        """Estimate the mean return, then its `QUANTILES`.

        The interval of a quantile is where p is within t standard deviations of the noisy CDF. The
        variance of the CDF, where it is p, is p(1 - p)/K and the noise's, which is known exactly.
        """
        covers = "sampling and privacy noise"
        mean, rest = (released[:2] / math.sqrt(self.mean_share)).tolist()
        of_mean = noisy_mean(problem.units, mean, rest, noise / math.sqrt(self.mean_share))
        middle, half = problem.return_centre, problem.return_half
        value, low, high = (
            middle + half * end for end in (of_mean.value, of_mean.low, of_mean.high)
        )
        bias = "Returns beyond their declared bounds count as the bound."
        found = [estimate(self.name, "behaviour", MEAN_RETURN, value, (low, high), covers, bias)]
        width = 2 * half / (1 << self.levels)
        bias = (
            "Returns are spread evenly over their bin, so a quantile is off by one bin, "
            f"{width:.3g}, at most."
        )
        edges, cdf = self._edges(problem), self._cdf(released)
        scale = noise * math.sqrt(self.levels / (1 - self.mean_share))
        spread = _cdf_of_coefficients(self.levels).square().sum(1) * scale**2
        for p in QUANTILES:
            within = t_quantile(problem.units) * (spread + p * (1 - p) / problem.units).sqrt()
            within[0] = within[-1] = 0  # the CDF is 0 and 1 at the bounds, without noise
            upper = (cdf + within).clamp(0, 1).cummax(0).values
            lower = (cdf - within).clamp(0, 1).flip(0).cummin(0).values.flip(0)
            low, value, high = (_crossing(edges, curve, p) for curve in (upper, cdf, lower))
            what = f"quantile {p:g} of the return"
            found.append(estimate(self.name, "behaviour", what, value, (low, high), covers, bias))
        return tuple(found)

    def _edges(self, problem: Problem) -> Tensor:
        return torch.linspace(
            problem.return_low, problem.return_high, (1 << self.levels) + 1, dtype=torch.float64
        )

    def _cdf(self, released: Tensor) -> Tensor:
        """Compute the noisy CDF at the bins' edges, made monotone and held within [0, 1], float64
        ``[2^L + 1]``.
        """
        coefficients = released[2:] * math.sqrt(self.levels / (1 - self.mean_share))
        bins = 1 << self.levels
        raw = (
            _cdf_of_coefficients(self.levels) @ coefficients
            + torch.arange(bins + 1, dtype=torch.float64) / bins
        )
        return isotonic(raw).clamp(0, 1)


def scale_returns(problem: Problem, episodes: Episodes) -> Tensor:
    """Compute each unit's return: the mean over its trajectories, mapped from the declared bounds
    to [-1, 1], ``[U]``.

    Sums are those of whole numbers, multiples of 2⁻³⁶. A floating-point sum over padded
    trajectories takes another order where another unit of the batch has more of them, and its last
    bit would decide about a bin.
    """
    middle, half = problem.return_centre, problem.return_half
    reward = problem.bound_reward(episodes.reward) * problem.discounts(episodes.step)
    terms = _whole(reward.where(find_counted(problem, episodes), 0.0) / half)
    number = (episodes.begins.cumsum(1) - 1).clamp(min=0)
    count = episodes.trajectories
    returns = torch.zeros(len(count), int(count.max()), dtype=torch.int64, device=reward.device)
    returns.scatter_add_(1, number, terms)
    x = (returns.double() / _ONE - middle / half).clamp(-1, 1)
    mine = torch.arange(x.shape[1], device=x.device) < count[:, None]
    return _whole(x.where(mine, 0.0)).sum(1).double() / _ONE / count


def _whole(numbers: Tensor) -> Tensor:
    return (numbers * _ONE).round().long()


def isotonic(values: Tensor) -> Tensor:
    """Find the non-decreasing sequence that is nearest in least squares, by pooling adjacent
    violators; ``[n]``.
    """
    means, sizes = list[float](), list[int]()
    for value in values.tolist():
        mean, size = value, 1
        while means and means[-1] > mean:
            mean = (mean * size + means[-1] * sizes[-1]) / (size + sizes[-1])
            size += sizes.pop()
            means.pop()
        means.append(mean)
        sizes.append(size)
    return torch.tensor(means, dtype=values.dtype).repeat_interleave(torch.tensor(sizes))


def _crossing(edges: Tensor, curve: Tensor, p: float) -> float:
    """Find where a non-decreasing curve from 0 to 1, linear between the edges, reaches p."""
    after = int(torch.searchsorted(curve, p).clamp(1, len(curve) - 1))
    rise = float(curve[after] - curve[after - 1])
    part = (p - float(curve[after - 1])) / rise if rise > 0 else 0.0
    return float(edges[after - 1] + (edges[after] - edges[after - 1]) * min(max(part, 0.0), 1.0))


@lru_cache(maxsize=4)
def _haar(levels: int) -> Tensor:
    """Build the matrix of 2^levels bins by nodes, root first: 1 in its lower half, -1 in its upper,
    ``[B, B - 1]``.
    """
    bins = 1 << levels
    place = torch.arange(bins)
    table = torch.zeros(bins, bins - 1, dtype=torch.float64)
    for level in range(levels):
        node = (1 << level) - 1 + (place >> (levels - level))
        table[place, node] = 1 - 2 * ((place >> (levels - level - 1)) & 1).double()
    return table


@lru_cache(maxsize=4)
def _cdf_of_coefficients(levels: int) -> Tensor:
    """Build the matrix from mean Haar coefficients to the CDF less that of equal bins: ``[B + 1, B
    - 1]``.

    The columns of `_haar` are orthogonal, so shares of the bins are 1/B + Σ_node coefficient ·
    column / width.
    """
    table = _haar(levels)
    share = table / table.abs().sum(0)
    return torch.cat((torch.zeros_like(share[:1]), share.cumsum(0)))
