"""Check of the released model on the private data: its errors, and whether to believe it."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from primorl.base.records import Positive, PositiveInt
from primorl.evaluate.private.problem import Episodes, Problem, in_blocks, in_float64, mean_change
from primorl.evaluate.private.question import (
    Interval,
    NoisyMean,
    Question,
    estimate,
    noisy_mean,
    pair,
    t_quantile,
)
from primorl.evaluate.private.results import Answer, Believe, Check

QUANTITIES = ("reward", "state")
TRIVIAL = ("the usual reward", "no change")
"""What predicts each of `QUANTITIES` without a model; the usual reward is the centre of the
released normaliser.
"""
_AT_ONCE = 4096  # rollouts
GOOD_RATIO, BAD_RATIO = 0.5, 1.0
"""Shares of the trivial mean squared error: a model surely below the first is believable, above the
second not.
"""


class Both(NamedTuple):
    """The model's mean squared error, and that of the trivial prediction."""

    model: NoisyMean
    trivial: NoisyMean


class _Starts(NamedTuple):
    """Starting steps: the unit, the row in it, and how many steps are left from there, ``[B]``."""

    unit: Tensor
    row: Tensor
    left: Tensor


@dataclass(frozen=True, kw_only=True)
class ModelCheck(Question):
    """Errors of the released model's open-loop predictions on the private trajectories, from one
    noisy release.

    From several steps of each trajectory, the ensemble's mean is rolled out along the recorded
    actions, each state being held within its bounds. After h steps, the error of the reward is that
    of the last step's, over the released normaliser's scale of rewards; the error of the state is
    the root mean square over its dimensions, each over the normaliser's scale. Errors are cut at
    ``cap`` and squared: the ensemble predicts means, and squares alone are fair to means. A unit's
    squared error is the mean over those of its trajectories that have h steps, each being the mean
    over its starts. Beside it stands that of a trivial prediction (`TRIVIAL`). Estimates are roots
    of the means over units.

    A unit contributes, for each h: four squared errors, mapped to x in [-1, 1], as (x, 1 - x²); and
    whether it has h steps, as ±1 (for h > 1; every unit has one). Units without h steps contribute
    zero to the first: means are over the units that have them, and the denominator is their noisy
    share. With n = 4 numbers for each h and one more for each h > 1, the factor 1 / √n holds the
    joint norm within 1.

    Attributes:
        horizons: the h; those beyond the declared horizon, or that nobody surely reaches, are
            dropped.
        starts: starting steps of each trajectory, evenly spaced; a shorter one has each of its
            steps once.
        cap: where errors are cut, in scales; those of an outcome's rewards never are.
    """

    name: ClassVar[str] = "model_check"
    about_model: ClassVar[bool] = True

    horizons: tuple[PositiveInt, ...]
    starts: PositiveInt
    cap: Positive

    def kept(self, problem: Problem) -> tuple[int, ...]:
        """List the horizons within the declared one, ascending."""
        most = math.inf if problem.horizon is None else problem.horizon
        return tuple(sorted({h for h in self.horizons if h <= most}))

    def _caps(self, problem: Problem) -> Tensor:
        """Return the largest error of each of `QUANTITIES`, in scales.

        Of outcomes, which are far apart and rare, it is the whole range of rewards: cut errors
        would be least if none was ever predicted.
        """
        rewards = self.cap
        if problem.bounds.before_end is not None:
            scale = float(problem.ensemble.normaliser.target_scale[-1])
            rewards = (problem.bounds.reward_high - problem.bounds.reward_low) / scale
        return torch.tensor([rewards, self.cap], dtype=torch.float64)

    def contributions(
        self, problem: Problem, episodes: Episodes, noise: float, released: Tensor
    ) -> Tensor:
        """See the class; float64 ``[U, 9|h| (less one for h = 1)]``."""
        kept = self.kept(problem)
        error, has = self.errors(problem, episodes)
        most = self._caps(problem).square()[:, None]
        pairs = pair(2 * error / most - 1) * has[:, :, None, None, None]
        shares = has[:, [i for i, h in enumerate(kept) if h > 1]].double() * 2 - 1
        return torch.cat((pairs.flatten(1), shares), 1) * _factor(kept)

    def errors(self, problem: Problem, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Compute each unit's mean squared errors, up to the squares of `_caps`. Sensitive.

        Returns:
            For each kept horizon, of `QUANTITIES`, of the model and of the trivial prediction:
                float64
            ``[U, |h|, 2, 2]``, zero where there is none; and whether the unit has so many steps:
            bool ``[U, |h|]``.
        """
        starts, kept = self._find_starts(episodes), self.kept(problem)
        parts = zip(*(torch.split(part, _AT_ONCE) for part in starts), strict=True)
        errors = torch.cat([self._roll_out(problem, episodes, _Starts(*part)) for part in parts])
        valid = starts.left[:, None] >= torch.tensor(kept, device=errors.device)
        units, most = len(episodes.own), int(episodes.trajectories.max())
        # Means over the starts of a trajectory, then over the trajectories of a unit.
        trajectory = (episodes.begins.cumsum(1) - 1)[starts.unit, starts.row]
        place = starts.unit * most + trajectory
        count = torch.zeros(units * most, len(kept), dtype=torch.float64, device=errors.device)
        total = count[..., None, None].repeat(1, 1, 2, 2)
        count.index_add_(0, place, valid.double())
        total.index_add_(0, place, errors * valid[..., None, None])
        means = (total / count.clamp(min=1)[..., None, None]).view(units, most, len(kept), 2, 2)
        having = (count > 0).view(units, most, len(kept)).sum(1)
        # One after the other, not by a sum whose order depends on the most trajectories of the
        # batch.
        together = torch.zeros_like(means[:, 0])
        for number in range(most):
            together += means[:, number]
        return together / having.clamp(min=1)[..., None, None], having > 0

    def _find_starts(self, episodes: Episodes) -> "_Starts":
        """Find the evenly spaced starting steps of every trajectory."""
        place = torch.arange(episodes.own.shape[1], device=episodes.own.device)
        ends = torch.where(episodes.ends, place, len(place) - 1)
        # The last row of the trajectory that each row is in.
        last = ends.flip(1).cummin(1).values.flip(1)
        length = episodes.step.gather(1, last) + 1
        # The first start that is not before this step.
        first = -(-episodes.step * self.starts // length)
        begun = (first * length < (episodes.step + 1) * self.starts) & episodes.own
        unit, row = begun.nonzero(as_tuple=True)
        return _Starts(unit, row, (last - place + 1)[unit, row])

    @torch.no_grad()
    def _roll_out(self, problem: Problem, episodes: Episodes, starts: "_Starts") -> Tensor:
        """Compute squared errors from these starts, ``[B, |h|, 2, 2]``; zero where fewer steps are
        left.

        From a prediction on that is not a finite number, the model's errors are the largest.
        """
        unit, row, left = starts
        ensemble, kept = in_float64(problem.ensemble, row.device), self.kept(problem)
        normaliser, bounds = ensemble.normaliser, ensemble.bounds
        low, high = bounds.observation_low, bounds.observation_high
        centre, scale = float(normaliser.target_mean[-1]), float(normaliser.target_scale[-1])
        steps = torch.tensor(kept, device=row.device)
        caps = self._caps(problem).repeat_interleave(2).to(row.device)
        # No step is predicted that no error is taken of.
        needed = (steps * (steps <= left[:, None])).amax(1)
        own = torch.arange(len(row), device=row.device)
        known = torch.ones(len(row), dtype=torch.bool, device=row.device)
        state = start = episodes.observation[unit, row].nan_to_num(nan=0.0).clamp(low, high)
        errors = torch.zeros(len(row), len(kept), 2, 2, dtype=torch.float64, device=row.device)
        for step in range(max(kept)):
            going = needed[own] > step
            own, state, start, known = (part[going] for part in (own, state, start, known))
            if len(own) == 0:
                break
            at = unit[own], row[own] + step
            action = episodes.action[at].nan_to_num(nan=0.0)
            action = action.clamp(bounds.action_low, bounds.action_high)
            change = in_blocks(partial(mean_change, ensemble), torch.cat((state, action), 1))
            known = known & change.isfinite().all(1)
            state = bounds.hold(state + change[:, :-1].nan_to_num(nan=0.0), state)
            if step + 1 not in kept:
                continue
            seen, reward = episodes.following[at], problem.bound_reward(episodes.reward[at])
            gap = (problem.bound_reward(change[:, -1]) - reward).abs()
            found = (
                torch.where(known, gap / scale, torch.inf),
                (reward - centre).abs() / scale,
                torch.where(known, _distance(problem, state, seen), torch.inf),
                _distance(problem, start, seen),
            )
            error = torch.stack(found, -1).nan_to_num(nan=torch.inf).clamp(min=0)
            error = error.minimum(caps).square()
            errors[own, kept.index(step + 1)] = error.view(-1, 2, 2)
        return errors

    def estimates(self, problem: Problem, noise: float, released: Tensor) -> tuple[Answer, ...]:
        """Estimate, for each horizon and quantity, the model's error, then that of the trivial
        prediction.
        """
        cut = "their range" if problem.bounds.before_end is not None else f"{self.cap:g}"
        bias = (
            "Root mean squares, in the released normaliser's scales, of errors of rewards cut at "
            f"{cut} and of states at {self.cap:g}; units without so many steps are left out. A "
            "policy may go where the log does not."
        )
        covers = "sampling and privacy noise"
        found = []
        caps = dict(zip(QUANTITIES, self._caps(problem).tolist(), strict=True))
        for (h, quantity), both in self._means(problem, noise, released).items():
            steps = f"{h} step{'s' if h > 1 else ''} ahead"
            for mean, of in zip(
                both, ("", f", of {TRIVIAL[QUANTITIES.index(quantity)]}"), strict=True
            ):
                value, low, high = (
                    caps[quantity] * math.sqrt((x + 1) / 2)
                    for x in (mean.value, mean.low, mean.high)
                )
                what = f"{quantity} error, {steps}{of}"
                found.append(estimate(self.name, "model", what, value, (low, high), covers, bias))
        return tuple(found)

    def verdict(self, problem: Problem, noise: float, released: Tensor) -> Check:
        """Judge whether to believe the model, from released numbers alone.

        For rewards and for states, D = model's - c · trivial mean squared error, averaged over the
        horizons, with its 95% interval. The model is believable if both are surely below 0 at c =
        `GOOD_RATIO`, and is not if one is surely above 0 at c = `BAD_RATIO`. In between it is
        doubtful: it predicts something, and the rest may be noise of the world, which no model
        predicts, or its own fault.

        Where an outcome comes at the end, rewards are judged one step ahead alone. Those who are
        there for more steps are those to whom the outcome has not come, which the model, who is
        asked for the mean of all, does not know.
        """
        outcome = problem.bounds.before_end is not None

        def judges(horizon: int, quantity: str) -> bool:
            return quantity == "state" or horizon == 1 or not outcome

        means = self._means(problem, noise, released)
        ratio, wrong, all_good = 0.0, [], True
        for quantity in QUANTITIES:
            own = [both for (h, of), both in means.items() if of == quantity and judges(h, of)]
            model, trivial = _sums(own)
            ratio = max(ratio, model / trivial if trivial > 0 else math.inf)
            all_good &= _difference(own, GOOD_RATIO, problem.units)[1] < 0
            if _difference(own, BAD_RATIO, problem.units)[0] > 0:
                wrong.append(quantity)
        believe: Believe = "yes" if all_good else "no" if wrong else "doubtful"
        return Check(
            believe=believe,
            ratio=ratio if math.isfinite(ratio) else None,
            wrong=tuple(wrong),
            horizons=tuple(dict.fromkeys(h for h, _ in means)),
        )

    def _means(
        self, problem: Problem, noise: float, released: Tensor
    ) -> dict[tuple[int, str], Both]:
        """Read the squared errors of the model and of the trivial prediction, mapped from [0, cap²]
        to [-1, 1]; of the horizons that some unit surely reaches.
        """
        kept = self.kept(problem)
        noise, released = noise / _factor(kept), released / _factor(kept)
        pairs = released[: 8 * len(kept)].view(len(kept), 2, 2, 2).tolist()
        shares = iter(((released[8 * len(kept) : 9 * len(kept)] + 1) / 2).tolist())
        means = {}
        for i, h in enumerate(kept):
            share, share_noise = (next(shares), noise / 2) if h > 1 else (1.0, 0.0)
            if share <= t_quantile(problem.units) * share_noise:
                continue
            for j, quantity in enumerate(QUANTITIES):
                model, trivial = (
                    noisy_mean(problem.units, mean, rest, noise, share, share_noise)
                    for mean, rest in pairs[i][j]
                )
                means[h, quantity] = Both(model, trivial)
        return means


def _factor(kept: tuple[int, ...]) -> float:
    """Compute the factor that holds the joint norm of a contribution within 1."""
    return 1 / math.sqrt(4 * len(kept) + sum(h > 1 for h in kept))


def _difference(own: list[Both], share: float, units: int) -> Interval:
    """Compute the 95% interval of the model's less ``share`` of the trivial squared error, summed
    over the horizons.

    Independent noise adds up in squares; noise that means may share adds up as it is.
    """
    weighted = [
        (weight, mean) for both in own for weight, mean in zip((1.0, share), both, strict=True)
    ]
    noise = math.hypot(*(weight * mean.noise for weight, mean in weighted))
    half = t_quantile(units) * math.hypot(
        noise, sum(weight * mean.shared for weight, mean in weighted)
    )
    model, trivial = _sums(own)
    return model - share * trivial - half, model - share * trivial + half


def _sums(own: list[Both]) -> tuple[float, float]:
    """Sum the model's and the trivial squared errors over the horizons."""
    return sum(model.value + 1 for model, _ in own), sum(trivial.value + 1 for _, trivial in own)


def _distance(problem: Problem, one: Tensor, other: Tensor) -> Tensor:
    """Compute the root mean square, over the dimensions, of the difference in scales: ``[B, S]``
    twice to ``[B]``.
    """
    return (problem.standardise(one) - problem.standardise(other)).square().mean(-1).sqrt()
