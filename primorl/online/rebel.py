"""DP-REBEL: private regression of relative log-probabilities on relative advantages."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort
from primorl.online.network import PolicyNetwork
from primorl.online.returns import FromReturns, own_mean, own_weights, policy_gradients
from primorl.online.trajectories import Trajectories


@dataclass(frozen=True)
class Rebel(FromReturns):
    """DP-REBEL (private policy optimisation, Algorithm 5).

    θ_{t+1} approximates argmin_θ E[(q(s, a) - q(s', a') - (Â - Â'))²], q(s, a) = (1/η) ln π_θ(a | s) / π_t(a | s),
    where (s, a) and (s', a') are two decisions. The paper pairs two answers to one prompt; here all pairs of one user's
    own decisions are taken. Their mean is twice the variance of q - Â inside her data, so her gradient is
    Σ_t (e_t - ē) ∇ log π_θ(a_t | s_t) / n with e = Â - q, of n steps.

    K steps of length α go up the noisy mean of these gradients, clipped to S, all on one cohort: a user is in each, and
    the plan composes K releases. The paper leaves the oracle open.

    Attributes:
        temperature: η. The larger, the farther θ may go from θ_t.
        step_size: α.
        steps: K.
        clipping_norm: S.
    """

    name: ClassVar[str] = "dp-rebel"

    temperature: float
    step_size: float
    steps: int
    clipping_norm: float

    @property
    def releases(self) -> int:
        """K."""
        return self.steps

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        advantages = self.advantages(met)
        parameters = values[PARAMETERS]
        old = self._logs(network, parameters, met)
        for _ in range(self.steps):
            errors = advantages - (self._logs(network, parameters, met) - old) / self.temperature
            weights = (errors - own_mean(errors, met.valid)) * own_weights(met.valid)
            gradients = policy_gradients(network, parameters, met, weights)
            parameters = parameters + self.step_size * cohort.noisy_mean(gradients, self.clipping_norm)
        return {PARAMETERS: parameters}

    @torch.no_grad()
    def _logs(self, network: PolicyNetwork, parameters: Tensor, met: Trajectories) -> Tensor:
        return network.log_probabilities(parameters.expand(met.users, -1), met.observations, met.actions)
