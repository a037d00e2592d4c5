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

from primorl.online.advantages import returns_to_go
from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort
from primorl.online.natural_gradient import step_scores
from primorl.online.network import PolicyNetwork
from primorl.online.returns import policy_gradients
from primorl.online.trajectories import Trajectories, Users


@dataclass(frozen=True)
class Step:
    """What the size of a noisy step follows from.

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
        return math.sqrt(2 * region / _quantile(1 - self.failure, parameters, self.noise**-2)) / (
            self.learning_rate * self.noise
        )

    def l2_norm_by_markov(self, region: float, parameters: int) -> float:
        """Proposition 4.5: an S of closed form for the same, by Markov's inequality; smaller than `l2_norm`."""
        return self._by_markov(region, 1.0, float(parameters))

    def gap_norm(self, gap: float, gradient_norm: float) -> float:
        """Proposition 4.6: the largest S for which noise costs more than λ with probability at most β, by Cantelli.

        The loss g·Δθ of the step, compared with η ‖g‖² of the step without clip and noise, is at most
        η (1 - S̄) ‖g‖² + λ, where S̄ is by what g is scaled. (The paper's K(λ) has ‖g‖ without the square.)

        Args:
            gap: λ.
            gradient_norm: ‖g‖; a public bound on it, as the norm of a user's gradient is sensitive.
        """
        if self.noise == 0:
            return math.inf
        odds = math.sqrt(self.failure / (1 - self.failure))
        return gap * odds / (self.learning_rate * self.noise * gradient_norm)

    def kl_norm(self, region: float, fisher: Tensor) -> float:
        """Proposition 4.7: an S for which ½ Δθᵀ F Δθ ≤ α with probability at least 1 - β, by Markov's inequality.

        Args:
            region: α; approximately the mean KL divergence between the policies before and after the step.
            fisher: F ``[d, d]``, public.
        """
        eigenvalues = torch.linalg.eigvalsh(fisher.double())
        return self._by_markov(region, float(eigenvalues[-1]), float(eigenvalues.sum()))

    def _by_markov(self, region: float, largest: float, trace: float) -> float:
        return math.sqrt(2 * region * self.failure / (largest + self.noise**2 * trace)) / self.learning_rate


@lru_cache(maxsize=16)
def _quantile(probability: float, degrees: int, noncentrality: float) -> float:
    """The quantile of a non-central χ² distribution. A run asks for the same one for every cohort."""
    return float(ncx2.ppf(probability, degrees, noncentrality))


def fisher_matrix(network: PolicyNetwork, parameters: Tensor, public: Trajectories, regulariser: float) -> Tensor:
    """Mean of ∇ log π(a|s) ∇ log π(a|s)ᵀ over public steps, plus ``regulariser`` I: ``[d, d]``.

    Args:
        network: shape of the policy.
        parameters: of the policy, ``[d]``.
        public: episodes under this policy; public.
        regulariser: what is added to the diagonal.
    """
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
        """η of a cohort, numbered from 0."""
        return max(self.first / self.factor ** (number // self.every), self.least)


@dataclass(frozen=True)
class TrustRegionL2:
    """DPPG-L2: θ ← θ + η (mean of clipped gradients + noise), with S of Proposition 4.4.

    A user's gradient is Σ_t G_t ∇ log π(a_t | s_t), G_t her discounted rewards from step t to the end of the episode. A
    time limit is an end like any other, as in tasks of a fixed horizon. Nothing is carried from user to user: the
    paper's linear baseline is fitted to users' rewards without noise, and so tells of them to later ones.

    Attributes:
        learning_rate: η of each cohort.
        region: α.
        failure: β.
        discount: γ.
    """

    name: ClassVar[str] = "dppg-l2"
    releases: ClassVar[int] = 1

    learning_rate: Schedule
    region: float
    failure: float
    discount: float

    @property
    def void(self) -> str | None:
        """See `Update.void`."""
        return None

    def begin(self, network: PolicyNetwork, parameters: Tensor) -> dict[str, Tensor]:
        """See `Update.begin`."""
        return {PARAMETERS: parameters}

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        step = Step(self.learning_rate(number), cohort.noise_multiplier / cohort.users, self.failure)
        clipping_norm = self.clipping_norm(network, values[PARAMETERS], step, number)
        returns = returns_to_go(replace(met, terminated=met.ends), self.discount)
        gradients = policy_gradients(network, values[PARAMETERS], met, returns)
        noisy = cohort.noisy_mean(gradients, clipping_norm)
        return {PARAMETERS: values[PARAMETERS] + step.learning_rate * noisy}

    def clipping_norm(self, network: PolicyNetwork, parameters: Tensor, step: Step, number: int) -> float:
        """S of a cohort; it follows from what is public or released."""
        return step.l2_norm(self.region, network.parameters)


@dataclass(frozen=True)
class TrustRegionKL(TrustRegionL2):
    """DPPG-KL: as `TrustRegionL2`, with S of Proposition 4.7.

    F is that of public episodes under the policy of each cohort, which is released: people who take part openly, or
    a simulator. Episodes of private users must not be among them.

    Attributes:
        public: who make the public episodes.
        episodes: how many for each cohort.
        regulariser: what is added to the diagonal of F.
    """

    name: ClassVar[str] = "dppg-kl"

    public: Users
    episodes: int
    regulariser: float

    def clipping_norm(self, network: PolicyNetwork, parameters: Tensor, step: Step, number: int) -> float:
        """See `TrustRegionL2.clipping_norm`."""
        first = number * self.episodes
        public = self.public.meet(range(first, first + self.episodes), network, parameters).to(parameters.device)
        return step.kl_norm(self.region, fisher_matrix(network, parameters, public, self.regulariser))
