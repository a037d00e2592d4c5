"""DPPG-L2 and DPPG-KL: policy gradients whose clipping norm S keeps the noisy step in a trust region.

Rio et al. (DPPG), Section 4.2. A step is Δθ = η (ḡ + ξ), where ḡ is the mean of m users' vectors of norm at most S, and
ξ is N(0, (ρS)² I). The paper has m = 1, so that ρ is the noise multiplier z; here ρ = z / m.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from scipy.stats import ncx2
from torch import Tensor

from primorl.online.learning import PARAMETERS, Cohort, Trajectories, Values
from primorl.online.network import PolicyNetwork
from primorl.online.updates import policy_gradients, returns_to_go
from research.natural_gradient import step_scores


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

        ½‖Δθ‖² is ½ η² ρ² S² times a non-central χ² variable of d degrees and non-centrality at most ρ⁻².

        Args:
            region: α.
            parameters: d.
        """
        if self.noise == 0:
            return math.sqrt(2 * region) / self.learning_rate
        quantile = _quantile(1 - self.failure, parameters, self.noise**-2)
        return math.sqrt(2 * region / quantile) / (self.learning_rate * self.noise)

    def kl_norm(self, region: float, fisher: Tensor) -> float:
        """Proposition 4.7: an S for which ½ Δθᵀ F Δθ ≤ α with probability at least 1 - β, by Markov's inequality.

        Args:
            region: α; approximately the mean KL divergence between the policies before and after the step.
            fisher: F ``[d, d]``, public.
        """
        eigenvalues = torch.linalg.eigvalsh(fisher.double())
        spread = float(eigenvalues[-1]) + self.noise**2 * float(eigenvalues.sum())
        return math.sqrt(2 * region * self.failure / spread) / self.learning_rate


@lru_cache(maxsize=16)
def _quantile(probability: float, degrees: int, noncentrality: float) -> float:
    """The quantile of a non-central χ² distribution. A run asks for the same one for every cohort."""
    return float(ncx2.ppf(probability, degrees, noncentrality))


def fisher_matrix(network: PolicyNetwork, parameters: Tensor, public: Trajectories, regulariser: float) -> Tensor:
    """Average ∇ log π(a|s) ∇ log π(a|s)ᵀ over public steps under this policy, plus ``regulariser`` I: ``[d, d]``."""
    scores = step_scores(network, parameters, public)[public.valid]
    return scores.T @ scores / len(scores) + regulariser * torch.eye(scores.shape[1], device=scores.device)


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every cohort: η divided by ``factor`` after every ``every`` cohorts, but at least ``least``.

    Attributes:
        first: η of the first cohort.
        factor: at least 1.
        every: cohorts with the same η.
        least: η does not fall below it.
    """

    first: float
    factor: float
    every: int
    least: float

    def __call__(self, number: int) -> float:
        """Compute η of a cohort, numbered from 0."""
        return max(self.first / self.factor ** (number // self.every), self.least)


@dataclass(frozen=True)
class TrustRegion:
    """DPPG-L2: θ ← θ + η (mean of clipped gradients + noise), with S of Proposition 4.4; with ``public``, DPPG-KL.

    A user's gradient is Σ_t G_t ∇ log π(a_t | s_t), G_t her discounted rewards from step t to the end of the episode. A
    time limit is an end like any other, as in tasks of a fixed horizon. Nothing is carried from user to user: the
    paper's linear baseline is fitted to users' rewards without noise, and so tells of them to later ones.

    Attributes:
        learning_rate: η of each cohort.
        region: α.
        failure: β.
        discount: γ.
        public: episodes under the policy of the cohort, which is released, by people who take part openly or by a
            simulator: then S is that of Proposition 4.7, F being theirs. None: that of Proposition 4.4.
        regulariser: added to the diagonal of F.
    """

    releases: ClassVar[int] = 1

    learning_rate: Schedule
    region: float
    failure: float
    discount: float
    public: Trajectories | None = None
    regulariser: float = 1e-3

    def updated(self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int) -> Values:
        """See `primorl.online.learning.Update.updated`."""
        parameters = values[PARAMETERS]
        step = Step(self.learning_rate(number), cohort.noise_multiplier / cohort.users, self.failure)
        if self.public is None:
            norm = step.l2_norm(self.region, network.parameters)
        else:
            norm = step.kl_norm(self.region, fisher_matrix(network, parameters, self.public, self.regulariser))
        returns = returns_to_go(replace(met, terminated=met.ends), self.discount)
        gradients = policy_gradients(network, parameters, met, returns)
        return {PARAMETERS: parameters + step.learning_rate * cohort.noisy_mean(gradients, norm)}
