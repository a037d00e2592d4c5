"""A released model of first states: what a charged query of every unit's own first state allows to be said."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.dynamics.cohort import CohortSource
from pipeline.dynamics.ensemble import Bounds
from pipeline.dynamics.statistics import Columns, possible_fractions
from pipeline.errors import PipelineError
from pipeline.privacy.queries import Moments

FILE = "starts.safetensors"
_UNITS_AT_ONCE = 1 << 16
_CONTINUOUS = -1
_BROKEN = (ValueError, KeyError, RecursionError, SafetensorError)


@dataclass(frozen=True)
class StartModel:
    """First states: a Gaussian over continuous dimensions, held to the bounds; a category for each one-hot part.

    A post-processing of one noisy answer, so drawing from it costs nothing. What it does not say: how categories go
    together with each other or with the rest, and any shape that a Gaussian has not.

    Attributes:
        low: bounds, ``[S]``.
        high: ``[S]``.
        mean: ``[S]``; 0 in one-hot parts.
        factor: a square root of the covariance, ``[S, S]``; 0 in one-hot parts.
        block: which one-hot part a dimension belongs to, from 0, or -1: int64 ``[S]``.
        probabilities: of the categories, ``[S]``; 0 elsewhere.
    """

    low: Tensor
    high: Tensor
    mean: Tensor
    factor: Tensor
    block: Tensor
    probabilities: Tensor

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw ``count`` first states, ``[count, S]`` float32, within the bounds; ``generator`` is on their device."""
        normal = torch.randn(count, len(self.mean), generator=generator, device=self.mean.device)
        drawn = (self.mean + normal @ self.factor.T).clamp(self.low, self.high)
        for part in range(int(self.block.max()) + 1):
            inside = (self.block == part).nonzero().squeeze(1)
            category = torch.multinomial(self.probabilities[inside], count, replacement=True, generator=generator)
            drawn[:, inside] = torch.nn.functional.one_hot(category, len(inside)).to(drawn.dtype)
        return drawn

    def to(self, device: torch.device) -> "StartModel":
        """The same on ``device``."""
        return StartModel(*(value.to(device) for value in vars(self).values()))

    def save(self, folder: Path) -> None:
        """Write ``starts.safetensors`` into ``folder``."""
        save_file({name: value.cpu().contiguous() for name, value in vars(self).items()}, folder / FILE)

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> "StartModel":
        """Read what ``save`` wrote. Executes nothing from the file.

        Raises:
            PipelineError: it is missing, broken, or no such model.
        """
        file = folder / FILE
        try:
            tensors = load_file(file)
            model = cls(**{name: tensors.pop(name) for name in cls.__dataclass_fields__})
            if tensors or not model._sound():
                raise ValueError
        except FileNotFoundError:
            raise PipelineError(
                f"{file}: not there: the model was trained without first states; set privacy.statistics.starts: true "
                "and run `dvc repro train_model`, which is charged, or choose another policy.starts"
            ) from None
        except _BROKEN:
            raise PipelineError(f"{file}: not a model of first states, or damaged; run `dvc checkout`") from None
        return model.to(device)

    def _sound(self) -> bool:
        size = len(self.low)
        for name, value in vars(self).items():
            wanted = torch.int64 if name == "block" else torch.float32
            if value.dtype != wanted or value.shape != ((size, size) if name == "factor" else (size,)):
                return False
        if size == 0 or not all(bool(value.isfinite().all()) for value in vars(self).values()):
            return False
        blocks = sorted(set(self.block.tolist()) - {_CONTINUOUS})
        sums = [float(self.probabilities[self.block == part].sum()) for part in blocks]
        return (
            bool((self.low <= self.high).all() & (self.probabilities >= 0).all())
            and blocks == list(range(len(blocks)))
            and all(math.isclose(total, 1, abs_tol=1e-3) for total in sums)
        )


class StartQuery:
    """Asks every unit for the first state of its first trajectory (in the order of ids), scaled to ±1 by the bounds.

    Args:
        columns: which dimensions are one-hot.
        bounds: finite.
    """

    def __init__(self, columns: Columns, bounds: Bounds) -> None:
        self._columns = columns
        self._continuous = columns.continuous
        self._low, self._high = bounds.observation_low, bounds.observation_high

    @staticmethod
    def moments(columns: Columns) -> Moments:
        """What a unit adds."""
        return Moments(len(columns.continuous), tuple(size for _, size in columns.one_hot))

    def total(self, source: CohortSource) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        moments = self.moments(self._columns)
        total = torch.zeros(moments.numbers, dtype=torch.int64)
        for units in torch.split(torch.arange(source.units), _UNITS_AT_ONCE):
            state = source.transitions(units, torch.zeros(len(units), 1, dtype=torch.int64))[0][:, 0]
            parts = [state[:, first : first + size].argmax(1) for first, size in self._columns.one_hot]
            chosen = torch.stack(parts, 1) if parts else torch.empty(len(units), 0, dtype=torch.int64)
            total += moments.total(self._scaled(state), chosen)
        return total

    def model(self, answer: Tensor) -> StartModel:
        """The first states that the noisy mean contributions allow: post-processing.

        Mean and second moments give a covariance, of which the nearest positive semi-definite one is taken: eigenvalues
        that noise made negative become 0.
        """
        size, S = len(self._continuous), self._columns.observation_size
        middle, half = self._middle_and_half()
        mean = answer[:size].clamp(-1, 1)
        second = torch.zeros(size, size, dtype=answer.dtype)
        row, column = torch.triu_indices(size, size)
        pairs = size * (size + 1) // 2
        second[row, column] = second[column, row] = answer[size : size + pairs]
        values, vectors = torch.linalg.eigh(second - mean.outer(mean))
        root = vectors * values.clamp(min=0).sqrt()
        whole = {name: torch.zeros(S) for name in ("mean", "probabilities")}
        whole["mean"][self._continuous] = (middle + half * mean).float()
        factor = torch.zeros(S, S)
        factor[self._continuous, :size] = (half[:, None] * root).float()
        block = torch.full((S,), _CONTINUOUS)
        place = size + pairs
        for part, (first, categories) in enumerate(self._columns.one_hot):
            inside = slice(first, first + categories)
            whole["probabilities"][inside] = possible_fractions(answer[place : place + categories]).float()
            block[inside] = part
            place += categories
        return StartModel(self._low.float(), self._high.float(), whole["mean"], factor, block, whole["probabilities"])

    def _middle_and_half(self) -> tuple[Tensor, Tensor]:
        low, high = self._low[self._continuous].double(), self._high[self._continuous].double()
        return (low + high) / 2, (high - low) / 2

    def _scaled(self, state: Tensor) -> Tensor:
        middle, half = self._middle_and_half()
        return (state[:, self._continuous].double() - middle) / torch.where(half > 0, half, torch.ones_like(half))
