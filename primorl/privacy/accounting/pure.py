"""Pure ε-differential privacy: its event and its Rényi divergences.

Whatever a mechanism of pure ε-DP does with two neighbouring datasets, randomized response with the odds e^ε can be
post-processed into it (Kairouz, Oh and Viswanath 2015, "The composition theorem for differential privacy", Theorem 8).
So the pair P = (e^ε, 1) / (1 + e^ε) and Q = (1, e^ε) / (1 + e^ε) dominates it: the privacy profile, every Rényi
divergence and every trade-off function of the mechanism are bounded by those of the pair, and so under composition.
"""

import math
from collections.abc import Sequence

import attrs
import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray


@attrs.frozen
class PureDpEvent(dp_event.DpEvent):  # type: ignore[misc]  # the package has no types
    """A mechanism that is ε-differentially private, and of which nothing else is known.

    It is this project's own. dp-accounting's `RandomizedResponseDpEvent` is no substitute: under `REPLACE_SPECIAL` it
    compares randomized response with a uniform draw, which says less than ε; and dp-accounting 0.6 counts
    a self-composition of it once.

    Attributes:
        epsilon: ε of one unit.
    """

    epsilon: float


def pure_epsilon(event: dp_event.DpEvent) -> float:
    """ε at δ = 0 by basic composition; infinite if a part is not of pure ε-DP."""
    if isinstance(event, PureDpEvent):
        return float(event.epsilon)
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return float(event.count) * pure_epsilon(event.event)
    if isinstance(event, dp_event.ComposedDpEvent):
        return math.fsum(map(pure_epsilon, event.events))
    return math.inf


def pure_rdp(epsilon: float, orders: Sequence[float]) -> NDArray[np.float64]:
    """log((e^(αε) + e^((1-α)ε)) / (1 + e^ε)) / (α - 1) at each order α: the Rényi divergence of the pair."""
    alphas = np.asarray(orders, dtype=np.float64)
    logs = np.logaddexp(alphas * epsilon, (1 - alphas) * epsilon) - np.logaddexp(0.0, epsilon)
    divergences: NDArray[np.float64] = np.clip(logs / (alphas - 1), 0.0, epsilon)
    return divergences
