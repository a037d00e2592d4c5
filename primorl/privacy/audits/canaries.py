"""White-box audit of the mechanism: does it leak more than the plan states?

Canary units contribute vectors of norm exactly C, orthogonal to each other and to all others. A fair coin decides
whether each canary is in the data. An adversary who sees the released rounds, and knows everything but the coins,
guesses them; the success of the guesses bounds ε from below. The audit runs the plan's own parts: `Plan.cohort`,
`Clip.clip_pieces` and `Plan.release`, so it works for every plan.

The audit does not see what happens outside the plan (local steps, chunks, what a stage writes): `tests/training` and
the one-run audit do. Nor does it see weaknesses that hardly change ε (fixed partitions in place of Poisson cohorts, the
realised cohort size in the denominator): the tests compare `Observations` with their stated law instead.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from dp_accounting import dp_event, pld
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.audits.intervals import clopper_pearson_bounds
from primorl.privacy.mechanism.plan import Plan
from primorl.project.errors import PipelineError

Floats = NDArray[np.float64]

# Raw contributions are this many times C in every piece, so that after a correct clip they reach its bound.
_EXCESS = 10.0
# Coordinates of every piece that hold the contributions of ordinary units.
_SPARE = 16
_FEWEST = 128  # canaries of all runs together; fewer are too few to choose a statistic
_THRESHOLDS = 256
# The search for the noise multiplier goes within this factor of the plan's, on this grid of ε.
_WIDEST = 4.0
_HALVINGS = 10
_EPSILONS, _LARGEST_EPSILON = 100, 10.0
_GRID = 2e-3


@dataclass(frozen=True)
class Observations:
    """What the releases show about every canary. The data are canaries only, so this is not sensitive.

    Attributes:
        included: whether the canary was in the data, ``[canaries]`` (those of all runs).
        by_round: each round's release along the canary's direction, in units of C: B + zN(0, 1) where B says whether
            the canary joined, ``[canaries, T]``.
        by_block: the same sum over rounds for each layer of each member apart, ``[canaries, N·L]``; each holds an equal
            share of the canary, so without noise they are equal.
    """

    included: NDArray[np.bool_]
    by_round: Floats
    by_block: Floats


@dataclass(frozen=True)
class LowerBound:
    """What an audit found. Each bound exceeds the true ε with probability at most 1 - ``confidence``.

    Attributes:
        claimed: the plan's ε at ``delta``.
        epsilon: from the rates of right and wrong guesses alone (Clopper-Pearson). Assumes that canaries are
            independent trials, which they are under the mechanism the plan states. At 95% it cannot pass
            log(canaries/8).
        epsilon_gaussian: assumes further that each round is a Gaussian release of a Poisson sample with the plan's q,
            of which only the noise multiplier is unknown: the ε of the largest one under which the guesses could
            have been as good (at most four times smaller than the plan's). Far tighter; with q = 1 it is the bound
            by Gaussian DP of Nasr et al. 2023 (arXiv 2302.07956).
        delta: at which all three are read.
        confidence: of each bound.
        canaries: guessed about; as many again served to choose the statistic and the threshold.
        statistic: that told most: ``likelihood``, ``layers`` or ``rounds``.
    """

    claimed: float
    epsilon: float
    epsilon_gaussian: float
    delta: float
    confidence: float
    canaries: int
    statistic: str

    @property
    def refutes_the_claim(self) -> bool:
        """Whether the plan leaks more than it states, by either bound."""
        return max(self.epsilon, self.epsilon_gaussian) > self.claimed


def audit_mechanism(plan: Plan, *, canaries: int, runs: int, confidence: float) -> LowerBound:
    """Bound from below the ε of what ``plan`` really does.

    Args:
        plan: as training would use it. Its K units are the canaries and ordinary ones.
        canaries: in one run, 2 to K - 1; memory grows with their square.
        runs: of all T rounds, each with fresh coins. Twice the runs tighten the bounds as twice the canaries do.
        confidence: of each bound.

    Raises:
        PipelineError: the plan claims nothing, has too few units, or releases numbers that are not finite although
            every hostile update should have been zeroed.
    """
    spent = plan.spent()
    if spent is None:
        raise PipelineError("audit: the plan adds no noise and claims no guarantee: there is nothing to refute")
    return lower_bound(plan, observe(plan, canaries=canaries, runs=runs), spent.epsilon_pld, confidence)


def observe(plan: Plan, *, canaries: int, runs: int) -> Observations:
    """Run the plan's rounds ``runs`` times on data full of canaries.

    A canary that is out keeps its place among the K, which are declared public, and adds nothing to the sum: what is
    released is what a dataset without it would release. Its update alternates in sign from round to round and
    from block to block, as an update may: noise used twice then cancels where the canary does not.

    Raises:
        PipelineError: as `audit_mechanism`.
    """
    if not 2 <= canaries < plan.units:
        raise PipelineError(
            f"audit: found {canaries} canaries among {plan.units} units, allowed are 2 to {plan.units - 1}; "
            "choose fewer canaries"
        )
    if canaries * runs < _FEWEST:
        raise PipelineError(f"audit: found {canaries * runs} canaries in all runs, allowed are {_FEWEST} or more")
    pieces = plan.clip.pieces
    blocks, width = math.prod(pieces), canaries + _SPARE
    signs = _checkerboard(pieces)
    tables = [_clipped(plan, canaries, signs * sign) for sign in (1, -1)]
    # Which row of the table a unit adds; canaries are spread over the units, first and last among them.
    absent = len(tables[0])
    rows = absent - 1 - np.arange(plan.units) % (absent - canaries)
    slots = np.arange(canaries) * (plan.units - 1) // (canaries - 1)
    included = np.random.default_rng().random((runs, canaries)) < 0.5
    divisor = plan.expected_cohort if plan.denominator is None else plan.denominator
    by_round = np.zeros((runs, canaries, plan.rounds))
    by_block = np.zeros((runs, canaries, blocks))
    for run in range(runs):
        rows[slots] = np.where(included[run], np.arange(canaries), absent)
        for t in range(plan.rounds):
            joined = np.bincount(rows[plan.cohort().numpy()], minlength=absent + 1)[:absent]
            total = torch.from_numpy(joined).double() @ tables[t % 2]
            released = torch.stack(plan.release(total.view(*pieces, width).unbind(0))).double()[..., :canaries]
            sign = 1 if t % 2 == 0 else -1
            seen = (released * signs.unsqueeze(-1) * sign).view(blocks, canaries).numpy()
            seen *= divisor / (plan.clipping_norm / math.sqrt(blocks))
            by_round[run, :, t] = seen.mean(0)
            by_block[run] += seen.T
    if not np.isfinite(by_round).all():
        raise PipelineError(
            "audit: a release is not finite: the update of a unit that is NaN reached the sum, and shows who was there"
        )
    return Observations(
        included.reshape(-1), by_round.reshape(-1, plan.rounds), by_block.reshape(runs * canaries, blocks)
    )


def _checkerboard(pieces: tuple[int, ...]) -> Tensor:
    """Signs for the pieces of a contribution, such that neighbours differ along every dimension."""
    signs = torch.ones(())
    for size in pieces:
        signs = signs.unsqueeze(-1) * torch.where(torch.arange(size) % 2 == 1, -1.0, 1.0)
    return signs


def _clipped(plan: Plan, canaries: int, signs: Tensor) -> Tensor:
    """Clipped contributions of canaries and of some ordinary units, one a row: ``[P, pieces · width]``.

    Canary i uses coordinate i of every piece, the ordinary units use the spare coordinates. The ordinary units are:
    random ones, far above, about and below the bound; one that contributes zero; and one whose contribution is NaN.
    """
    pieces, width = plan.clip.pieces, canaries + _SPARE
    scales = torch.tensor([_EXCESS, 1.0, 1.0, 0.1, 0.01, 0.0, math.nan])
    contributions = torch.zeros(canaries + len(scales), math.prod(pieces), width)
    each = torch.arange(canaries)
    contributions[each, :, each] = _EXCESS * plan.clipping_norm * signs.flatten()
    spare = torch.randn(len(scales), math.prod(pieces), _SPARE) * plan.clipping_norm
    contributions[canaries:, :, canaries:] = spare * scales.view(-1, 1, 1)
    contributions[-1] = math.nan  # in every coordinate, as local training spreads it
    return plan.clip.clip_pieces(contributions.view(len(contributions), *pieces, width)).flatten(1).double()


def lower_bound(plan: Plan, seen: Observations, claimed: float, confidence: float) -> LowerBound:
    """Choose on one half of the canaries what to look at, guess about the other half, and bound ε.

    Args:
        plan: that was observed.
        seen: `observe`'s.
        claimed: the ε stated at the plan's δ.
        confidence: of each bound.
    """
    learning, judging = np.arange(0, len(seen.included), 2), np.arange(1, len(seen.included), 2)
    scores = _statistics(plan, seen, learning)

    def judged(kind: Callable[[Floats, Floats], Floats]) -> tuple[str, float, float]:
        """The statistic and the rates of the guess of the highest value on the learning half."""
        best, choice = -math.inf, ("", 0.0, 0)
        for name, score in scores.items():
            thresholds = np.quantile(score[learning], np.linspace(0, 1, _THRESHOLDS))
            value = kind(*_rates(score[learning], seen.included[learning], thresholds, confidence))
            side, at = divmod(int(value.argmax()), _THRESHOLDS)
            if value[side, at] > best:
                best, choice = float(value[side, at]), (name, float(thresholds[at]), side)
        name, threshold, side = choice
        one = np.array([threshold])
        hits, alarms = _rates(scores[name][judging], seen.included[judging], one, confidence)
        return name, float(hits[side, 0]), float(alarms[side, 0])

    def log_ratio(hits: Floats, alarms: Floats) -> Floats:
        return np.log(np.maximum(hits - plan.delta, 1e-12) / alarms)

    def separation(hits: Floats, alarms: Floats) -> Floats:
        return np.asarray(ndtri(np.clip(hits, 1e-12, None)) - ndtri(np.clip(alarms, None, 1 - 1e-12)))

    statistic, hit, alarm = judged(log_ratio)
    _, gaussian_hit, gaussian_alarm = judged(separation)
    return LowerBound(
        claimed=claimed,
        epsilon=max(0.0, float(log_ratio(np.array(hit), np.array(alarm)))),
        epsilon_gaussian=_gaussian_epsilon(plan, gaussian_hit, gaussian_alarm),
        delta=plan.delta,
        confidence=confidence,
        canaries=len(judging),
        statistic=statistic,
    )


def _statistics(plan: Plan, seen: Observations, learning: NDArray[np.int64]) -> dict[str, Floats]:
    """Scores ``[canaries]``, high where a canary seems to be in.

    ``likelihood`` is the log-likelihood ratio of the mechanism as stated: no statistic is better against it. The others
    are Fisher's linear discriminants, over blocks and over rounds, with the covariance that the noise is found to
    have: where it lacks a direction (none on one member, one draw for two, one round's again in another) they find it.
    """
    q, z = plan.sampling_probability, plan.noise_multiplier
    with np.errstate(divide="ignore"):
        never = np.log1p(-q)
    likelihood = np.logaddexp(never, np.log(q) + (2 * seen.by_round - 1) / (2 * z**2)).sum(1)
    # A covariance needs several samples a dimension: more rounds than that are merged, neighbours with neighbours.
    most = max(1, len(learning) // 32)
    edges = np.linspace(0, plan.rounds, min(plan.rounds, most) + 1).astype(int)[:-1]
    rounds = np.add.reduceat(seen.by_round, edges, axis=1)
    discriminants = {
        name: _discriminant(features, seen.included, learning)
        for name, features in (("layers", seen.by_block), ("rounds", rounds))
    }
    return {"likelihood": likelihood, **discriminants}


def _discriminant(features: Floats, included: NDArray[np.bool_], learning: NDArray[np.int64]) -> Floats:
    """Σ⁻¹(mean in - mean out) of the learning half, Σ that of the canaries that are out: pure noise."""
    known, inside = features[learning], included[learning]
    out = known[~inside]
    covariance = np.atleast_2d(np.cov(out, rowvar=False))
    ridge = 1e-9 * np.trace(covariance) / len(covariance) + 1e-12  # there may be no noise at all
    weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), known[inside].mean(0) - out.mean(0))
    return np.asarray(features @ weights)


def _rates(scores: Floats, included: NDArray[np.bool_], thresholds: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Bounds on the rates of right and wrong guesses at every threshold, ``[2, thresholds]`` each.

    Row 0 guesses "in" above it: at least that share of those that are in, at most that share of those that are out. Row
    1 guesses "out" at or below it, the other way round. Both hold together with the confidence.
    """
    inside, outside = np.sort(scores[included]), np.sort(scores[~included])
    low_in, low_out = (np.searchsorted(part, thresholds, side="right") for part in (inside, outside))
    right = np.stack((len(inside) - low_in, low_out))
    wrong = np.stack((len(outside) - low_out, low_in))
    sizes = np.array([[len(inside)], [len(outside)]])
    return (
        clopper_pearson_bounds(right, sizes, confidence)[0],
        clopper_pearson_bounds(wrong, sizes[::-1], confidence)[1],
    )


def _gaussian_epsilon(plan: Plan, hit: float, alarm: float) -> float:
    """ε of the largest noise multiplier under which guesses as good as these are possible.

    A mechanism with privacy curve δ(ε) allows hit ≤ e^ε·alarm + δ(ε) for every ε, and the same of the guesses withheld,
    1 - alarm ≤ e^ε(1 - hit) + δ(ε); the curve of T Poisson-sampled Gaussians falls as their multiplier grows.
    """
    grid = np.linspace(0, _LARGEST_EPSILON, _EPSILONS)
    excess = np.maximum(hit - np.exp(grid) * alarm, 1 - alarm - np.exp(grid) * (1 - hit))

    def event(multiplier: float) -> dp_event.DpEvent:
        return accounting.training_event(plan.sampling_probability, multiplier, plan.rounds)

    def refuted(multiplier: float) -> bool:
        accountant = pld.PLDAccountant(accounting.RELATION, _GRID).compose(event(multiplier))
        return bool(np.any(excess > np.asarray(accountant.get_delta(list(grid)))))

    low, high = plan.noise_multiplier / _WIDEST, plan.noise_multiplier * _WIDEST
    if not refuted(high):
        return 0.0
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return accounting.spent(event(high), plan.delta, rounds=plan.rounds).epsilon_pld
