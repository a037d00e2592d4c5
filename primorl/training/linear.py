"""Linear heads: charged queries of what they need, and the ensemble that is released of noised weights.

Before the rounds the people are asked for histograms of every column, which centre and scale the features. After the
rounds they are asked what the heads leave open, and for their first states.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Bounds, Weights, outputs
from primorl.dynamics.features import FARTHEST, OneHot, one_hot_inputs
from primorl.dynamics.normaliser import Normaliser
from primorl.dynamics.starts import StartModel
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import BoundedSum, Fractions, register_query
from primorl.training.cohort import CohortSource, TrajectorySource
from primorl.training.policy_network import Network, PolicyNetwork
from primorl.training.queries import (
    BINS,
    NormaliserQuery,
    ObservationColumns,
    all_rows,
    assembled,
    bins_of,
    categories_of,
    halved_fractions,
    moments,
    possible_fractions,
    span_of,
)
from primorl.training.settings import (
    CHANGES,
    COLUMNS,
    FIRST_STATES,
    LENGTHS,
    RESIDUALS,
    ServerTraining,
)

LATE = (RESIDUALS, FIRST_STATES, LENGTHS)
"""Queries that are asked after the rounds: they need the weights, or the answer to another query."""
_LARGEST_RESIDUAL = 3.0  # in scales of the target
_ROOT_OF_NORMAL, _SIZE_OF_NORMAL = 0.82218, 0.79788  # E √|x| and E |x| of a standard normal
_USUAL, _USUAL_CHANGE = 0.6, 0.4  # of the norms that residuals and changes can have, which few units reach
_SEEN = 2.0  # standard deviations of its noise, above which a mean square is told from nothing
_LEAST_SPREAD = 0.1
_LEAST_CHANGE = 0.1  # scale of changes, at least, in deviations of the number itself
_ROW_BYTES = 96
_MEMBER_SEED = 7_000_000
_TEACHING_STEPS, _TEACHING_ROWS, _TEACHING_RATE, _TAUGHT = 2000, 512, 5e-3, 0.995


def _one_hot(columns: ObservationColumns, actions: int) -> OneHot:
    return one_hot_inputs(columns.one_hot, columns.observation_size, actions, discrete=columns.discrete_actions)


def columns_contribution(columns: ObservationColumns, actions: int) -> Fractions:
    """A unit's contribution to `ColumnsQuery`: observations, reward, continuous actions, categories."""
    asked = len(_one_hot(columns, actions)) + (0 if columns.discrete_actions else actions)
    return Fractions(len(columns.continuous) + 1 + asked, BINS)


