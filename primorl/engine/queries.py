"""Charged queries: histograms that make a normaliser where nothing is public, and a model of first states."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.engine.local_update import CohortSource
from primorl.model.ensemble import Bounds, Normaliser
from primorl.model.features import OneHot
from primorl.model.starts import CONTINUOUS, StartModel
from primorl.privacy.mechanism.queries import Fractions, Moments, register_query

NORMALISER, STARTS = "normaliser", "starts"
"""Names of the queries in ``privacy.json``."""
BINS = 32  # of every column, a power of two; of changes they are half octaves, down to 2⁻¹⁶ of the declared range
MOST_NOISE = 0.02
"""Standard deviation on a fraction beyond which little of a histogram is left."""
_INPUT_SHARE, _CHANGE_SHARE = 1 / 4, 1 / 32  # of the declared range, where nothing else is known
_LEAST_CHANGE_SHARE = 1 / 256
_MOST, _CONCENTRATED = (
    0.9,
    0.85,
)  # of all: what is called usual; in one bin, what is called concentrated
_NORMAL = 1.645  # 90% quantile of |x| of a standard normal
_NOISE_DEVIATIONS, _LEAST_SEEN = 3.0, 0.8
_HALF_DEVIATIONS = 2.0
BYTES_AT_ONCE = 256 << 20
"""Bound on what a query's sum holds of one batch of units (at least one), however wide the data are.

Running out of memory there costs all that was reserved, every time anew. Sums are of whole numbers, the same in
batches of any size.
"""
READ_BYTES = 12  # of a number of a row that is read: decoded, in the store, and handed out
_COPIES = 3  # of a unit's counts: themselves, scaled, divided
_ROW_BYTES = (
    80  # of a row and column, in which every tensor on the way from a number to its bin is counted
)
_UNIT_BYTES = (
    8 * 8
)  # of a unit and number of the sum: products, their factors, and what they are rounded through


@dataclass(frozen=True)
class ObservationColumns:
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
        """A unit's contribution to the normaliser's query: of S' observations, S' changes and the reward."""
        return Fractions(2 * len(self.continuous) + 1, BINS)

    @property
    def moments(self) -> Moments:
        """A unit's contribution to the query of first states."""
        return Moments(len(self.continuous), tuple(size for _, size in self.one_hot))


def normaliser_of_bounds(columns: ObservationColumns, bounds: Bounds) -> Normaliser:
    """Standardise by declared bounds alone.

    An input is centred on the middle of its declared range and divided by a quarter of it, so that it lies within ±2;
    a change of the state is divided by 1/32 of the range, a reward centred on its middle and divided by a quarter.
    One-hot inputs stay 0 and 1; their changes are divided by √(2 (n - 1)) / n, the standard deviation that they have if
    every step draws one of n categories anew.

    Args:
        columns: which dimensions are one-hot.
        bounds: finite.
    """
    span, middle = span_of(bounds), (bounds.observation_low + bounds.observation_high) / 2
    states = middle, span * _INPUT_SHARE, span * _CHANGE_SHARE
    reward, spread = (
        (bounds.reward_low + bounds.reward_high) / 2,
        (bounds.reward_high - bounds.reward_low),
    )
    return assembled(columns, bounds, states, (reward, spread * _INPUT_SHARE))


