"""Linear heads: their queries, the ensemble made of noised weights, and the network distilled from a linear clone."""

import math
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
from primorl.engine.policy_network import PolicyNetwork
from primorl.engine.queries import (
    READ_BYTES,
    ObservationColumns,
    all_rows,
    assembled,
    categories_of,
    halved_fractions,
    possible_fractions,
    span_of,
    units_in_parts,
)
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, Normaliser, Weights, outputs
from primorl.model.features import FARTHEST, one_hot_inputs
from primorl.model.starts import StartModel
from primorl.privacy.mechanism.queries import ONE, BoundedSum, Fractions, register_query

_MEMBER_SEED = 7_000_000
_THRESHOLD, _MEDIAN_OF_NORMAL, _MANY = 1.5, 0.6745, 40
_TEACHING_STEPS, _TEACHING_ROWS, _TEACHING_RATE, _TAUGHT = 2000, 512, 5e-3, 0.995


def released_heads(
    trained: Weights,
    spread: Tensor,
    members: int,
    error: float,
    shape: Architecture,
    seed: int,
) -> tuple[Architecture, Weights]:
    """Make an ensemble of one set of noised weights: post-processing.

    The first member is ``trained``. To its weights the others add draws from the known distribution of the noise of the
    rounds. So where they differ, privacy made the model unsure. Of features of degree 3 every second member keeps those
    of degree 2 alone: away from the data they differ much.

    Args:
        trained: weights of the means, ``[1, F, targets]`` and ``[1, 1, targets]``, and the logit behind them.
        spread: standard deviations of the residuals, in scales of the target, ``[targets]``.
        members: N.
        error: standard deviation of the noise in every weight (`primorl.engine.heads.noise_in_weights`).
        shape: that was trained.
        seed: of the draws.
    """
    low, high = shape.log_variance_low, shape.log_variance_high
    assert shape.features is not None, "networks are released as they are"
    kept = (
        replace(shape.features, degree=2).size if shape.features.degree > 2 else shape.features.size
    )
    whole = replace(shape, members=members, spread=True)
    weights = []
    generator = torch.Generator().manual_seed(_MEMBER_SEED + seed)
    for number, part in enumerate(trained):
        drawn = error * torch.randn(members - 1, *part.shape[1:], generator=generator)
        varied = torch.cat((part.cpu(), part.cpu() + drawn))
        if not number:
            varied[1::2, kept:] = 0.0
        means, logit = varied[..., : shape.targets], varied[..., shape.targets :]
        raw = torch.zeros(members, *part.shape[1:-1], shape.targets)
        if number:
            raw += raw_log_variance(2 * spread.clamp(min=1e-9).log(), low, high)
        weights.append(torch.cat((means, raw, logit), -1))
    return whole, tuple(weights)


def without_noise(weights: Weights, error: float) -> Weights:
    """Shrink weights that noise could have made: w (1 - (1.5 σ / w)²), and 0 below 1.5 σ (garrote; Breiman 1995).

    σ is the known ``error``, or less where most weights of a target are smaller than that. Biases stay as they are, and
    so do all weights of fewer than 40 features: of few, most count, and Pendulum's policies were worse with it.
    """
    if weights[0].shape[1] < _MANY:
        return weights
    factors, biases = (part.cpu() for part in weights)
    usual = (factors.abs().median(1, keepdim=True).values / _MEDIAN_OF_NORMAL).clamp(max=error)
    kept = (1 - (_THRESHOLD * usual / factors.abs().clamp(min=1e-12)).square()).clamp(min=0)
    return factors * kept, biases


def raw_log_variance(wanted: Tensor, low: float, high: float) -> Tensor:
    """Invert `primorl.model.ensemble.soft_bounded`."""
    margin = 1e-3 * (high - low)
    share = torch.expm1(
        wanted.clamp(low + margin, high - margin) - low
    ).log()  # softplus(below - low) = wanted - low
    return high - torch.expm1(high - (share + low)).log()


