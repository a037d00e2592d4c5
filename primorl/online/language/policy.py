"""A causal language model as a policy: what is trained of it is one vector."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from primorl.online.trajectories import OnDevice


@dataclass(frozen=True)
class LanguagePolicy(OnDevice):
    """A language model, some of whose parameters are trained: all of them, or those of a low-rank adapter.

    The trained parameters are one vector ``[d]``, in the order of ``module.named_parameters()``. The others are public
    and stay.

    Attributes:
        module: ``module(tokens, present, kept)`` takes int64 ``[B, L]``, bool ``[B, L]`` and a number, and gives the
            logits of the next token at the last ``kept`` positions, ``[B, kept, V]``. A position sees itself and the
            present tokens before it. Parameters are trained if they require a gradient.
    """

    module: nn.Module

    @property
    def parameters(self) -> int:
        """D."""
        return sum(parameter.numel() for parameter in self._trained().values())

    def initial(self) -> Tensor:
        """The trained parameters as the module has them, float32 ``[d]``."""
        return torch.cat([parameter.detach().flatten().float() for parameter in self._trained().values()])

    def tensors(self, parameters: Tensor) -> dict[str, Tensor]:
        """The trained parameters by name, as views of ``[d]``."""
        trained = self._trained()
        parts = torch.split(parameters, [parameter.numel() for parameter in trained.values()])
        return {name: part.view(old.shape) for (name, old), part in zip(trained.items(), parts, strict=True)}

    def log_probabilities(self, tensors: Mapping[str, Tensor], tokens: Tensor, present: Tensor, length: int) -> Tensor:
        """Log-probabilities of the last ``length`` tokens of each row, ``[B, length]``.

        Args:
            tensors: the trained parameters (`tensors`).
            tokens: prompts and answers, int64 ``[B, L]``.
            present: tokens that are not padding, bool ``[B, L]``.
            length: of an answer.
        """
        logits: Tensor = functional_call(self.module, dict(tensors), (tokens, present, length + 1))
        logs = torch.log_softmax(logits[:, :-1].float(), -1)
        return logs.gather(-1, tokens[:, -length:].unsqueeze(-1)).squeeze(-1)

    def load(self, parameters: Tensor) -> None:
        """Put the trained parameters ``[d]`` into the module, as for saving it."""
        with torch.no_grad():
            for name, value in self.tensors(parameters).items():
                self.module.get_parameter(name).copy_(value)

    def to(self, device: torch.device) -> "LanguagePolicy":
        """The same on a device. The module itself moves, as torch modules do."""
        return LanguagePolicy(self.module.to(device))

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: value for name, value in self.module.named_parameters() if value.requires_grad}
