"""Statistics of few runs (Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice").

Scores are one array a task. The interquartile mean (IQM) is the mean of the middle half of all runs; intervals are the
2.5% and 97.5% quantiles of a bootstrap that draws each task's runs anew among themselves (stratified). It is what
rliable computes; rliable itself needs arch 7, which does not load beside pandas 3.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
RESAMPLES = 5000


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95% interval; infinite ends where a task has one run, which has no spread."""

    value: float
    low: float
    high: float

    def above(self, other: "Estimate") -> bool:
        """Whether the whole interval is above the other one."""
        return self.low > other.high


def iqm(*tasks: Floats, axis: int = -1) -> Floats:
    """Mean of the middle half of the runs of all tasks together, along the last axis."""
    trimmed: Floats = stats.trim_mean(np.concatenate(tasks, axis=-1), 0.25, axis=axis)
    return trimmed


def interquartile_mean(tasks: Sequence[Sequence[float]]) -> Estimate:
    """The IQM with its stratified bootstrap interval.

    Args:
        tasks: scores of each task's runs.
    """
    return _bootstrapped([np.asarray(own, dtype=float) for own in tasks], iqm)


def profile(tasks: Sequence[Sequence[float]], thresholds: Floats) -> tuple[Floats, Floats, Floats]:
    """Performance profile: share of runs whose score is above each threshold, averaged over tasks.

    Args:
        tasks: scores of each task's runs.
        thresholds: [M].

    Returns:
        Shares, and the lower and upper ends of their intervals, [M] each.
    """

    def shares(*drawn: Floats, axis: int = -1) -> Floats:
        above = [(own[..., None, :] > thresholds[:, None]).mean(axis) for own in drawn]
        return np.moveaxis(np.mean(above, axis=0), -1, 0)

    samples = [np.asarray(own, dtype=float) for own in tasks]
    value = shares(*samples)
    if min(map(len, samples)) < 2:
        return value, np.zeros_like(value), np.ones_like(value)
    found = _bootstrap(samples, shares)
    return value, found.low, found.high


def probability_of_improvement(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Estimate:
    """P(X > Y) + P(X = Y) / 2 of one of our runs X and one of theirs Y on a task, averaged over tasks.

    Args:
        ours: scores of each task's runs.
        theirs: the same tasks' other scores.
    """
    samples = [np.asarray(own, dtype=float) for own in (*ours, *theirs)]

    def wins(*drawn: Floats, axis: int = -1) -> Floats:
        pairs = [
            (x[..., :, None], y[..., None, :]) for x, y in zip(drawn[: len(ours)], drawn[len(ours) :], strict=True)
        ]
        won = [((x > y) + (x == y) / 2).mean((axis - 1, axis)) for x, y in pairs]  # infinite scores compare too
        mean: Floats = np.mean(won, axis=0)
        return mean

    return _bootstrapped(samples, wins)


def _bootstrapped(samples: Sequence[Floats], statistic: Callable[..., Floats]) -> Estimate:
    value = float(statistic(*samples))
    if min(map(len, samples)) < 2:
        return Estimate(value, -np.inf, np.inf)
    found = _bootstrap(samples, statistic)
    return Estimate(value, float(found.low), float(found.high))


def _bootstrap(samples: Sequence[Floats], statistic: Callable[..., Floats]) -> Any:
    """Each sample is drawn anew among itself; the generator is fixed, so that a page does not change by itself."""
    generator = np.random.default_rng(0)
    return stats.bootstrap(
        tuple(samples), statistic, n_resamples=RESAMPLES, vectorized=True, method="percentile", rng=generator
    ).confidence_interval
