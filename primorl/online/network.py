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
from primorl.policy.exported import DeterministicPolicy, Layers, in_bounds, initial_layers, mlp

_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class PolicyNetwork:
    """The shape of a policy, with everything about it that is fixed and public.

    A ReLU network f on the standardised observation. Discrete actions are drawn with probabilities
    softmax(f); without hidden layers that is a log-linear policy. In a box, u ~ N(f, diag(exp(2
    ℓ))) is drawn with learned ℓ, and the action is low + (high - low)·(tanh u + 1)/2. Probabilities
    are of u: the squashing does not depend on the parameters, so it changes no gradient and no
    ratio.

    Parameters are one vector ``[d]``: weights ``[out, in]`` and biases in turn, first layer first,
    then ℓ.

    Layers may be ``fixed``: those of a released policy, of which the last layer alone is learned.
    Noise grows with √d.

    Attributes:
        hidden: sizes of the hidden layers.
        observation_mean: ``[S]``, public.
        observation_scale: ``[S]``, public.
        action_low: ``[A]``; 0 for discrete actions.
        action_high: ``[A]``; 1 for discrete actions.
        discrete_actions: whether actions are 0 … A - 1.
        fixed: weights ``[1, out, in]`` and biases ``[1, 1, out]`` in turn of layers before those
            that are learned.
    """

    hidden: tuple[int, ...]
    observation_mean: Tensor
    observation_scale: Tensor
    action_low: Tensor
    action_high: Tensor
    discrete_actions: bool
    fixed: Layers = ()

    @classmethod
    def of(cls, policy: DeterministicPolicy) -> "PolicyNetwork":
        """Return the shape of a policy that was trained offline, of which the last layer is
        learned.
        """
        mean, scale = policy.observation_mean, policy.observation_scale
        low, high, discrete = policy.action_low, policy.action_high, policy.discrete_actions
        return cls((), mean, scale, low, high, discrete, fixed=policy.layers[:-2])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of the layers that are learned, from their input to A."""
        inputs = self.fixed[-1].shape[-1] if self.fixed else len(self.observation_mean)
        return (inputs, *self.hidden, len(self.action_low))

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.observation_mean.device

    @property
    def parameters(self) -> int:
        """D."""
        network = sum(
            outputs * (inputs + 1)
            for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False)
        )
        return network + self._scales

    @property
    def _scales(self) -> int:
        return 0 if self.discrete_actions else len(self.action_low)

    def initial(self, seed: int, standard_deviation: float = 1.0) -> Tensor:
        """Draw first parameters ``[d]``, as ``torch.nn.Linear`` begins, with a last layer a
        hundredth as large.

        Args:
            seed: of the weights.
            standard_deviation: of u in a box.
        """
        *inner, weight, bias = initial_layers(self.sizes, 1, torch.Generator().manual_seed(seed))
        return self._vector((*inner, weight * 0.01, bias * 0.01), standard_deviation)

    def parameters_of(self, policy: DeterministicPolicy, standard_deviation: float) -> Tensor:
        """Return the parameters ``[d]`` of an offline policy of this shape.

        Args:
            policy: P = 1. Its action is the one at u = f.
            standard_deviation: of u in a box.
        """
        return self._vector(policy.layers[len(self.fixed) :], standard_deviation)

    def _vector(self, layers: Layers, standard_deviation: float) -> Tensor:
        scales = torch.full((self._scales,), math.log(standard_deviation))
        return torch.cat([*(layer.detach().flatten().float().cpu() for layer in layers), scales])

    def export(self, parameters: Tensor) -> DeterministicPolicy:
        """Return the policy of its likeliest actions, as the rest of the project uses it."""
        learned = (layer.detach().clone() for layer in self._layers(parameters.unsqueeze(0)))
        layers, low, high = (*self.fixed, *learned), self.action_low, self.action_high
        mean, scale = self.observation_mean, self.observation_scale
        return DeterministicPolicy(layers, mean, scale, low, high, self.discrete_actions)

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
        fixed = tuple(layer.to(device) for layer in self.fixed)
        return to_device(replace(self, fixed=fixed), device)

    def _layers(self, parameters: Tensor) -> Layers:
        """Weights ``[P, out, in]`` and biases ``[P, 1, out]`` as views of ``[P, d]``."""
        layers, at = [], 0
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            weight = parameters[:, at : at + inputs * outputs].view(-1, outputs, inputs)
            bias = parameters[:, at + inputs * outputs : at + (inputs + 1) * outputs].unsqueeze(1)
            layers += [weight, bias]
            at += (inputs + 1) * outputs
        return tuple(layers)

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
