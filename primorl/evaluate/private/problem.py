"""The subject of an evaluation, the logged trajectories that answer, and facts of public ones.

A `Problem` holds public facts, declared bounds, the released model and the policy: nothing in it is
private. `Episodes` are the trajectories of some privacy units, as padded tensors. A unit's own rows
alone decide which of them are selected and how much each counts.

Recordings end: a patient is discharged, a log is cut. A rollout in the model goes on to the
declared horizon, so its return has rewards that no logged trajectory had. It is weighted by S(t),
the chance that a trajectory which did not terminate has more than t steps
(`PublicTrajectories.survival`). Terminations are the model's own business, so they do not count as
an end here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from primorl.model.ensemble import Bounds, GaussianEnsemble
from primorl.model.pessimism import Policies
from primorl.model.starts import StartModel, has_private_starts, survival_of
from primorl.model.termination import NONE, Ends

STARTS = 4096
"""First states that are drawn where none are public."""
BYTES_AT_ONCE = 32 << 20
"""`portions` holds so many bytes of padded rows at a time, six numbers for each that is read; or
one unit."""

_TOGETHER = 8  # portions
_UNITS_AT_ONCE = 1024  # public ones
# share of the widest bounds; returns that differ by less tell nothing about their spread
_SAME = 1e-6


@dataclass(frozen=True)
class Problem:
    """Subject of an evaluation: returns of the people in the data, the released model, and a policy
    in it.

    A value is the mean over units of the mean over the unit's trajectories of Σ_t r_t, t <
    ``horizon``: every unit counts once, however many trajectories it has. Rewards are held within
    their declared bounds.

    Everything here is public, declared or released, so using it costs nothing.

    Attributes:
        units: K, private units.
        horizon: most steps of a trajectory.
        policy: the one in question.
        ensemble: the released model, with declared or public bounds.
        starts: first states that are public or released, ``[n, S]``, in the environment's units.
        return_low: least return of a trajectory, as declared; at least the least sum of rewards.
        return_high: greatest return of a trajectory.
        return_is_sum: whether these are sums of many rewards, and so much wider than returns.
        seed: of rollouts; public.
        survival: S(t), the chance that a trajectory which did not terminate has more than t steps,
            float64 ``[horizon]``, from public trajectories (`PublicTrajectories`); None: all go on
            to the horizon.
    """

    units: int
    horizon: int
    policy: Policies
    ensemble: GaussianEnsemble
    starts: Tensor
    return_low: float = 0.0
    return_high: float = 0.0
    return_is_sum: bool = False
    seed: int = 0
    survival: Tensor | None = None

    @property
    def bounds(self) -> Bounds:
        """Declared or public bounds of observations, actions and rewards."""
        return self.ensemble.bounds

    @property
    def observation_size(self) -> int:
        """Size S of an observation."""
        return self.ensemble.architecture.observation_size

    @property
    def action_size(self) -> int:
        """Size A of an action."""
        return self.ensemble.architecture.action_size

    @property
    def return_centre(self) -> float:
        """Middle of the bounds of a return."""
        return (self.return_high + self.return_low) / 2

    @property
    def return_half(self) -> float:
        """Half of the distance of the bounds of a return."""
        return (self.return_high - self.return_low) / 2

    def with_return_bounds(self, declared: Sequence[float] | None) -> "Problem":
        """Bound a trajectory's return by ``declared``; None: by the sums of rewards.

        A trajectory may end early, so 0 is among the sums of rewards; and it ends once, so at most
        one of them is beyond the bounds before the end, where there are some.
        """
        if declared is not None:
            low, high = map(float, declared)
            return replace(self, return_low=low, return_high=high, return_is_sum=False)
        steps, ends = self.horizon, (self.bounds.reward_low, self.bounds.reward_high)
        low, high = ends
        if (before := self.bounds.before_end) is None:
            low, high = min(low * steps, 0.0), max(high * steps, 0.0)
        else:
            low = min(before[0] * steps, 0.0) + min(ends[0], 0.0)
            high = max(before[1] * steps, 0.0) + max(ends[1], 0.0)
        # sums of many rewards are much wider than returns
        several = before is None and self.horizon != 1
        return replace(self, return_low=low, return_high=high, return_is_sum=several)

    def bound_reward(self, reward: Tensor) -> Tensor:
        """Hold rewards within their declared bounds."""
        low, high = self.bounds.reward_low, self.bounds.reward_high
        return reward.double().nan_to_num(nan=low).clamp(low, high)


class EpisodeSource(Protocol):
    """Source of trajectories: evaluation names units, the source hands out tensors."""

    @property
    def units(self) -> int:
        """Count the units, K."""

    def lengths(self, units: Tensor) -> Tensor:
        """Count each unit's transitions, over all its trajectories: int64 ``[U]`` for int64
        ``[U]``.
        """

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Read rows ``steps[u, m]`` of unit ``units[u]``: inputs ``[U, M, S + A]`` and targets
        ``[U, M, S + 2]``.

        A target is the change of the observation, the reward, and whether the step terminated.
        """

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        """Tell which of these rows begin a trajectory: bool ``[U, M]``."""


