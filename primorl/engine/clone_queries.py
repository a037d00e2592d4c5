"""What a clone's people are asked after its rounds: whether they act by something that the clone
does not know, a sign that lasts, or columns together.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from primorl.engine import heads
from primorl.engine.queries import PredictionQuery
from primorl.model.ensemble import Normaliser, Weights, bound_softly, outputs
from primorl.model.features import Columns, Polynomials

_FARTHEST_COLUMN = 2.0  # in its scale, of squares and products
_LEAST_VARIANCE = 1e-6  # of a discrete action that a clone is sure of
_WEIGHTS, _NOISY = (25.0, 5.0, 1.0), 0.075
"""Most weights of a product of categories in the share; the largest is taken whose noise has at
most this standard deviation, else the last one, by which categories are not whitened.
"""


@dataclass(frozen=True)
class _CloneQuery(PredictionQuery):
    """Asks every unit how its actions deviate from a clone."""

    log_variance: tuple[float, float]

    @property
    def targets(self) -> int:
        """A."""
        return self.columns.actions

    def predict(self, weights: Weights, inputs: Tensor) -> Tensor:
        """Return the clone's output, of its one network."""
        return outputs(weights, inputs, torch.relu)[0]

    def residuals(self, predicted: Tensor, known: Tensor) -> Tensor:
        """Return how actions deviate, in the clone's own standard deviations: ``[rows, targets]``,
        whose expected square sums to 1 if all that is left beside the clone is chance.
        """
        if self.columns.discrete:
            share = predicted.softmax(-1)
            variance = (1 - share.square().sum(-1, keepdim=True)).clamp(min=_LEAST_VARIANCE)
            return (known - share) / variance.sqrt()
        mean, raw = predicted.chunk(2, -1)
        deviation = (bound_softly(raw, *self.log_variance) / 2).exp()
        return (known - mean.tanh()) / (deviation * math.sqrt(self.targets))


class PersistenceQuery(_CloneQuery):
    """Asks every unit how alike two actions in a row deviate from a clone: the mean, over its rows,
    of the product of two residuals.

    It is 0 where all that is left beside the clone is chance, and not where a habit lasts, a sign
    that no column has, or what the clone cannot express. A unit of one row adds nothing.
    """

    what = heads.PERSISTENCE

    def summarise(self, inputs: Tensor, predicted: Tensor, known: Tensor) -> Tensor:
        """See `PredictionQuery.summarise`."""
        if len(known) < 2:
            return torch.zeros(1, dtype=torch.float64)
        residual = self.residuals(predicted, known)
        alike = (residual[1:] * residual[:-1]).sum(-1)
        return alike.double().mean(0, keepdim=True)


class ProductsQuery(_CloneQuery):
    """Asks every unit whether its actions go by squares and products of columns that a clone cannot
    express: the mean, over its rows, of each residual times each of them.

    It is 0 where all that is left beside the clone is chance, or goes by what no column has.
    """

    what = heads.PRODUCTS

    @cached_property
    def _pairs(self) -> Tensor:
        return torch.tensor(heads.list_products(self.columns)).T

    def summarise(self, inputs: Tensor, predicted: Tensor, known: Tensor) -> Tensor:
        """See `PredictionQuery.summarise`."""
        first, second = self._pairs
        column = inputs.clamp(-_FARTHEST_COLUMN, _FARTHEST_COLUMN).double()
        expected = (first == second).double()
        asked = []
        for residual in self.residuals(predicted, known).double().T:
            products = (column.T * residual) @ column / len(column)
            asked.append(products[first, second] - residual.mean() * expected)
        return torch.cat(asked) / math.sqrt(len(first))

    def share(
        self, answer: Tensor, noise: float, units: int, maps: Normaliser
    ) -> tuple[float, float]:
        """Estimate the share of what the clone leaves of actions that squares and products explain
        together, as if they were uncorrelated, and its standard error: post-processing.

        Numbers that go together count several times, so that it is too large there; categories are
        whitened by the frequencies that ``maps`` have, as far as the noise allows. The clip takes
        from it, and so does what ``units`` people scatter by chance, about 1/K.
        """
        basis = self._basis(maps)
        first, second = self._pairs
        by_columns = basis.new_zeros(self.targets, len(basis), len(basis))
        by_columns[:, first, second] = answer.double().view(self.targets, -1)
        by_columns[:, second, first] = by_columns[:, first, second]
        first, second = torch.tensor(heads.list_products(self._whitened)).T
        products = (basis.T @ by_columns @ basis)[:, first, second]
        spread = basis.square().sum(0)  # how much of the noise is in a whitened column
        spread, count = spread[first] * spread[second], answer.numel() / self.targets
        for most in _WEIGHTS:
            weight = (most / spread).clamp(max=1.0)
            noises = (weight * spread * noise**2).expand_as(products)
            of_none = 2 * noises.square().sum()
            if count * math.sqrt(float(of_none)) <= _NOISY:
                break
        found = weight * products.square() - noises
        variance = of_none + 4 * (noises * found).sum().clamp(min=0.0)
        return count * (float(found.sum()) - 1 / units), count * math.sqrt(float(variance))

    @property
    def _whitened(self) -> Columns:
        """Whitened columns: the numbers, and behind them one less of a part than its categories."""
        place, parts = len(self.columns.continuous), []
        for _, size in self.columns.one_hot:
            parts.append((place, size - 1))
            place += size - 1
        return replace(self.columns, observations=place, one_hot=tuple(parts))

    def _basis(self, maps: Normaliser) -> Tensor:
        """Return whitened columns as combinations of those that ``maps`` make, ``[S, D]``."""
        features = Polynomials(self.columns.observations, self.columns.one_hot, degree=1)
        scale = maps.input_scale.double().clone()
        scale[features.continuous] = 1.0
        return scale.unsqueeze(1) * features.basis(maps.input_mean).double()
