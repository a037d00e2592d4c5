"""The stochastic policy that is learned: a network with its parameters in one vector, for one user
or one each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from primorl.model.numerics import Workspace, relu_backward, to_device
from primorl.policy.exported import DeterministicPolicy, Layers, in_bounds, mlp

_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class PolicyNetwork(DeterministicPolicy):
    """A released policy (P = 1) of which the last layers are learned, and actions are drawn.

    Of its ReLU network f on the standardised observation, discrete actions are drawn with
    probabilities softmax(f); if its only layer is learned, that is a log-linear policy. In a box,
    u ~ N(f, diag(exp(2 ℓ))) is drawn with learned ℓ, and the action is low + (high - low)·(tanh u +
    1)/2. Probabilities are of u: the squashing does not depend on the parameters, so it changes no
    gradient and no ratio.

    Parameters are one vector ``[d]``: weights ``[out, in]`` and biases of the learned layers in
    turn, first layer first, then ℓ. Noise grows with √d.

    Attributes:
        learned: number of layers that are learned.
    """

    learned: int = 1

    @property
    def fixed(self) -> Layers:
        """Layers before those that are learned."""
        return self.layers[: -2 * self.learned]

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.observation_mean.device

    @property
    def parameters(self) -> int:
        """Number of parameters, d."""
        return sum(layer.numel() for layer in self._begin) + self._scales

    @property
    def _begin(self) -> Layers:
        """Layers that are learned, as they are to begin with."""
        return self.layers[-2 * self.learned :]

    @property
    def _scales(self) -> int:
        return 0 if self.discrete_actions else self.action_size

    def initial(self, standard_deviation: float) -> Tensor:
        """Return the parameters ``[d]`` of its own layers; its action is the one at u = f.

        Args:
            standard_deviation: of u in a box.
        """
        own = (layer.flatten().float().cpu() for layer in self._begin)
        return torch.cat([*own, torch.full((self._scales,), math.log(standard_deviation))])

    def export(self, parameters: Tensor) -> DeterministicPolicy:
        """Return the policy of its likeliest actions, as the rest of the project uses it."""
        learned = (layer.detach().clone() for layer in self._layers(parameters.unsqueeze(0)))
        return replace(self, layers=(*self.fixed, *learned))

    def outputs(self, parameters: Tensor, observations: Tensor) -> Tensor:
        """Return f: ``[P, d]`` and ``[P, B, S]`` to ``[P, B, A]``."""
        inputs = (observations - self.observation_mean) / self.observation_scale
        if self.fixed:
            flat = inputs.reshape(1, -1, inputs.shape[-1])
            inputs = mlp(self.fixed, flat).relu_().view(*inputs.shape[:-1], -1)
        return mlp(self._layers(parameters), inputs)

    @torch.no_grad()
    def step_gradients(
        self, parameters: Tensor, observations: Tensor, actions: Tensor, workspace: Workspace
    ) -> "StepGradients":
        """Compute log-probabilities of actions and what their gradients are made of. Sensitive.

        Args:
            parameters: shared by all users, ``[1, d]``, or each user's own, ``[U, d]``.
            observations: ``[U, t, S]``.
            actions: ``[U, t]``, or u of a box, ``[U, t, A]``.
            workspace: holds most of the result, until it is used again.
        """
        users, steps = observations.shape[:2]
        layers = [part.expand(users, -1, -1) for part in (*self.fixed, *self._layers(parameters))]
        signals = [(observations - self.observation_mean) / self.observation_scale]
        for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
            above = workspace.take("signal", len(signals), (users, steps, weight.shape[1]))
            signals.append(torch.baddbmm(bias, signals[-1], weight.mT, out=above).relu_())
        outputs = torch.baddbmm(layers[-1].mT, layers[-2], signals[-1].mT)  # [U, A, t]
        if self.discrete_actions:
            chosen = actions.unsqueeze(1)
            logs = outputs.log_softmax(1).gather(1, chosen).squeeze(1)
            error = outputs.softmax(1).neg_()
            error.scatter_add_(1, chosen, torch.ones_like(error[:, :1]))
            spread = outputs[:, :0]
        else:
            scales = self._log_scales(parameters).mT
            precision = workspace.apart("precision", 0, *scales.shape).copy_(-scales).exp_()
            deviations = (actions.mT - outputs) * precision
            squares = deviations.square()
            logs = (-0.5 * squares - scales - _LOG_ROOT_2PI).sum(1)
            error, spread = deviations * precision, squares - 1
        first = len(self.fixed) // 2
        return StepGradients(
            self, logs, signals[first:], layers[2 * first :: 2], error, spread, workspace
        )

    @torch.no_grad()
    def sample(
        self, parameters: Tensor, observations: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw actions: ``[d]`` and ``[B, S]`` to int64 ``[B]``, or u, ``[B, A]``."""
        outputs = self.outputs(parameters.unsqueeze(0), observations.unsqueeze(0))[0]
        if self.discrete_actions:
            # The largest sum of an output and a Gumbel variate has that output's probability.
            uniform = torch.rand(outputs.shape, generator=generator).clamp_min_(1e-38)
            return (outputs - (-uniform.to(outputs.device).log()).log()).argmax(-1)
        noise = torch.randn(outputs.shape, generator=generator).to(outputs.device)
        return outputs + noise * self._log_scales(parameters.unsqueeze(0))[0].exp()

    def squash(self, drawn: Tensor) -> Tensor:
        """Turn draws of `sample` into the environment's units; discrete ones stay as they are."""
        if self.discrete_actions:
            return drawn
        return in_bounds(drawn.tanh(), self.action_low, self.action_high)

    def to(self, device: torch.device) -> "PolicyNetwork":
        """Return the same with its tensors on a device."""
        layers = tuple(layer.to(device) for layer in self.layers)
        return to_device(replace(self, layers=layers), device)

    def _layers(self, parameters: Tensor) -> Layers:
        """Weights ``[P, out, in]`` and biases ``[P, 1, out]`` as views of ``[P, d]``."""
        counts = [layer.numel() for layer in self._begin]
        parts = torch.split(parameters, [*counts, self._scales], dim=1)
        layers = zip(parts, self._begin, strict=False)
        return tuple(part.view(-1, *layer.shape[1:]) for part, layer in layers)

    def _log_scales(self, parameters: Tensor) -> Tensor:
        """Return ℓ, ``[P, 1, A]``."""
        return parameters[:, parameters.shape[1] - len(self.action_low) :].unsqueeze(1)


