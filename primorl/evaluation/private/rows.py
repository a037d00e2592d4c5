"""Which rows of a unit an estimator works on, and how much each counts. A unit's own rows decide, nothing else."""

from dataclasses import fields

import torch
from torch import Tensor

from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.problem import Problem


def first_rows(episodes: Episodes) -> Episodes:
    """The rows that begin a trajectory, ``[U, T]``, T being the most trajectories of a unit."""
    count = episodes.trajectories
    places = (~episodes.begins).long().argsort(dim=1, stable=True)[:, : int(count.max())]
    return _taken(episodes, places, torch.arange(places.shape[1], device=places.device) < count[:, None])


def thinned(episodes: Episodes, rows: int) -> Episodes:
    """At most ``rows`` rows of each unit, evenly spaced over all of its trajectories: ``[U, rows]`` or fewer."""
    if episodes.own.shape[1] <= rows:
        return episodes
    lengths = episodes.own.sum(1, keepdim=True)
    number = torch.arange(rows, device=lengths.device).expand(len(lengths), -1)
    places = torch.where(lengths > rows, number * lengths // rows, number.clamp(max=episodes.own.shape[1] - 1))
    return _taken(episodes, places, number < lengths)


def counted(problem: Problem, episodes: Episodes) -> Tensor:
    """Rows that count for the value: no padding, and within the horizon, bool ``[U, M]``."""
    return episodes.own if problem.horizon is None else episodes.own & (episodes.step < problem.horizon)


def row_shares(problem: Problem, episodes: Episodes) -> Tensor:
    """γ^t over its sum over all rows of the unit, ``[U, M]``: how much each row counts. 0 in padding."""
    weights = (problem.discount ** episodes.step.double()).where(episodes.own, 0.0)
    return weights / weights.sum(1, keepdim=True).clamp(min=1e-300)


def mean_over_trajectories(first: Episodes, numbers: Tensor) -> Tensor:
    """Mean of ``[U, T]`` numbers over the trajectories that `first_rows` found: ``[U]``."""
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