@register_query(COLUMNS)
class ColumnsQuery(NormaliserQuery):
    """Histograms of every unit's observations, rewards and continuous actions, and how often each category occurs.

    Args:
        columns: which dimensions are one-hot.
        bounds: finite; they place the bins.
    """

    def __init__(self, columns: ObservationColumns, bounds: Bounds) -> None:
        super().__init__(columns, bounds)
        self._actions = len(bounds.action_low)
        self._one_hot = _one_hot(columns, self._actions)

    @property
    def fractions(self) -> Fractions:
        """A unit's contribution."""
        return columns_contribution(self._columns, self._actions)

    def _bins(self, inputs: Tensor, targets: Tensor) -> Tensor:
        parts = [super()._bins(inputs, targets)[..., : len(self._continuous) + 1]]
        if not self._columns.discrete_actions:
            low, high = self._bounds.action_low, self._bounds.action_high
            parts.append(bins_of((inputs[..., self._columns.observation_size :] - low) / (high - low) * BINS))
        parts += [inputs[..., first : first + size].argmax(-1, keepdim=True) for first, size in self._one_hot]
        return torch.cat(parts, -1)

    def with_changes(self, answer: Tensor, noise: float, changes: Tensor) -> Normaliser:
        """Make the maps from the noisy mean fractions: post-processing.

        Numbers: mean and standard deviation of `moments_of`. Changes: centred on 0, scaled by at least a tenth of the
        number's own deviation. One-hot inputs: less their frequencies; those of parts with more categories than bins
        count as equal.

        Args:
            answer: ``[columns, BINS]``.
            noise: its standard deviation, which is public.
            changes: scales of the changes, ``[S]``, in units of the declared range (`ChangesQuery.scales`).
        """
        columns, bounds, S = self._columns, self._bounds, self._columns.observation_size
        known, chosen = len(columns.continuous), columns.continuous.tolist()
        numbers = [moments_of(row, noise) for row in answer[: len(answer) - len(self._one_hot)]]
        middle, scale = torch.zeros(S), torch.zeros(S)
        for dimension, (mean, deviation) in zip(chosen, numbers, strict=False):
            middle[dimension], scale[dimension] = mean, deviation
        span, reward_span = bounds.observation_high - bounds.observation_low, bounds.reward_high - bounds.reward_low
        states = (
            bounds.observation_low + span * middle,
            span * scale,
            span * torch.maximum(changes, _LEAST_CHANGE * scale),
        )
        reward, spread = numbers[known]
        found = assembled(columns, bounds, states, (bounds.reward_low + reward_span * reward, reward_span * spread))
        for place, (mean, deviation) in enumerate(numbers[known + 1 :]):
            width = float(bounds.action_high[place] - bounds.action_low[place])
            found.input_mean[S + place] = float(bounds.action_low[place]) + width * mean
            found.input_scale[S + place] = width * deviation
        for row, (first, size) in zip(answer[len(numbers) :], self._one_hot, strict=True):
            equal = torch.full((size,), 1 / size)
            found.input_mean[first : first + size] = possible_fractions(row[:size]).float() if size <= BINS else equal
        return found


@register_query(CHANGES)
class ChangesQuery:
    """Asks every unit for the mean √|c|, |c| and c² of every number's changes c, in units of the declared range.

    Args:
        columns: which dimensions are one-hot.
        bounds: finite.
    """

    def __init__(self, columns: ObservationColumns, bounds: Bounds) -> None:
        self._chosen, self._size = columns.continuous, columns.observation_size
        self._span = span_of(bounds)[self._chosen]
        self.contribution = changes_contribution(columns)

    def total(self, source: CohortSource) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        total = torch.zeros(self.contribution.size, dtype=torch.int64)
        for _, targets, own in all_rows(source, 0, _ROW_BYTES * (self._size + 2)):
            share = (targets[..., self._chosen].abs() / self._span).clamp(max=1.0).double()
            # Unit by unit: the order of a sum, and so its last bits, could depend on how long the others are.
            means = [_powers(mine[rows]).mean(0) for mine, rows in zip(share, own, strict=True)]
            total += self.contribution.total(torch.stack(means)) if len(self._chosen) else 0
        return total

    def scales(self, answer: Tensor, noise: float) -> Tensor:
        """Spread of the changes ``[S]``, in units of the declared range: post-processing."""
        found = torch.zeros(self._size)
        found[self._chosen] = _spread(answer, noise).float()
        return found


def changes_contribution(columns: ObservationColumns) -> BoundedSum:
    """A unit's contribution to `ChangesQuery`."""
    numbers = len(columns.continuous)
    return BoundedSum(3 * numbers, _USUAL_CHANGE * math.sqrt(max(numbers, 1)))


def _powers(size: Tensor) -> Tensor:
    """Roots, numbers and squares of sizes ``[.., n]``: ``[.., 3 n]``."""
    return torch.cat((size.sqrt(), size, size.square()), -1)


