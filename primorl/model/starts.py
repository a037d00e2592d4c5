"""A released model of first states and of lengths, and its file; made by charged queries."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from primorl.base import PipelineError

FILE = "starts.safetensors"
CONTINUOUS = -1
"""In ``block``: no part of a one-hot vector."""
_BROKEN = (ValueError, TypeError, RecursionError, SafetensorError)


@dataclass(frozen=True)
class StartModel:
    """First states: a Gaussian over continuous dimensions, held to the bounds; a category for each
    one-hot part.

    A post-processing of one noisy answer, so drawing from it costs nothing. It does not know how
    categories go together with each other or with the rest.

    Attributes:
        low: bounds, ``[S]``.
        high: ``[S]``.
        mean: ``[S]``; 0 in one-hot parts.
        factor: a square root of the covariance, ``[S, S]``; 0 in one-hot parts.
        block: which one-hot part a dimension belongs to, from 0, or -1: int64 ``[S]``.
        probabilities: of the categories, ``[S]``; 0 elsewhere.
        survival: S(t), the share of trajectories of more than t steps, ``[2, horizon]``: of those
            that do not terminate, and of all; None: it was not asked for.
    """

    low: Tensor
    high: Tensor
    mean: Tensor
    factor: Tensor
    block: Tensor
    probabilities: Tensor
    survival: Tensor | None = None

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw ``count`` first states, ``[count, S]`` float32, within the bounds; ``generator`` is
        on their device.
        """
        normal = torch.randn(count, len(self.mean), generator=generator, device=self.mean.device)
        drawn = (self.mean + normal @ self.factor.T).clamp(self.low, self.high)
        for part in range(int(self.block.max()) + 1):
            inside = (self.block == part).nonzero().squeeze(1)
            category = torch.multinomial(
                self.probabilities[inside], count, replacement=True, generator=generator
            )
            drawn[:, inside] = torch.nn.functional.one_hot(category, len(inside)).to(drawn.dtype)
        return drawn

    def save(self, folder: Path) -> None:
        """Write ``starts.safetensors`` into ``folder``."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        save_file({name: value.cpu().contiguous() for name, value in known.items()}, folder / FILE)

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> "StartModel":
        """Read the file of ``save``. Executes nothing from it.

        Raises:
            PipelineError: it is missing, broken, or no such model.
        """
        file = folder / FILE
        try:
            tensors = load_file(file, device=str(device))
            survival = tensors.pop("survival", None)
            if not all(bool(value.isfinite().all()) for value in tensors.values()):
                raise ValueError("not finite")
            return cls(**tensors, survival=survival)
        except FileNotFoundError:
            raise PipelineError(
                f"{file}: not there: nobody was asked; choose another policy.starts, or set "
                "released and run `dvc repro`, which is charged"
            ) from None
        except _BROKEN:
            raise PipelineError(
                f"{file}: not a model of first states, or damaged; run `dvc checkout`"
            ) from None


def has_private_starts(folder: Path) -> bool:
    """Return whether the private people told the first states of the model in ``folder``.

    Then public people do not stand for them where policies begin and end: people who consented may
    begin elsewhere, and fare otherwise, than the others.
    """
    return (folder / FILE).exists()


def survival_of(folder: Path, *, by_model: bool) -> Tensor | None:
    """Return S(t) of a released model, float64 ``[horizon]``; None: it was not asked for.

    With ``by_model`` terminations are the model's own business; else they are ends like all others.

    Raises:
        PipelineError: the file is broken.
    """
    if not has_private_starts(folder):
        return None
    found = StartModel.load(folder, torch.device("cpu")).survival
    return None if found is None else found[0 if by_model else 1].double()
