"""Charged queries of all units: scales, residuals, first states and lengths; and what is made of
their answers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from primorl.engine import heads
from primorl.engine.local_update import CohortSource, TrajectorySource
from primorl.model.architecture import Explained
from primorl.model.ensemble import Bounds, Normaliser, Weights, outputs
from primorl.model.features import FARTHEST, Columns
from primorl.model.starts import CONTINUOUS, StartModel
from primorl.privacy.mechanism.mechanism import ONE, BoundedSum, Fractions

_BYTES_AT_ONCE = 256 << 20
"""Bound on what a query's sum holds of one batch of units (at least one), however wide the data
are.

Running out of memory there costs all that was reserved, every time anew. Sums are of whole numbers,
the same in batches of any size.
"""
_READ_BYTES = 12  # of a number of a row that is read: decoded, in the store, and handed out
_ROW_BYTES = 96  # of a number that is computed of a row

_MEAN_ROOT_OF_NORMAL = 0.82218  # E √|x| of a standard normal
# of a product of two, which is often small and seldom large, as changes are
_MEAN_ROOT_OF_CHANGE = 0.676
_WIDEST_CHANGE = 6.0  # in their scale, that the finer query looks at
_LARGEST_RESIDUAL = 2.0  # in scales of the target
_FARTHEST_TARGET = 10.0  # in its scale
_LARGEST_ERROR = 0.2  # of a share that is told
_TOLD = 2.0  # standard deviations of its noise, above which a mean is told from 0
_SEEN = 3.5  # standard deviations of its noise, above which a mean square is told from nothing
_NEGLIGIBLE = 2.0  # standard deviations of its noise, below which a share is told from nothing
_LEAST_CHANGE = 0.1  # scale of changes, at least, in deviations of the number itself
_LEAST_SPREAD = 0.1  # of first states, in deviations of the number
_LEAST_SCALE = 1e-4  # of a number, in half widths of its declared range


def all_rows(source: CohortSource, row_bytes: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield all units, some at a time: inputs ``[U, M, S + A]``, targets, and which rows are their
    own ``[U, M]``.

    Sensitive: for a query's sum only. ``row_bytes`` are held for each of the U M rows of a batch.
    """
    lengths = source.lengths(torch.arange(source.units))
    for units in _padded_batches(lengths.tolist(), row_bytes):
        steps = torch.arange(int(lengths[units].max())).expand(len(units), -1)
        own = steps < lengths[units, None]
        # padding: own row 0
        inputs, targets = source.transitions(units, steps.where(own, 0))
        yield inputs, targets, own


def _padded_batches(lengths: Sequence[int], row_bytes: int) -> Iterator[Tensor]:
    """Cut units into batches that stay within `_BYTES_AT_ONCE` when padded to their longest."""
    first, longest = 0, 0
    for unit, length in enumerate(lengths):
        longest = max(longest, length)
        if unit > first and (unit + 1 - first) * longest * row_bytes > _BYTES_AT_ONCE:
            yield torch.arange(first, unit)
            first, longest = unit, length
    if lengths:
        yield torch.arange(first, len(lengths))


class Windows(NamedTuple):
    """Where a query of scales looks: middle and half width for each of n numbers, largest change
    for each of m dimensions, float64; public or released.
    """

    middle: Tensor
    half: Tensor
    change: Tensor


class ScaleMeans(NamedTuple):
    """Parts of an answer to a query of scales: means of z, z², √c and c², shares of categories."""

    mean: Tensor
    square: Tensor
    root: Tensor
    change_square: Tensor
    shares: Tensor


class NoisyAnswer(NamedTuple):
    """Estimated numbers with their standard errors."""

    value: Tensor
    error: Tensor


class Scales(NamedTuple):
    """Mean and deviation of every number, whether noise hides how much it varies, scale of every
    change, and shares of categories.
    """

    mean: Tensor
    deviation: Tensor
    hidden: Tensor
    change: Tensor
    shares: NoisyAnswer


