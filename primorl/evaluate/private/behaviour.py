"""Today's returns of the people in the data, their mean and their quantiles; and how they are
asked for.

The privacy argument is the mechanism's alone: `Behaviour.contributions` is a function of one unit's
own rows and of released values, the mechanism's clip bounds its result as one vector, and nothing
else of it is released.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from scipy.special import stdtrit
from torch import Tensor

from primorl.base.records import Share, Within
from primorl.evaluate.private.problem import (
    Episodes,
    EpisodeSource,
    Problem,
    find_counted,
    portions,
)
from primorl.evaluate.private.results import MEAN_RETURN, Answer
from primorl.privacy.ledger.checkpoint import State
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import Mechanism

Interval = tuple[float, float]
NAME = "behaviour"
"""Name of the estimator and of its share of ε."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_ONE = 1 << 36
_TAILS = 0.02, 0.25  # shares on each side: the least that is looked for, and the most


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Mean and quantiles of the units' returns, from two noisy releases.

    A unit's return is the mean over its trajectories, each held within the bounds of a return.

    1. Its Haar coefficients over 2^L bins between the bounds: on each of L levels ±1/√L in the node
       that the return is in, for its lower or its upper half. A CDF takes one coefficient of each
       level, at most ½ of it, so its noise grows with L; in counts of 2^L bins it would grow with
       2^(L/2) (Xiao et al. 2010, "Differential privacy via wavelet transforms"). Half of the edges
       are even, the others at even distances of asinh, so that bins are fine near 0 where the
       bounds are much too wide.
    2. (x, 1 - x²), x being the return held within a range and mapped to [-1, 1]: the mean and the
       variance. The range is what `find_range` makes of the first release, as the noise is in
       proportion to its width.

    Both have norm 1 at most.

    Attributes:
        levels: L.
        finest: share of half the bounds; returns nearer to 0 than that share bins.
        deviations: of a share's noise, that a tail has.
        margin: of the distance between the tails, added on each side.
    """

    levels: Annotated[int, Within(ge=1, le=10)]
    finest: Share = 1e-4
    deviations: float = 2.0
    margin: float = 0.5

    def contributions(
        self, problem: Problem, episodes: Episodes, noise: float, released: Tensor
    ) -> Tensor:
        """Compute each unit's contribution to the release that follows those in ``released``, whose
        noise has this standard deviation: float64 ``[U, 2^levels - 1]``, then ``[U, 2]``, of norm 1
        at most; sensitive. The caller clips it.
        """
        returns = problem.return_centre + problem.return_half * scale_returns(problem, episodes)
        if len(released):
            low, high = self.find_range(problem, noise, released)
            return pair(((2 * returns - low - high) / (high - low)).clamp(-1, 1))
        edges = self._edges(problem)
        place = torch.searchsorted(edges, returns, right=True) - 1
        place = place.clamp(0, (1 << self.levels) - 1)
        nodes = _haar(self.levels)[place] / math.sqrt(self.levels)
        return nodes.where(returns.isfinite()[:, None], 0.0)  # a unit without rows has none

    def find_range(self, problem: Problem, noise: float, released: Tensor) -> tuple[float, float]:
        """Find where returns lie, from the first release: post-processing.

        It reaches from one tail of the noisy CDF to the other and half as far again on both sides;
        tails are as small as the noise lets them be told. The bounds of a return stay where the
        noise tells no tails, and where they are no sums of rewards: declared ones, and those of an
        outcome or of public returns.
        """
        least, most = problem.return_low, problem.return_high
        if not problem.return_is_sum:
            return least, most
        edges, cdf = self._edges(problem), self._cdf(released)
        tail = max(self.deviations * float(self._noise_of_cdf(noise).max()), _TAILS[0])
        if tail > _TAILS[1]:
            return least, most
        low, high = (_crossing(edges, cdf, p) for p in (tail, 1 - tail))
        first = edges[int((edges <= low).sum().clamp(min=1)) - 1]
        last = edges[int((edges < high).sum().clamp(max=len(edges) - 1))]
        margin = self.margin * float(last - first)
        low, high = max(least, float(first) - margin), min(most, float(last) + margin)
        return (low, high) if low < high else (least, most)

    def estimates(self, problem: Problem, noise: float, released: Tensor) -> tuple[Answer, ...]:
        """Estimate the mean return, held within the range that was found, and its `QUANTILES`.

        The interval of a quantile is where p is within t standard deviations of the noisy CDF. The
        variance of the CDF, where it is p, is p(1 - p)/K and the noise's, which is known exactly.
        """
        covers = "sampling and privacy noise"
        mean, rest = released[-2:].tolist()
        first, last = self.find_range(problem, noise, released)
        middle, half = (first + last) / 2, (last - first) / 2
        ends = noisy_mean(problem.units, mean, rest, noise)
        value, low, high = (middle + half * end for end in ends)
        found = list[Answer]()

        def add(what: str, value: float, ci95: Interval | None, covers: str, bias: str) -> None:
            found.append(Answer.unpaid(NAME, "behaviour", what, value, ci95, covers, bias))

        if (first, last) == (problem.return_low, problem.return_high):
            allowed = f"{first:.4g} to {last:.4g} (the bounds of a return)"
            bias = f"Returns outside {allowed} count as the nearer end."
            add(MEAN_RETURN, value, (low, high), covers, bias)
        else:
            below, above = self._shares_beyond(problem, noise, released, (first, last))
            bias = (
                f"The range {first:.4g} to {last:.4g} was found first. At most {below:.0%} of the "
                f"units lie below it and at most {above:.0%} above, and count as its end."
            )
            within = f"{covers}, of returns held within the range that was found"
            add(MEAN_RETURN, value, (low, high), within, bias)
        edges, cdf = self._edges(problem), self._cdf(released)
        spread = self._noise_of_cdf(noise).square()
        places, widest = list[tuple[float, float, float]](), 0.0
        for p in QUANTILES:
            doubt = t_quantile(problem.units) * (spread + p * (1 - p) / problem.units).sqrt()
            doubt[0] = doubt[-1] = 0  # the CDF is 0 and 1 at the bounds, without noise
            upper = (cdf + doubt).clamp(0, 1).cummax(0).values
            lower = (cdf - doubt).clamp(0, 1).flip(0).cummin(0).values.flip(0)
            low, value, high = (_crossing(edges, curve, p) for curve in (upper, cdf, lower))
            first = edges[edges <= low].max().item()  # where in its bin a return lies is not known
            last = edges[edges >= high].min().item()
            places.append((first, value, last))
            place = int((edges <= value).sum().clamp(1, len(edges) - 1))
            widest = max(widest, float(edges[place] - edges[place - 1]))
        bias = (
            "Returns are spread evenly over their bin, so a quantile is off by one bin, "
            f"{widest:.3g}, at most; its interval ends where bins do."
        )
        for p, (low, value, high) in zip(QUANTILES, places, strict=True):
            add(f"quantile {p:g} of the return", value, (low, high), covers, bias)
        return tuple(found)

    def _shares_beyond(
        self, problem: Problem, noise: float, released: Tensor, ends: Interval
    ) -> tuple[float, float]:
        """Bound the shares of the units whose returns lie below and above a range."""
        # between the bins' edges the CDF is linear
        edges, cdf = self._edges(problem).numpy(), self._cdf(released).numpy()
        below, within = np.interp(ends, edges, cdf).tolist()
        doubt = t_quantile(problem.units) * float(self._noise_of_cdf(noise).max())
        return min(below + doubt, 1.0), min(1 - within + doubt, 1.0)

    def _edges(self, problem: Problem) -> Tensor:
        low, high = problem.return_low, problem.return_high
        bins, unit = 1 << self.levels, self.finest * problem.return_half
        even = torch.linspace(low, high, bins // 2 + 1, dtype=torch.float64)
        first, last = math.asinh(low / unit), math.asinh(high / unit)
        fine = unit * torch.linspace(first, last, bins // 2 + 2, dtype=torch.float64).sinh()
        return torch.cat((even, fine[1:-1].clamp(low, high))).sort().values

    def _cdf(self, released: Tensor) -> Tensor:
        """Compute the noisy CDF at the bins' edges, made monotone and held within [0, 1], float64
        ``[2^L + 1]``.
        """
        bins = 1 << self.levels
        coefficients = released[: bins - 1] * math.sqrt(self.levels)
        raw = (
            _cdf_of_coefficients(self.levels) @ coefficients
            + torch.arange(bins + 1, dtype=torch.float64) / bins
        )
        return torch.from_numpy(isotonic_regression(raw.numpy()).x).clamp(0, 1)

    def _noise_of_cdf(self, noise: float) -> Tensor:
        """Standard deviation of the noise in the CDF at each edge, before it is made monotone."""
        rows = _cdf_of_coefficients(self.levels).square().sum(1).sqrt()
        return rows * noise * math.sqrt(self.levels)


def noisy_mean(units: int, mean: float, rest: float, noise: float) -> tuple[float, float, float]:
    """Estimate the mean of x in [-1, 1] over the units, with its 95% interval, from a release of a
    `pair`.

    The interval holds sampling and privacy noise: all r within t standard deviations of the mean.
    Its variance is noise² + E[(x - r)²] / K. The last term is estimated from the release itself, to
    which one standard deviation of the estimate's own noise is added: noise can make it tiny or
    negative, and then the interval would be too short (it would hold as few as 89% of narrow means
    at μ = 3, where this one holds 97%). The addition is at most √5 μ of noise², μ being the
    Gaussian mean of the release, so little at small ε.

    Args:
        units: K.
        mean: of x.
        rest: of 1 - x².
        noise: standard deviation of the noise in both.

    Returns:
        The mean, and the ends of its interval.
    """
    value = min(max(mean, -1.0), 1.0)
    square = 1.0 - rest  # E[x²]
    own = square - 2 * value * mean + value**2
    doubt = noise * math.hypot(1, 2 * value)
    square += min(max(own + doubt, 0.0), (1 + abs(value)) ** 2) - own
    factor = t_quantile(units) ** 2
    a = 1.0 - factor / units
    if a <= 0:
        return value, -1.0, 1.0
    c = mean**2 - factor * (noise**2 + square / units)
    root = math.sqrt(max((a * mean) ** 2 - a * c, 0.0))
    low, high = (min(max(end / a, -1.0), 1.0) for end in (a * mean - root, a * mean + root))
    return min(max(value, low), high), low, high


def t_quantile(units: int) -> float:
    """Compute how many standard deviations a 95% interval reaches to each side."""
    return float(stdtrit(max(units - 1, 1), 0.975))


def pair(x: Tensor) -> Tensor:
    """Stack (x, 1 - x²) for x in [-1, 1]: its L2 norm is at most 1, so the second moment costs
    nothing more.
    """
    return torch.stack((x, 1 - x.square()), -1)


def scale_returns(problem: Problem, episodes: Episodes) -> Tensor:
    """Compute each unit's return: the mean over its trajectories, mapped from the declared bounds
    to [-1, 1], ``[U]``.

    Sums are those of whole numbers, multiples of 2⁻³⁶. A floating-point sum over padded
    trajectories takes another order where another unit of the batch has more of them, and its last
    bit would decide about a bin.
    """
    middle, half = problem.return_centre, problem.return_half
    reward = problem.bound_reward(episodes.reward)
    terms = _whole(reward.where(find_counted(problem, episodes), 0.0) / half)
    number = (episodes.begins.cumsum(1) - 1).clamp(min=0)
    count = episodes.trajectories
    returns = torch.zeros(len(count), max(1, int(count.max())), dtype=torch.int64)
    returns.scatter_add_(1, number, terms)
    x = (returns.double() / _ONE - middle / half).clamp(-1, 1)
    mine = torch.arange(x.shape[1]) < count[:, None]
    return _whole(x.where(mine, 0.0)).sum(1).double() / _ONE / count


def _whole(numbers: Tensor) -> Tensor:
    return (numbers * _ONE).round().long()


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


# ---- asking


@dataclass(frozen=True)
class Asked(State):
    """State of a question, as a checkpoint holds it.

    Attributes:
        released: the releases, one behind the other; empty before the first is made.
        about: what the question is about, so that it is not answered about something else after a
            kill.
        started: releases whose noise may have been drawn. They are then spent.
        made: releases in ``released``.
        finished: whether all are there.
    """

    OTHER = "other bounds of rewards or returns, or another version of the code"

    released: Tensor
    about: str = ""
    started: int = 0
    made: int = 0
    finished: bool = False

    @property
    def lost(self) -> bool:
        """Whether a release may have been drawn and is gone: a charge pays for one alone."""
        return not self.finished and self.started > self.made


def noise_of(mechanism: Mechanism) -> float:
    """Compute the standard deviation of the noise on every number of a release: public."""
    return mechanism.noise_multiplier * mechanism.clip.sensitivity / mechanism.expected_cohort


def ask(
    question: Behaviour,
    problem: Problem,
    mechanism: Mechanism,
    source: EpisodeSource,
    begin: Asked,
    *,
    save_checkpoint: Callable[[Asked], None] = lambda state: None,
) -> Asked:
    """Ask a question, or what is left of it.

    A kill while rows are read costs nothing, as there is nothing to draw again but the noise.

    Args:
        question: to be asked.
        problem: its subject.
        mechanism: of the question; draws the noise.
        source: the private units.
        begin: the state before the next release.
        save_checkpoint: must have stored the state durably when it returns. Each release is
            announced to it when the sum is known, before the noise is drawn.

    Returns:
        The finished state.

    Raises:
        ValueError: the source does not hold the number of units that the mechanism declares.
    """
    if source.units != mechanism.units:
        raise ValueError("the number of private units differs from the one the mechanism declares")
    clip = mechanism.clip
    assert isinstance(clip, L2Clip)
    everybody = torch.arange(source.units)
    width = problem.observation_size + problem.action_size + 2
    state = begin
    for number in range(begin.made, mechanism.rounds):
        total = torch.zeros((), dtype=torch.float64)
        for episodes in portions(source, everybody, width):
            found = question.contributions(problem, episodes, noise_of(mechanism), state.released)
            total = total + clip.finish(found).sum(0)
        save_checkpoint(replace(state, started=number + 1))
        released = mechanism.release(total)
        state = Asked(
            torch.cat((state.released, released.double())),
            begin.about,
            started=number + 1,
            made=number + 1,
            finished=number + 1 == mechanism.rounds,
        )
        save_checkpoint(state)
    return state
