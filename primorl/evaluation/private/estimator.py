"""Estimators: the queries that each makes of the private units, their cost, and the estimates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from primorl.evaluation.private.episodes import Episodes, EpisodeSource, portions
from primorl.evaluation.private.problem import Problem
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler

NOISE = "noise"
"""Among the values before the first round (`run` puts it there): standard deviation of the noise in a release."""

Of = Literal["behaviour", "clone", "policy", "random", "zero_action", "model"]
"""Whose value an estimate is: of those who made the log, of their private clone, of the policy, of a baseline; or how
wrong the model is."""

About = Literal["model", "policy", "clone"]


@dataclass(frozen=True)
class Estimate:
    """One number from an estimator.

    Attributes:
        estimator: its name.
        of: whose value it is.
        what: such as ``mean return``, ``quantile 0.5`` or ``reward error, 20 steps ahead``.
        value: the number.
        ci95: its 95% interval; None where the estimator has none.
        covers: what the interval covers, in a few words.
        bias: errors that the interval does not cover, in one sentence.
        members: the same number by each member of the released model; None: members have no say in it.
    """

    estimator: str
    of: Of
    what: str
    value: float
    ci95: tuple[float, float] | None
    covers: str
    bias: str
    members: tuple[float, ...] | None = None


@dataclass(frozen=True)
class EvaluationState:
    """State of an estimator between two releases. All of it is released, so it may be written down.

    Attributes:
        values: tensors, by name: public ones at first, then what was made from releases.
        answers: to the plan's queries, which are asked after the rounds; empty before they are known.
        rounds: T of the plan.
        started: rounds that began, or may have begun. They are spent.
        done: rounds whose releases are in ``values``.
        asked: how many queries were answered, or may have been. They are spent.
        finished: nothing is left to release.
        about: digests of what the question is about beside the data (`Estimator.about`); empty where it is nothing.
    """

    values: Mapping[str, Tensor]
    answers: Mapping[str, Tensor] = field(default_factory=dict)
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
    def begin(cls, estimator: "Estimator", problem: Problem, plan: Plan, about: str = "") -> "EvaluationState":
        """Begin before the first round."""
        return cls(
            {**estimator.begin(problem), NOISE: torch.tensor(noise_of(plan), dtype=torch.float64)},
            rounds=plan.rounds,
            about=about,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint holds."""
        return {f"values.{name}": value for name, value in self.values.items()} | {
            f"answers.{name}": answer for name, answer in self.answers.items()
        }

    def facts(self) -> dict[str, Any]:
        """Return everything else, as strict JSON."""
        return {name: value for name, value in vars(self).items() if name not in ("values", "answers")}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> "EvaluationState":
        """Rebuild the state from a checkpoint's `tensors` and `facts`."""
        parts: dict[str, dict[str, Tensor]] = {"values": {}, "answers": {}}
        for name, tensor in tensors.items():
            kind, _, own = name.partition(".")
            parts[kind][own] = tensor
        return cls(parts["values"], parts["answers"], **facts)


