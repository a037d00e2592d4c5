"""DPPG-L2 and DPPG-KL: policy gradients whose clipping norm S keeps the noisy step in a trust
region.

Rio et al. (DPPG), Section 4.2. A step is Δθ = η (ḡ + ξ), where ḡ is the mean of m users' vectors of
norm at most S, and ξ is N(0, (ρS)² I). The paper has m = 1, so that ρ is the noise multiplier z;
here ρ = z / m.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ncx2

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """A noisy step.

    Attributes:
        learning_rate: η.
        noise: ρ.
        failure: β, with which the step may be larger than it should.
    """

    learning_rate: float
    noise: float
    failure: float

    def l2_norm(self, region: float, parameters: int) -> float:
        """Proposition 4.4: the largest S for which ½‖Δθ‖² ≤ α with probability at least 1 - β.

        ½‖Δθ‖² is ½ η² ρ² S² times a non-central χ² variable of d degrees and non-centrality at most
        ρ⁻².

        Args:
            region: α.
            parameters: d.
        """
        if self.noise == 0:
            return math.sqrt(2 * region) / self.learning_rate
        quantile = _quantile(1 - self.failure, parameters, self.noise**-2)
        return math.sqrt(2 * region / quantile) / (self.learning_rate * self.noise)

    def kl_norm(self, region: float, fisher: Floats) -> Floats:
        """Proposition 4.7: an S for which ½ Δθᵀ F Δθ ≤ α with probability at least 1 - β, by
        Markov's inequality.

        Args:
            region: α; approximately the mean KL divergence between the policies before and after
                the step.
            fisher: F ``[.., d, d]``, public.

        Returns:
            S for each F, ``[..]``.
        """
        eigenvalues = np.linalg.eigvalsh(fisher)
        spread = eigenvalues[..., -1] + self.noise**2 * eigenvalues.sum(-1)
        norms: Floats = np.sqrt(2 * region * self.failure / spread) / self.learning_rate
        return norms


@lru_cache(maxsize=16)
def _quantile(probability: float, degrees: int, noncentrality: float) -> float:
    """The quantile of a non-central χ² distribution.

    A run asks for the same one for every cohort.
    """
    return float(ncx2.ppf(probability, degrees, noncentrality))
