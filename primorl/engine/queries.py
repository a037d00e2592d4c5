"""Charged queries of all units: scales, residuals, first states and lengths; and what is made of
their answers.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from primorl.engine.heads import (
    FINER_SCALES,
    FIRST_STATES,
    LENGTHS,
    PARTS,
    RESIDUALS,
    SCALES,
    WINDOW,
    of_first_states,
    of_lengths,
    of_residuals,
    of_scales,
)
from primorl.engine.local_update import CohortSource, TrajectorySource
from primorl.model.ensemble import Bounds, Normaliser, Weights, outputs
from primorl.model.features import FARTHEST, OneHot, one_hot_inputs
from primorl.model.starts import CONTINUOUS, StartModel
from primorl.privacy.mechanism.queries import ONE, BoundedSum, Fractions, register_query

_HALF_DEVIATIONS = 2.0
BYTES_AT_ONCE = 256 << 20
"""Bound on what a query's sum holds of one batch of units (at least one), however wide the data
are.

Running out of memory there costs all that was reserved, every time anew. Sums are of whole numbers,
the same in batches of any size.
"""
READ_BYTES = 12  # of a number of a row that is read: decoded, in the store, and handed out


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


def all_rows(
    source: CohortSource, unit_bytes: int, row_bytes: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield all units, some at a time: inputs ``[U, M, S + A]``, targets, and which rows are their
    own ``[U, M]``.

    Sensitive: for a query's sum only. As many at a time as stay within ``BYTES_AT_ONCE``, but one
    in any case.

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
        # padding: own row 0
        inputs, targets = source.transitions(torch.arange(first, last), steps.where(own, 0))
        yield inputs, targets, own
        first = last


def units_in_parts(source: CohortSource, unit_bytes: int, row_bytes: int) -> Iterator[Tensor]:
    """Yield all units in parts, for queries that need one row of each.

    A store on disk reads whole units for it, so a part is bounded by all rows of its units: without
    its first unit it stays within ``BYTES_AT_ONCE``.

    Args:
        source: the private units.
        unit_bytes: held for each unit of a part.
        row_bytes: held for each of its rows.
    """
    units = torch.arange(source.units)
    part = (unit_bytes + row_bytes * source.lengths(units)).cumsum(0) // BYTES_AT_ONCE
    return (some for some in torch.split(units, torch.bincount(part).tolist()) if len(some))


def halved_fractions(noisy: Tensor, noise: float, whole: float = 1.0) -> Tensor:
    """Noisy fractions that are made to agree with their sum, ``whole``, half by half, down to the
    bins.

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
    least = _HALF_DEVIATIONS * noise * (len(left) / 2) ** 0.5
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


def span_of(bounds: Bounds) -> Tensor:
    """Width of the declared range of every dimension, ``[S]``; 1 where there is none."""
    span = bounds.observation_high - bounds.observation_low
    return torch.where(span > 0, span, torch.ones_like(span))


