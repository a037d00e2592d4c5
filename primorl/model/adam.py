"""Adam by PyTorch's fused kernel."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_USUAL: Any = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}


class Adam:
    """Adam (Kingma and Ba 2015) on a few tensors, which it moves in place, with the usual β = (0.9,
    0.999), ε = 1e-8.

    The kernel of ``torch.optim.AdamW(fused=True)``: called directly, since that class's bookkeeping
    takes longer than a small network's arithmetic, and loads PyTorch's compiler, which takes as
    long to load as PyTorch.

    Args:
        tensors: to move.
        gradients: of each, in which they are found at every step.
        learning_rate: step size.
        weight_decay: decoupled (Loshchilov and Hutter 2019).
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        gradients: Sequence[Tensor],
        learning_rate: float,
        weight_decay: float = 0.0,
    ) -> None:
        self._settings = _USUAL | {"lr": learning_rate, "weight_decay": weight_decay}
        self._steps = [torch.zeros((), device=tensor.device) for tensor in tensors]
        first, second = ([torch.zeros_like(tensor) for tensor in tensors] for _ in range(2))
        self._state: Any = list(tensors), list(gradients), first, second, [], self._steps

    @torch.no_grad()
    def step(self) -> None:
        """Move every tensor along its gradient."""
        torch._foreach_add_(self._steps, 1)
        torch._fused_adamw_(*self._state, **self._settings)
