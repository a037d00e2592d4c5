"""MLP value functions side by side, and the per-unit gradients of the primal-dual loss of TD in closed form."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TdBatch:
    """What the loss needs of the transitions of U units, padded to M each. Sensitive.

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
class _Pass:
    """A forward pass over R rows, with ELU's derivatives.

    Attributes:
        inputs: of every layer, with a column of ones for the bias, ``[N, R, in + 1]``; of the first, ``[P, R, D + 1]``.
        slopes: ELU' of every hidden layer, ``[N, R, out]``.
        tangents: of every hidden layer's outputs along ω; empty without ω.
        bends: ELU'' times the tangents of what goes into ELU.
        output: g, ``[N, R]``.
        tangent: of g along ω, ``[N, R]``; None without ω.
    """

    inputs: list[Tensor]
    slopes: list[Tensor]
    tangents: list[Tensor]
    bends: list[Tensor]
    output: Tensor
    tangent: Tensor | None


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
        """D, the hidden layers, 1."""
        return (self.inputs, *self.hidden, 1)

    @property
    def parameters(self) -> int:
        """d, of one network."""
        return sum((below + 1) * above for below, above in itertools.pairwise(self.sizes))

    def row_bytes(self, networks: int) -> int:
        """What one transition takes in `gradients`: a dozen numbers of each hidden unit, times three.

        Portions of a third of the memory stay in the processor's cache, which is faster.
        """
        return 3 * 8 * networks * (12 * sum(self.hidden) + 2 * self.inputs)

    def initial(self, networks: int, generator: torch.Generator) -> Tensor:
        """Random parameters ``[N, d]``, float64: uniform within ±1/√(inputs of the layer)."""
        parts = []
        for below, above in itertools.pairwise(self.sizes):
            uniform = torch.rand(networks, (below + 1) * above, dtype=torch.float64, generator=generator)
            parts.append((2 * uniform - 1) / below**0.5)
        return torch.cat(parts, 1)

    def values(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """g: parameters ``[N, d]`` and inputs ``[P, .., D]`` to ``[N, ..]``, P being N or 1."""
        return self._forward(self._layers(theta), None, inputs).output.view(len(theta), *inputs.shape[1:-1])

    def losses(self, theta: Tensor, omega: Tensor, batch: TdBatch) -> Tensor:
        """ℓ of every transition, ``[N, U, M]``."""
        _, _, error, advantage = self._errors(self._layers(theta), self._layers(omega), batch)
        return error * advantage - advantage.square() / 2

    def gradients(self, theta: Tensor, omega: Tensor, batch: TdBatch) -> Tensor:
        """∇_θ and ∇_ω of every unit's weighted loss Σ_m weight·ℓ.

        Of one transition, ∇_ω ℓ = (δ - u) Ψ and ∇_θ ℓ = u ∇δ + (δ - u) ∇u with Ψ = dual_factor·∇g and ∇u the
        Hessian of g times ω. One forward pass carries the tangent along ω, and one backward pass the adjoints of
        value and tangent together, so the Hessian costs no more than another gradient.

        Args:
            theta: θ of the N networks, float64 ``[N, d]``.
            omega: ω, ``[N, d]``.
            batch: the transitions.

        Returns:
            ``[U, N, 2, d]``: for each unit and network, θ's gradient, then ω's. Sensitive.
        """
        weights, directions = self._layers(theta), self._layers(omega)
        here, there, error, advantage = self._errors(weights, directions, batch)
        networks, units, length = advantage.shape
        rows = (networks, units * length, 1)
        # Adjoints of g(inputs), of its tangent and of g(next_inputs).
        value = (-batch.weight * batch.factor * advantage).view(rows)
        tangent = (batch.weight * batch.dual_factor * (error - advantage)).view(rows)
        following = (batch.weight * batch.next_factor * advantage).view(rows)
        result = theta.new_empty(networks * units, 2, theta.shape[1])
        last = theta.shape[1]
        for layer in reversed(range(len(weights))):
            weight, direction = weights[layer][..., :-1], directions[layer][..., :-1]
            above, below = weight.shape[1:]
            first = last - above * (below + 1)
            of_theta, of_omega = (result[:, side, first:last].view(-1, above, below + 1) for side in (0, 1))
            per_unit = (networks * units, length)
            inputs, nexts = (
                part.inputs[layer].expand(networks, -1, -1).reshape(*per_unit, below + 1) for part in (here, there)
            )
            left = tangent.view(*per_unit, above).mT
            torch.bmm(left, inputs, out=of_omega)
            torch.bmm(value.view(*per_unit, above).mT, inputs, out=of_theta)
            of_theta.baddbmm_(following.view(*per_unit, above).mT, nexts)
            if layer == 0:
                break
            of_theta[..., :-1].baddbmm_(left, here.tangents[layer - 1].view(*per_unit, below))
            back = _back(tangent, weight)
            value = _back(value, weight, _back(tangent, direction)).mul_(here.slopes[layer - 1])
            value.addcmul_(here.bends[layer - 1], back)
            tangent = back.mul_(here.slopes[layer - 1])
            following = _back(following, weight).mul_(there.slopes[layer - 1])
            last = first
        return result.view(networks, units, 2, theta.shape[1]).transpose(0, 1)

    def _layers(self, parameters: Tensor) -> list[Tensor]:
        """The matrices of N vectors, ``[N, out, in + 1]``."""
        shapes = [(above, below + 1) for below, above in itertools.pairwise(self.sizes)]
        parts = torch.split(parameters, [above * below for above, below in shapes], 1)
        return [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]

    def _errors(
        self, weights: list[Tensor], directions: list[Tensor], batch: TdBatch
    ) -> tuple[_Pass, _Pass, Tensor, Tensor]:
        """Both passes, and δ and u, ``[N, U, M]``."""
        here = self._forward(weights, directions, batch.inputs)
        there = self._forward(weights, None, batch.next_inputs)
        assert here.tangent is not None
        shape = (len(here.output), *batch.reward.shape[1:])
        value, following, slope = (part.view(shape) for part in (here.output, there.output, here.tangent))
        error = batch.reward + batch.next_factor * following - batch.factor * value
        return here, there, error, batch.dual_factor * slope

    def _forward(self, weights: list[Tensor], directions: list[Tensor] | None, inputs: Tensor) -> _Pass:
        rows = inputs.reshape(len(inputs), -1, self.inputs)
        layers = [torch.cat((rows, rows.new_ones(*rows.shape[:2], 1)), 2)]
        slopes: list[Tensor] = []
        tangents: list[Tensor] = []
        bends: list[Tensor] = []
        for layer, weight in enumerate(weights):
            output = layers[-1] @ weight.mT
            tangent = None if directions is None else layers[-1] @ directions[layer].mT
            if tangent is not None and tangents:
                tangent.baddbmm_(tangents[-1], weight[..., :-1].mT)
            if layer == len(weights) - 1:
                break
            slope = output.clamp(max=0).exp_()  # ELU': 1 above 0
            slopes.append(slope)
            if tangent is not None:
                tangents.append(tangent.mul_(slope))
                bends.append(tangent * (output < 0))  # ELU'' is 0 above 0 and ELU' below
            following = output.new_empty(*output.shape[:2], output.shape[2] + 1)
            following[..., -1] = 1
            torch.add(output.relu_(), slope, out=following[..., :-1]).sub_(1)
            layers.append(following)
        return _Pass(layers, slopes, tangents, bends, output[..., 0], None if tangent is None else tangent[..., 0])


def _back(adjoint: Tensor, weight: Tensor, start: Tensor | None = None) -> Tensor:
    """``start`` + adjoint @ weight: ``[N, R, out]`` to ``[N, R, in]``."""
    if adjoint.shape[2] == 1:  # a product with one column is slow
        return adjoint * weight if start is None else start.addcmul_(adjoint, weight)
    return adjoint @ weight if start is None else start.baddbmm_(adjoint, weight)