@dataclass(frozen=True)
class ScalesQuery:
    """Asks every unit for mean z and z² of every number, mean √c and c² of every change, and shares
    of categories.

    A number is a dimension of the observation, a continuous action or the reward. z is its distance
    from the middle of a window in half widths of it, held within ±1; c the size of a change of the
    observation in such a width, at most 1. It is asked twice: the windows are the declared ranges
    at first; in the ``finer`` query those that the first answer gives, so that a column that is
    much narrower than its range is seen too.
    """

    columns: Columns
    bounds: Bounds
    windows: Windows
    finer: bool = False

    @classmethod
    def from_ranges(cls, columns: Columns, bounds: Bounds) -> "ScalesQuery":
        """Make the query in windows of the declared ranges, which are finite."""
        chosen = columns.continuous
        sides = []
        for observation, action, reward in (
            (bounds.observation_low, bounds.action_low, bounds.reward_low),
            (bounds.observation_high, bounds.action_high, bounds.reward_high),
        ):
            actions = action[:0] if columns.discrete else action
            sides.append(torch.cat((observation[chosen], actions, torch.tensor([reward]))).double())
        low, high = sides
        half = torch.where(high > low, (high - low) / 2, 1.0)
        span = (bounds.observation_high - bounds.observation_low)[chosen].double()
        windows = Windows((low + high) / 2, half, torch.where(span > 0, span, 1.0))
        return cls(columns, bounds, windows)

    @property
    def contribution(self) -> BoundedSum:
        """A unit's contribution."""
        name = heads.FINER_SCALES if self.finer else heads.SCALES
        return heads.contributions(self.columns)[name]

    def total(self, source: CohortSource) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Mechanism.answer` may see it."""
        contribution, S = self.contribution, self.columns.observations
        chosen, parts = self.columns.continuous, self.columns.all_one_hot
        middle, half, widest = (each.float() for each in self.windows)
        total = torch.zeros(contribution.size, dtype=torch.int64)
        for inputs, targets, own in all_rows(source, _ROW_BYTES * contribution.size):
            actions = inputs[..., S : S if self.columns.discrete else None]
            numbers = torch.cat((inputs[..., chosen], actions, targets[..., S : S + 1]), -1)
            z = ((numbers - middle) / half).clamp(-1.0, 1.0)
            change = (targets[..., chosen].abs() / widest).clamp(max=1.0)
            categories = [inputs[..., begin : begin + n].clamp(0.0, 1.0) for begin, n in parts]
            values = torch.cat((z, z * z, _roots_and_squares(change), *categories), -1)
            total += contribution.total(_mean_of_own_rows(values, own))
        return total


@dataclass(frozen=True)
class ScalesAnswer:
    """An answer to a query of scales, with the public standard deviation of the noise on every
    number of it.
    """

    query: ScalesQuery
    answer: Tensor
    noise: float

    @property
    def means(self) -> ScaleMeans:
        """The parts of the answer."""
        numbers, changes = len(self.query.windows.middle), len(self.query.windows.change)
        sizes = [numbers, numbers, changes, changes]
        return ScaleMeans(*torch.split(self.answer, [*sizes, len(self.answer) - sum(sizes)]))

    @property
    def variance(self) -> Tensor:
        """Variance of every number, in half widths of its window."""
        return self.means.square - self.means.mean.clamp(-1, 1).square()

    def scale(self, value: Tensor, unit: Tensor) -> NoisyAnswer:
        """Estimate numbers in the data's units, of which the answer has ``value`` in ``unit``."""
        return NoisyAnswer(unit * value, unit * max(self.noise, 1e-9))

    def narrow(self) -> ScalesQuery:
        """Make the query to be asked next: post-processing."""
        scales, half = combine_scales([self]), self.query.windows.half
        width = (heads.WINDOW * scales.deviation).minimum(half)
        change = (_WIDEST_CHANGE * scales.change).minimum(self.query.windows.change)
        windows = Windows(scales.mean, width, change)
        return replace(self.query, windows=windows, finer=True)


def make_normaliser(first: ScalesAnswer, finer: ScalesAnswer) -> Normaliser:
    """Make the maps from two answers: post-processing.

    Changes are centred on 0 and scaled by at least a tenth of the number's own deviation. One-hot
    inputs are centred on their frequencies, and their changes are divided by √(2 (n - 1)) / n, the
    deviation that they have if every step draws one of n categories anew.
    """
    query = first.query
    columns, S = query.columns, query.columns.observations
    mean, deviation, _, change, (shares, _) = combine_scales([first, finer])
    chosen, known = columns.continuous, len(columns.continuous)
    # Rare large rewards lie outside the second window: the first one counts where it surely saw
    # them.
    seen = float(first.variance[-1]) - _SEEN * first.noise
    spread = math.sqrt(max(float(query.windows.half[-1]) ** 2 * seen, float(deviation[-1]) ** 2))

    inputs = S + columns.actions
    input_mean, input_scale = torch.zeros(inputs), torch.ones(inputs)
    target_mean, target_scale = torch.zeros(S + 1), torch.ones(S + 1)
    input_mean[chosen], input_scale[chosen] = mean[:known].float(), deviation[:known].float()
    target_scale[chosen] = change.maximum(_LEAST_CHANGE * deviation[:known]).float()
    target_mean[S], target_scale[S] = float(mean[-1]), spread if spread > 0 else 1.0
    if not columns.discrete:
        input_mean[S:], input_scale[S:] = mean[known:-1].float(), deviation[known:-1].float()
    for begin, size in columns.one_hot:
        target_scale[begin : begin + size] = (2 * (size - 1)) ** 0.5 / size or 1.0
    place = 0
    for begin, size in columns.all_one_hot:
        input_mean[begin : begin + size] = project_to_simplex(shares[place : place + size]).float()
        place += size
    return Normaliser(input_mean, input_scale, target_mean, target_scale)


def combine_scales(answers: Sequence[ScalesAnswer]) -> Scales:
    """Estimate scales from all answers, each weighted by its precision.

    One standard deviation of the noise is added to variances, half of one to roots: features whose
    scale is too small make rounds diverge, while one that is twice too large is still learned.
    """
    middle, half, widest = answers[0].query.windows
    means, variances, roots, shares = [], [], [], []
    large = torch.zeros(len(widest), dtype=torch.float64)
    for each in answers:
        own, found = each.query.windows, each.means
        mean = each.scale(found.mean, own.half)
        means.append(NoisyAnswer(own.middle + mean.value, mean.error))
        variances.append(each.scale(each.variance, own.half.square()))
        roots.append(each.scale(found.root, own.change.sqrt()))
        shares.append(each.scale(found.shares, torch.ones_like(found.shares)))
        # Rare large changes: their root says little, their square much.
        seen = torch.where(found.change_square > _SEEN * each.noise, found.change_square, 0.0)
        large = large.maximum(own.change * seen.sqrt())
    variance, root = _combine(variances), _combine(roots)
    deviation = (variance.value.clamp(min=0) + variance.error).sqrt()
    usual = ((root.value.clamp(min=0) + root.error / 2) / _MEAN_ROOT_OF_CHANGE).square()
    return Scales(
        mean=_combine(means).value.maximum(middle - half).minimum(middle + half),
        deviation=deviation.maximum(_LEAST_SCALE * half),
        hidden=variance.value < variance.error,
        change=usual.maximum(large).minimum(widest).maximum(_LEAST_SCALE * widest),
        shares=_combine(shares),
    )


def _combine(estimates: Sequence[NoisyAnswer]) -> NoisyAnswer:
    """Average estimates, each weighted by its precision."""
    precision = sum((each.error**-2 for each in estimates), torch.zeros(()))
    whole = sum((each.value * each.error**-2 for each in estimates), torch.zeros(()))
    return NoisyAnswer(whole / precision, precision.rsqrt())


def _roots_and_squares(size: Tensor) -> Tensor:
    """Return the roots and squares of sizes ``[.., n]``: ``[.., 2 n]``."""
    return torch.cat((size.sqrt(), size.square()), -1)


def _mean_of_own_rows(values: Tensor, own: Tensor) -> Tensor:
    """Average over every unit's own rows, ``[U, M, n]`` to float64 ``[U, n]``; NaN where a row is
    not finite.

    Rows are rounded to whole multiples of 2⁻²⁰, so that their sum is exact: its last bits cannot
    depend on how long other units are.
    """
    whole, own = (values.double() * ONE).round(), own.unsqueeze(-1)
    finite = (whole.isfinite() | ~own).all(1)
    total = torch.where(own & whole.isfinite(), whole, 0.0).to(torch.int64).sum(1)
    return torch.where(finite, total.double() / (ONE * own.sum(1).clamp(min=1)), math.nan)


def _read_bytes(normaliser: Normaliser) -> int:
    """Return the memory of a row while it is read, with its flag."""
    return _READ_BYTES * (len(normaliser.input_mean) + len(normaliser.target_mean) + 1)


@dataclass(frozen=True)
class _VectorQuery:
    """Asks every unit for a vector; ``what`` is its name in ``privacy.json``."""

    what: ClassVar[str]
    columns: Columns

    @property
    def contribution(self) -> BoundedSum:
        """A unit's contribution."""
        return heads.contributions(self.columns)[self.what]


class PredictionQuery(_VectorQuery, ABC):
    """Asks every unit how its targets lie to what is predicted."""

    @property
    def targets(self) -> int:
        """Numbers that are predicted of each row: changes of the observation, and the reward."""
        return self.columns.observations + 1

    @abstractmethod
    def summarise(self, inputs: Tensor, predicted: Tensor, known: Tensor) -> Tensor:
        """Summarise one unit's rows, ``[rows, inputs]``, and twice ``[rows, targets]``; all are
        standardised.
        """

    def total(self, source: CohortSource, normaliser: Normaliser, weights: Weights) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Mechanism.answer` may see it."""
        contribution, targets = self.contribution, self.targets
        total = torch.zeros(contribution.size, dtype=torch.int64)
        row = _ROW_BYTES * (weights[0].shape[1] + 4 * targets + contribution.size)
        maps, parts = normaliser.to(torch.device("cpu")), tuple(weight.cpu() for weight in weights)
        for inputs, known, own in all_rows(source, row):
            features, wanted = maps.inputs(inputs), maps.targets(known)[..., :targets]
            # Products and means unit by unit: their last bits could depend on how many rows others
            # have.
            found = []
            for unit, rows in enumerate(own.sum(1).tolist()):
                seen = features[unit : unit + 1, :rows].expand(len(parts[0]), -1, -1).contiguous()
                predicted = self.predict(parts, seen)
                found.append(self.summarise(seen[0], predicted, wanted[unit, :rows]))
            total += contribution.total(torch.stack(found))
        return total

    def predict(self, weights: Weights, inputs: Tensor) -> Tensor:
        """Average the members' means: ``[N, rows, inputs]`` to ``[rows, targets]``."""
        return outputs(weights, inputs)[..., : self.targets].mean(0)


