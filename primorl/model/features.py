"""Fixed features of linear heads: Hermite polynomials of standardised inputs.

Loading this module needs no torch.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FARTHEST = 3.5
"""Standardised inputs are held within this, so that no polynomial of a rare value is large."""
_RAREST = 0.02  # share of a category, at least, where its column is whitened

OneHot = tuple[tuple[int, int], ...]
"""Parts of an input that are one-hot: (first column, number of categories)."""


def _numbers(columns: int, one_hot: OneHot) -> list[int]:
    """List the columns that belong to no one-hot part."""
    categories = {first + place for first, size in one_hot for place in range(size)}
    return [column for column in range(columns) if column not in categories]


@dataclass(frozen=True)
class Columns:
    """The columns of a model's inputs: those of an observation, then those of an action.

    Attributes:
        observations: S.
        actions: A.
        one_hot: one-hot parts of the observation, which are 0 and 1.
        discrete: whether actions are one-hot too.
    """

    observations: int
    actions: int
    one_hot: OneHot
    discrete: bool

    @property
    def all_one_hot(self) -> OneHot:
        """One-hot parts of all inputs."""
        return self.one_hot + (((self.observations, self.actions),) if self.discrete else ())

    @property
    def continuous(self) -> list[int]:
        """Columns of the observation that are numbers."""
        return _numbers(self.observations, self.one_hot)


@dataclass(frozen=True)
class Polynomials:
    """Products of normalised Hermite polynomials: an orthonormal basis for independent standard
    normal inputs.

    Of a number z they are z, (z² - 1)/√2 and (z³ - 3z)/√6. A one-hot part of k categories gives k -
    1 columns, whitened by the categories' frequencies, which enter products with other columns
    only. The constant is the bias of the heads.

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
        return sum(len(factors[0]) for _, factors in _products(self))

    @property
    def columns(self) -> int:
        """D, the number of columns that products are made of."""
        return len(_products(self)[0][1][0])

    @property
    def continuous(self) -> list[int]:
        """Input columns that are numbers."""
        return _numbers(self.inputs, self.one_hot)

    def basis(self, frequencies: Tensor) -> Tensor:
        """Return the columns of the polynomials as combinations of standardised inputs, ``[S + A,
        D]``.

        Args:
            frequencies: of the categories, at the columns of one-hot parts, ``[S + A]``.
        """
        import torch

        columns = [torch.eye(self.inputs)[:, self.continuous]]
        for first, size in self.one_hot:
            shares = _bound_frequencies(frequencies[first : first + size])
            values, vectors = torch.linalg.eigh(torch.diag(shares) - shares.outer(shares))
            whitened = torch.zeros(self.inputs, size - 1)
            whitened[first : first + size] = (vectors[:, 1:] / values[1:].sqrt()).float()
            columns.append(whitened)
        return torch.cat(columns, 1)

    def centre(self, frequencies: Tensor) -> Tensor:
        """Return the means of one-hot columns as `basis` takes them, 0 elsewhere: ``[S + A]``."""
        import torch

        found = torch.zeros(self.inputs)
        for first, size in self.one_hot:
            found[first : first + size] = _bound_frequencies(
                frequencies[first : first + size]
            ).float()
        return found

    def __call__(self, standardised: Tensor, basis: Tensor) -> Tensor:
        """Return the features ``[.., F]`` of standardised inputs ``[.., S + A]``.

        Every number is added, multiplied or divided alone: the last bits of a matrix product could
        depend on how many rows it has, and so one person's features on who else is there.
        """
        import torch

        # In memory a feature's values follow each other: then every operation runs over whole
        # columns.
        columns = standardised.reshape(-1, self.inputs).T
        z = columns.clamp(-FARTHEST, FARTHEST)
        if self.one_hot:
            parts, place = [z[self.continuous]], len(self.continuous)
            for first, size in self.one_hot:
                whitened = basis[first : first + size, place : place + size - 1, None]
                terms = [
                    column * factors
                    for column, factors in zip(z[first : first + size], whitened, strict=True)
                ]
                parts.append(sum(terms[1:], terms[0]))
                place += size - 1
            z = torch.cat(parts)
        powers = _powers(z, self.degree)
        found, runs = z.new_empty(self.size, z.shape[1]), _runs(self)
        of_runs = torch.split(found, [len(last) for *_, last in runs])
        for (degrees, leading, last), part in zip(runs, of_runs, strict=True):
            columns = powers[degrees[-1]][last.start : last.stop]
            factors = [
                powers[degree][column] for degree, column in zip(degrees, leading, strict=False)
            ]
            if not factors:
                part.copy_(columns)
            else:
                torch.mul(math.prod(factors[1:], start=factors[0]), columns, out=part)
        return found.T.view(*standardised.shape[:-1], self.size)


def _powers(z: Tensor, degree: int) -> dict[int, Tensor]:
    powers, square = {1: z}, z * z
    if degree > 1:
        powers[2] = (square - 1).div_(math.sqrt(2))
    if degree > 2:
        powers[3] = (square * z).sub_(3 * z).div_(math.sqrt(6))
    return powers


@cache
def _products(features: Polynomials) -> list[tuple[tuple[int, ...], list[list[int]]]]:
    """List every kind of product: the degrees of its factors, such as (2, 1) for (z² - 1)/√2 times
    z', and their columns.
    """
    numbers = len(features.continuous)
    owner = [*range(numbers)]
    for part, (_, size) in enumerate(features.one_hot):
        owner += [numbers + part] * (size - 1)
    kinds: list[tuple[int, ...]] = [(1,), (2,), (1, 1), (3,), (2, 1), (1, 1, 1)]
    found = []
    for degrees in kinds:
        if sum(degrees) > features.degree:
            break
        columns = [
            each
            for each in itertools.permutations(range(len(owner)), len(degrees))
            if len({owner[column] for column in each}) == len(each)
            and all(
                column < numbers for column, degree in zip(each, degrees, strict=True) if degree > 1
            )
            and all(
                a < b
                for (a, da), (b, db) in itertools.pairwise(zip(each, degrees, strict=True))
                if da == db
            )
        ]
        if columns:
            found.append((degrees, [list(factor) for factor in zip(*columns, strict=True)]))
    return found


@cache
def _runs(features: Polynomials) -> list[tuple[tuple[int, ...], list[int], range]]:
    """Group `_products` that follow each other and differ in the last factor alone, by one column
    each time.

    Returns:
        Degrees of the factors, columns of all but the last factor, and columns of the last one.
    """
    runs: list[tuple[tuple[int, ...], list[int], range]] = []
    for degrees, factors in _products(features):
        for *leading, last in zip(*factors, strict=True):
            if runs and runs[-1][:2] == (degrees, leading) and runs[-1][2].stop == last:
                runs[-1] = degrees, leading, range(runs[-1][2].start, last + 1)
            else:
                runs.append((degrees, leading, range(last, last + 1)))
    return runs


def _bound_frequencies(frequencies: Tensor) -> Tensor:
    shares = frequencies.double().clamp(min=_RAREST)
    return shares / shares.sum()