def categories_of(columns: ObservationColumns, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Make `StartModel.block` and ``probabilities`` of the noisy shares of all categories, part
    after part.
    """
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


_ROOT_OF_NORMAL = 0.82218  # E √|x| of a standard normal
# of a product of two, which is often small and seldom large, as changes are
_ROOT_OF_CHANGE = 0.676
_WIDEST_CHANGE = 6.0  # in their scale, that `FINER_SCALES` looks at
_LARGEST_RESIDUAL = 2.0  # in scales of the target
_SEEN = 3.5  # standard deviations of its noise, above which a mean square is told from nothing
_LEAST_CHANGE = 0.1  # scale of changes, at least, in deviations of the number itself
_LEAST_SPREAD = 0.1
_LEAST = 1e-4  # scale of a number, at least, in half widths of its declared range
_ROW_BYTES = 96


@dataclass(frozen=True)
class ScalesQuery:
    """Asks every unit for mean z and z² of every number, mean √c and c² of every change, and shares
    of categories.

    A number is a dimension of the observation, a continuous action or the reward. z is its distance
    from the middle of a window in half widths of it, held within ±1; c the size of a change of the
    observation in such a width, at most 1. It is asked twice: the windows are the declared ranges
    at first, then those that the first answer gives, so that a column that is much narrower than
    its range is seen too.

    Attributes:
        columns: which dimensions are one-hot.
        bounds: finite.
        windows: middles and half widths of n numbers, and largest changes of m dimensions, float64
            ``[2 n + m]``, all public or released.
        finer: asked for the second time.
    """

    columns: ObservationColumns
    bounds: Bounds
    windows: Tensor
    finer: bool = False

    @classmethod
    def declared(
        cls, columns: ObservationColumns, bounds: Bounds, *, finer: bool = False
    ) -> "ScalesQuery":
        """The query in windows of the declared ranges."""
        chosen = columns.continuous
        low = [bounds.observation_low[chosen], bounds.action_low, torch.tensor([bounds.reward_low])]
        high = [
            bounds.observation_high[chosen],
            bounds.action_high,
            torch.tensor([bounds.reward_high]),
        ]
        if columns.discrete_actions:
            del low[1], high[1]
        least, most = torch.cat(low).double(), torch.cat(high).double()
        half = torch.where(most > least, (most - least) / 2, 1.0)
        return cls(
            columns,
            bounds,
            torch.cat(((least + most) / 2, half, span_of(bounds)[chosen].double())),
            finer,
        )

    @property
    def contribution(self) -> BoundedSum:
        """A unit's contribution."""
        sizes = self.columns.observation_size, len(self.bounds.action_low), self.columns.one_hot
        return of_scales(*sizes, discrete=self.columns.discrete_actions, finer=self.finer)

    def total(self, source: CohortSource) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        contribution, S = self.contribution, self.columns.observation_size
        chosen, parts = self.columns.continuous, self._one_hot
        middle, half, widest = (each.float() for each in self._split(self.windows))
        total = torch.zeros(contribution.size, dtype=torch.int64)
        for inputs, targets, own in all_rows(source, 0, _ROW_BYTES * contribution.size):
            actions = inputs[..., S : S if self.columns.discrete_actions else None]
            numbers = torch.cat((inputs[..., chosen], actions, targets[..., S : S + 1]), -1)
            z = ((numbers - middle) / half).clamp(-1.0, 1.0)
            share = (targets[..., chosen].abs() / widest).clamp(max=1.0)
            categories = [
                inputs[..., first : first + size].clamp(0.0, 1.0) for first, size in parts
            ]
            total += contribution.total(
                _means(torch.cat((z, z * z, _powers(share), *categories), -1), own)
            )
        return total

    def narrowed(self, answer: Tensor, noise: float) -> "ScalesQuery":
        """Return the query to be asked next: post-processing."""
        _, half, widest = self._split(self.windows)
        mean, deviation, change, _ = _combined_scales([AnsweredScales(self, answer, noise)])
        windows = (
            mean,
            (WINDOW * deviation).minimum(half),
            (_WIDEST_CHANGE * change).minimum(widest),
        )
        return replace(self, windows=torch.cat(windows), finer=True)

    @property
    def _one_hot(self) -> tuple[tuple[int, int], ...]:
        columns = self.columns
        actions = len(self.bounds.action_low)
        return one_hot_inputs(
            columns.one_hot, columns.observation_size, actions, discrete=columns.discrete_actions
        )

    def _split(self, windows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        changes = len(self.columns.continuous)
        numbers = (len(windows) - changes) // 2
        return windows[:numbers], windows[numbers : 2 * numbers], windows[2 * numbers :]

    def _parts(self, answer: Tensor) -> tuple[Tensor, ...]:
        """Means of z and z², of √c and c², and shares of categories."""
        changes = len(self.columns.continuous)
        numbers = (len(self.windows) - changes) // 2
        sizes = [numbers, numbers, changes, changes]
        return torch.split(answer, [*sizes, len(answer) - sum(sizes)])


@dataclass(frozen=True)
class AnsweredScales:
    """A query of scales with its answer, and the standard deviation of the noise on every number of
    it, public.
    """

    query: ScalesQuery
    answer: Tensor
    noise: float

    @property
    def variance(self) -> Tensor:
        """Variance of every number, in half widths of its window."""
        mean, square, *_ = self.query._parts(self.answer)
        return square - mean.clamp(-1, 1).square()

    @property
    def noise_of_one(self) -> float:
        """The noise, above 0 where none was added."""
        return max(self.noise, 1e-9)


def normaliser_of_scales(first: AnsweredScales, finer: AnsweredScales) -> Normaliser:
    """Make the maps from two answers: post-processing.

    Changes are centred on 0 and scaled by at least a tenth of the number's own deviation. One-hot
    inputs are centred on their frequencies, and their changes are divided by √(2 (n - 1)) / n, the
    deviation that they have if every step draws one of n categories anew.
    """
    query = first.query
    columns, S = query.columns, query.columns.observation_size
    mean, deviation, change, shares = _combined_scales([first, finer])
    chosen, known = columns.continuous, len(columns.continuous)
    _, half, _ = query._split(query.windows)
    # Rare large rewards lie outside the second window: the first one counts where it surely saw
    # them.
    wide = float(half[-1]) ** 2 * (float(first.variance[-1]) - _SEEN * first.noise)
    spread = math.sqrt(max(wide, float(deviation[-1]) ** 2))

    inputs = S + len(query.bounds.action_low)
    input_mean, input_scale = torch.zeros(inputs), torch.ones(inputs)
    target_mean, target_scale = torch.zeros(S + 1), torch.ones(S + 1)
    input_mean[chosen], input_scale[chosen] = mean[:known].float(), deviation[:known].float()
    target_scale[chosen] = change.maximum(_LEAST_CHANGE * deviation[:known]).float()
    target_mean[S], target_scale[S] = float(mean[-1]), spread if spread > 0 else 1.0
    if not columns.discrete_actions:
        input_mean[S:], input_scale[S:] = mean[known:-1].float(), deviation[known:-1].float()
    for begin, size in columns.one_hot:
        target_scale[begin : begin + size] = (2 * (size - 1)) ** 0.5 / size or 1.0
    place = 0
    for begin, size in query._one_hot:
        frequencies = possible_fractions(shares[place : place + size])
        input_mean[begin : begin + size] = frequencies.float()
        place += size
    return Normaliser(input_mean, input_scale, target_mean, target_scale)


def hidden_by_noise(first: AnsweredScales, finer: AnsweredScales) -> Tensor:
    """Tell of each number whether noise hides how much it varies, bool ``[n]``."""
    variance, doubt = _combined(_variances([first, finer]))
    return variance < doubt


def _combined_scales(asked: list[AnsweredScales]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute mean and deviation of numbers, scale of changes, shares of categories, from all
    answers.

    One standard deviation of the noise is added to variances, half of one to roots: features whose
    scale is too small make rounds diverge, while one that is twice too large is still learned.
    """
    first = asked[0].query
    middle, half, widest = first._split(first.windows)
    means, roots, shares = [], [], []
    large = torch.zeros(len(widest), dtype=torch.float64)
    for each in asked:
        own_middle, own_half, own_widest = each.query._split(each.query.windows)
        mean, _, root, square, share = each.query._parts(each.answer)
        one = each.noise_of_one
        means.append((own_middle + own_half * mean, own_half * one))
        roots.append((own_widest.sqrt() * root, own_widest.sqrt() * one))
        shares.append((share, torch.full_like(share, one)))
        # Rare large changes: their root says little, their square much.
        seen = torch.where(square > _SEEN * each.noise, square, 0.0).sqrt()
        large = large.maximum(own_widest * seen)
    variance, doubt = _combined(_variances(asked))
    deviation = (variance.clamp(min=0) + doubt).sqrt().maximum(_LEAST * half)
    root, doubt = _combined(roots)
    usual = ((root.clamp(min=0) + doubt / 2) / _ROOT_OF_CHANGE).square()
    change = usual.maximum(large).minimum(widest).maximum(_LEAST * widest)
    mean = _combined(means)[0].maximum(middle - half).minimum(middle + half)
    return mean, deviation, change, _combined(shares)[0]


def _variances(asked: list[AnsweredScales]) -> list[tuple[Tensor, Tensor]]:
    """Return variances of the numbers by every answer, and their standard errors."""
    found = []
    for each in asked:
        square = each.query._split(each.query.windows)[1].square()
        found.append((square * each.variance, square * each.noise_of_one))
    return found


def _combined(estimates: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean of estimates, each weighted by its precision, and its standard error."""
    precision = sum((error.square().reciprocal() for _, error in estimates), torch.zeros(()))
    whole = sum((value / error.square() for value, error in estimates), torch.zeros(()))
    return whole / precision, precision.rsqrt()


register_query(SCALES)(ScalesQuery)
register_query(FINER_SCALES)(ScalesQuery)


def _powers(size: Tensor) -> Tensor:
    """Roots and squares of sizes ``[.., n]``: ``[.., 2 n]``."""
    return torch.cat((size.sqrt(), size.square()), -1)


def _means(values: Tensor, own: Tensor) -> Tensor:
    """Mean over every unit's own rows, ``[U, M, n]`` to float64 ``[U, n]``; not finite where a row
    is not.

    Rows are rounded to whole multiples of 2⁻²⁰, so that their sum is exact: its last bits cannot
    depend on how long other units are.
    """
    whole = (values.double() * ONE).round()
    finite = (whole.isfinite() | ~own.unsqueeze(-1)).all(1)
    total = torch.where(own.unsqueeze(-1) & whole.isfinite(), whole, 0.0).to(torch.int64).sum(1)
    mean = total.double() / (ONE * own.sum(1, keepdim=True).clamp(min=1))
    return torch.where(finite, mean, math.nan)


def _read_bytes(normaliser: Normaliser) -> int:
    """Memory of a row while it is read, with its flag."""
    return READ_BYTES * (len(normaliser.input_mean) + len(normaliser.target_mean) + 1)


@register_query(RESIDUALS)
@dataclass(frozen=True)
class ResidualQuery:
    """Asks every unit how far its targets lie from the heads' prediction: mean √r and r² of each
    target.

    r is in twice the scale of the target, and at most 1.
    """

    targets: int

    @property
    def contribution(self) -> BoundedSum:
        """A unit's contribution."""
        return of_residuals(self.targets)

    def total(self, source: CohortSource, normaliser: Normaliser, weights: Weights) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        total = torch.zeros(self.contribution.size, dtype=torch.int64)
        row = _ROW_BYTES * (weights[0].shape[1] + 4 * self.targets)
        maps, heads = normaliser.to(torch.device("cpu")), tuple(weight.cpu() for weight in weights)
        for inputs, targets, own in all_rows(source, 0, row):
            features, known = maps.inputs(inputs), maps.targets(targets)[..., : self.targets]
            # Products and means unit by unit: their last bits could depend on how many rows others
            # have.
            gap, lengths = torch.zeros_like(known), own.sum(1).tolist()
            for unit, rows in enumerate(lengths):
                found = outputs(heads, features[unit : unit + 1, :rows].contiguous())
                torch.sub(found[0, :, : self.targets], known[unit, :rows], out=gap[unit, :rows])
            sizes = _powers((gap.abs() / _LARGEST_RESIDUAL).clamp(max=1.0).double())
            means = [sizes[unit, :rows].mean(0) for unit, rows in enumerate(lengths)]
            total += self.contribution.total(torch.stack(means))
        return total

    def spread(self, answer: Tensor, noise: float) -> Tensor:
        """Standard deviations of the residuals ``[targets]`` in scales of the target:
        post-processing.

        The root tells a small spread from the noise, the square one that few large residuals make.
        """
        roots, squares = answer.clamp(min=0).chunk(2)
        few = torch.where(squares > _SEEN * noise, squares.sqrt(), 0.0)
        return (_LARGEST_RESIDUAL * (roots / _ROOT_OF_NORMAL).square().maximum(few)).float()


@register_query(FIRST_STATES)
@dataclass(frozen=True)
class FirstStatesQuery:
    """Asks every unit for the first state of its first trajectory (in the order of ids),
    standardised: z, z², category.

    So a mean and a standard deviation of every number are known, and the frequencies of categories.
    """

    columns: ObservationColumns

    @property
    def contribution(self) -> BoundedSum:
        """A unit's contribution."""
        return of_first_states(self.columns.observation_size, self.columns.one_hot)

    def total(self, source: CohortSource, normaliser: Normaliser, weights: Weights) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        chosen, S = self.columns.continuous, self.columns.observation_size
        mean, scale = (part[:S].cpu() for part in (normaliser.input_mean, normaliser.input_scale))
        total = torch.zeros(self.contribution.size, dtype=torch.int64)
        for units in units_in_parts(
            source, _ROW_BYTES * self.contribution.size, _read_bytes(normaliser)
        ):
            state = source.transitions(units, torch.zeros(len(units), 1, dtype=torch.int64))[0][
                :, 0, :S
            ]
            z = ((state - mean) / scale)[:, chosen].clamp(-FARTHEST, FARTHEST)
            categories = [state[:, first : first + size] for first, size in self.columns.one_hot]
            total += self.contribution.total(
                torch.cat((z, (z.square() - 1) / math.sqrt(2), *categories), 1)
            )
        return total

    def model(self, answer: Tensor, normaliser: Normaliser, bounds: Bounds) -> StartModel:
        """Make a model of first states: independent normals within the bounds, and categories.

        Post-processing.
        """
        chosen, S = self.columns.continuous, self.columns.observation_size
        mean, square = answer[: len(chosen)], answer[len(chosen) : 2 * len(chosen)]
        variance = 1 + math.sqrt(2) * square - mean.square()
        deviation = variance.clamp(min=_LEAST_SPREAD**2).sqrt()
        centre, factor = torch.zeros(S), torch.zeros(S)
        middle, scale = normaliser.input_mean[:S][chosen], normaliser.input_scale[:S][chosen]
        centre[chosen] = middle + scale * mean.float()
        factor[chosen] = scale * deviation.float()
        block, probabilities = categories_of(self.columns, answer[2 * len(chosen) :])
        return StartModel(
            bounds.observation_low.float(),
            bounds.observation_high.float(),
            centre,
            torch.diag(factor),
            block,
            probabilities,
        )


@register_query(LENGTHS)
@dataclass(frozen=True)
class LengthsQuery:
    """Asks every unit for the shares of its trajectories that end in each part of the horizon,
    terminated or cut.
    """

    horizon: int

    @property
    def contribution(self) -> Fractions:
        """A unit's contribution."""
        return of_lengths()

    def total(self, source: CohortSource, normaliser: Normaliser, weights: Weights) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        assert isinstance(source, TrajectorySource), "the store was opened for trajectories"
        total, flag = torch.zeros(1, 2 * PARTS, dtype=torch.int64), len(normaliser.target_mean)
        first = 0
        for _, targets, own in all_rows(
            source, 2 * PARTS * 32, _ROW_BYTES + _read_bytes(normaliser)
        ):
            units, place = torch.arange(first, first + len(own)), torch.arange(own.shape[1])
            first += len(own)
            begins = source.begins(units, place.expand(len(own), -1).where(own, 0)) & own
            begins[:, 0] = True
            last = own & torch.cat(
                (begins[:, 1:] | ~own[:, 1:], torch.ones(len(own), 1, dtype=torch.bool)), 1
            )
            step = place - torch.where(begins, place, 0).cummax(1).values
            bins = (step * PARTS // self.horizon).clamp(0, PARTS - 1) + PARTS * (
                targets[..., flag] > 0
            )
            total += self.contribution.total(bins.unsqueeze(-1), last)
        return total

    def survival(self, answer: Tensor, noise: float) -> Tensor:
        """S(t), the share of trajectories that go on for more than t steps, float32 ``[2,
        horizon]``: post-processing.

        First of those that do not terminate, by the product-limit estimate (Kaplan and Meier 1958);
        then of all. Each end is at the upper edge of its bin.

        Args:
            answer: ``[1, 2 · PARTS]``.
            noise: its standard deviation, which is public.
        """
        fractions = halved_fractions(answer[0], noise)
        edges = -(-torch.arange(1, PARTS + 1) * self.horizon // PARTS)
        ends = torch.zeros(2, self.horizon + 1, dtype=fractions.dtype)
        ends.index_add_(1, edges, fractions.view(2, PARTS))
        cut, beyond = ends[0], ends.sum(0).flip(0).cumsum(0).flip(0) - ends.sum(0)
        stays = 1 - cut / (beyond + cut).clamp(min=1e-12)
        unended = stays[: self.horizon].clamp(0, 1).cumprod(0)
        return torch.stack((unended, 1 - ends.sum(0).cumsum(0)[: self.horizon])).clamp(0, 1).float()
