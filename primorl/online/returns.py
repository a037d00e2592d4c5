"""What the updates share whose advantages are normalised returns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.online.advantages import COUPLED, Guarantee, normalised, normalised_over_cohort, returns_to_go
from primorl.online.learning import PARAMETERS
from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories


@dataclass(frozen=True, kw_only=True)
class FromReturns:
    """Settings of updates whose Â is the discounted return, less its mean, over its standard deviation.

    With ``guarantee="paper"`` mean and standard deviation are of all users' steps together, which couples the users:
    the statement is void (private policy optimisation's experiments do so).

    Attributes:
        discount: γ.
        guarantee: see above.
    """

    discount: float = 0.99
    guarantee: Guarantee = "strict"

    @property
    def void(self) -> str | None:
        """See `Update.void`."""
        return None if self.guarantee == "strict" else COUPLED

    def begin(self, network: PolicyNetwork, parameters: Tensor) -> dict[str, Tensor]:
        """See `Update.begin`."""
        return {PARAMETERS: parameters}

    def advantages(self, met: Trajectories) -> Tensor:
        """Â, ``[U, T]``. Sensitive."""
        scaled = normalised if self.guarantee == "strict" else normalised_over_cohort
        return scaled(returns_to_go(met, self.discount), met.valid)


def own_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Mean over each user's own valid steps: ``[U, T]`` to ``[U, 1]``; 0 for a user without steps."""
    return torch.where(valid, values, 0.0).sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(min=1)


def own_weights(valid: Tensor) -> Tensor:
    """One over the number of a user's steps, at each of them, ``[U, T]``."""
    return valid / valid.sum(1, keepdim=True).clamp(min=1)


def policy_gradients(network: PolicyNetwork, parameters: Tensor, met: Trajectories, weights: Tensor) -> Tensor:
    """Σ_t w_t ∇ log π(a_t | s_t) of every user, ``[U, d]``. Sensitive."""
    own = parameters.expand(met.users, -1).contiguous().requires_grad_()
    logs = network.log_probabilities(own, met.observations, met.actions)
    (gradients,) = torch.autograd.grad((logs * weights).sum(), own)
    return gradients


def within(vectors: Tensor, bound: float) -> Tensor:
    """Vectors scaled to norm at most ``bound``, ``[.., n]``."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    scaled: Tensor = vectors * (bound / norms).clamp(max=1.0)
    return scaled