@dataclass(frozen=True)
class StepGradients:
    """ψ_t = ∇ log π(a_t | s_t) of every step of U users, in factors. Sensitive.

    In a layer, ψ_t is the outer product of the error at the layer's output and of its input. The
    backward pass is written by hand: autograd would take longer than the products. All products are
    those of one user's rows, and exponentials have a gap behind each user (`Workspace.apart`). So
    for the same U on one thread, the numbers of one user depend neither on the others nor on her
    place among them, to the last bit.

    Attributes:
        network: shape of the policy.
        logs: log π(a_t | s_t), ``[U, t]``.
        signals: inputs of every layer, ``[U, t, in]``.
        weights: of every layer, ``[U, out, in]``.
        error: ∂ log π(a_t | s_t) / ∂f, ``[U, A, t]``.
        spread: ∂ log π(a_t | s_t) / ∂ℓ, ``[U, A, t]``; ``[U, 0, t]`` for discrete actions.
        workspace: holds signals and errors.
    """

    network: PolicyNetwork
    logs: Tensor
    signals: Sequence[Tensor]
    weights: Sequence[Tensor]
    error: Tensor
    spread: Tensor
    workspace: Workspace

    @cached_property
    def errors(self) -> list[Tensor]:
        """∂ log π(a_t | s_t) / ∂(output of every layer), ``[U, t, out]``."""
        found = [self.error.mT]
        for weight, signal in zip(self.weights[:0:-1], self.signals[:0:-1], strict=True):
            carried = torch.bmm(
                found[-1], weight, out=self.workspace.take("error", len(found), tuple(signal.shape))
            )
            found.append(relu_backward(carried, signal, 0, grad_input=carried))
        return found[::-1]

    def sums(self, weights: Tensor) -> Tensor:
        """Compute Σ_t w_t ψ_t: ``[U, t]`` to ``[U, d]``."""
        parts = []
        for error, signal in zip(self.errors, self.signals, strict=True):
            scratch = self.workspace.take("scratch", 0, tuple(error.shape))
            weighted = torch.mul(error, weights.unsqueeze(-1), out=scratch)
            parts += [torch.bmm(weighted.mT, signal).flatten(1), weighted.sum(1)]
        return torch.cat([*parts, (self.spread * weights.unsqueeze(1)).sum(-1)], 1)
