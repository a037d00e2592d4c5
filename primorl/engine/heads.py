"""Linear heads in numbers: queries beside the rounds, and the loss to noise. Needs no torch."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import TYPE_CHECKING

from primorl.model.features import Columns, OneHot
from primorl.privacy.mechanism.mechanism import BoundedSum, Fractions

if TYPE_CHECKING:
    from primorl.engine.settings import ServerTraining
    from primorl.model.architecture import Network
    from primorl.privacy.mechanism.mechanism import Mechanism

ROUNDS, NORM, ROWS, MOMENTUM, AVERAGING = 60, 0.1, 64, 0.6, 0.9
"""Rounds, clipping norm, rows of a unit and round, and the server's momentum and average."""
RATE = 0.5
"""Learning rate of the local step.

Correlated features have directions of several times curvature 1: 1 overshoots.
"""
_ROWS_OF_A_UNIT = 32  # as is usual
_UNEXPLAINED = 0.5  # share of a target that no features explain, as is usual
SCALES, FINER_SCALES, RESIDUALS = "scales", "finer_scales", "residuals"
EXPLAINED, REWARD_OFFSET = "explained", "reward_offset"
FIRST_STATES, LENGTHS = "first_states", "lengths"
PERSISTENCE, PRODUCTS = _OF_CLONES = "persistence", "products"  # the others are of a model
"""Names of the queries in ``privacy.json``."""
SHARES = {
    SCALES: 0.15,
    FINER_SCALES: 0.15,
    RESIDUALS: 0.07,
    EXPLAINED: 0.03,
    REWARD_OFFSET: 0.03,
    FIRST_STATES: 0.06,
    LENGTHS: 0.03,
    PERSISTENCE: 0.08,
    PRODUCTS: 0.08,
}
"""Shares of their training's ε that the queries take."""
PARTS = 32
"""Parts of the horizon in which `LENGTHS` counts ends."""
LENGTH_CONTRIBUTION = Fractions(2 * PARTS)
"""Of a unit to `LENGTHS`: parts of the horizon, truncated trajectories first."""
SURELY_EXPLAINED = 2.0
"""Standard errors of what is explained of the reward, up to which it may be nothing."""
LOST_YES, LOST_OF_CUBES = 0.2, 0.02
"""Features are worth their noise, before small weights are shrunk, up to a share of a target's
variance; one for those of degree 3."""
MOST_CUBES, _MOST_COLUMNS = 400, 30  # features and columns that are worth their time at degree 3
WINDOW = 2.5
"""Deviations around the mean that `FINER_SCALES` looks at."""
_SURELY_SEEN = 2.0  # times the spread that is seen in every second draw of the noise
# squared norms that few units exceed: of a number in its windows, of a change, of a residual
_USUAL, _USUAL_FINER, _USUAL_CHANGE, _USUAL_RESIDUAL = 0.8, 0.35, 0.25, 0.2
# of a target's mean, its square and what a model leaves of it, in scales
_USUAL_VARIANCE = 2.25


@cache
def list_products(columns: Columns) -> tuple[tuple[int, int], ...]:
    """List the pairs of columns of the observation whose product `PRODUCTS` asks about. A
    category's square and the product of two categories of one part are no more than lines, and left
    out.
    """
    owner = {first + place: first for first, size in columns.one_hot for place in range(size)}
    pairs = itertools.combinations_with_replacement(range(columns.observations), 2)
    return tuple(
        (one, other) for one, other in pairs if one not in owner or owner[one] != owner.get(other)
    )


def error_of_products(size: int, actions: int, noise: float) -> float:
    """Return the standard error of the share that `PRODUCTS` explains where it is none, for noise
    of this standard deviation on each of ``size`` numbers.
    """
    return size / actions * noise**2 * math.sqrt(2 * size)


def contributions(columns: Columns) -> dict[str, BoundedSum]:
    """Return the contributions of a unit to each query but `LENGTHS`, by name."""
    parts, actions = [size for _, size in columns.one_hot], columns.actions
    categories = [*parts, actions] if columns.discrete else parts
    changes, targets = columns.observations - sum(parts), columns.observations + 1
    numbers = changes + (0 if columns.discrete else actions) + 1
    # as many as `list_products` lists
    products = math.comb(targets, 2) - sum(math.comb(size + 1, 2) for size in parts)

    def scales(usual: float) -> BoundedSum:
        squares = usual * numbers + _USUAL_CHANGE * changes + len(categories)
        return BoundedSum(2 * (numbers + changes) + sum(categories), math.sqrt(squares))

    return {
        SCALES: scales(_USUAL),
        FINER_SCALES: scales(_USUAL_FINER),
        RESIDUALS: BoundedSum(2 * targets, math.sqrt(_USUAL_RESIDUAL * targets)),
        # the reward weighs as much as all other targets together
        EXPLAINED: BoundedSum(3 * targets, math.sqrt(_USUAL_VARIANCE * 2)),
        REWARD_OFFSET: BoundedSum(1, 1.0),
        # numbers count with their usual size, categories with 1
        FIRST_STATES: BoundedSum(2 * changes + sum(parts), math.sqrt(2 * changes + len(parts))),
        PERSISTENCE: BoundedSum(1, 1.0),
        PRODUCTS: BoundedSum(actions * products, 1.0),
    }


