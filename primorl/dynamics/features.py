"""Fixed features of linear heads: Hermite polynomials of standardised inputs. Loading this module needs no torch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FARTHEST = 3.5
"""Standardised inputs are held within this, so that no polynomial of a rare value is large."""
_RAREST = 0.02  # share of a category, at least, where its column is whitened

OneHot = tuple[tuple[int, int], ...]
"""Parts of an input that are one-hot: (first column, number of categories)."""


@dataclass(frozen=True)
class Polynomials:
    """Products of normalised Hermite polynomials: an orthonormal basis for independent standard normal inputs.

    Of a number z they are z, (z² - 1)/√2 and (z³ - 3z)/√6. A one-hot part of k categories gives k - 1 columns, whitened
    by the categories' frequencies, which enter products with other columns only. The constant is the bias of the heads.

    Attributes:
        inputs: S + A.
        one_hot: one-hot parts of the inputs, those of discrete actions too.
        degree: largest degree of a product, 1 to 3.
    """

    inputs: int
    one_hot: OneHot
    degree: int

    @property
    def size(self) -> int:
        """F, the number of features without the constant."""
        return sum(len(columns) for columns in self._products.values())

    @property
    def columns(self) -> int:
        """D, the number of columns that products are made of."""
        return len(self._products[1,])

    @cached_property
    def continuous(self) -> list[int]:
        """Input columns that are numbers."""
        known = {first + place for first, size in self.one_hot for place in range(size)}
        return [column for column in range(self.inputs) if column not in known]

    @cached_property
    def _products(self) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
        """Columns of every kind of product, by the degrees of its factors, such as (2, 1) for (z² - 1)/√2 times z'."""
        numbers = len(self.continuous)
        owner = [*range(numbers)]
        for part, (_, size) in enumerate(self.one_hot):
            owner += [numbers + part] * (size - 1)
        found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for total in range(1, self.degree + 1):
            for degrees in _partitions(total):
                pairs = itertools.permutations(range(len(owner)), len(degrees))
                found[degrees] = [
                    columns
                    for columns in pairs
                    if len({owner[column] for column in columns}) == len(columns)
                    and all(column < numbers for column, degree in zip(columns, degrees, strict=True) if degree > 1)
                    and all(
                        columns[i] < columns[i + 1] for i in range(len(degrees) - 1) if degrees[i] == degrees[i + 1]
                    )
                ]
        return {degrees: columns for degrees, columns in found.items() if columns}

    @cached_property
    def _indices(self) -> list[tuple[tuple[int, ...], list[list[int]]]]:
        return [(degrees, [list(c) for c in zip(*columns, strict=True)]) for degrees, columns in self._products.items()]

    def basis(self, frequencies: Tensor) -> Tensor:
        """Columns of the polynomials as combinations of standardised inputs, ``[S + A, D]``.

        Args:
            frequencies: of the categories, at the columns of one-hot parts, ``[S + A]``.
        """
        import torch

        columns = [torch.eye(self.inputs)[:, self.continuous]]
        for first, size in self.one_hot:
            shares = _sound(frequencies[first : first + size])
            values, vectors = torch.linalg.eigh(torch.diag(shares) - shares.outer(shares))
            whitened = torch.zeros(self.inputs, size - 1)
            whitened[first : first + size] = (vectors[:, 1:] / values[1:].sqrt()).float()
            columns.append(whitened)
        return torch.cat(columns, 1)

    def centre(self, frequencies: Tensor) -> Tensor:
        """Means of one-hot columns as `basis` takes them, 0 elsewhere: ``[S + A]``."""
        import torch

        found = torch.zeros(self.inputs)
        for first, size in self.one_hot:
            found[first : first + size] = _sound(frequencies[first : first + size]).float()
        return found

    def __call__(self, standardised: Tensor, basis: Tensor) -> Tensor:
        """Features ``[.., F]`` of standardised inputs ``[.., S + A]``."""
        import torch

        z = standardised.clamp(-FARTHEST, FARTHEST) @ basis
        powers = {1: z}
        if self.degree > 1:
            powers[2] = (z.square() - 1) / math.sqrt(2)
        if self.degree > 2:
            powers[3] = (z**3 - 3 * z) / math.sqrt(6)
        parts = []
        for degrees, columns in self._indices:
            product = powers[degrees[0]][..., columns[0]]
            for degree, more in zip(degrees[1:], columns[1:], strict=True):
                product = product * powers[degree][..., more]
            parts.append(product)
        return torch.cat(parts, -1)


def _partitions(total: int) -> list[tuple[int, ...]]:
    """Degrees of factors, descending, that add up to ``total``, for totals up to 3."""
    found: dict[int, list[tuple[int, ...]]] = {1: [(1,)], 2: [(2,), (1, 1)], 3: [(3,), (2, 1), (1, 1, 1)]}
    return found[total]


def _sound(frequencies: Tensor) -> Tensor:
    shares = frequencies.double().clamp(min=_RAREST)
    return shares / shares.sum()