@dataclass(frozen=True)
class Episodes:
    """All trajectories of U units, one after the other, padded to the longest unit. Sensitive.

    Padding is finite and belongs to the unit itself; every use must be masked by ``own``.

    Attributes:
        reward: ``[U, M]``, float64.
        terminated: whether the step ended in a terminal state, bool ``[U, M]``.
        step: number of the step within its trajectory, from 0, int64 ``[U, M]``.
        begins: whether the step begins a trajectory, bool ``[U, M]``; false in padding.
        ends: whether it is the last logged step of its trajectory, bool ``[U, M]``; false in
            padding.
        own: whether the row is no padding, bool ``[U, M]``.
    """

    reward: Tensor
    terminated: Tensor
    step: Tensor
    begins: Tensor
    ends: Tensor
    own: Tensor

    @property
    def trajectories(self) -> Tensor:
        """Count each unit's trajectories, int64 ``[U]``."""
        return self.begins.sum(1)

    @classmethod
    def read(cls, source: EpisodeSource, units: Tensor) -> "Episodes":
        """Read all rows of some units.

        Args:
            source: of the units.
            units: indices, int64 ``[U]``, at least one.
        """
        lengths = source.lengths(units)
        # A unit may have no rows.
        steps = torch.arange(max(1, int(lengths.max()))).expand(len(units), -1)
        own = steps < lengths[:, None]
        steps = steps.where(own, 0)  # padding repeats a row of the unit's own
        _, targets = source.transitions(units, steps)
        begins = source.begins(units, steps) & own
        begins[:, 0] = own[:, 0]
        place = torch.arange(own.shape[1]).expand_as(own)
        step = place - place.where(begins, 0).cummax(1).values
        ends = own & torch.cat((begins[:, 1:] | ~own[:, 1:], torch.ones_like(own[:, :1])), 1)
        return cls(
            reward=targets[..., -2].double(),
            terminated=targets[..., -1] > 0,
            step=step.where(own, 0),
            begins=begins,
            ends=ends,
            own=own,
        )


