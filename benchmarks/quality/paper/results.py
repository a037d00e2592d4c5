"""Rows as scores and noise, and the interquartile mean (IQM) over runs with the 95% interval of a bootstrap.

Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice", say why.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.quality.paper import sheets
from benchmarks.quality.paper.rows import Row

PAPER_REGIME, OURS, MOPO = "Paper's regime", "Ours", "MOPO"
PUBLIC_ALONE = "Ours, public split alone"
_TARGET = "privacy.target_epsilon"


RESAMPLES = 5000


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95% interval; the ends are infinite where there is one run, which has no spread."""

    value: float
    low: float
    high: float

    def above(self, other: "Estimate") -> bool:
        """Whether the whole interval is above the other one."""
        return self.low > other.high


@dataclass(frozen=True)
class Noise:
    """Noise of one round over the clipping norm C, and of all rounds over the most that they can move.

    Attributes:
        multiplier: z.
        coordinate: z/(qK), of one weight.
        norm: z√d/(qK), of all weights.
        share: s = z√d/(qK√T).
    """

    multiplier: float
    coordinate: float
    norm: float
    share: float


def of(rows: Iterable[Row], sweep: str, case: str | None = None) -> list[Row]:
    """Rows of a sweep, or of a case of it."""
    return [row for row in rows if row["sweep"] == sweep and (case is None or row["case"] == case)]


def of_table(rows: Iterable[Row], slug: str, case: str | None = None) -> list[Row]:
    """Rows of a task's table, or of a case of it: MOPO, ours, and the paper's regime."""
    return [
        row
        for row in rows
        if row["sweep"] in sheets.tables(slug) and (case is None or row["case"] == case)
    ]


def settings(row: Row) -> dict[str, Any]:
    """Values by dotted key of params.yaml."""
    found: dict[str, Any] = json.loads(row["settings"])
    return found


def target(row: Row) -> float | None:
    """The ε that was asked for."""
    found = settings(row).get(_TARGET)
    return None if found is None else float(found)


def epsilons(rows: Iterable[Row]) -> list[float]:
    """Every ε that was asked for, rising."""
    return sorted({epsilon for row in rows if (epsilon := target(row)) is not None})


def finals(rows: Iterable[Row]) -> list[float]:
    """Scores of the final policies; runs that ended with an error have none."""
    return [
        sheets.score(row["dataset"], row["return_final"])
        for row in rows
        if row["return_final"] is not None
    ]


def bests(rows: Iterable[Row]) -> list[float]:
    """Scores of the best epochs."""
    return [
        sheets.score(row["dataset"], row["return_best"])
        for row in rows
        if row["return_best"] is not None
    ]


def curves(rows: Iterable[Row]) -> list[list[float]]:
    """Scores by epoch, of runs that are as long as the longest."""
    found = [
        [sheets.score(row["dataset"], value) for value in row["curve"]]
        for row in rows
        if row["curve"]
    ]
    return [curve for curve in found if len(curve) == max(map(len, found))]


def estimate(scores: Sequence[float]) -> Estimate | None:
    """`iqm`, or None where there is no run."""
    return iqm(scores) if scores else None


def iqm(scores: Sequence[float]) -> Estimate:
    """Interquartile mean of one task's runs with its bootstrap interval; a fixed generator keeps pages as they are."""
    value = float(stats.trim_mean(scores, 0.25))
    if len(scores) < 2:
        return Estimate(value, -np.inf, np.inf)
    found = stats.bootstrap(
        (np.asarray(scores, dtype=float),),
        lambda drawn, axis: stats.trim_mean(drawn, 0.25, axis=axis),
        n_resamples=RESAMPLES,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(found.low), float(found.high))


def failures(rows: Iterable[Row]) -> int:
    """How many ended with an error."""
    return sum(row["status"] == "failed" for row in rows)


def noise_of(rows: Iterable[Row]) -> Noise | None:
    """Of rows that have the same, by the first that tells it."""
    return next((found for row in rows if (found := noise(row)) is not None), None)


def noise(row: Row) -> Noise | None:
    """None where there is none, or nothing is known."""
    z, q, rounds, units = (
        row[name] for name in ("noise_multiplier", "sampling_probability", "rounds", "units")
    )
    if row["variant"] != "private" or None in (z, q, rounds, units, row["parameters"]):
        return None
    coordinate = z / (q * units)
    norm = coordinate * math.sqrt(row["parameters"])
    return Noise(z, coordinate, norm, norm / math.sqrt(rounds))
