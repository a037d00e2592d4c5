"""First states: what a charged query of every unit's own first state allows to be said."""

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Bounds
from primorl.dynamics.starts import CONTINUOUS, StartModel
from primorl.privacy.mechanism.queries import Moments, register_query
from primorl.training.cohort import CohortSource
from primorl.training.normaliser_query import BYTES_AT_ONCE, ObservationColumns, possible_fractions

STARTS = "starts"
"""Name of the query in ``privacy.json``."""
_UNIT_BYTES = 8 * 8  # of a unit and number of the sum: products, their factors, and what they are rounded through


@register_query(STARTS)
class StartQuery:
    """Asks every unit for the first state of its first trajectory (in the order of ids), scaled to ±1 by the bounds.

    Args:
        columns: which dimensions are one-hot.
        bounds: finite.
    """

    def __init__(self, columns: ObservationColumns, bounds: Bounds) -> None:
        self._columns = columns
        self._continuous = columns.continuous
        self._low, self._high = bounds.observation_low, bounds.observation_high

    @staticmethod
    def moments(columns: ObservationColumns) -> Moments:
        """What a unit adds."""
        return Moments(len(columns.continuous), tuple(size for _, size in columns.one_hot))

    def total(self, source: CohortSource) -> Tensor:
        """Sum over all units, int64. Sensitive: only `Plan.answer` may see it."""
        moments = self.moments(self._columns)
        total = torch.zeros(moments.numbers, dtype=torch.int64)
        width = moments.numbers + 2 * self._columns.observation_size
        at_once = max(1, BYTES_AT_ONCE // (width * _UNIT_BYTES))
        for units in torch.split(torch.arange(source.units), at_once):
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
        block = torch.full((S,), CONTINUOUS)
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