class Estimator(ABC):
    """One way to evaluate. Its settings are its fields; everything random but noise and cohorts follows the seed.

    The privacy argument is the plan's alone: `contributions` is a function of one unit's own rows and of released
    values, the plan's clip bounds its result as one vector, and nothing else of it is released.
    """

    name: ClassVar[str]

    @property
    def about(self) -> tuple[About, ...]:
        """Name what the answer depends on beside the data: for another one, the question is charged again."""
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
    def contributions(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """Compute each unit's contribution to a round, float64 ``[U, n]``; sensitive. The caller clips it."""

    @abstractmethod
    def stepped(self, problem: Problem, values: Mapping[str, Tensor], released: Tensor, done: int) -> dict[str, Tensor]:
        """Compute the values after round number ``done`` (from 0) released ``[n]``: post-processing."""

    def query_total(self, problem: Problem, query: str, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """Sum these units' contributions to a query of the plan, int64; sensitive.

        Queries are asked in the plan's order; ``values`` also holds the answers to those before it, by name.

        Raises:
            ValueError: the plan has no queries.
        """
        raise ValueError(f"there is no query {query!r}")

    @abstractmethod
    def estimates(self, problem: Problem, plan: Plan, state: EvaluationState) -> tuple[Estimate, ...]:
        """Compute the estimates from the finished state: post-processing."""


def noise_multiplier(gaussian_mean: float, sampling_probability: float = 1.0, rounds: int = 1) -> float:
    """Compute the z at which ``rounds`` Poisson-sampled releases cost about one Gaussian release of mean μ.

    By the central limit theorem of Gaussian DP (Bu et al. 2020), μ = q √(T (exp(1/z²) - 1)); at q = 1 and one round it
    is exact to within 1/z², so there 1/μ is taken, which is exact. It only shares out a budget: ε is always computed
    from the plan's event.
    """
    if sampling_probability == 1.0:
        return math.sqrt(rounds) / gaussian_mean
    return 1 / math.sqrt(math.log1p((gaussian_mean / sampling_probability) ** 2 / rounds))


def plan_for(
    problem: Problem,
    clipping_norm: float,
    multiplier: float,
    *,
    sampling_probability: float = 1.0,
    rounds: int = 1,
    queries: tuple[GaussianQuery, ...] = (),
) -> Plan:
    """Plan rounds over the problem's units, at noise multiplier z, and queries after them."""
    return Plan(
        units=problem.units,
        unit=problem.unit,
        sampler=PoissonSampler(sampling_probability),
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
    """Run an estimator's rounds and ask its queries, or do what an interrupted run left.

    A round whose cohort is sampled counts as spent from the moment it is announced to ``save_checkpoint``, before any
    private row is read for it: otherwise a crash that depends on the cohort would draw another one. A round over all
    units, and a query, have nothing to draw again but the noise. They are announced when their sum is known, before
    the noise is drawn, so that a kill while rows are read costs nothing.

    Args:
        estimator: what to run.
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
    while now.started < plan.rounds:
        asks_all = plan.sampling_probability == 1.0
        total = _sum(estimator, problem, plan, source, now.values, device) if asks_all else None
        now = replace(now, started=now.started + 1)
        save_checkpoint(now)
        if total is None:
            total = _sum(estimator, problem, plan, source, now.values, device)
        (released,) = plan.release((total,))
        values = estimator.stepped(problem, now.values, released.cpu(), now.done)
        now = replace(now, values=values, done=now.done + 1)
        if asks_all:
            save_checkpoint(now)
        on_round(now.started)
    for query in plan.queries[now.asked :]:
        total = _total(estimator, problem, query.what, source, {**now.values, **now.answers}, device)
        now = replace(now, asked=now.asked + 1)
        save_checkpoint(now)
        now = replace(now, answers={**now.answers, query.what: plan.answer(query, total)})
        save_checkpoint(now)
    now = replace(now, finished=True)
    save_checkpoint(now)
    return now


def noise_of(plan: Plan) -> float:
    """Compute the standard deviation of the noise on every number of a release: public."""
    scale = plan.noise_multiplier * plan.clip.sensitivity if plan.is_private else 0.0
    denominator = plan.expected_cohort if plan.denominator is None else plan.denominator
    return scale / denominator


def _sum(
    estimator: Estimator,
    problem: Problem,
    plan: Plan,
    source: EpisodeSource,
    values: Mapping[str, Tensor],
    device: torch.device | None,
) -> Tensor:
    """The sum of a fresh cohort's clipped contributions, float64 ``[n]``. Sensitive."""
    clip = plan.clip
    assert isinstance(clip, L2Clip)
    parts = [
        clip.finish(estimator.contributions(problem, values, episodes)).sum(0)
        for episodes in portions(source, plan.cohort(), row_bytes=estimator.row_bytes(problem), device=device)
    ]
    if parts:
        return sum(parts[1:], parts[0])
    none = Episodes.read(source, torch.zeros(1, dtype=torch.int64), device)  # an empty cohort releases pure noise
    return torch.zeros_like(estimator.contributions(problem, values, none)[0])


def _total(
    estimator: Estimator,
    problem: Problem,
    query: str,
    source: EpisodeSource,
    values: Mapping[str, Tensor],
    device: torch.device | None,
) -> Tensor:
    """A query's sum over all units, int64. Sensitive."""
    everybody = portions(source, torch.arange(source.units), row_bytes=estimator.row_bytes(problem), device=device)
    parts = [estimator.query_total(problem, query, values, episodes).cpu() for episodes in everybody]
    return sum(parts[1:], parts[0])