@register_query(NORMALISER)
class NormaliserQuery:
    """Histograms of every unit's observations, changes and rewards in public bins, and the normaliser they make.

    Histograms and not a clipped mean and variance, since changes of a state are heavy-tailed: a few rare jumps may
    hold most of their variance. Bins that are half octaves give the robust spread of `Normaliser.from_public` over six
    decades without a clipping norm to be guessed. Noise on bins is also easier to remove than noise on a moment: a bin
    that noise alone may have filled is taken for empty (`likely_fractions`).

    Args:
        columns: which dimensions are one-hot.
        bounds: finite; they place the bins.
    """

    def __init__(self, columns: ObservationColumns, bounds: Bounds) -> None:
        self._columns, self._bounds = columns, bounds
        self._continuous = columns.continuous

    @property
    def fractions(self) -> Fractions:
        """A unit's contribution."""
        return self._columns.fractions

    def total(self, source: CohortSource) -> Tensor:
        """Sum over all units, int64 ``[columns, BINS]``. Sensitive: only `Plan.answer` may see it."""
        fractions = self.fractions
        total = torch.zeros(fractions.columns, fractions.bins, dtype=torch.int64)
        by_unit = fractions.columns * BINS * 8 * _COPIES
        read = 4 * (2 * self._columns.observation_size + len(self._bounds.action_low) + 2)
        for inputs, targets, own in all_rows(
            source, by_unit, read + fractions.columns * _ROW_BYTES
        ):
            total += fractions.total(self._bins(inputs, targets), own)
        return total

    def _bins(self, inputs: Tensor, targets: Tensor) -> Tensor:
        S, chosen = self._columns.observation_size, self._continuous
        span = span_of(self._bounds)[chosen]
        observation = (inputs[..., chosen] - self._bounds.observation_low[chosen]) / span
        # |change| = 2^-(b/2) of the range opens bin b, counted from the widest: none at all is in the last one.
        change = -2 * torch.log2(targets[..., chosen].abs() / span)
        low, high = self._bounds.reward_low, self._bounds.reward_high
        reward = (targets[..., S : S + 1] - low) / (high - low)
        return bins_of(torch.cat((observation * BINS, reward * BINS, change), dim=-1))

    def normaliser(self, answer: Tensor, noise: float) -> Normaliser:
        """Make the maps from the noisy mean fractions: post-processing.

        Inputs: mean and standard deviation. Changes: centred on 0, divided by the 90% quantile of |change| over 1.645,
        or where nine of ten are too small for the bins by their root mean square, at least 1/256 of the range; by 1/32
        of the range where the noise drowned them. Rewards: median, and the 90% quantile of the distance from it over
        1.645, or where one bin holds most of them the standard deviation. Actions are standardised by their declared
        bounds, one-hot parts as in `normaliser_of_bounds`.

        Args:
            answer: ``[2 S' + 1, BINS]``.
            noise: its standard deviation, which is public.
        """
        known, size = len(self._continuous), self._columns.observation_size
        middle, scale, change = torch.zeros(size), torch.zeros(size), torch.zeros(size)
        for place, dimension in enumerate(self._continuous.tolist()):
            middle[dimension], scale[dimension] = moments(halved_fractions(answer[place], noise))
            change[dimension] = _spread_of_changes(answer[known + 1 + place], noise)
        reward, spread = _median_and_spread(halved_fractions(answer[known], noise))
        bounds = self._bounds
        span, reward_span = span_of(bounds), bounds.reward_high - bounds.reward_low
        states = bounds.observation_low + span * middle, span * scale, span * change
        rewards = bounds.reward_low + reward_span * reward, reward_span * spread
        return assembled(self._columns, bounds, states, rewards)


def bins_of(values: Tensor) -> Tensor:
    """Bins of values in units of a bin, 0 … BINS - 1; -1 for NaN, which is not counted."""
    placed = values.floor()
    return torch.where(placed.isnan(), torch.full_like(placed, -1), placed.clamp(0, BINS - 1)).to(
        torch.int64
    )


