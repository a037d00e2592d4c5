"""Estimators of private evaluation: their queries, their cost, and noisy means with their intervals.

There are two kinds of noisy means of bounded numbers over all units. `OneRelease` is the only round of an estimator:
each number contributes a `pair`, and `Released` makes an interval of its noisy mean. `FirstStateValue` is a query after
the rounds, of one number for each unit.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from scipy.special import stdtrit
from torch import Tensor

from primorl.evaluate.private.problem import Episodes, EpisodeSource, Problem, portions
from primorl.evaluate.private.results import Answer, Of
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery, Moments, register_query
from primorl.privacy.mechanism.sampling import PoissonSampler

NOISE = "noise"
"""Among the values before the first round (`run` puts it there): standard deviation of the noise in a release."""
FIRST_STATE_VALUE = "first_state_value"
"""Name of the query that `FirstStateValue` is."""

About = Literal["model", "policy", "clone"]
Interval = tuple[float, float]
Members = tuple[float, ...] | None
Values = Mapping[str, Tensor]

_NORM = 1 + 2.0**-13
"""C of `OneRelease`. Contributions have norm 1 at most, which the clip then leaves exactly as they are."""


def estimate(
    name: str,
    of: Of,
    what: str,
    value: float,
    ci95: Interval | None,
    covers: str,
    bias: str,
    members: Members = None,
) -> Answer:
    """Make the answer of the estimator of a name; its cost is not known yet."""
    said: Any = {"covers": covers, "bias": bias, "epsilon": None, "delta": None, "members": members}
    return Answer(estimator=name, of=of, what=what, value=value, ci95=ci95, **said)


@dataclass(frozen=True)
class EvaluationState:
    """State of an estimator between two releases. All of it is released, so it may be written down.

    Attributes:
        values: tensors, by name: public ones at first, then those made from releases.
        answers: to the plan's queries, which are asked after the rounds; empty before they are known.
        rounds: T of the plan.
        started: rounds that began, or may have begun. They are spent.
        done: rounds with releases in ``values``.
        asked: how many queries were answered, or may have been. They are spent.
        finished: nothing is left to release.
        about: digests of the files that the question is about (`Estimator.about`); empty where there are none.
    """

    values: Values
    answers: Values = field(default_factory=dict)
    rounds: int = 0
    started: int = 0
    done: int = 0
    asked: int = 0
    finished: bool = False
    about: str = ""

    lost: ClassVar[bool] = False
    """The charge is never given up for another one by itself; see `missing`."""

    @property
    def missing(self) -> bool:
        """Tell whether a query, or the only round, was answered and the answer is gone; the charge cannot ask again."""
        return self.asked > len(self.answers) or (self.rounds == 1 and self.started > self.done)

    @classmethod
    def begin(
        cls, estimator: "Estimator", problem: Problem, plan: Plan, about: str = ""
    ) -> "EvaluationState":
        """Begin before the first round."""
        noise = torch.tensor(noise_of(plan), dtype=torch.float64)
        return cls({**estimator.begin(problem), NOISE: noise}, rounds=plan.rounds, about=about)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint holds."""
        kinds = {"values": self.values, "answers": self.answers}
        return {
            f"{kind}.{name}": tensor for kind, own in kinds.items() for name, tensor in own.items()
        }

    def facts(self) -> dict[str, Any]:
        """Return everything else, as strict JSON."""
        return {
            name: value for name, value in vars(self).items() if name not in ("values", "answers")
        }

    @classmethod
    def restore(cls, tensors: Values, facts: dict[str, Any]) -> "EvaluationState":
        """Rebuild the state from a checkpoint's `tensors` and `facts`."""
        parts: dict[str, dict[str, Tensor]] = {"values": {}, "answers": {}}
        for name, tensor in tensors.items():
            kind, _, own = name.partition(".")
            parts[kind][own] = tensor
        return cls(parts["values"], parts["answers"], **facts)


