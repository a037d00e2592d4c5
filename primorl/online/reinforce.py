"""DP-PG: the private policy gradient."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort
from primorl.online.network import PolicyNetwork
from primorl.online.returns import FromReturns, policy_gradients
from primorl.online.trajectories import Trajectories


@dataclass(frozen=True)
class PolicyGradient(FromReturns):
    """DP-PG (private policy optimisation, Algorithm 2): θ ← θ + η (mean of clipped gradients + noise).

    A user's gradient is that of her whole data, Σ_t ∇ log π(a_t | s_t) Â_t with Â normalised inside her data, clipped
    to S. The paper assumes a bound on ∇ log π instead.

    Attributes:
        learning_rate: η.
        clipping_norm: S.
    """

    name: ClassVar[str] = "dp-pg"
    releases: ClassVar[int] = 1

    learning_rate: float
    clipping_norm: float

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        gradients = policy_gradients(network, values[PARAMETERS], met, self.advantages(met))
        step = cohort.noisy_mean(gradients, self.clipping_norm)
        return {PARAMETERS: values[PARAMETERS] + self.learning_rate * step}
