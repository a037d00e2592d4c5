"""MLP value functions side by side, and the per-unit gradients of the primal-dual loss of TD."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import elu


@dataclass(frozen=True)
class TdBatch:
    """Transitions of U units, padded to M each, as the loss needs them. Sensitive.

    The loss of a transition is ℓ = δ u - u²/2 with δ = reward + next_factor·g(next_inputs) - factor·g(inputs) and
    u = dual_factor·⟨∇g(inputs), ω⟩, g being the network (`ValueNetwork`). With V = g, all factors 1 but
    next_factor = γ, these are the paper's.

    Attributes:
        inputs: ``[P, U, M, D]``, float64; P is the number of networks, or 1 where all see the same transitions.
        next_inputs: ``[P, U, M, D]``.
        reward: ``[P, U, M]``.
        factor: ``[P, U, M]``.
        next_factor: ``[P, U, M]``; 0 where nothing follows.
        dual_factor: ``[P, U, M]``.
        weight: of each transition in its unit's loss, ``[P, U, M]``; 0 in padding.
    """

    inputs: Tensor
    next_inputs: Tensor
    reward: Tensor
    factor: Tensor
    next_factor: Tensor
    dual_factor: Tensor
    weight: Tensor


@dataclass(frozen=True)
class ValueNetwork:
    """N MLPs of one shape side by side: ``inputs`` numbers to one, ELU between layers.

    The parameters of one network are a vector of d numbers: of each layer in turn the matrix ``[out, in + 1]``, whose
    last column is the bias.

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

    @property
    def parameters(self) -> int:
        """Count the parameters of one network, d."""
        return sum((below + 1) * above for below, above in itertools.pairwise(self.sizes))

    def row_bytes(self, networks: int) -> int:
        """Bound the memory of one transition in `gradients`: some dozens of numbers of each hidden unit."""
        return 3 * 8 * networks * (12 * sum(self.hidden) + 2 * self.inputs)

    def initial(self, networks: int, generator: torch.Generator) -> Tensor:
        """Draw parameters ``[N, d]``, float64: uniform within ±1/√(inputs of the layer)."""
        parts = []
        for below, above in itertools.pairwise(self.sizes):
            uniform = torch.rand(networks, (below + 1) * above, dtype=torch.float64, generator=generator)
            parts.append((2 * uniform - 1) / below**0.5)
        return torch.cat(parts, 1)

    def values(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Compute g: parameters ``[N, d]`` and inputs ``[P, .., D]`` to ``[N, ..]``, P being N or 1."""
        found: Tensor = vmap(self._value)(theta, inputs.expand(len(theta), *inputs.shape[1:]))
        return found

    def losses(self, theta: Tensor, omega: Tensor, batch: TdBatch) -> Tensor:
        """Compute ℓ of every transition, ``[N, U, M]``."""
        found: Tensor = vmap(self._loss)(theta, omega, *self._parts(batch, len(theta)))
        return found

    def gradients(self, theta: Tensor, omega: Tensor, batch: TdBatch) -> Tensor:
        """Compute ∇_θ and ∇_ω of every unit's weighted loss Σ_m weight·ℓ.

        Args:
            theta: θ of the N networks, float64 ``[N, d]``.
            omega: ω, ``[N, d]``.
            batch: the transitions.

        Returns:
            ``[U, N, 2, d]``: for each unit and network, θ's gradient, then ω's. Sensitive.
        """

        def unit_loss(theta: Tensor, omega: Tensor, weight: Tensor, *parts: Tensor) -> Tensor:
            return (weight * self._loss(theta, omega, *parts)).sum()

        per_unit = vmap(grad(unit_loss, argnums=(0, 1)), in_dims=(None, None, *[0] * 7))
        weight = batch.weight.expand(len(theta), *batch.weight.shape[1:])
        of_both = vmap(per_unit)(theta, omega, weight, *self._parts(batch, len(theta)))
        return torch.stack(of_both, 2).transpose(0, 1)

    @staticmethod
    def _parts(batch: TdBatch, networks: int) -> list[Tensor]:
        """Everything but the weights, for each of N networks."""
        parts = batch.inputs, batch.next_inputs, batch.reward, batch.factor, batch.next_factor, batch.dual_factor
        return [part.expand(networks, *part.shape[1:]) for part in parts]

    def _value(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Value g of one network: ``[d]`` and ``[.., D]`` to ``[..]``."""
        first, *others = self._layers(theta)
        output = inputs @ first[:, :-1].T + first[:, -1]
        for layer in others:
            output = elu(output) @ layer[:, :-1].T + layer[:, -1]
        return output[..., 0]

    def _slope(self, theta: Tensor, omega: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Value g and slope ⟨∇g, ω⟩, by a forward pass that carries the tangent along ω."""
        (first, *others), (along, *directions) = self._layers(theta), self._layers(omega)
        output = inputs @ first[:, :-1].T + first[:, -1]
        tangent = inputs @ along[:, :-1].T + along[:, -1]
        for layer, direction in zip(others, directions, strict=True):
            hidden, tangent = elu(output), tangent * output.clamp(max=0).exp()  # ELU' is 1 above 0
            output = hidden @ layer[:, :-1].T + layer[:, -1]
            tangent = tangent @ layer[:, :-1].T + hidden @ direction[:, :-1].T + direction[:, -1]
        return output[..., 0], tangent[..., 0]

    def _layers(self, parameters: Tensor) -> list[Tensor]:
        """The matrices ``[out, in + 1]`` of ``[d]``."""
        shapes = [(above, below + 1) for below, above in itertools.pairwise(self.sizes)]
        parts = torch.split(parameters, [above * below for above, below in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _loss(
        self,
        theta: Tensor,
        omega: Tensor,
        inputs: Tensor,
        next_inputs: Tensor,
        reward: Tensor,
        factor: Tensor,
        next_factor: Tensor,
        dual_factor: Tensor,
    ) -> Tensor:
        """ℓ of transitions ``[..]``, for one network."""
        value, slope = self._slope(theta, omega, inputs)
        error = reward + next_factor * self._value(theta, next_inputs) - factor * value
        advantage = dual_factor * slope
        return error * advantage - advantage.square() / 2
