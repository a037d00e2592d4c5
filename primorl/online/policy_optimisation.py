"""Private policy optimisation: DP-PG, DP-NPG with three oracles, and DP-REBEL."""

import math
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
class NaturalGradientByStatistics(FromReturns):
    """DP-NPG (private policy optimisation, Algorithm 3) by noisy sufficient statistics, for few parameters.

    w ≈ argmin_w E[(Â - wᵀψ)²], ψ = ∇ log π(a | s), and θ ← θ + η w. A user's vector is the upper triangle of the mean
    of ψψᵀ over her steps and the mean of ψÂ, d (d + 3) / 2 numbers, clipped to S together. Of the noisy means F and g,
    w = F⁻¹ g, where eigenvalues of F below the ridge are raised to it. The ridge is 2σ√d, the norm of a symmetric
    matrix of noise of standard deviation σ = zS / m, and at least ``ridge``: so the noise decides on no direction.

    Sheffet 2019 ("Old techniques in differentially private linear regression") is the paper's reference for such an
    oracle. His ridge depends on β as well; this one is the expected norm.

    Attributes:
        learning_rate: η.
        clipping_norm: S.
        ridge: least eigenvalue of F, and all of it in the non-private twin.
        largest_step: what the norm of η w is scaled back to.
    """

    name: ClassVar[str] = "dp-npg-statistics"
    releases: ClassVar[int] = 1

    learning_rate: float
    clipping_norm: float
    ridge: float
    largest_step: float

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        d = network.parameters
        statistics = self.statistics(network, values[PARAMETERS], met)
        mean = cohort.noisy_mean(statistics, self.clipping_norm).double()
        triangle, gradient = mean[:-d], mean[-d:]
        fisher = triangle.new_zeros(d, d)
        row, column = _upper(d, fisher.device)
        fisher[row, column] = triangle
        fisher = fisher + fisher.triu(1).mT
        noise = cohort.noise_multiplier * self.clipping_norm / cohort.users
        eigenvalues, vectors = torch.linalg.eigh(fisher)
        floor = max(self.ridge, 2 * noise * math.sqrt(d))
        direction = (vectors @ (vectors.mT @ gradient / eigenvalues.clamp(min=floor))).float()
        return {PARAMETERS: values[PARAMETERS] + within(self.learning_rate * direction, self.largest_step)}

    def statistics(self, network: PolicyNetwork, parameters: Tensor, met: Trajectories) -> Tensor:
        """Every user's vector, ``[U, d (d + 3) / 2]``. Sensitive."""
        weights = own_weights(met.valid).unsqueeze(-1)
        scores = step_scores(network, parameters, met)
        squares = scores.mT @ (scores * weights)
        row, column = _upper(network.parameters, squares.device)
        products = scores.mT @ (self.advantages(met).unsqueeze(-1) * weights)
        return torch.cat([squares[:, row, column], products.squeeze(-1)], 1)


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
class NaturalGradientByChoice(FromReturns):
    """DP-NPG (private policy optimisation, Algorithm 4): the exponential mechanism over a finite class of directions.

    The class is w = 0 and k - 1 directions of norm B, drawn anew for every cohort from a public seed. A user scores
    w with 1 - loss / L, loss being the mean of (Â - wᵀψ)² over her steps, held within [0, L]; the cohort's choice is
    `Cohort.choose`, of pure ε, and θ ← θ + η w.

    The mechanism is permute-and-flip, which is never worse than the paper's, and the bound L of the loss is held to
    instead of assumed.

    Attributes:
        learning_rate: η.
        candidates: k.
        ball: B.
        largest_loss: L; 1 is the loss of w = 0.
    """

    name: ClassVar[str] = "dp-npg-choice"
    releases: ClassVar[int] = 1

    learning_rate: float
    candidates: int
    ball: float
    largest_loss: float

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        directions = self.directions(values[PARAMETERS], number)
        chosen = cohort.choose(self.scores(network, values[PARAMETERS], met, directions))
        return {PARAMETERS: values[PARAMETERS] + self.learning_rate * directions[chosen]}

    def directions(self, parameters: Tensor, number: int) -> Tensor:
        """The class, ``[k, d]``: public."""
        drawn: Tensor = torch.randn(self.candidates, len(parameters), generator=torch.Generator().manual_seed(number))
        drawn *= self.ball / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        drawn[0] = 0.0
        return drawn.to(parameters.device)

    def scores(self, network: PolicyNetwork, parameters: Tensor, met: Trajectories, directions: Tensor) -> Tensor:
        """What every user adds to the scores, ``[U, k]``; zero for one without steps. Sensitive."""
        errors = self.advantages(met).unsqueeze(-1) - step_scores(network, parameters, met) @ directions.mT
        losses = (errors.square() * own_weights(met.valid).unsqueeze(-1)).sum(1)
        found: Tensor = torch.where(met.valid.any(1, keepdim=True), 1 - losses / self.largest_loss, 0.0)
        return found


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


def step_scores(network: PolicyNetwork, parameters: Tensor, met: Trajectories) -> Tensor:
    """Compute ψ_t = ∇ log π(a_t | s_t) of every step, ``[U, T, d]``; 0 at padding. Sensitive."""
    own = parameters.expand(met.users * met.steps, -1).contiguous().requires_grad_()
    logs = network.log_probabilities(
        own, met.observations.flatten(0, 1).unsqueeze(1), met.actions.flatten(0, 1).unsqueeze(1)
    )
    (scores,) = torch.autograd.grad(logs.sum(), own)
    held: Tensor = torch.where(met.valid.unsqueeze(-1), scores.view(met.users, met.steps, -1), 0.0)
    return held


def predictions(network: PolicyNetwork, parameters: Tensor, met: Trajectories, direction: Tensor) -> Tensor:
    """Compute wᵀψ_t of every step, ``[U, T]``. Sensitive."""
    own = parameters.expand(met.users, -1).contiguous().requires_grad_()
    weights = torch.ones_like(met.rewards).requires_grad_()
    logs = network.log_probabilities(own, met.observations, met.actions)
    # The gradient is linear in the weights, and its derivative by them is what is wanted.
    (gradients,) = torch.autograd.grad((logs * weights).sum(), own, create_graph=True)
    (products,) = torch.autograd.grad((gradients @ direction).sum(), weights)
    return products


def _upper(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the upper triangle of a square matrix."""
    both = torch.triu_indices(size, size, device=device)
    return both[0], both[1]