def portions(source: EpisodeSource, units: Tensor, width: int) -> Iterator[Episodes]:
    """Read all rows of some units in portions of `BYTES_AT_ONCE`. Sensitive.

    Neighbours in length share a portion, so that there is little padding: among units that lie
    together on disk, so that a page is read for few portions.

    Args:
        source: of the units.
        units: indices, int64 ``[U]``; may be empty.
        width: numbers of a row.
    """
    rows, lengths = max(1, BYTES_AT_ONCE // (8 * 6 * width)), source.lengths(units)
    together = max(1, _TOGETHER * rows * len(units) // max(1, int(lengths.sum())))
    for some, own in zip(torch.split(units, together), torch.split(lengths, together), strict=True):
        ascending, order = own.sort()
        ordered, numbers, first = some[order], ascending.tolist(), 0
        while first < len(ordered):
            last = first + 1
            while last < len(ordered) and (last + 1 - first) * numbers[last] <= rows:
                last += 1
            yield Episodes.read(source, ordered[first:last])
            first = last


def find_counted(problem: Problem, episodes: Episodes) -> Tensor:
    """Tell which rows count for the value: no padding, and within the horizon, bool ``[U, M]``."""
    return episodes.own & (episodes.step < problem.horizon)


@dataclass(frozen=True)
class PublicTrajectories:
    """Lengths and returns of n public trajectories.

    Attributes:
        length: steps of each, int64 ``[n]``.
        terminated: whether it ended in a terminal state, bool ``[n]``.
        weight: one over the number of its unit's trajectories, float64 ``[n]``: every unit counts
            once.
        reward: its rewards, float64 ``[n, M]``; 0 after its end.
    """

    length: Tensor
    terminated: Tensor
    weight: Tensor
    reward: Tensor

    @classmethod
    def of(cls, public: EpisodeSource) -> Self:
        """Read the public split, which must not be empty."""
        parts = []
        # All at once, all would be as long as the longest.
        for units in torch.split(torch.arange(public.units), _UNITS_AT_ONCE):
            rows = Episodes.read(public, units)
            unit, last = rows.ends.nonzero(as_tuple=True)
            length = rows.step[unit, last] + 1
            place = torch.arange(int(length.max()))
            begin = (last + 1 - length)[:, None]
            reward = rows.reward[unit[:, None], (begin + place).clamp(max=rows.own.shape[1] - 1)]
            reward = reward.where(place < length[:, None], 0.0)
            parts.append(
                (length, rows.terminated[unit, last], 1 / rows.trajectories[unit].double(), reward)
            )
        most = max(reward.shape[1] for *_, reward in parts)
        padded = [(*rest, pad(reward, (0, most - reward.shape[1]))) for *rest, reward in parts]
        return cls(*map(torch.cat, zip(*padded, strict=True)))

    def in_rollouts(self, ends: Ends) -> Self:
        """Count recorded terminations as ordinary ends where rollouts do not terminate.

        Args:
            ends: ``none``: rollouts do not end by themselves; else they end by the model.
        """
        return replace(self, terminated=torch.zeros_like(self.terminated)) if ends == NONE else self

    def survival(self, horizon: int) -> Tensor:
        """Estimate S(t) for t below the horizon, float64 ``[horizon]``, by the product limit
        (Kaplan and Meier 1958).

        After t steps, the share that ends there of those that have not terminated is taken off.
        Where nothing public is left to tell, S stays as it is.
        """
        cut = torch.zeros(horizon + 1, dtype=torch.float64)
        cut.index_add_(0, self.length.clamp(max=horizon), self.weight.where(~self.terminated, 0.0))
        ended = torch.zeros_like(cut).index_add_(0, self.length.clamp(max=horizon), self.weight)
        # Those that are longer, and those cut here.
        at_risk = pad(ended[1:].flip(0).cumsum(0).flip(0), (0, 1)) + cut
        stays = 1 - (cut / at_risk.clamp(min=1e-12))
        return stays[:horizon].clamp(0, 1).cumprod(0)

    def returns(self, problem: Problem) -> Tensor:
        """Return Σ_t r_t of each, as the problem counts it, float64 ``[n]``."""
        place = torch.arange(self.reward.shape[1])
        counted = place < self.length.clamp(max=problem.horizon)[:, None]
        return (problem.bound_reward(self.reward) * counted).sum(1)


class PublicSource(EpisodeSource, Protocol):
    """The public split."""

    def first_observations(self) -> Tensor:
        """Read where trajectories begin, float32 ``[n, S]``."""


@dataclass(frozen=True)
class Recordings:
    """Where trajectories begin, and how long they go on: as the public ones do, or as the private
    people were asked for.

    Attributes:
        folder: of the released model.
        public: the public split; None: nobody is public, or people who were asked do not resemble
            those who are.
    """

    folder: Path
    public: PublicSource | None

    @classmethod
    def of(cls, folder: Path, public: PublicSource) -> Self:
        """Take the public split where it stands for the private people."""
        stands = public.units > 0 and not has_private_starts(folder)
        return cls(folder, public if stands else None)

    @cached_property
    def trajectories(self) -> PublicTrajectories | None:
        """Every public trajectory; None: nothing public stands for the private people."""
        return None if self.public is None else PublicTrajectories.of(self.public)

    def first_states(self, seed: int) -> Tensor:
        """Collect public first states ``[n, S]``, or draw them from the released start model."""
        if self.public is not None:
            return self.public.first_observations()
        generator = torch.Generator().manual_seed(seed)
        return StartModel.load(self.folder, torch.device("cpu")).sample(STARTS, generator)

    def survival(self, horizon: int | None, ends: Ends) -> Tensor | None:
        """Estimate S(t), the share that goes on for more than t steps, float64 ``[horizon]``; None:
        nothing tells it.

        Args:
            horizon: of an episode.
            ends: ``none``: rollouts do not end by themselves; else they end by the model, and
                recorded terminations are no ends here.
        """
        if self.trajectories is None:
            return survival_of(self.folder, by_model=ends != NONE)
        return None if horizon is None else self.trajectories.in_rollouts(ends).survival(horizon)


def public_return_bounds(
    public: PublicTrajectories, problem: Problem
) -> tuple[float, float] | None:
    """Bound returns by the public ones: as far again beyond the least and the greatest as these are
    apart.

    Args:
        public: trajectories.
        problem: with the return bounds that follow from those of the rewards, which stay the outer
            limits.

    Returns:
        The bounds; None: the returns are all the same, so they tell nothing.
    """
    returns = public.returns(problem)
    low, high = float(returns.min()), float(returns.max())
    spread = high - low
    if not spread > _SAME * (problem.return_high - problem.return_low):
        return None
    # Whole numbers of hundredths or so: another machine finds the same.
    digits = 2 - math.floor(math.log10(spread))
    unit = 10.0**-digits
    low, high = math.floor((low - spread) / unit) * unit, math.ceil((high + spread) / unit) * unit
    low, high = round(low, digits), round(high, digits)
    return max(low, problem.return_low), min(high, problem.return_high)