def distilled(
    heads: PolicyNetwork,
    weights: Weights,
    normaliser: Normaliser,
    bounds: Bounds,
    spread: Tensor,
    hidden: tuple[int, ...],
    seed: int,
) -> tuple[PolicyNetwork, Weights, Normaliser]:
    """Distil a linear clone into a network, on made-up observations: post-processing.

    So all that is made of a clone stays as it is: its files, ONNX, policies that begin as it does.

    Args:
        heads: linear heads.
        weights: of the heads.
        normaliser: with the features of the heads.
        bounds: of observations.
        spread: standard deviations of the residuals ``[A]``; of actions in a box.
        hidden: units of each hidden layer of the network.
        seed: of the network's weights and the observations.
    """
    shape, S = replace(heads, features=None, hidden=hidden), heads.observation_size
    plain = replace(normaliser, features=None, basis=None)
    generator = torch.Generator().manual_seed(seed)
    layers = [part.requires_grad_() for part in shape.initial_weights(seed)]
    optimiser = torch.optim.Adam(layers, _TEACHING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _TEACHING_STEPS)
    one_hot = heads.features.one_hot if heads.features is not None else ()
    for _ in range(_TEACHING_STEPS):
        z = torch.randn(_TEACHING_ROWS, S, generator=generator) * (
            1 + (torch.arange(_TEACHING_ROWS) % 2).unsqueeze(1)
        )
        observed = plain.input_mean + plain.input_scale * z
        for first, size in one_hot:
            drawn = torch.multinomial(
                plain.input_mean[first : first + size], _TEACHING_ROWS, True, generator=generator
            )
            observed[:, first : first + size] = torch.nn.functional.one_hot(drawn, size).float()
        observed = observed.clamp(bounds.observation_low, bounds.observation_high)
        wanted = outputs(weights, normaliser.inputs(observed)[None])
        signal = plain.inputs(observed)[None]
        for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
            signal = torch.baddbmm(bias, signal, weight).relu()
        output = torch.baddbmm(layers[-1], signal, layers[-2])
        if heads.discrete_actions:
            loss = -(wanted.softmax(-1) * output.log_softmax(-1)).sum(-1).mean()
        else:
            mean = output[..., : heads.action_size].tanh()
            loss = (mean - wanted.clamp(-_TAUGHT, _TAUGHT)).square().sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    taught = [part.detach() for part in layers]
    if not heads.discrete_actions:
        low, high = heads.log_variance_low, heads.log_variance_high
        taught[-2][..., heads.action_size :] = 0.0
        taught[-1][..., heads.action_size :] = raw_log_variance(
            2 * spread.clamp(min=1e-9).log(), low, high
        )
    return shape, tuple(taught), plain


_ROOT_OF_NORMAL = 0.82218  # E √|x| of a standard normal
_ROOT_OF_CHANGE = (
    0.676  # of a product of two, which is often small and seldom large, as changes are
)
_WIDEST_CHANGE = 6.0  # in their scale, that `FINER_SCALES` looks at
_LARGEST_RESIDUAL = 2.0  # in scales of the target
_SEEN = 3.5  # standard deviations of its noise, above which a mean square is told from nothing
_LEAST_CHANGE = 0.1  # scale of changes, at least, in deviations of the number itself
_LEAST_SPREAD = 0.1
_LEAST = 1e-4  # scale of a number, at least, in half widths of its declared range
_ROW_BYTES = 96


