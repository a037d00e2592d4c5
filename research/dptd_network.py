"""DPTD (Zhao et al. 2023): value networks side by side, and the steps of Algorithm 1."""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu, pad

_BOX = 1.0  # Θ = Ω = [-1, 1]^d
_Layer = tuple[Tensor, Tensor]  # the numbers below a layer, and their tangents


class TdBatch(NamedTuple):
    """Transitions of U units, padded to M each, as the loss needs them. Sensitive.

    The loss of a transition is ℓ = δ u - u²/2 with δ = reward + next_factor·V(next_inputs) -
    V(inputs) and u = ⟨∇V(inputs), ω⟩, V being the network (`ValueNetwork`).

    Attributes:
        inputs: ``[P, U, M, D]``; P is the number of networks, or 1 where all see the same
            transitions.
        next_inputs: ``[P, U, M, D]``.
        reward: ``[P, U, M]``.
        next_factor: γ, ``[P, U, M]``; 0 where nothing follows.
        weight: of each transition in its unit's loss, ``[P, U, M]``; 0 in padding.
    """

    inputs: Tensor
    next_inputs: Tensor
    reward: Tensor
    next_factor: Tensor
    weight: Tensor


@dataclass(frozen=True)
class ValueNetwork:
    """N MLPs of one shape side by side: ``inputs`` numbers to one, ELU between layers.

    The parameters of one network are a vector of d numbers: the layers' matrices ``[out, in + 1]``,
    one after another. The last column of each is the bias.

    Attributes:
        inputs: D.
        hidden: units of each hidden layer.
    """

    inputs: int
    hidden: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of the layers: D, the hidden ones, 1."""
        return (self.inputs, *self.hidden, 1)

    def initial(self, networks: int, generator: torch.Generator) -> Tensor:
        """Draw parameters ``[N, d]``, float64: uniform within ±1/√(inputs of the layer)."""
        parts = []
        for below, above in itertools.pairwise(self.sizes):
            uniform = torch.rand(
                networks, (below + 1) * above, dtype=torch.float64, generator=generator
            )
            parts.append((2 * uniform - 1) / below**0.5)
        return torch.cat(parts, 1)

    def values(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Compute V: parameters ``[N, d]`` and inputs ``[P, .., D]`` to ``[N, ..]``, P being N or
        1.
        """
        value, _ = self._slope(theta, torch.zeros_like(theta), inputs, [])
        return value.view(len(theta), *inputs.shape[1:-1])

    def losses(self, theta: Tensor, omega: Tensor, batch: TdBatch) -> Tensor:
        """Compute ℓ of every transition, ``[N, U, M]``."""
        value, slope = self._slope(theta, omega, batch.inputs, [])
        shape = (len(theta), *batch.inputs.shape[1:3])
        error = batch.reward - value.view(shape)
        error = error + batch.next_factor * self.values(theta, batch.next_inputs)
        advantage = slope.view(shape)
        return error * advantage - advantage.square() / 2

    def gradients(self, theta: Tensor, omega: Tensor, batch: TdBatch) -> Tensor:
        """Compute ∇_θ and ∇_ω of every unit's weighted loss Σ_m weight·ℓ.

        Args:
            theta: θ of the N networks, ``[N, d]``, of the batch's type.
            omega: ω, ``[N, d]``.
            batch: the transitions.

        Returns:
            ``[U, N, 2, d]``: for each unit and network, θ's gradient, then ω's. Sensitive.
        """
        shape, here, following = (
            (len(theta), *batch.inputs.shape[1:3]),
            list[_Layer](),
            list[_Layer](),
        )
        value, slope = (
            found.view(shape) for found in self._slope(theta, omega, batch.inputs, here)
        )
        next_value, _ = self._slope(theta, omega, batch.next_inputs, following)
        error = batch.reward + batch.next_factor * next_value.view(shape) - value
        of_slope = batch.weight * (error - slope)
        found = self._backward(theta, omega, here, -batch.weight * slope, of_slope)
        of_next = batch.weight * batch.next_factor * slope
        found += self._backward(theta, omega, following, of_next, torch.zeros_like(of_next))
        return found.transpose(0, 1)

    def _slope(
        self, theta: Tensor, omega: Tensor, inputs: Tensor, kept: list[_Layer]
    ) -> tuple[Tensor, Tensor]:
        """Compute V and the slope ⟨∇V, ω⟩, ``[N, B]``: a forward pass that carries the tangent
        along ω.

        ``kept`` receives the numbers below each layer, and their tangents, ``[N, B, in + 1]``.
        """
        below = inputs.flatten(1, -2).expand(len(theta), -1, -1)
        tangent = torch.zeros_like(below)
        for layer, direction in zip(self._layers(theta), self._layers(omega), strict=True):
            below, tangent = pad(below, (0, 1), value=1.0), pad(tangent, (0, 1))
            kept.append((below, tangent))
            output, along = below @ layer.mT, below @ direction.mT + tangent @ layer.mT
            below, tangent = elu(output), along * output.clamp(max=0).exp()  # ELU' is 1 above 0
        return output[..., 0], along[..., 0]

    def _backward(
        self, theta: Tensor, omega: Tensor, kept: list[_Layer], of_value: Tensor, of_slope: Tensor
    ) -> Tensor:
        """Go back through `_slope`, from a loss's derivatives ``[N, U, M]`` to sums over M, ``[N,
        U, 2, d]``.
        """
        of_output, of_along = of_value.flatten(1)[..., None], of_slope.flatten(1)[..., None]
        parts: list[Tensor] = []
        layers = zip(self._layers(theta), self._layers(omega), kept, strict=True)
        for layer, direction, (below, tangent) in reversed(list(layers)):
            output, along, values, tangents = (
                part.reshape(*of_value.shape, part.shape[-1])
                for part in (of_output, of_along, below, tangent)
            )
            of_layer = output.mT @ values
            if len(kept) - len(parts) > 1:  # the inputs have no tangents
                of_layer += along.mT @ tangents
            parts.insert(0, torch.stack((of_layer, along.mT @ values), 2).flatten(3))
            if len(parts) == len(kept):
                break
            of_below, of_tangent = of_output @ layer + of_along @ direction, of_along @ layer
            # ELU' at the layer below; its derivative is the same below 0
            growth = below.clamp(max=0) + 1
            of_output = (of_below * growth + of_tangent * tangent * (below < 0))[..., :-1]
            of_along = (of_tangent * growth)[..., :-1]
        return torch.cat(parts, -1)

    def _layers(self, parameters: Tensor) -> list[Tensor]:
        """Split parameters ``[N, d]`` into the layers' matrices ``[N, out, in + 1]``."""
        shapes = [(above, below + 1) for below, above in itertools.pairwise(self.sizes)]
        parts = torch.split(parameters, [above * below for above, below in shapes], -1)
        return [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Dptd:
    """DPTD (Zhao et al. 2023), Algorithm 1, with enforced clipping.

    It finds the saddle point min_θ max_ω E[ℓ] of ℓ = δ ⟨Ψ(s), ω⟩ - ½ ⟨Ψ(s), ω⟩², Ψ = ∇_θ V_θ. Its
    value is the mean squared projected Bellman error. Round t releases the gradients g^θ and g^ω,
    averaged over a cohort. With ν_t = 1 / (4 √(t + 3)):

        p_t = (1 - α ν_{t-1}) p_{t-1} + α ν_{t-1} g^θ_t,    d_t = (1 - β ν_{t-1}) d_{t-1} + β
        ν_{t-1} g^ω_t, θ_{t+1} = θ_t + ν_t (P(θ_t - κ p_t) - θ_t),         ω_{t+1} = ω_t + ν_t
        (P(ω_t + η d_t) - ω_t),

    p_0 and d_0 being the first release, and P the projection onto [-1, 1]^d.

    Formal guarantee: the mechanism's. A unit contributes one vector, the gradients of both sides,
    clipped jointly to C. The paper assumes that gradients are bounded by G, charges both sides
    apart, and adds noise of constant size to p_t; here the noise is part of g_t and shrinks with α
    ν_t.

    Attributes:
        hidden: units of the hidden layers; ELU between layers.
        members: networks side by side, from different initial weights and with their own noise.
        alpha: α.
        beta: β.
        kappa: κ, step size of θ.
        eta: η, step size of ω.
    """

    hidden: tuple[int, ...]
    members: int
    alpha: float
    beta: float
    kappa: float
    eta: float

    def begin(self, network: ValueNetwork, seed: int = 0) -> dict[str, Tensor]:
        """Draw θ; ω begins at 0."""
        generator = torch.Generator().manual_seed(seed)
        theta = network.initial(self.members, generator).clamp(-_BOX, _BOX)
        return {name: torch.zeros_like(theta) for name in ("omega", "p", "d")} | {"theta": theta}

    def step(self, values: dict[str, Tensor], released: Tensor, done: int) -> dict[str, Tensor]:
        """Take steps 1 to 3 of Algorithm 1 after round ``done`` released the gradients of all
        members.
        """
        theta, omega = values["theta"], values["omega"]
        of_theta, of_omega = released.double().view(self.members, 2, -1).unbind(1)
        before, rate = _rate(done - 1), _rate(done)
        p = values["p"].lerp(of_theta, self.alpha * before if done > 0 else 1.0)
        d = values["d"].lerp(of_omega, self.beta * before if done > 0 else 1.0)
        return dict(values) | {
            "p": p,
            "d": d,
            "theta": theta.lerp(project_onto_box(theta - self.kappa * p), rate),
            "omega": omega.lerp(project_onto_box(omega + self.eta * d), rate),
        }


def project_onto_box(parameters: Tensor) -> Tensor:
    """Project onto Θ and Ω, the box [-1, 1]^d."""
    return parameters.clamp(-_BOX, _BOX)


def _rate(done: int) -> float:
    """Compute ν_t."""
    return 1 / (4 * math.sqrt(done + 3))
