"""What standardises inputs and targets where nothing public does: declared bounds, or a charged query."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.dynamics.cohort import CohortSource
from pipeline.dynamics.ensemble import Bounds, Normaliser
from pipeline.privacy.queries import Fractions

BINS = 40  # of every column; of changes they are half octaves, down to 2⁻²⁰ of the declared range
_INPUT_SHARE, _CHANGE_SHARE = 1 / 4, 1 / 32  # of the declared range, where nothing else is known
_LEAST_CHANGE_SHARE = 1 / 256
_MOST = 0.9  # of all, of what is called usual
_NORMAL = 1.645  # 90% quantile of |x| of a standard normal
_ROWS_AT_ONCE = 1 << 18

OneHot = tuple[tuple[int, int], ...]
"""Parts of an observation that are one-hot: (first dimension, number of categories)."""


@dataclass(frozen=True)
class Columns:
    """How the S observation dimensions are treated.

    Attributes:
        observation_size: S.
        one_hot: left as they are: 0 and 1 need no query.
        discrete_actions: actions are one-hot too.
    """

    observation_size: int
    one_hot: OneHot
    discrete_actions: bool

    @property
    def continuous(self) -> Tensor:
        """Indices of the other dimensions, int64 ``[S']``."""
        known = torch.ones(self.observation_size, dtype=torch.bool)
        for first, size in self.one_hot:
            known[first : first + size] = False
        return known.nonzero().squeeze(1)

    @property
    def fractions(self) -> Fractions:
        """What a unit adds to the normaliser's query: S' observations, S' changes and the reward."""
        return Fractions(2 * len(self.continuous) + 1, BINS)


def normaliser_of_bounds(columns: Columns, bounds: Bounds) -> Normaliser:
    """Standardise by what is declared, and nothing else.

    An input is centred on the middle of its declared range and divided by a quarter of it, so that it lies within ±2;
    a change of the state is divided by 1/32 of the range, a reward centred on its middle and divided by a quarter.
    One-hot inputs stay 0 and 1; their changes are divided by √(2 (n - 1)) / n, the standard deviation that they have if
    every step draws one of n categories anew.

    Args:
        columns: which dimensions are one-hot.
        bounds: finite.
    """
    span = _range(bounds)
    middle = (bounds.observation_low + bounds.observation_high) / 2
    return _assembled(
        columns, bounds, middle, span * _INPUT_SHARE, span * _CHANGE_SHARE, *_middle_and_share(bounds, _INPUT_SHARE)
    )


class NormaliserQuery:
    """Histograms of every unit's observations, changes and rewards in public bins, and the normaliser they make.

    Why histograms and not a clipped mean and variance: changes of a state are heavy-tailed, and a few rare
    jumps may hold most of their variance. A robust spread, the 90% quantile of |change| over 1.645, is what the public
    split gives too (`Normaliser.from_public`), and a histogram whose bins are half octaves gives it over six decades
    without a clipping norm to be guessed. Noise on bins is also easier to remove than noise on a
    moment: the noisy fractions are projected onto the fractions that are possible.

    Args:
        columns: which dimensions are one-hot.
        bounds: finite; they place the bins.
    """

    def __init__(self, columns: Columns, bounds: Bounds) -> None:
        self._columns = columns
        self._bounds = bounds
        self._continuous = columns.continuous

    def total(self, source: CohortSource) -> Tensor:
        """Sum over all units, int64 ``[2 S' + 1, BINS]``. Sensitive: only `Plan.answer` may see it."""
        fractions = self._columns.fractions
        total = torch.zeros(fractions.columns, fractions.bins, dtype=torch.int64)
        for inputs, targets, own in all_rows(source):
            total += fractions.total(self._bins(inputs, targets), own)
        return total

    def _bins(self, inputs: Tensor, targets: Tensor) -> Tensor:
        S, chosen = self._columns.observation_size, self._continuous
        span = _range(self._bounds)[chosen]
        observation = (inputs[..., chosen] - self._bounds.observation_low[chosen]) / span
        # |change| = 2^-(b/2) of the range opens bin b, counted from the widest: none at all is in the last one.
        change = -2 * torch.log2(targets[..., chosen].abs() / span)
        low, high = self._bounds.reward_low, self._bounds.reward_high
        reward = (targets[..., S : S + 1] - low) / (high - low)
        placed = torch.cat((observation * BINS, reward * BINS, change), dim=-1).floor()
        outside = torch.full_like(placed, -1)  # what is no number counts nowhere
        return torch.where(placed.isnan(), outside, placed.clamp(0, BINS - 1)).to(torch.int64)

    def normaliser(self, answer: Tensor) -> Normaliser:
        """The maps that the noisy mean fractions ``[2 S' + 1, BINS]`` make: post-processing.

        Inputs: mean and standard deviation, as if values were uniform within their bin. Changes: centred on 0, divided
        by the 90% quantile of |change| over 1.645, or where nine of ten are too small for the bins by their root
        mean square, at least 1/256 of the range. Rewards: median, and the 90% quantile of the distance from it over
        1.645, or where one bin holds nine of ten the standard deviation. Actions are standardised by their declared
        bounds, one-hot parts as in `normaliser_of_bounds`.
        """
        known = len(self._continuous)
        fractions = torch.stack([possible_fractions(row) for row in answer])
        low, span = self._bounds.observation_low[self._continuous], _range(self._bounds)[self._continuous]
        middle, scale, change = torch.zeros(3, self._columns.observation_size).unbind()
        for place, dimension in enumerate(self._continuous.tolist()):
            mean, deviation = _moments(fractions[place])
            middle[dimension] = low[place] + span[place] * mean
            scale[dimension] = span[place] * deviation
            change[dimension] = span[place] * _spread_of_changes(fractions[known + 1 + place])
        reward_span = self._bounds.reward_high - self._bounds.reward_low
        median, spread = _median_and_spread(fractions[known])
        return _assembled(
            self._columns,
            self._bounds,
            middle,
            scale,
            change,
            self._bounds.reward_low + reward_span * median,
            reward_span * spread,
        )


def all_rows(source: CohortSource) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All units, some at a time: inputs ``[U, M, S + A]``, targets and which rows are their own ``[U, M]``.

    Sensitive: for a query's sum only.
    """
    lengths = source.lengths(torch.arange(source.units))
    first = 0
    while first < source.units:
        last, longest = first, 0
        while last < source.units:
            wider = max(longest, int(lengths[last]))
            if last > first and (last + 1 - first) * wider > _ROWS_AT_ONCE:
                break
            longest, last = wider, last + 1
        steps = torch.arange(longest).expand(last - first, -1)
        inputs, targets = source.transitions(torch.arange(first, last), steps)
        yield inputs, targets, steps < lengths[first:last, None]
        first = last


def possible_fractions(noisy: Tensor) -> Tensor:
    """The nearest numbers that are not negative and add up to one (Duchi et al. 2008, figure 1).

    Noise in empty bins, which would move a quantile, becomes zero.
    """
    ordered = noisy.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(noisy) + 1, dtype=noisy.dtype)
    kept = int((ordered > excess).sum())
    return (noisy - excess[kept - 1]).clamp(min=0)


def _moments(fractions: Tensor) -> tuple[float, float]:
    """Mean and standard deviation in units of the range, values being uniform within their bin."""
    middles = (torch.arange(BINS, dtype=fractions.dtype) + 0.5) / BINS
    mean = (fractions * middles).sum()
    variance = (fractions * (middles - mean).square()).sum() + 1 / (12 * BINS**2)
    return float(mean), float(variance.sqrt())


def _spread_of_changes(fractions: Tensor) -> float:
    """The 90% quantile of |change| over 1.645 in units of the range, from half octaves, the widest first."""
    edges = 2.0 ** (-torch.arange(BINS + 1, dtype=fractions.dtype) / 2)
    beyond = fractions.cumsum(0)
    place = int((beyond < 1 - _MOST).sum())
    if place < BINS - 1:
        inside = (1 - _MOST - float(beyond[place] - fractions[place])) / float(fractions[place])
        return float(edges[place] * 2 ** (-inside / 2)) / _NORMAL
    squares = (fractions[:-1] * edges[:-2] * edges[1:-1]).sum()
    return max(float(squares.sqrt()), _LEAST_CHANGE_SHARE)


def _median_and_spread(fractions: Tensor) -> tuple[float, float]:
    """Median, and the 90% quantile of the distance from it over 1.645, in units of the range."""
    grid = torch.linspace(0, 1, 32 * BINS + 1, dtype=fractions.dtype)
    within = torch.cat((fractions.new_zeros(1), fractions.cumsum(0)))
    position = grid * BINS
    bin_of = position.floor().long().clamp(max=BINS - 1)
    below = within[bin_of] + (position - bin_of) * fractions[bin_of]
    median = grid[int((below < 0.5).sum())]
    if float(fractions.max()) >= _MOST:
        return float(median), _moments(fractions)[1]
    weights = torch.diff(below)
    distances, order = ((grid[1:] + grid[:-1]) / 2 - median).abs().sort()
    place = int((weights[order].cumsum(0) < _MOST).sum())
    return float(median), float(distances[min(place, len(distances) - 1)]) / _NORMAL


def _range(bounds: Bounds) -> Tensor:
    span = bounds.observation_high - bounds.observation_low
    return torch.where(span > 0, span, torch.ones_like(span))


def _middle_and_share(bounds: Bounds, share: float) -> tuple[float, float]:
    return (bounds.reward_low + bounds.reward_high) / 2, (bounds.reward_high - bounds.reward_low) * share


def _assembled(
    columns: Columns, bounds: Bounds, middle: Tensor, scale: Tensor, change: Tensor, reward: float, reward_scale: float
) -> Normaliser:
    """Put together inputs, changes and reward; one-hot parts and actions go by what is declared."""
    middle, scale, change = middle.clone(), scale.clone(), change.clone()
    for first, size in columns.one_hot:
        part = slice(first, first + size)
        middle[part], scale[part], change[part] = 0.0, 1.0, (2 * (size - 1)) ** 0.5 / size
    action, action_scale = torch.zeros_like(bounds.action_low), torch.ones_like(bounds.action_low)
    if not columns.discrete_actions:
        action = (bounds.action_low + bounds.action_high) / 2
        action_scale = (bounds.action_high - bounds.action_low) * _INPUT_SHARE
    rewards = torch.tensor([reward]), torch.tensor([reward_scale if reward_scale > 0 else 1.0])
    return Normaliser(
        torch.cat((middle, action)).float(),
        torch.cat((scale, action_scale)).float(),
        torch.cat((torch.zeros_like(change), rewards[0])).float(),
        torch.cat((change, rewards[1])).float(),
    )