class Estimator(ABC):
    """One way to evaluate. Its settings are its fields; everything random but noise and cohorts follows the seed.

    To add one, write a subclass here, add its name to `EstimatorName` in `primorl.config.blocks`, its subjects to
    `primorl.paid.estimators`, and its construction to `primorl.paid.private_evaluation.estimator`.

    The privacy argument is the plan's alone: `contributions` is a function of one unit's own rows and of released
    values, the plan's clip bounds its result as one vector, and nothing else of it is released.
    """

    name: ClassVar[str]

    @property
    def about(self) -> tuple[About, ...]:
        """Name the files that the answer depends on: with another one, the question is charged again."""
        return ("model", "policy")

    @abstractmethod
    def plan(self, problem: Problem, gaussian_mean: float) -> Plan:
        """Plan the mechanism, at a cost of about one Gaussian release of mean ``gaussian_mean`` (`noise_multiplier`).

        Its clip is an `L2Clip`. Its queries, if any, are asked after the rounds.
        """

    @abstractmethod
    def row_bytes(self, problem: Problem) -> int:
        """Bound the memory of one logged row while `contributions` works on it."""

    def begin(self, problem: Problem) -> dict[str, Tensor]:
        """Make the values before the first round, which are public."""
        return {}

    @abstractmethod
    def contributions(self, problem: Problem, values: Values, episodes: Episodes) -> Tensor:
        """Compute each unit's contribution to a round, float64 ``[U, n]``; sensitive. The caller clips it."""

    @abstractmethod
    def stepped(
        self, problem: Problem, values: Values, released: Tensor, done: int
    ) -> dict[str, Tensor]:
        """Compute the values after round number ``done`` (from 0) released ``[n]``: post-processing."""

    def query_total(
        self, problem: Problem, query: str, values: Values, episodes: Episodes
    ) -> Tensor:
        """Sum these units' contributions to a query of the plan, int64; sensitive. Without queries it is not called.

        Queries are asked in the plan's order; ``values`` also holds the answers to those before it, by name.
        """
        raise NotImplementedError

    @abstractmethod
    def estimates(self, problem: Problem, plan: Plan, state: EvaluationState) -> tuple[Answer, ...]:
        """Compute the estimates from the finished state: post-processing."""


def noise_multiplier(
    gaussian_mean: float, sampling_probability: float = 1.0, rounds: int = 1
) -> float:
    """Compute the z at which ``rounds`` Poisson-sampled releases cost about one Gaussian release of mean μ.

    By the central limit theorem of Gaussian DP (Bu et al. 2020), μ = q √(T (exp(1/z²) - 1)); at q = 1 and one round it
    is exact to within 1/z², so there 1/μ is taken, which is exact. It only shares out a budget: ε is always computed
    from the plan's event.
    """
    if sampling_probability == 1.0:
        return math.sqrt(rounds) / gaussian_mean
    return 1 / math.sqrt(math.log1p((gaussian_mean / sampling_probability) ** 2 / rounds))


def noise_of(plan: Plan) -> float:
    """Compute the standard deviation of the noise on every number of a release: public."""
    return (
        plan.noise_multiplier * plan.clip.sensitivity / plan.expected_cohort
        if plan.is_private
        else 0.0
    )


def plan_for(
    problem: Problem,
    clipping_norm: float,
    multiplier: float,
    *queries: GaussianQuery,
    q: float = 1.0,
    rounds: int = 1,
) -> Plan:
    """Plan rounds over all units, at noise multiplier z and sampling probability q, and queries after them."""
    return Plan(
        units=problem.units,
        unit=problem.unit,
        sampler=PoissonSampler(q),
        clip=L2Clip(clipping_norm),
        noise_multiplier=multiplier,
        rounds=rounds,
        delta=problem.delta,
        queries=queries,
    )