def _spread(answer: Tensor, noise: float) -> Tensor:
    """Standard deviations of numbers whose mean `_powers` are known, ``[3 n]`` to ``[n]``.

    The root tells a small spread from the noise, the others a spread that few large numbers make. The largest counts of
    those that are seen: a scale that is too small costs more than one that is too large.
    """
    roots, sizes, squares = answer.clamp(min=0).chunk(3)
    found = (roots / _ROOT_OF_NORMAL).square()
    for mean, deviation in ((sizes, sizes / _SIZE_OF_NORMAL), (squares, squares.sqrt())):
        found = torch.where(mean > _SEEN * noise, torch.maximum(found, deviation), found)
    return found


def moments_of(noisy: Tensor, noise: float) -> tuple[float, float]:
    """Mean and standard deviation of a histogram that noise has blurred, in units of the declared range.

    Where noise explains all that the best normal misses, those of all normals, each as likely as the noise says, and
    what could lie far away unseen: so from much noise little is concluded, and the declared range counts. Else those of
    `halved_fractions`.

    Args:
        noisy: ``[BINS]``.
        noise: standard deviation of each bin.
    """
    edges = torch.arange(1, BINS, dtype=noisy.dtype)
    means = torch.arange(0, BINS + 0.25, 0.5, dtype=noisy.dtype)
    spreads = torch.linspace(0.4, BINS / 2, 40, dtype=noisy.dtype)
    below = torch.special.ndtr((edges - means[:, None]) / spreads[:, None, None])  # the last bins hold what lies beyond
    whole = torch.nn.functional.pad(below, (1, 1)).index_fill_(2, torch.tensor([BINS]), 1.0).diff(dim=2)
    missed = (whole - noisy).square().sum(2)
    if float(missed.min()) > (BINS + _SEEN * math.sqrt(2 * BINS)) * noise**2:
        return moments(halved_fractions(noisy, noise))
    likely = (-missed / (2 * noise**2)).flatten().softmax(0).view_as(missed)
    mean = float((likely.sum(0) * means).sum())
    variance = float((likely * (spreads.square()[:, None] + (means - mean).square())).sum())
    variance += min(noise * math.sqrt(BINS) / 2, 1.0) * BINS**2 / 12
    return mean / BINS, math.sqrt(variance) / BINS


@register_query(RESIDUALS)
@dataclass(frozen=True)
class ResidualQuery:
    """Asks every unit how far its targets lie from the heads' prediction: mean √|r|, |r| and r² of each target.

    r is in scales of the target and held within ±3.
    """

    targets: int

    @property
    def contribution(self) -> BoundedSum:
        """A unit's contribution."""
        return BoundedSum(3 * self.targets, _USUAL * math.sqrt(self.targets))

    def total(self, source: CohortSource, normaliser: Normaliser, weights: Weights) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        total = torch.zeros(self.contribution.size, dtype=torch.int64)
        row = _ROW_BYTES * (weights[0].shape[1] + 4 * self.targets)
        maps, heads = normaliser.to(torch.device("cpu")), tuple(weight.cpu() for weight in weights)
        for inputs, targets, own in all_rows(source, 0, row):
            features, known = maps.inputs(inputs), maps.targets(targets)[..., : self.targets]
            # Unit by unit: the last bits of a product of all their rows could depend on how many there are.
            means = [self._mean(heads, x[mine], y[mine]) for x, y, mine in zip(features, known, own, strict=True)]
            total += self.contribution.total(torch.stack(means))
        return total

    def _mean(self, heads: Weights, features: Tensor, targets: Tensor) -> Tensor:
        gap = (outputs(heads, features[None])[0][:, : self.targets] - targets).abs()
        share = (gap / _LARGEST_RESIDUAL).clamp(max=1.0).double()
        return _powers(share).mean(0)

    def spread(self, answer: Tensor, noise: float) -> Tensor:
        """Standard deviations of the residuals ``[targets]`` in scales of the target: post-processing."""
        return (_LARGEST_RESIDUAL * _spread(answer, noise)).float()


