"""Normals squashed by tanh: samples, their log-densities, and the slope of both."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

_LOG_STD_LOW, _LOG_STD_HIGH = -20.0, 2.0  # Haarnoja's own code: keeps exp() and the entropy finite
_LOG_CONSTANT = 0.5 * math.log(2 * math.pi) + 2 * math.log(2.0)


@dataclass(frozen=True)
class Squashed:
    """Reparametrised actions tanh(x), x = μ + σ·noise, and what their gradient needs.

    log π(a|s) = Σ [log N(x; μ, σ²) - log(1 - tanh² x)] (Haarnoja 2018b, eq. 26), where
    log(1 - tanh² x) = 2 (log 2 - x - softplus(-2x)) keeps its digits for large |x|.

    Attributes:
        action: ``[G, B, A]`` in [-1, 1].
        log_density: ``[G, B]``.
        spread: σ·noise, ``[G, B, A]``.
        free: where log σ lies within its bounds, and so has a slope: 1 or 0, ``[G, B, A]``.
    """

    action: Tensor
    log_density: Tensor
    spread: Tensor
    free: Tensor

    @classmethod
    def of(cls, output: Tensor, noise: Tensor) -> "Squashed":
        """From the actor's ``output [G, B, 2 A]``, μ and log σ side by side, and standard normal ``noise``."""
        mean, raw = output.chunk(2, dim=-1)
        log_std = raw.clamp(_LOG_STD_LOW, _LOG_STD_HIGH)
        spread = noise * log_std.exp()
        x = mean + spread
        log_density = 2 * (x + softplus(-2 * x)) - log_std - 0.5 * noise.square()
        constant = noise.shape[-1] * _LOG_CONSTANT
        return cls(x.tanh(), log_density.sum(-1) - constant, spread, log_std.eq(raw).to(raw.dtype))

    def slope(self, action_slope: Tensor, density_slope: Tensor) -> Tensor:
        """∂loss/∂output ``[G, B, 2 A]``, given ∂loss/∂action ``[G, B, A]`` and ∂loss/∂log π ``[G, 1, 1]``.

        d tanh(x)/dx = 1 - a², d log π/dx = 2a at fixed noise, d log π/d log σ = that times σ·noise, minus 1.
        """
        of_x = action_slope * (1 - self.action.square()) + 2 * density_slope * self.action
        return torch.cat((of_x, (of_x * self.spread - density_slope) * self.free), dim=-1)
