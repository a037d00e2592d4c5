"""DP-PG, DP-NPG and DP-REBEL of private policy optimisation (algorithms 2, 3 and 5); the last two
take several noisy steps on one cohort.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from primorl.model.numerics import Workspace
from primorl.online.learning import PARAMETERS, Cohort, Trajectories, Values
from primorl.online.network import PolicyNetwork, StepGradients
from primorl.online.updates import by_pieces, normalise, own_weights, returns_to_go, within


@dataclass(frozen=True, kw_only=True)
class ReturnBasedUpdate:
    """Base of updates with the discounted return as Â, normalised inside a user's data.

    Attributes:
        discount: γ.
    """

    discount: float = 0.99

    def advantages(self, met: Trajectories) -> Tensor:
        """Compute Â, ``[U, T]``. Sensitive."""
        return normalise(returns_to_go(met, self.discount), met.valid)


@dataclass(frozen=True, kw_only=True)
class PolicyGradient(ReturnBasedUpdate):
    """DP-PG (private policy optimisation, Algorithm 2): θ ← θ + η (mean of clipped gradients +
    noise).

    A user's gradient is that of her whole data, Σ_t ∇ log π(a_t | s_t) Â_t with Â normalised inside
    her data, clipped to S. The paper assumes a bound on ∇ log π instead.

    Attributes:
        learning_rate: η.
        clipping_norm: S.
    """

    name: ClassVar[str] = "dp-pg"
    releases: ClassVar[int] = 1

    learning_rate: float
    clipping_norm: float

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """See `Update.apply`."""
        here = values[PARAMETERS].unsqueeze(0)

        def sums(own: Trajectories, weights: Tensor, workspace: Workspace) -> Tensor:
            steps = network.step_gradients(here, own.observations, own.actions, workspace)
            return steps.sums(weights)

        rows = by_pieces(sums, met, self.advantages(met))
        step = cohort.noisy_mean(rows, self.clipping_norm)
        return {PARAMETERS: values[PARAMETERS] + self.learning_rate * step}


@dataclass(frozen=True, kw_only=True)
class Regression(ReturnBasedUpdate):
    """Base of updates that take K noisy steps on one cohort.

    A user is in each: the mechanism composes K releases.

    Attributes:
        clipping_norm: S.
        steps: K.
        step_size: α.
    """

    clipping_norm: float
    steps: int
    step_size: float

    @property
    def releases(self) -> int:
        """K."""
        return self.steps

    def ascend(
        self,
        cohort: Cohort,
        point: Tensor,
        gradients: Callable[[Tensor], Tensor | Iterator[Tensor]],
        ball: float = float("inf"),
    ) -> Tensor:
        """Take K steps: x ← Π(x + α · noisy mean of the users' gradients at x), Π scaling back to
        norm at most ``ball``.
        """
        for _ in range(self.steps):
            step = cohort.noisy_mean(gradients(point), self.clipping_norm)
            point = within(point + self.step_size * step, ball)
        return point


@dataclass(frozen=True, kw_only=True)
class NaturalGradientByDescent(Regression):
    """DP-NPG (private policy optimisation, Algorithm 3) by clipped noisy gradient steps over a
    ball, for networks.

    From w = 0, K times: w ← Π_B(w + α · noisy mean of Σ_t (Â_t - wᵀψ_t) ψ_t / n), each user's term
    clipped to S. Then θ ← θ + η w. wᵀψ is a product with the Jacobian and the sum one with its
    transpose, so no ψ is ever stored.

    Attributes:
        learning_rate: η.
        ball: B.
    """

    name: ClassVar[str] = "dp-npg-descent"

    learning_rate: float
    ball: float

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """See `Update.apply`."""
        parameters, advantages = values[PARAMETERS], self.advantages(met)

        def gradients(direction: Tensor) -> Iterator[Tensor]:
            of_piece = partial(_sum_regression_gradients, network, parameters, direction)
            return by_pieces(of_piece, met, advantages)

        direction = self.ascend(cohort, torch.zeros_like(parameters), gradients, self.ball)
        return {PARAMETERS: parameters + self.learning_rate * direction}


def _sum_regression_gradients(
    network: PolicyNetwork,
    parameters: Tensor,
    direction: Tensor,
    own: Trajectories,
    advantages: Tensor,
    workspace: Workspace,
) -> Tensor:
    """Compute Σ_t (Â_t - wᵀψ_t) ψ_t / n of every user, ``[U, d]``. Sensitive."""
    here = parameters.unsqueeze(0)
    steps = network.step_gradients(here, own.observations, own.actions, workspace)
    return steps.sums((advantages - multiply(steps, direction)) * own_weights(own.valid))


@dataclass(frozen=True, kw_only=True)
class Rebel(Regression):
    """DP-REBEL (private policy optimisation, Algorithm 5).

    θ_{t+1} approximates argmin_θ E[(q(s, a) - q(s', a') - (Â - Â'))²], q(s, a) = (1/η) ln π_θ(a |
    s) / π_t(a | s), where (s, a) and (s', a') are two decisions. The paper pairs two answers to one
    prompt; here all pairs of one user's own decisions are taken. Their mean is twice the variance
    of q - Â inside her data, so her gradient is Σ_t (e_t - ē) ∇ log π_θ(a_t | s_t) / n with e = Â -
    q, of n steps. K steps of length α go up the noisy mean of these gradients, clipped to S. The
    paper leaves the oracle open.

    Attributes:
        temperature: η. The larger, the farther θ may go from θ_t.
    """

    name: ClassVar[str] = "dp-rebel"

    temperature: float

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """See `Update.apply`."""
        here, advantages = values[PARAMETERS].unsqueeze(0), self.advantages(met)

        def logs(own: Trajectories, _: Tensor, workspace: Workspace) -> Tensor:
            return network.step_gradients(here, own.observations, own.actions, workspace).logs

        # log π_t, which the first step begins at
        known = torch.stack((advantages, torch.cat([*by_pieces(logs, met, advantages)])), -1)

        def gradients(parameters: Tensor) -> Iterator[Tensor]:
            return by_pieces(partial(self._sum_gradients, network, parameters), met, known)

        return {PARAMETERS: self.ascend(cohort, values[PARAMETERS], gradients)}

    def _sum_gradients(
        self,
        network: PolicyNetwork,
        parameters: Tensor,
        own: Trajectories,
        known: Tensor,
        workspace: Workspace,
    ) -> Tensor:
        """Compute Σ_t (e_t - ē) ∇ log π_θ(a_t | s_t) / n of every user, ``[U, d]``, from Â and
        log π_t, ``[U, T, 2]``. Sensitive.
        """
        here = parameters.unsqueeze(0)
        steps = network.step_gradients(here, own.observations, own.actions, workspace)
        advantages, old = known.unbind(-1)
        errors = advantages - (steps.logs - old) / self.temperature
        return steps.sums((errors - own_mean(errors, own.valid)) * own_weights(own.valid))


def multiply(steps: StepGradients, direction: Tensor) -> Tensor:
    """Compute wᵀψ_t: ``[d]`` to ``[U, t]``."""
    layers = [
        part.expand(len(steps.logs), -1, -1)
        for part in steps.network._layers(direction.unsqueeze(0))
    ]
    products = torch.zeros_like(steps.logs)
    for weight, bias, error, signal in zip(
        layers[::2], layers[1::2], steps.errors, steps.signals, strict=True
    ):
        scratch = steps.workspace.take("scratch", 0, tuple(error.shape))
        moved = torch.baddbmm(bias, signal, weight.mT, out=scratch)
        products += moved.mul_(error).sum(-1)
    if steps.spread.shape[1]:
        products += (steps.spread * steps.network._log_scales(direction.unsqueeze(0)).mT).sum(1)
    return products


def own_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Average over each user's own valid steps: ``[U, T]`` to ``[U, 1]``; 0 for a user without
    steps.
    """
    return torch.where(valid, values, 0.0).sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(
        min=1
    )