def run(
    estimator: Estimator,
    problem: Problem,
    plan: Plan,
    source: EpisodeSource,
    state: EvaluationState | None = None,
    *,
    save_checkpoint: Callable[[EvaluationState], None] = lambda state: None,
    on_round: Callable[[int], object] = lambda started: None,
    device: torch.device | None = None,
) -> EvaluationState:
    """Run an estimator's rounds and ask its queries, or go on where an interrupted run ended.

    A round with a sampled cohort counts as spent from the moment it is announced to ``save_checkpoint``, before any
    private row is read for it: otherwise a crash that depends on the cohort would draw another one. A round over all
    units, and a query, have nothing to draw again but the noise. They are announced when their sum is known, before
    the noise is drawn, so that a kill while rows are read costs nothing.

    Args:
        estimator: to be run.
        problem: the question.
        plan: of the estimator; draws cohorts and noise.
        source: the private units.
        state: of an earlier process; None: begin.
        save_checkpoint: must have stored the state durably when it returns.
        on_round: called after every round with the number of rounds spent.
        device: where contributions are computed; None: the CPU.

    Returns:
        The finished state.

    Raises:
        ValueError: the source does not hold the number of units that the plan declares, or an answer is lost.
    """
    if source.units != plan.units:
        raise ValueError("the number of private units differs from the one the plan declares")
    now = state or EvaluationState.begin(estimator, problem, plan)
    if now.missing:
        raise ValueError("an answer of this charge is lost, and the charge cannot ask again")
    clip, asks_all = plan.clip, plan.sampling_probability == 1.0
    assert isinstance(clip, L2Clip)

    def read(units: Tensor) -> Iterator[Episodes]:
        return portions(source, units, row_bytes=estimator.row_bytes(problem), device=device)

    def summed() -> Tensor:
        """Sum a fresh cohort's clipped contributions, float64 ``[n]``. Sensitive."""
        found = (estimator.contributions(problem, now.values, rows) for rows in read(plan.cohort()))
        parts = [clip.finish(own).sum(0) for own in found]
        if parts:
            return sum(parts[1:], parts[0])
        nobody = Episodes.read(source, torch.zeros(1, dtype=torch.int64), device)
        return torch.zeros_like(
            estimator.contributions(problem, now.values, nobody)[0]
        )  # pure noise is released

    while now.started < plan.rounds:
        total = summed() if asks_all else None
        now = replace(now, started=now.started + 1)
        save_checkpoint(now)
        (released,) = plan.release((summed() if total is None else total,))
        values = estimator.stepped(problem, now.values, released.cpu(), now.done)
        now = replace(now, values=values, done=now.done + 1)
        if asks_all:
            save_checkpoint(now)
        on_round(now.started)
    for query in plan.queries[now.asked :]:
        known, everybody = {**now.values, **now.answers}, torch.arange(source.units)
        parts = [
            estimator.query_total(problem, query.what, known, rows).cpu()
            for rows in read(everybody)
        ]
        now = replace(now, asked=now.asked + 1)
        save_checkpoint(now)
        now = replace(
            now, answers={**now.answers, query.what: plan.answer(query, sum(parts[1:], parts[0]))}
        )
        save_checkpoint(now)
    now = replace(now, finished=True)
    save_checkpoint(now)
    return now


@dataclass(frozen=True)
class NoisyMean:
    """A mean of numbers in [-1, 1] and its 95% interval.

    Attributes:
        value: the mean.
        low: lower end of the interval.
        high: upper end.
        noise: standard deviation of the noise that this mean has alone.
        shared: of the parts it may share with other means of the same release: sampling, and the noise of the share.
    """

    value: float
    low: float
    high: float
    noise: float
    shared: float