def sensitivities(columns: Columns, *, clone: bool) -> dict[str, float]:
    """Return the L2 sensitivity of each query of a clone's people, or of a model's, by name."""
    found = {name: each.sensitivity for name, each in contributions(columns).items()}
    found[LENGTHS] = LENGTH_CONTRIBUTION.sensitivity
    return {name: each for name, each in found.items() if (name in _OF_CLONES) == clone}


@cache
def _gain(rounds: int, momentum: float, averaging: float, rate: float) -> float:
    """Return the variance of a released weight that noise of variance 1 in every round causes.

    The noise goes through the server's momentum and average, and through the rounds that follow:
    whitened features have curvature 1, so that each of these takes a share ``rate`` of the error
    back that it finds.
    """
    total, error, velocity, average = 0.0, 0.0, 0.0, 0.0
    for number in range(rounds):  # after noise in one round; in the others it is the same, later
        velocity = momentum * velocity + float(number == 0) - rate * error
        error += velocity
        average = averaging * average + (1 - averaging) * error
        total += average**2
    return total / (1 - averaging**rounds) ** 2


def noise_in_weights(mechanism: Mechanism, server: ServerTraining, rate: float) -> float:
    """Standard deviation of the error in every released weight that the noise of the rounds causes.

    In a round it is zC/(qK), which is public.

    Args:
        mechanism: of the rounds.
        server: of the rounds.
        rate: by which a round takes errors back; the learning rate of the local step.
    """
    if not mechanism.is_private:
        return 0.0
    of_round = mechanism.noise_multiplier * mechanism.clip.sensitivity / mechanism.divisor
    gain = _gain(mechanism.rounds, server.server_momentum, server.server_averaging, rate)
    return of_round * math.sqrt(gain)


def noise_beside_people(
    mechanism: Mechanism, server: ServerTraining, rate: float, shape: Network
) -> float:
    """Return the same where half of each target is people's own noise, on 32 rows each.

    Where that makes their gradients longer than the clip, a round takes less of an error back and
    is as noisy.
    """
    step = rate * math.sqrt(
        _UNEXPLAINED * shape.layers[-1][1] * (shape.inputs + 1) / _ROWS_OF_A_UNIT
    )
    return noise_in_weights(mechanism, server, rate / max(1.0, step / mechanism.clip.sensitivity))


def degrees(inputs: int, one_hot: OneHot, *, cubes: bool) -> tuple[int, ...]:
    """Return the degrees of polynomials that are tried, the largest first; products of many columns
    are not even counted.
    """
    return (3, 2, 1) if cubes and inputs - len(one_hot) <= _MOST_COLUMNS else (2, 1)


def noise_in_scales(mechanism: Mechanism) -> float | None:
    """Return the noise of the variances by which features are scaled, as a share of them; None:
    scales are not asked for.

    Of numbers that vary by at least some tenth of their declared range: of narrower ones the share
    is larger, which is known after the queries
    (`primorl.engine.setup.TrainingSetup.find_hidden_names`).
    """
    noise = noise_of_queries(mechanism)
    return WINDOW**2 * noise[FINER_SCALES] if FINER_SCALES in noise else None


def least_spread(mechanism: Mechanism) -> float | None:
    """Return the standard deviation, in halves of a declared range, from which a number is told
    from a constant 19 times in 20; None: scales are not asked for.

    Of a number that hardly varies the first answer gives a variance of its noise σ₁, so the second
    one looks at √σ₁ times `WINDOW`, and tells variances in it to its own noise σ₂. At `WINDOW` √(σ₁
    σ₂) the number is as large as that, and seen 4 times in 10: `_SURELY_SEEN` times as much is
    asked for.
    """
    noise = noise_of_queries(mechanism)
    if FINER_SCALES not in noise:
        return None
    return _SURELY_SEEN * WINDOW * math.sqrt(noise[SCALES] * noise[FINER_SCALES])


def noise_of_queries(mechanism: Mechanism) -> dict[str, float]:
    """Return the noise of a mean over all units, by query."""
    return {query.what: query.standard_deviation / mechanism.units for query in mechanism.queries}
