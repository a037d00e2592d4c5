"""Groups: what a mechanism guarantees for a person behind several units.

(ε, δ) for one unit does not give (kε, δ) for k units. The event of a group is composed by the accountant instead.
"""

import numpy as np
from dp_accounting import dp_event
from scipy import stats

_NEGLIGIBLE = 1e-30  # probability of cohorts that the accountant drops anyhow: they are counted as the largest


def grouped(event: dp_event.DpEvent, units: int) -> dp_event.DpEvent:
    """The event that ``event`` is for one person with at most ``units`` units, all of which are zeroed out together.

    A Gaussian release of multiplier z becomes one of z/k, as k contributions of norm C are at most kC long together.
    Under Poisson sampling the number of the person's units in a round is binomial, and so is the length of the
    difference in units of C: a round is dominated by the mixture Σ_i P[Bin(k, q) = i] N(i, z²) against N(0, z²)
    (Ganesh 2024, "Tight group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms").
    ε of the result, at any δ, holds in both directions, and for fewer units too.

    Args:
        event: of one unit, as `events` reads and writes it.
        units: k, the most units of one person; public.

    Raises:
        ValueError: k is below one, or the event is not of a kind that this project accounts.
    """
    if units < 1:
        raise ValueError(f"a group has at least one unit, found {units}")
    if units == 1 or isinstance(event, dp_event.NonPrivateDpEvent):
        return event
    match event:
        case dp_event.ComposedDpEvent():
            return dp_event.ComposedDpEvent(tuple(grouped(part, units) for part in event.events))
        case dp_event.SelfComposedDpEvent():
            return dp_event.SelfComposedDpEvent(grouped(event.event, units), event.count)
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
