"""DP-PG: the private policy gradient."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from primorl.online.advantages import COUPLED, Guarantee, advantages_of, returns_to_go
from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort
from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories


@dataclass(frozen=True)
class PolicyGradient:
    """DP-PG (private policy optimisation, Algorithm 2): θ ← θ + η (mean of clipped gradients + noise).

    A user's gradient is that of her whole data, Σ_t ∇ log π(a_t | s_t) Â_t with Â normalised inside her data, clipped
    to S. The paper assumes a bound on ∇ log π instead. ``guarantee="paper"`` has the baseline and the normalisation of
    its experiments, over all users of a cohort: the statement is void.

    Attributes:
        learning_rate: η.
        clipping_norm: S.
        discount: γ.
        guarantee: see above.
    """

    name: ClassVar[str] = "dp-pg"
    releases: ClassVar[int] = 1

    learning_rate: float
    clipping_norm: float
    discount: float = 0.99
    guarantee: Guarantee = "strict"

    @property
    def void(self) -> str | None:
        """See `Update.void`."""
        return None if self.guarantee == "strict" else COUPLED

    def begin(self, network: PolicyNetwork, parameters: Tensor) -> dict[str, Tensor]:
        """See `Update.begin`."""
        return {PARAMETERS: parameters}

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        advantages = advantages_of(returns_to_go(met, self.discount), met.valid, self.guarantee)
        gradients = policy_gradients(network, values[PARAMETERS], met, advantages)
        step = cohort.noisy_mean(gradients, self.clipping_norm)
        return {PARAMETERS: values[PARAMETERS] + self.learning_rate * step}


def policy_gradients(network: PolicyNetwork, parameters: Tensor, met: Trajectories, weights: Tensor) -> Tensor:
    """Σ_t w_t ∇ log π(a_t | s_t) of every user, ``[U, d]``. Sensitive."""
    own = parameters.expand(met.users, -1).contiguous().requires_grad_()
    logs = network.log_probabilities(own, met.observations, met.actions)
    (gradients,) = torch.autograd.grad((logs * weights).sum(), own)
    return gradients
