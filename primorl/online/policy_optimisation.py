"""Private policy optimisation: DP-PG, DP-NPG by descent, and DP-REBEL."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from primorl.online.advantages import normalised, own_mean, own_weights, policy_gradients, returns_to_go, within
from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort
from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories


@dataclass(frozen=True, kw_only=True)
class FromReturns:
    """Base of updates whose Â is the discounted return, normalised inside a user's data.

    Attributes:
        discount: γ.
    """

    discount: float = 0.99

    def begin(self, network: PolicyNetwork, parameters: Tensor) -> dict[str, Tensor]:
        """See `Update.begin`."""
        return {PARAMETERS: parameters}

    def advantages(self, met: Trajectories) -> Tensor:
        """Compute Â, ``[U, T]``. Sensitive."""
        return normalised(returns_to_go(met, self.discount), met.valid)


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


@dataclass(frozen=True)
class NaturalGradientByDescent(FromReturns):
    """DP-NPG (private policy optimisation, Algorithm 3) by clipped noisy gradient steps over a ball, for networks.

    From w = 0, K times: w ← Π_B(w + α · noisy mean of Σ_t (Â_t - wᵀψ_t) ψ_t / n), each user's term clipped to S, where
    Π_B scales back to norm at most B. Then θ ← θ + η w. wᵀψ is a product with the Jacobian and the sum one with its
    transpose, so no ψ is ever stored. All K releases are of one cohort: the plan composes them.

    Attributes:
        learning_rate: η.
        clipping_norm: S.
        steps: K.
        step_size: α.
        ball: B.
    """

    name: ClassVar[str] = "dp-npg-descent"

    learning_rate: float
    clipping_norm: float
    steps: int
    step_size: float
    ball: float

    @property
    def releases(self) -> int:
        """K."""
        return self.steps

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        advantages, weights = self.advantages(met), own_weights(met.valid)
        parameters = values[PARAMETERS]
        direction = torch.zeros_like(parameters)
        for _ in range(self.steps):
            errors = advantages - predictions(network, parameters, met, direction)
            gradients = policy_gradients(network, parameters, met, errors * weights)
            step = cohort.noisy_mean(gradients, self.clipping_norm)
            direction = within(direction + self.step_size * step, self.ball)
        return {PARAMETERS: parameters + self.learning_rate * direction}


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


def predictions(network: PolicyNetwork, parameters: Tensor, met: Trajectories, direction: Tensor) -> Tensor:
    """Compute wᵀψ_t of every step, ``[U, T]``. Sensitive."""
    own = parameters.expand(met.users, -1).contiguous().requires_grad_()
    weights = torch.ones_like(met.rewards).requires_grad_()
    logs = network.log_probabilities(own, met.observations, met.actions)
    # The gradient is linear in the weights, and its derivative by them is what is wanted.
    (gradients,) = torch.autograd.grad((logs * weights).sum(), own, create_graph=True)
    (products,) = torch.autograd.grad((gradients @ direction).sum(), weights)
    return products
