"""How well a score tells members from others."""

from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

from primorl.privacy.audits.intervals import clopper_pearson

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
FALSE_POSITIVES = 0.01


@dataclass(frozen=True)
class Success:
    """Attack success with 95% intervals over units; the models attacked are taken as they are.

    Attributes:
        auc: probability that a member scores above a non-member, ties counted half.
        auc_interval: DeLong's.
        tpr: share of members above the threshold that at most 1% of the non-members pass.
        tpr_interval: Clopper-Pearson's over members, the threshold taken as given.
        members: how many were scored.
        others: how many non-members were scored.
    """

    auc: float
    auc_interval: tuple[float, float]
    tpr: float
    tpr_interval: tuple[float, float]
    members: int
    others: int

    @classmethod
    def of(cls, members: list[Floats], others: list[Floats]) -> Self:
        """Success over several attacked models: the mean AUC, the pooled true positives.

        Scores of different models need not be comparable: each model has its own threshold.

        Args:
            members: of each model, scores of its members, higher where membership seems likelier.
            others: of each model, scores of as many non-members as there are.
        """
        areas, variances = np.array([_delong(*pair) for pair in zip(members, others, strict=True)]).T
        auc, error = float(areas.mean()), float(np.sqrt(variances.sum())) / len(areas)
        hits = sum(_hits(*pair) for pair in zip(members, others, strict=True))
        count = sum(map(len, members))
        if error:
            half = float(ndtri((1 + CONFIDENCE) / 2)) * error
            interval = (max(0.0, auc - half), min(1.0, auc + half))
        else:
            interval = _without_spread(auc, count, sum(map(len, others)))
        return cls(auc, interval, hits / count, clopper_pearson(hits, count, CONFIDENCE), count, sum(map(len, others)))

    def to_json(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)


def _delong(members: Floats, others: Floats) -> tuple[float, float]:
    """AUC and its variance by structural components (DeLong et al. 1988)."""
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate((members, others)))
    above = (ranks[:m] - rankdata(members)) / n  # of each member, the share of others below it
    below = 1 - (ranks[m:] - rankdata(others)) / m  # of each other, the share of members above it
    return float(above.mean()), float(above.var(ddof=1) / m + below.var(ddof=1) / n)


def _without_spread(auc: float, members: int, others: int) -> tuple[float, float]:
    """Interval where every pair is ordered alike and DeLong sees no variance.

    Both groups lie wholly on their side of one threshold, with at least the probabilities p and q that Clopper and
    Pearson give for such counts, so that the AUC is at least pq. The same from above where all pairs are wrong; where
    all are ties nothing is known.
    """
    share = 1 - (1 - CONFIDENCE) / 2
    least = clopper_pearson(members, members, share)[0] * clopper_pearson(others, others, share)[0]
    return {0.0: (0.0, 1 - least), 1.0: (least, 1.0)}.get(auc, (0.0, 1.0))


def _hits(members: Floats, others: Floats) -> int:
    allowed = int(FALSE_POSITIVES * len(others))
    threshold = np.sort(others)[len(others) - 1 - allowed]
    return int(np.count_nonzero(members > threshold))