def all_rows(
    source: CohortSource, unit_bytes: int, row_bytes: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield all units, some at a time: inputs ``[U, M, S + A]``, targets, and which rows are their own ``[U, M]``.

    Sensitive: for a query's sum only. As many at a time as stay within ``BYTES_AT_ONCE``, but one in any case.

    Args:
        source: the private units.
        unit_bytes: held for each of the U units of a batch.
        row_bytes: held for each of its U M rows.
    """
    lengths = source.lengths(torch.arange(source.units))
    numbers, first = lengths.tolist(), 0
    while first < source.units:
        last, longest = first, 0
        while last < source.units:
            wider = max(longest, numbers[last])
            if (
                last > first
                and (last + 1 - first) * (unit_bytes + wider * row_bytes) > BYTES_AT_ONCE
            ):
                break
            longest, last = wider, last + 1
        steps = torch.arange(longest).expand(last - first, -1)
        own = steps < lengths[first:last, None]
        inputs, targets = source.transitions(
            torch.arange(first, last), steps.where(own, 0)
        )  # padding: own row 0
        yield inputs, targets, own
        first = last


def units_in_parts(source: CohortSource, unit_bytes: int, row_bytes: int) -> Iterator[Tensor]:
    """Yield all units in parts, for queries that need one row of each.

    A store on disk reads whole units for it, so a part is bounded by all rows of its units: without its first unit it
    stays within ``BYTES_AT_ONCE``.

    Args:
        source: the private units.
        unit_bytes: held for each unit of a part.
        row_bytes: held for each of its rows.
    """
    units = torch.arange(source.units)
    part = (unit_bytes + row_bytes * source.lengths(units)).cumsum(0) // BYTES_AT_ONCE
    return (some for some in torch.split(units, torch.bincount(part).tolist()) if len(some))


def likely_fractions(noisy: Tensor, noise: float) -> Tensor | None:
    """Noisy fractions without those that noise alone may have made, up to three standard deviations.

    The rest is scaled to add up to one. Noise in empty bins would otherwise move a quantile far. Where too little
    is left, bins are taken two by two.

    Returns:
        None where less than four fifths of everything are left all the same: the noise drowned the rest.
    """
    for width in (1, 2):
        joined = noisy.view(-1, width).sum(1)
        kept = torch.where(
            joined > _NOISE_DEVIATIONS * noise * width**0.5, joined, torch.zeros_like(joined)
        )
        if float(kept.sum()) >= _LEAST_SEEN:
            return (kept / kept.sum() / width).repeat_interleave(width)
    return None


def halved_fractions(noisy: Tensor, noise: float, whole: float = 1.0) -> Tensor:
    """Noisy fractions that are made to agree with their sum, ``whole``, half by half, down to the bins.

    Of each half's two halves the noisy sums are made to add up; one that is within two standard deviations of nothing
    gives all to the other, and if both are, they share alike. So mass that is spread thinly over many bins is
    kept, only less precisely where it lies, and noise in empty bins is not: a standard deviation sees both.

    Args:
        noisy: ``[n]``, n a power of two.
        noise: standard deviation of each.
        whole: their true sum.
    """
    if len(noisy) == 1:
        return noisy.new_tensor([whole])
    left, right = noisy.chunk(2)
    first = min(max((whole + float(left.sum() - right.sum())) / 2, 0.0), whole)
    least = (
        _HALF_DEVIATIONS * noise * (len(left) / 2) ** 0.5
    )  # the mean of two such sums has half their variance
    if first < least and whole - first < least:
        first = whole / 2
    elif first < least:
        first = 0.0
    elif whole - first < least:
        first = whole
    return torch.cat(
        (halved_fractions(left, noise, first), halved_fractions(right, noise, whole - first))
    )


def possible_fractions(noisy: Tensor) -> Tensor:
    """The nearest numbers that are not negative and add up to one (Duchi et al. 2008, figure 1)."""
    ordered = noisy.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(noisy) + 1, dtype=noisy.dtype)
    kept = int((ordered > excess).sum())
    return (noisy - excess[kept - 1]).clamp(min=0)


def _spread_of_changes(noisy: Tensor, noise: float) -> float:
    """The 90% quantile of |change| over 1.645 in units of the range, from half octaves, the widest first."""
    fractions = likely_fractions(noisy, noise)
    if fractions is None:
        return _CHANGE_SHARE
    edges = 2.0 ** (-torch.arange(BINS + 1, dtype=fractions.dtype) / 2)
    beyond = fractions.cumsum(0)
    place = int((beyond < 1 - _MOST).sum())
    if place < BINS - 1:
        inside = (1 - _MOST - float(beyond[place] - fractions[place])) / float(fractions[place])
        return float(edges[place] * 2 ** (-inside / 2)) / _NORMAL
    squares = (fractions[:-1] * edges[:-2] * edges[1:-1]).sum()
    return max(float(squares.sqrt()), _LEAST_CHANGE_SHARE)


def moments(fractions: Tensor) -> tuple[float, float]:
    """Mean and standard deviation in units of the range, values being uniform within their bin."""
    middles = (torch.arange(BINS, dtype=fractions.dtype) + 0.5) / BINS
    mean = (fractions * middles).sum()
    variance = (fractions * (middles - mean).square()).sum() + 1 / (12 * BINS**2)
    return float(mean), float(variance.sqrt())


def _median_and_spread(fractions: Tensor) -> tuple[float, float]:
    """Median, and the 90% quantile of the distance from it over 1.645, in units of the range."""
    pieces = 32  # of every bin, within which values are uniform
    middles = (torch.arange(pieces * BINS, dtype=fractions.dtype) + 0.5) / (pieces * BINS)
    weights = (fractions / pieces).repeat_interleave(pieces)
    median = middles[_first_at(weights, 0.5)]
    if float(fractions.max()) >= _CONCENTRATED:
        return float(median), moments(fractions)[1]
    distances, order = (middles - median).abs().sort()
    return float(median), float(distances[_first_at(weights[order], _MOST)]) / _NORMAL


def _first_at(weights: Tensor, share: float) -> int:
    """Where the sum of ``weights`` reaches ``share``."""
    return min(int((weights.cumsum(0) < share).sum()), len(weights) - 1)


def span_of(bounds: Bounds) -> Tensor:
    """Width of the declared range of every dimension, ``[S]``; 1 where there is none."""
    span = bounds.observation_high - bounds.observation_low
    return torch.where(span > 0, span, torch.ones_like(span))


def assembled(
    columns: ObservationColumns,
    bounds: Bounds,
    states: tuple[Tensor, Tensor, Tensor],
    rewards: tuple[float, float],
) -> Normaliser:
    """Put together middle, scale and change of states, and middle and spread of rewards.

    One-hot parts and actions go by their declared ranges.
    """
    middle, scale, change = states
    for first, size in columns.one_hot:
        part = slice(first, first + size)
        middle[part], scale[part], change[part] = 0.0, 1.0, (2 * (size - 1)) ** 0.5 / size or 1.0
    action, action_scale = torch.zeros_like(bounds.action_low), torch.ones_like(bounds.action_low)
    if not columns.discrete_actions:
        action = (bounds.action_low + bounds.action_high) / 2
        action_scale = (bounds.action_high - bounds.action_low) * _INPUT_SHARE
    reward, spread = (
        torch.tensor([rewards[0]]),
        torch.tensor([rewards[1] if rewards[1] > 0 else 1.0]),
    )
    targets = (
        torch.cat((torch.zeros_like(change), reward)).float(),
        torch.cat((change, spread)).float(),
    )
    return Normaliser(
        torch.cat((middle, action)).float(), torch.cat((scale, action_scale)).float(), *targets
    )


def categories_of(columns: ObservationColumns, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Make `StartModel.block` and ``probabilities`` of the noisy shares of all categories, part after part."""
    block, probabilities = (
        torch.full((columns.observation_size,), CONTINUOUS),
        torch.zeros(columns.observation_size),
    )
    place = 0
    for part, (first, categories) in enumerate(columns.one_hot):
        inside = slice(first, first + categories)
        probabilities[inside] = possible_fractions(shares[place : place + categories]).float()
        block[inside] = part
        place += categories
    return block, probabilities


@register_query(STARTS)
class StartQuery:
    """Asks every unit for the first state of its first trajectory (in the order of ids), scaled to ±1 by the bounds.

    Args:
        columns: which dimensions are one-hot.
        bounds: finite.
    """

    def __init__(self, columns: ObservationColumns, bounds: Bounds) -> None:
        self._columns, self._continuous = columns, columns.continuous
        self._low, self._high = bounds.observation_low, bounds.observation_high
        self._read = 2 * columns.observation_size + len(bounds.action_low) + 2

    def total(self, source: CohortSource) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        moments = self._columns.moments
        total = torch.zeros(moments.numbers, dtype=torch.int64)
        width = moments.numbers + 2 * self._columns.observation_size
        for units in units_in_parts(source, width * _UNIT_BYTES, READ_BYTES * self._read):
            state = source.transitions(units, torch.zeros(len(units), 1, dtype=torch.int64))[0][
                :, 0
            ]
            parts = [
                state[:, first : first + size].argmax(1) for first, size in self._columns.one_hot
            ]
            chosen = (
                torch.stack(parts, 1) if parts else torch.empty(len(units), 0, dtype=torch.int64)
            )
            total += moments.total(self._scaled(state), chosen)
        return total

    def model(self, answer: Tensor) -> StartModel:
        """Make a model of first states from the noisy mean contributions: post-processing.

        Mean and second moments give a covariance, of which the nearest positive semi-definite one is taken: eigenvalues
        that noise made negative become 0.
        """
        size, S = len(self._continuous), self._columns.observation_size
        middle, half = self._middle_and_half()
        mean = answer[:size].clamp(-1, 1)
        second = torch.zeros(size, size, dtype=answer.dtype)
        row, column = torch.triu_indices(size, size)
        pairs = size * (size + 1) // 2
        second[row, column] = second[column, row] = answer[size : size + pairs]
        values, vectors = torch.linalg.eigh(second - mean.outer(mean))
        root = vectors * values.clamp(min=0).sqrt()
        centre, factor = torch.zeros(S), torch.zeros(S, S)
        centre[self._continuous] = (middle + half * mean).float()
        factor[self._continuous, :size] = (half[:, None] * root).float()
        block, probabilities = categories_of(self._columns, answer[size + pairs :])
        return StartModel(
            self._low.float(), self._high.float(), centre, factor, block, probabilities
        )

    def _middle_and_half(self) -> tuple[Tensor, Tensor]:
        low, high = self._low[self._continuous].double(), self._high[self._continuous].double()
        return (low + high) / 2, (high - low) / 2

    def _scaled(self, state: Tensor) -> Tensor:
        middle, half = self._middle_and_half()
        return (state[:, self._continuous].double() - middle) / torch.where(
            half > 0, half, torch.ones_like(half)
        )