@dataclass(frozen=True)
class ScalesQuery:
    """Asks every unit for mean z and z² of every number, mean √c and c² of every change, and shares of categories.

    A number is a dimension of the observation, a continuous action or the reward. z is its distance from the middle of
    a window in half widths of it, held within ±1; c the size of a change of the observation in such a width, at most 1.
    It is asked twice: the windows are the declared ranges at first, then those that the first answer gives, so that
    a column that is much narrower than its range is seen too.

    Attributes:
        columns: which dimensions are one-hot.
        bounds: finite.
        windows: middles and half widths of n numbers, and largest changes of m dimensions, float64 ``[2 n + m]``, all
            public or released.
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
        """The query to be asked next: post-processing."""
        _, half, widest = self._split(self.windows)
        mean, deviation, change, _ = self._found([(self, answer, noise)])
        windows = (
            mean,
            (WINDOW * deviation).minimum(half),
            (_WIDEST_CHANGE * change).minimum(widest),
        )
        return replace(self, windows=torch.cat(windows), finer=True)

    def normaliser(
        self, answer: Tensor, noise: float, first: tuple["ScalesQuery", Tensor, float]
    ) -> Normaliser:
        """Make the maps from two answers: post-processing.

        Changes are centred on 0 and scaled by at least a tenth of the number's own deviation; one-hot inputs are
        centred on their frequencies.

        Args:
            answer: to this query.
            noise: standard deviation of every number of it, which is public.
            first: the first query, its answer and noise.
        """
        columns, bounds, S = self.columns, self.bounds, self.columns.observation_size
        mean, deviation, change, shares = self._found([first, (self, answer, noise)])
        chosen, known = columns.continuous, len(columns.continuous)
        states = torch.zeros(3, S)
        states[0, chosen], states[1, chosen] = mean[:known].float(), deviation[:known].float()
        states[2, chosen] = change.maximum(_LEAST_CHANGE * deviation[:known]).float()
        _, half, _ = self._split(first[0].windows)
        # Rare large rewards lie outside the second window: the first one counts where it surely saw them.
        wide = float(half[-1]) ** 2 * (float(self._variance(first[1])[-1]) - _SEEN * first[2])
        spread = math.sqrt(max(wide, float(deviation[-1]) ** 2))
        found = assembled(
            columns, bounds, (states[0], states[1], states[2]), (float(mean[-1]), spread)
        )
        if not columns.discrete_actions:
            found.input_mean[S:], found.input_scale[S:] = (
                mean[known:-1].float(),
                deviation[known:-1].float(),
            )
        place = 0
        for begin, size in self._one_hot:
            found.input_mean[begin : begin + size] = possible_fractions(
                shares[place : place + size]
            ).float()
            place += size
        return found

    def hidden(
        self, answer: Tensor, noise: float, first: tuple["ScalesQuery", Tensor, float]
    ) -> Tensor:
        """Whether noise hides how much each number varies, bool ``[n]``; arguments as in `normaliser`."""
        variance, doubt = _combined(self._variances([first, (self, answer, noise)]))
        return variance < doubt

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

    def _variance(self, answer: Tensor) -> Tensor:
        mean, square, *_ = self._parts(answer)
        return square - mean.clamp(-1, 1).square()

    def _found(
        self, asked: list[tuple["ScalesQuery", Tensor, float]]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean and deviation of numbers, scale of changes, shares of categories, from all answers.

        One standard deviation of the noise is added to variances, half of one to roots: features whose scale is too
        small make rounds diverge, while one that is twice too large is still learned.
        """
        means, roots, shares = [], [], []
        large = torch.zeros(len(self.columns.continuous), dtype=torch.float64)
        for query, answer, noise in asked:
            middle, half, widest = query._split(query.windows)
            mean, _, root, square, share = query._parts(answer)
            one = max(noise, 1e-9)
            means.append((middle + half * mean, half * one))
            roots.append((widest.sqrt() * root, widest.sqrt() * one))
            shares.append((share, torch.full_like(share, one)))
            # Rare large changes: their root says little, their square much.
            seen = torch.where(square > _SEEN * noise, square, 0.0).sqrt()
            large = large.maximum(widest * seen)
        middle, half, widest = self._split(asked[0][0].windows)
        variance, doubt = _combined(self._variances(asked))
        deviation = (variance.clamp(min=0) + doubt).sqrt()
        root, doubt = _combined(roots)
        change = (
            ((root.clamp(min=0) + doubt / 2) / _ROOT_OF_CHANGE)
            .square()
            .maximum(large)
            .minimum(widest)
        )
        floors = deviation.maximum(_LEAST * half), change.maximum(_LEAST * widest)
        mean = _combined(means)[0].maximum(middle - half).minimum(middle + half)
        return mean, *floors, _combined(shares)[0]

    def _variances(
        self, asked: list[tuple["ScalesQuery", Tensor, float]]
    ) -> list[tuple[Tensor, Tensor]]:
        found = []
        for query, answer, noise in asked:
            square = query._split(query.windows)[1].square()
            found.append((square * query._variance(answer), square * max(noise, 1e-9)))
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
    """Mean over every unit's own rows, ``[U, M, n]`` to float64 ``[U, n]``; not finite where a row is not.

    Rows are rounded to whole multiples of 2⁻²⁰, so that their sum is exact: its last bits cannot depend on how long
    other units are.
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
    """Asks every unit how far its targets lie from the heads' prediction: mean √r and r² of each target.

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
            # Products and means unit by unit: their last bits could depend on how many rows others have.
            gap, lengths = torch.zeros_like(known), own.sum(1).tolist()
            for unit, rows in enumerate(lengths):
                found = outputs(heads, features[unit : unit + 1, :rows].contiguous())
                torch.sub(found[0, :, : self.targets], known[unit, :rows], out=gap[unit, :rows])
            sizes = _powers((gap.abs() / _LARGEST_RESIDUAL).clamp(max=1.0).double())
            means = [sizes[unit, :rows].mean(0) for unit, rows in enumerate(lengths)]
            total += self.contribution.total(torch.stack(means))
        return total

    def spread(self, answer: Tensor, noise: float) -> Tensor:
        """Standard deviations of the residuals ``[targets]`` in scales of the target: post-processing.

        The root tells a small spread from the noise, the square one that few large residuals make.
        """
        roots, squares = answer.clamp(min=0).chunk(2)
        few = torch.where(squares > _SEEN * noise, squares.sqrt(), 0.0)
        return (_LARGEST_RESIDUAL * (roots / _ROOT_OF_NORMAL).square().maximum(few)).float()


@register_query(FIRST_STATES)
@dataclass(frozen=True)
class FirstStatesQuery:
    """Asks every unit for the first state of its first trajectory (in the order of ids), standardised: z, z², category.

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
        """Make a model of first states: independent normals within the bounds, and categories. Post-processing."""
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
    """Asks every unit for the shares of its trajectories that end in each part of the horizon, terminated or cut."""

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
        """S(t), the share of trajectories that go on for more than t steps, float32 ``[2, horizon]``: post-processing.

        First of those that do not terminate, by the product-limit estimate (Kaplan and Meier 1958); then of all. Each
        end is at the upper edge of its bin.

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
