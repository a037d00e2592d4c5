"""Groups: what a mechanism guarantees for a person behind several units.

(ε, δ) for one unit does not give (kε, δ) for k units. The event of a group is composed by the accountant instead.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray
from scipy import special, stats

from primorl.privacy.accounting.events import PureDpEvent

_MOST_POINTS = 20_000  # of an integral; an order of RDP that takes more is left out, which is on the safe side
_ROUNDING = 1e-11  # of an integral, relative
_NEGLIGIBLE = 1e-30  # probability of cohorts that the accountant drops anyhow: they are counted as the largest


def grouped(event: dp_event.DpEvent, units: int) -> dp_event.DpEvent:
    """The event that ``event`` is for one person with at most ``units`` units, all of which are zeroed out together.

    A Gaussian release of multiplier z becomes one of z/k, as k contributions of norm C are at most kC long together.
    Under Poisson sampling the number of the person's units in a round is binomial, and so is the length of the
    difference in units of C: a round is dominated by the mixture Σ_i P[Bin(k, q) = i] N(i, z²) against N(0, z²)
    (Ganesh 2024, "Tight group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms").
    Pure ε-DP becomes kε-DP, unit after unit. ε of the result, at any δ, holds in both directions, and for fewer units
    too.

    Args:
        event: of one unit, as `events` reads and writes it.
        units: k, the most units of one person; public.

    Raises:
        ValueError: k is below one, or the event is not of a kind that this project accounts.
    """
    if units < 1:
        raise ValueError(f"a group has at least one unit, found {units}")
    match event:
        case _ if units == 1:
            return event
        case dp_event.NonPrivateDpEvent():
            return event
        case dp_event.ComposedDpEvent():
            return dp_event.ComposedDpEvent(tuple(grouped(part, units) for part in event.events))
        case dp_event.SelfComposedDpEvent():
            return dp_event.SelfComposedDpEvent(grouped(event.event, units), event.count)
        case PureDpEvent():
            return PureDpEvent(event.epsilon * units)
        case dp_event.GaussianDpEvent():
            return dp_event.GaussianDpEvent(event.noise_multiplier / units)
        case dp_event.PoissonSampledDpEvent(event=dp_event.GaussianDpEvent()):
            return _sampled(event.sampling_probability, event.event.noise_multiplier, units)
    raise ValueError(f"no group analysis for {type(event).__name__}")


def _sampled(sampling_probability: float, noise_multiplier: float, units: int) -> dp_event.DpEvent:
    if sampling_probability == 1:
        return dp_event.GaussianDpEvent(noise_multiplier / units)
    counts = np.arange(units + 1)
    probabilities = stats.binom.pmf(counts, units, sampling_probability)
    kept = probabilities > _NEGLIGIBLE
    kept[-1] = True  # what is dropped is counted as the whole group, which is never less
    probabilities[-1] += probabilities[~kept].sum()
    return dp_event.MixtureOfGaussiansDpEvent(
        float(noise_multiplier),
        tuple(map(float, counts[kept])),
        tuple(map(float, probabilities[kept] / probabilities[kept].sum())),
    )


def mixture_rdp(event: dp_event.MixtureOfGaussiansDpEvent, orders: Sequence[float]) -> NDArray[np.float64]:
    """Rényi divergences of a mixture P = Σ p_i N(s_i, z²) and Q = N(0, z²), the larger one of both directions.

    ∫ P^α Q^(1-α) and ∫ Q^α P^(1-α) by the trapezoidal rule, which for such integrands is exact up to rounding. Infinite
    at an order where the integral would take too many points.
    """
    shifts, logs = np.array(event.sensitivities), np.log(np.array(event.sampling_probs))
    return np.array([_divergence(float(event.standard_deviation), shifts, logs, order) for order in orders])


def _divergence(z: float, shifts: NDArray[Any], logs: NDArray[Any], order: float) -> float:
    # The step resolves one Gaussian, and stays below the distance of the integrand's complex singularities.
    step = min(z / 6, 0.4 * z**2 / shifts.max())
    rare = -logs[0] if shifts[0] == 0 else math.inf
    low = -(12 + math.sqrt(2 * (order - 1) * rare)) * z if math.isfinite(rare) else -12 * z - order * shifts.max()
    high = 12 * z + order * shifts.max()
    if (high - low) / step > _MOST_POINTS:
        return math.inf
    x = np.arange(low, high + step, step)
    absent = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2 * math.pi))
    # P over Q, as log Σ p_i exp((x s_i - s_i²/2) / z²)
    ratio = special.logsumexp(logs + (np.outer(x, shifts) - shifts**2 / 2) / z**2, axis=1)
    integrals = (special.logsumexp(absent + power * ratio) + math.log(step) for power in (order, 1 - order))
    return max(0.0, *(float((integral + _ROUNDING) / (order - 1)) for integral in integrals))