@register_query(FIRST_STATES)
@dataclass(frozen=True)
class FirstStatesQuery:
    """Asks every unit for the first state of its first trajectory (in the order of ids), standardised: z, z², category.

    So a mean and a standard deviation of every number are known, and the frequencies of categories.
    """

    columns: ObservationColumns

    @property
    def contribution(self) -> BoundedSum:
        """A unit's contribution: each number counts with its usual size, each category with 1."""
        numbers, blocks = len(self.columns.continuous), self.columns.one_hot
        return BoundedSum(2 * numbers + sum(size for _, size in blocks), math.sqrt(2 * numbers + len(blocks)))

    def total(self, source: CohortSource, normaliser: Normaliser, weights: Weights) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        chosen, S = self.columns.continuous, self.columns.observation_size
        mean, scale = (part[:S].cpu() for part in (normaliser.input_mean, normaliser.input_scale))
        total = torch.zeros(self.contribution.size, dtype=torch.int64)
        for units in torch.split(torch.arange(source.units), 1 << 14):
            state = source.transitions(units, torch.zeros(len(units), 1, dtype=torch.int64))[0][:, 0, :S]
            z = ((state - mean) / scale)[:, chosen].clamp(-FARTHEST, FARTHEST)
            categories = [state[:, first : first + size] for first, size in self.columns.one_hot]
            total += self.contribution.total(torch.cat((z, (z.square() - 1) / math.sqrt(2), *categories), 1))
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
        """A unit's contribution: the parts of the horizon, of trajectories that are cut, then of those that end."""
        return Fractions(1, 2 * BINS)

    def total(self, source: CohortSource, normaliser: Normaliser, weights: Weights) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        assert isinstance(source, TrajectorySource), "the store was opened for trajectories"
        total, flag = torch.zeros(1, 2 * BINS, dtype=torch.int64), len(normaliser.target_mean)
        first = 0
        for _, targets, own in all_rows(source, 2 * BINS * 32, _ROW_BYTES):
            units, place = torch.arange(first, first + len(own)), torch.arange(own.shape[1])
            first += len(own)
            begins = source.begins(units, place.expand(len(own), -1).where(own, 0)) & own
            begins[:, 0] = True
            last = own & torch.cat((begins[:, 1:] | ~own[:, 1:], torch.ones(len(own), 1, dtype=torch.bool)), 1)
            step = place - torch.where(begins, place, 0).cummax(1).values
            bins = (step * BINS // self.horizon).clamp(0, BINS - 1) + BINS * (targets[..., flag] > 0)
            total += self.contribution.total(bins.unsqueeze(-1), last)
        return total

    def survival(self, answer: Tensor, noise: float) -> Tensor:
        """S(t), the share of trajectories that go on for more than t steps, float32 ``[2, horizon]``: post-processing.

        First of those that do not terminate, by the product-limit estimate (Kaplan and Meier 1958); then of all. Each
        end is at the upper edge of its bin.

        Args:
            answer: ``[1, 2 · BINS]``.
            noise: its standard deviation, which is public.
        """
        fractions = halved_fractions(answer[0], noise)
        edges = -(-torch.arange(1, BINS + 1) * self.horizon // BINS)
        ends = torch.zeros(2, self.horizon + 1, dtype=fractions.dtype)
        ends.index_add_(1, edges, fractions.view(2, BINS))
        cut, beyond = ends[0], ends.sum(0).flip(0).cumsum(0).flip(0) - ends.sum(0)
        stays = 1 - cut / (beyond + cut).clamp(min=1e-12)
        unended = stays[: self.horizon].clamp(0, 1).cumprod(0)
        return torch.stack((unended, 1 - ends.sum(0).cumsum(0)[: self.horizon])).clamp(0, 1).float()


def noise_in_weights(plan: Plan, server: ServerTraining, draws: int = 1, seed: int = 0) -> Tensor:
    """Draw errors of one released weight that the noise of the rounds causes, ``[draws]``.

    The noise of a round has standard deviation zC/(qK) in every weight, which is public. It goes through the server's
    momentum and average, and through the rounds that follow: whitened features have curvature 1, so that each of these
    takes back the error that it finds.
    """
    generator = torch.Generator().manual_seed(_MEMBER_SEED + seed)
    of_round = plan.noise_multiplier * plan.clip.sensitivity / plan.divisor if plan.is_private else 0.0
    error = torch.zeros(draws)
    velocity, average, mass = torch.zeros_like(error), torch.zeros_like(error), 0.0
    for _ in range(plan.rounds):
        step = torch.randn(draws, generator=generator) * of_round - error
        velocity = server.server_momentum * velocity + step
        error = error + velocity
        average = server.server_averaging * average + (1 - server.server_averaging) * error
        mass = server.server_averaging * mass + 1 - server.server_averaging
    return average / mass


def lost_to_noise(plan: Plan, server: ServerTraining, shape: Network) -> float:
    """Variance of a prediction that the noise causes, in units of the target's variance: σ² (F + 1)."""
    return float(noise_in_weights(plan, server, 4096).square().mean()) * (shape.inputs + 1)


def released_heads(
    trained: Weights,
    spread: Tensor,
    members: int,
    plan: Plan,
    server: ServerTraining,
    shape: Architecture,
    seed: int,
) -> tuple[Architecture, Weights]:
    """Make an ensemble of one set of noised weights: post-processing.

    The first member is what the rounds released. The others are as far from it as its noise can be expected to be from
    no noise: draws from the known distribution of that noise. So where they differ, privacy made the model unsure.
    Of features of degree 3 every second member keeps those of degree 2 alone, which are orthogonal to the others under
    the people's own distribution: away from the data they differ much.

    Args:
        trained: weights of the means, ``[1, F, targets]`` and ``[1, 1, targets]``, and the logit behind them.
        spread: standard deviations of the residuals, in scales of the target, ``[targets]``.
        members: N.
        plan: of the rounds.
        server: of the rounds.
        shape: that was trained.
        seed: of the draws.
    """
    low, high = shape.log_variance_low, shape.log_variance_high
    assert shape.features is not None, "networks are released as they are"
    kept = replace(shape.features, degree=2).size if shape.features.degree > 2 else shape.features.size
    whole = replace(shape, members=members, spread=True)
    weights = []
    for number, part in enumerate(trained):
        drawn = noise_in_weights(plan, server, (members - 1) * part[0].numel(), 2 * seed + number)
        varied = torch.cat((part.cpu(), part.cpu() + drawn.view(members - 1, *part.shape[1:])))
        if not number:
            varied[1::2, kept:] = 0.0
        means, logit = varied[..., : shape.targets], varied[..., shape.targets :]
        raw = torch.zeros(members, *part.shape[1:-1], shape.targets)
        if number:
            raw += raw_log_variance(2 * spread.clamp(min=1e-9).log(), low, high)
        weights.append(torch.cat((means, raw, logit), -1))
    return whole, tuple(weights)


def raw_log_variance(wanted: Tensor, low: float, high: float) -> Tensor:
    """Invert `primorl.dynamics.ensemble.soft_bounded`."""
    margin = 1e-3 * (high - low)
    share = torch.expm1(wanted.clamp(low + margin, high - margin) - low).log()  # softplus(below - low) = wanted - low
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
    """Teach a network what a linear clone does, on made-up observations: post-processing.

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
        z = torch.randn(_TEACHING_ROWS, S, generator=generator) * (1 + (torch.arange(_TEACHING_ROWS) % 2).unsqueeze(1))
        observed = plain.input_mean + plain.input_scale * z
        for first, size in one_hot:
            drawn = torch.multinomial(plain.input_mean[first : first + size], _TEACHING_ROWS, True, generator=generator)
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
        taught[-1][..., heads.action_size :] = raw_log_variance(2 * spread.clamp(min=1e-9).log(), low, high)
    return shape, tuple(taught), plain