class ResidualQuery(PredictionQuery):
    """Asks every unit how far its targets lie from the heads' prediction: mean √r and r² of each
    target.

    r is in twice the scale of the target, and at most 1.
    """

    what = heads.RESIDUALS

    def summarise(self, inputs: Tensor, predicted: Tensor, known: Tensor) -> Tensor:
        """See `PredictionQuery.summarise`."""
        size = ((predicted - known).abs() / _LARGEST_RESIDUAL).clamp(max=1.0).double()
        return _roots_and_squares(size).mean(0)

    def spread(self, answer: Tensor, noise: float) -> Tensor:
        """Estimate the residuals' standard deviations ``[targets]`` in scales of the target:
        post-processing.

        The root tells a small spread from the noise, the square one that few large residuals make.
        """
        roots, squares = answer.clamp(min=0).chunk(2)
        few = torch.where(squares > _SEEN * noise, squares.sqrt(), 0.0)
        usual = (roots / _MEAN_ROOT_OF_NORMAL).square()
        return (_LARGEST_RESIDUAL * usual.maximum(few)).float()


class ExplainedQuery(PredictionQuery):
    """Asks every unit how much its targets vary and what the model leaves of it: mean y, y² and g²
    of each target.

    y is the target in its scale and g its distance from the mean of the members' means, both held
    within ±10. Held closer, rare large values would hardly count, though they may be most of the
    variance. A unit is scaled as a whole, so that a ratio of the three stays what it is. Of the
    reward more is asked, as it may bar a trial: it weighs as much as all other targets together.
    """

    what = heads.EXPLAINED

    @cached_property
    def weights(self) -> Tensor:
        """Weight of each target in a unit's contribution, float64 ``[targets]``."""
        weights = torch.full((self.targets,), (self.targets - 1) ** -0.5, dtype=torch.float64)
        weights[-1] = 1.0
        return weights

    def summarise(self, inputs: Tensor, predicted: Tensor, known: Tensor) -> Tensor:
        """See `PredictionQuery.summarise`."""
        pair = torch.stack((known, predicted - known)).double()
        target, gap = pair.clamp(-_FARTHEST_TARGET, _FARTHEST_TARGET)
        asked = torch.stack((target, target.square(), gap.square())) * self.weights
        return asked.mean(1).flatten()

    def explain(self, answer: Tensor, noise: float) -> tuple[Explained | None, ...]:
        """Estimate the share of each target's variance that the model explains: post-processing.

        It is 1 - E g² / (E y² - (E y)²), with its standard error by the noise on every number of
        the answer, to first order. None: the noise hides it.
        """
        mean, square, left = answer.view(3, -1) / self.weights
        own = noise / self.weights
        variance = square - mean.square()
        of_variance = own * (1 + 4 * mean.square()).sqrt()
        open_share = (left / variance).clamp(0, 1)
        error = (own.square() + (open_share * of_variance).square()).sqrt() / variance
        seen = (variance > _SEEN * of_variance) & (error <= _LARGEST_ERROR)
        found = zip(seen.tolist(), (1 - open_share).tolist(), error.tolist(), strict=True)
        return tuple(
            Explained(share=share, error=one) if known else None for known, share, one in found
        )