def noisy_mean(
    units: int, mean: float, rest: float, noise: float, share: float = 1.0, share_noise: float = 0.0
) -> NoisyMean:
    """Estimate the mean of x in [-1, 1] over the units that have such a number, from a release of each as a `pair`.

    The interval holds sampling and privacy noise. It is Fieller's of a ratio: all r at which mean - r·share is within t
    standard deviations of 0. Its variance is noise² + r² share_noise² + E[has (x - r)²] / K. The last term is estimated
    from the release itself, to which one standard deviation of the estimate's own noise is added: noise can make it
    tiny or negative, and then the interval would be too short (it would hold as few as 89% of narrow means at μ = 3,
    where this one holds 97%). The addition is at most √5 μ of noise², μ being the Gaussian mean of the release, so
    little at small ε. Where the share cannot be told from 0, the interval is all of [-1, 1].

    Args:
        units: K.
        mean: of x, zero where a unit has none.
        rest: of 1 - x², zero where a unit has none.
        noise: standard deviation of the noise in both.
        share: of the units that have the number.
        share_noise: standard deviation of the noise in ``share``; 0 where it is known.
    """
    share = min(share, 1.0)
    ratio = min(max(mean / max(share, share_noise, 1e-12), -1.0), 1.0)
    square = share - rest  # E[has x²]
    own = square - 2 * ratio * mean + ratio**2 * share
    doubt = math.hypot(noise * math.hypot(1, 2 * ratio), share_noise * (1 + ratio**2))
    variance = min(max(own + doubt, 0.0), (1 + abs(ratio)) ** 2)
    square += variance - own
    factor = t_quantile(units) ** 2
    a = share**2 - factor * (share_noise**2 + share / units)
    b = (share - factor / units) * mean
    c = mean**2 - factor * (noise**2 + square / units)
    if a <= 0:
        return NoisyMean(ratio, -1.0, 1.0, math.inf, math.inf)
    root = math.sqrt(max(b**2 - a * c, 0.0))
    low, high = (min(max(end / a, -1.0), 1.0) for end in (b - root, b + root))
    shared = math.sqrt((ratio * share_noise) ** 2 + variance / units)
    return NoisyMean(min(max(ratio, low), high), low, high, noise / share, shared / share)


def t_quantile(units: int) -> float:
    """Compute how many standard deviations a 95% interval reaches to each side."""
    return float(stdtrit(max(units - 1, 1), 0.975))


def pair(x: Tensor) -> Tensor:
    """Stack (x, 1 - x²) for x in [-1, 1]: its L2 norm is at most 1, so the second moment costs nothing more."""
    return torch.stack((x, 1 - x.square()), -1)


class OneRelease(Estimator):
    """An estimator that asks for one release over all units, of contributions that have norm 1 at most."""

    def plan(self, problem: Problem, gaussian_mean: float) -> Plan:
        """See `Estimator.plan`."""
        return plan_for(problem, _NORM, noise_multiplier(gaussian_mean))

    def stepped(
        self, problem: Problem, values: Values, released: Tensor, done: int
    ) -> dict[str, Tensor]:
        """Keep the release as it is."""
        return {"released": released.double()}


@register_query(FIRST_STATE_VALUE)
@dataclass(frozen=True)
class FirstStateValue:
    """The mean over units of one number that is held within the bounds of a return, such as the value of first states.

    A unit adds x and x², x being its number moved to [-1, 1] by the bounds. Both numbers make one query.

    Attributes:
        problem: with the bounds of a return.
    """

    problem: Problem

    def plan(
        self,
        clipping_norm: float,
        gaussian_mean: float,
        share: float,
        q: float = 1.0,
        rounds: int = 1,
    ) -> Plan:
        """Plan rounds, and the query after them at a share of the squared Gaussian mean."""
        multiplier = noise_multiplier(gaussian_mean * math.sqrt(share))
        query = GaussianQuery.of(FIRST_STATE_VALUE, Moments(1, ()), multiplier)
        multiplier = noise_multiplier(gaussian_mean * math.sqrt(1 - share), q, rounds)
        return plan_for(self.problem, clipping_norm, multiplier, query, q=q, rounds=rounds)

    def total(self, numbers: Tensor) -> Tensor:
        """Sum some units' contributions, int64 ``[2]``, for their numbers ``[U]``; sensitive."""
        centred = (numbers - self.problem.return_centre) / self._half
        return Moments(1, ()).total(
            centred[:, None], torch.zeros((len(numbers), 0), dtype=torch.int64)
        )

    def mean(self, plan: Plan, answers: Values) -> tuple[float, float]:
        """Compute the mean and its standard deviation from the answer to the plan's query.

        The variance adds up that of units drawn at random, (E x² - (E x)²) / K, and the noise's. The first is made of
        noisy numbers too; it is held within 0 and 1 / K.
        """
        problem, (query,) = self.problem, plan.queries
        mean, square = answers[query.what].tolist()
        noise = (query.standard_deviation / problem.units) ** 2
        spread = min(max(square - mean * mean + noise, 0.0), 1.0)
        value = problem.held_return(problem.return_centre + self._half * mean)
        return value, math.sqrt((spread / problem.units + noise) * self._half**2)

    @property
    def _half(self) -> float:
        return self.problem.return_half or 1.0
