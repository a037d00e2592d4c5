"""The logged trajectories of some privacy units, as padded tensors, and selections of their rows.

A unit's own rows alone decide which of them are selected and how much each counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from primorl.evaluation.private.problem import Problem

BYTES_AT_ONCE = 32 << 20
"""Rows of so many bytes are held at a time (`batches`); at least one unit."""


class EpisodeSource(Protocol):
    """Source of trajectories: evaluation names units, the source hands out tensors."""

    @property
    def units(self) -> int:
        """Count the units, K."""

    def lengths(self, units: Tensor) -> Tensor:
        """Count each unit's transitions, over all its trajectories: int64 ``[U]`` for int64 ``[U]``."""

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Read rows ``steps[u, m]`` of unit ``units[u]``: inputs ``[U, M, S + A]`` and targets ``[U, M, S + 2]``.

        A target is the change of the observation, the reward, and whether the step terminated.
        """

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        """Tell which of these rows begin a trajectory: bool ``[U, M]``."""

    def behaviour_probabilities(self, units: Tensor, steps: Tensor) -> Tensor | None:
        """Read the logged actions' probabilities under the behaviour policy, ``[U, M]``; None if the log has none."""


@dataclass(frozen=True)
class Episodes:
    """All trajectories of U units, one after the other, padded to the longest unit. Sensitive.

    Padding is finite and belongs to the unit itself; every use must be masked by ``own``.

    Attributes:
        observation: ``[U, M, S]``, float64.
        action: ``[U, M, A]``, float64; one-hot where actions are discrete.
        reward: ``[U, M]``, float64.
        following: the next observation, ``[U, M, S]``.
        terminated: whether the step ended in a terminal state, bool ``[U, M]``.
        step: number of the step within its trajectory, from 0, int64 ``[U, M]``.
        begins: whether the step begins a trajectory, bool ``[U, M]``; false in padding.
        ends: whether it is the last logged step of its trajectory, bool ``[U, M]``; false in padding.
        own: whether the row is no padding, bool ``[U, M]``.
        probability: of the logged action under the behaviour policy, ``[U, M]``; None if the log has none.
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    following: Tensor
    terminated: Tensor
    step: Tensor
    begins: Tensor
    ends: Tensor
    own: Tensor
    probability: Tensor | None = None

    @property
    def units(self) -> int:
        """Count the units, U."""
        return len(self.own)

    @property
    def trajectories(self) -> Tensor:
        """Count each unit's trajectories, int64 ``[U]``."""
        return self.begins.sum(1)

    @classmethod
    def read(cls, source: EpisodeSource, units: Tensor, device: torch.device | None = None) -> "Episodes":
        """Read all rows of some units.

        Args:
            source: of the units.
            units: indices, int64 ``[U]``, at least one.
            device: where the tensors go; None: the CPU.
        """
        lengths = source.lengths(units)
        steps = torch.arange(max(1, int(lengths.max()))).expand(len(units), -1)  # a unit may have no rows
        own = steps < lengths[:, None]
        steps = steps.where(own, 0)  # padding repeats a row of the unit's own
        inputs, targets = source.transitions(units, steps)
        begins = source.begins(units, steps) & own
        begins[:, 0] = own[:, 0]
        place = torch.arange(own.shape[1]).expand_as(own)
        step = place - place.where(begins, 0).cummax(1).values
        ends = own & torch.cat((begins[:, 1:] | ~own[:, 1:], torch.ones_like(own[:, :1])), 1)
        size = targets.shape[-1] - 2
        inputs, targets = inputs.double(), targets.double()
        observation = inputs[..., :size]
        probability = source.behaviour_probabilities(units, steps)
        parts = (
            observation,
            inputs[..., size:],
            targets[..., size],
            observation + targets[..., :size],
            targets[..., size + 1] > 0,
            step.where(own, 0),
            begins,
            ends,
            own,
            None if probability is None else probability.double(),
        )
        return cls(*(None if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]


def batches(
    source: EpisodeSource, units: Tensor, *, row_bytes: int, bytes_at_once: int = BYTES_AT_ONCE
) -> Iterator[Tensor]:
    """Cut unit indices into portions whose padded rows fit a bound on memory.

    Neighbours in length share a portion, so that there is little padding.

    Args:
        source: of the units.
        units: indices, int64 ``[U]``; may be empty.
        row_bytes: memory of one row while it is worked on.
        bytes_at_once: the bound; one unit is worked on in any case.

    Yields:
        Indices, int64.
    """
    lengths, order = source.lengths(units).sort()
    ordered = units[order]
    first, rows = 0, max(1, bytes_at_once // row_bytes)
    while first < len(ordered):
        last = first + 1
        while last < len(ordered) and (last + 1 - first) * int(lengths[last]) <= rows:
            last += 1
        yield ordered[first:last]
        first = last


def portions(
    source: EpisodeSource, units: Tensor, *, row_bytes: int, device: torch.device | None = None
) -> Iterator[Episodes]:
    """Read all rows of ``units``, a portion of them at a time; see `batches`. Sensitive."""
    for portion in batches(source, units, row_bytes=row_bytes):
        yield Episodes.read(source, portion, device)


def first_rows(episodes: Episodes) -> Episodes:
    """Select the rows that begin a trajectory, ``[U, T]``, T being the most trajectories of a unit."""
    count = episodes.trajectories
    places = (~episodes.begins).long().argsort(dim=1, stable=True)[:, : int(count.max())]
    return _taken(episodes, places, torch.arange(places.shape[1], device=places.device) < count[:, None])


def thinned(episodes: Episodes, rows: int) -> Episodes:
    """Select at most ``rows`` rows of each unit, evenly spaced over all of its trajectories: ``[U, rows]``."""
    if episodes.own.shape[1] <= rows:
        return episodes
    lengths = episodes.own.sum(1, keepdim=True)
    number = torch.arange(rows, device=lengths.device).expand(len(lengths), -1)
    places = torch.where(lengths > rows, number * lengths // rows, number.clamp(max=episodes.own.shape[1] - 1))
    return _taken(episodes, places, number < lengths)


def counted(problem: Problem, episodes: Episodes) -> Tensor:
    """Tell which rows count for the value: no padding, and within the horizon, bool ``[U, M]``."""
    return episodes.own if problem.horizon is None else episodes.own & (episodes.step < problem.horizon)


def row_shares(problem: Problem, episodes: Episodes) -> Tensor:
    """Weigh each row by γ^t over the sum of γ^t over the unit's rows, ``[U, M]``; 0 in padding."""
    weights = (problem.discount ** episodes.step.double()).where(episodes.own, 0.0)
    return weights / weights.sum(1, keepdim=True).clamp(min=1e-300)


def mean_over_trajectories(first: Episodes, numbers: Tensor) -> Tensor:
    """Average ``[U, T]`` numbers over the trajectories that `first_rows` found: ``[U]``."""
    return numbers.where(first.own, 0.0).sum(1) / first.own.sum(1).clamp(min=1)


def _taken(episodes: Episodes, places: Tensor, own: Tensor) -> Episodes:
    """The rows at ``places [U, n]``; those that are not ``own`` are padding."""
    parts = {}
    for part in fields(episodes):
        values = getattr(episodes, part.name)
        if values is None:
            continue
        index = places if values.dim() == 2 else places[..., None].expand(-1, -1, values.shape[-1])
        parts[part.name] = values.gather(1, index)
    parts |= {"own": own, "begins": parts["begins"] & own, "ends": parts["ends"] & own}
    return Episodes(**parts)