class RewardOffsetQuery(PredictionQuery):
    """Asks every unit by how much its rewards exceed the heads' prediction: their mean, in the
    scale of the reward.

    The clip of the rounds takes away what rare rewards of large size would add. A unit's mean over
    all its rows is small, and hardly clipped.
    """

    what = heads.REWARD_OFFSET

    def summarise(self, inputs: Tensor, predicted: Tensor, known: Tensor) -> Tensor:
        """See `PredictionQuery.summarise`."""
        return (known - predicted)[:, -1:].double().mean(0)

    def offset(self, answer: Tensor, noise: float) -> float:
        """Return what to add to a predicted reward, 0 where noise could have made the answer:
        post-processing.
        """
        found = float(answer[0])
        return found if abs(found) > _TOLD * noise else 0.0


class FirstStatesQuery(_VectorQuery):
    """Asks every unit for the first state of its first trajectory (in the order of ids),
    standardised: z, z², category.

    So a mean and a standard deviation of every number are known, and the frequencies of categories.
    """

    what = heads.FIRST_STATES

    def total(self, source: CohortSource, normaliser: Normaliser, weights: Weights) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Mechanism.answer` may see it."""
        chosen, S = self.columns.continuous, self.columns.observations
        mean, scale = (part[:S].cpu() for part in (normaliser.input_mean, normaliser.input_scale))
        total = torch.zeros(self.contribution.size, dtype=torch.int64)
        row = _ROW_BYTES * self.contribution.size + _read_bytes(normaliser)
        for units in torch.split(torch.arange(source.units), max(1, _BYTES_AT_ONCE // row)):
            inputs, _ = source.transitions(units, torch.zeros(len(units), 1, dtype=torch.int64))
            state = inputs[:, 0, :S]
            z = ((state - mean) / scale)[:, chosen].clamp(-FARTHEST, FARTHEST)
            categories = [state[:, first : first + size] for first, size in self.columns.one_hot]
            parts = (z, (z.square() - 1) / math.sqrt(2), *categories)
            total += self.contribution.total(torch.cat(parts, 1))
        return total

    def model(self, answer: Tensor, normaliser: Normaliser, bounds: Bounds) -> StartModel:
        """Make a model of first states: independent normals within the bounds, and categories.

        Post-processing.
        """
        chosen, S = self.columns.continuous, self.columns.observations
        mean, square = answer[: len(chosen)], answer[len(chosen) : 2 * len(chosen)]
        variance = 1 + math.sqrt(2) * square - mean.square()
        deviation = variance.clamp(min=_LEAST_SPREAD**2).sqrt()
        centre, factor = torch.zeros(S), torch.zeros(S)
        middle, scale = normaliser.input_mean[:S][chosen], normaliser.input_scale[:S][chosen]
        centre[chosen] = middle + scale * mean.float()
        factor[chosen] = scale * deviation.float()
        block, probabilities = torch.full((S,), CONTINUOUS), torch.zeros(S)
        place = 2 * len(chosen)
        for part, (first, size) in enumerate(self.columns.one_hot):
            inside = slice(first, first + size)
            probabilities[inside] = project_to_simplex(answer[place : place + size]).float()
            block[inside] = part
            place += size
        low, high = bounds.observation_low.float(), bounds.observation_high.float()
        return StartModel(low, high, centre, torch.diag(factor), block, probabilities)


def project_to_simplex(noisy: Tensor) -> Tensor:
    """Find the nearest numbers that are not negative and add up to one (Duchi et al. 2008, figure
    1).
    """
    ordered = noisy.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(noisy) + 1, dtype=noisy.dtype)
    kept = int((ordered > excess).sum())
    return (noisy - excess[kept - 1]).clamp(min=0)


@dataclass(frozen=True)
class LengthsQuery:
    """Asks every unit for the shares of its trajectories that end in each part of the horizon,
    terminated or cut.
    """

    what = heads.LENGTHS
    horizon: int
    contribution: ClassVar[Fractions] = heads.LENGTH_CONTRIBUTION

    def total(self, source: CohortSource, normaliser: Normaliser, weights: Weights) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Mechanism.answer` may see it."""
        assert isinstance(source, TrajectorySource), "the store was opened for trajectories"
        parts, flag, first = heads.PARTS, len(normaliser.target_mean), 0
        total = torch.zeros(2 * parts, dtype=torch.int64)
        row_bytes = 2 * parts * 32 + _ROW_BYTES + _read_bytes(normaliser)
        for _, targets, own in all_rows(source, row_bytes):
            units, place = torch.arange(first, first + len(own)), torch.arange(own.shape[1])
            first += len(own)
            begins = source.begins(units, place.expand(len(own), -1).where(own, 0)) & own
            begins[:, 0] = True
            step = place - torch.where(begins, place, 0).cummax(1).values
            last = own.clone()  # an own row before the begin of another trajectory or padding
            last[:, :-1] &= begins[:, 1:] | ~own[:, 1:]
            bins = (step * parts // self.horizon).clamp(0, parts - 1)
            bins += parts * (targets[..., flag] > 0)
            total += self.contribution.total(bins, last)
        return total

    def survival(self, answer: Tensor, noise: float) -> Tensor:
        """Estimate S(t), the share of trajectories that go on for more than t steps, float32 ``[2,
        horizon]``: post-processing.

        First of those that do not terminate, by the product-limit estimate (Kaplan and Meier 1958);
        then of all. Each end is at the upper edge of its bin. ``answer`` has 2 · PARTS numbers,
        ``noise`` is its public standard deviation.
        """
        fractions = reconcile_halves(answer.flatten(), noise)  # a paid answer may be [1, 2 · PARTS]
        edges = -(-torch.arange(1, heads.PARTS + 1) * self.horizon // heads.PARTS)
        ends = torch.zeros(2, self.horizon + 1, dtype=fractions.dtype)
        ends.index_add_(1, edges, fractions.view(2, heads.PARTS))
        cut, ended = ends[0], ends.sum(0)
        beyond = ended.flip(0).cumsum(0).flip(0) - ended
        stays = 1 - cut / (beyond + cut).clamp(min=1e-12)
        unended = stays[: self.horizon].clamp(0, 1).cumprod(0)
        return torch.stack((unended, 1 - ended.cumsum(0)[: self.horizon])).clamp(0, 1).float()


LateQuery = PredictionQuery | FirstStatesQuery | LengthsQuery
"""Queries that are asked after the rounds."""


def reconcile_halves(noisy: Tensor, noise: float, whole: float = 1.0) -> Tensor:
    """Make noisy fractions agree with their sum, ``whole``, half by half, down to the bins.

    Of each half's two halves the noisy sums are made to add up; one that is within two standard
    deviations of nothing gives all to the other, and if both are, they share alike. So mass that is
    spread thinly over many bins is kept, only less precisely where it lies, and noise in empty bins
    is not: a standard deviation sees both.

    Args:
        noisy: ``[n]``, n a power of two.
        noise: standard deviation of each.
        whole: their true sum.
    """
    if len(noisy) == 1:
        return noisy.new_tensor([whole])
    left, right = noisy.chunk(2)
    first = min(max((whole + float(left.sum() - right.sum())) / 2, 0.0), whole)
    # the mean of two such sums has half their variance
    least = _NEGLIGIBLE * noise * (len(left) / 2) ** 0.5
    if first < least and whole - first < least:
        first = whole / 2
    elif first < least:
        first = 0.0
    elif whole - first < least:
        first = whole
    parts = reconcile_halves(left, noise, first), reconcile_halves(right, noise, whole - first)
    return torch.cat(parts)
