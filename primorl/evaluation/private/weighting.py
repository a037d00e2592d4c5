"""What estimators with importance weights share: the weights, and how a noisy mean becomes a value with an interval."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from primorl.evaluation.private.behaviour_model import (
    BehaviourFit,
    Cloned,
    cloned_probabilities,
    fitted_probabilities,
)
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.estimator import (
    About,
    Estimate,
    EvaluationState,
    noise_multiplier,
    noise_of,
)
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.statistics import NORMAL_QUANTILE
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import BoundedSum, GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.errors import PipelineError
from primorl.project.values import Steps, Within

SUMS, SPREAD = "_sums", "_spread"
"""What the names of an estimator's two queries end in."""
_SPREAD_SHARE = 0.1  # of what the two releases cost together, as squared Gaussian mean

LargestWeight = Annotated[float, Within(ge=1, le=1e6)]


@dataclass(frozen=True, kw_only=True)
class WeightedEstimator(ABC):
    """An estimator whose value is a function of one mean over units, of a vector with importance weights in it.

    The policy is deterministic, so the weight of step t is w_t = Π_{k} 1[a_k = π(s_k)] / b(a_k | s_k), over the last
    ``lookback`` steps up to t, held at ``largest_weight``. With a lookback of the whole horizon this is the usual
    cumulative ratio. A shorter one forgets what was done before, and so takes the states of the behaviour for those of
    the policy: some bias, for weights that do not die out.

    There are two releases. The first is the mean x̄ of the units' vectors x_i, ‖x_i‖ ≤ ``norm``. The value is f(x̄). The
    second is the mean of (g·x_i)², g being the gradient of f at the released x̄: it gives the sampling variance by
    the delta method, and |g·x_i| ≤ norm·‖g‖ bounds it. Where b is fitted, the rounds fit it and the first release
    is a query; otherwise the first release is the plan's only round, at q = 1.

    Attributes:
        largest_weight: the bound on a weight; public.
        lookback: steps whose ratios are multiplied.
        behaviour: where b comes from, the private clone or a fit; None: the log names its probabilities.
    """

    name: ClassVar[str]

    largest_weight: LargestWeight
    lookback: Steps
    behaviour: BehaviourFit | Cloned | None

    @property
    def about(self) -> tuple[About, ...]:
        """See `Estimator.about`."""
        return ("model", "policy", "clone") if isinstance(self.behaviour, Cloned) else ("model", "policy")

    @property
    def fit(self) -> BehaviourFit | None:
        """How b is fitted; None: it is known."""
        return self.behaviour if isinstance(self.behaviour, BehaviourFit) else None

    @property
    def doubt(self) -> str:
        """What may be wrong with b, in words; empty where it is known."""
        if self.behaviour is None:
            return ""
        return "the fitted behaviour may be wrong" if self.fit else "the clone of the behaviour may be wrong"

    @abstractmethod
    def norm(self, problem: Problem) -> float:
        """The bound on ‖x_i‖."""

    @abstractmethod
    def size(self, problem: Problem) -> int:
        """Numbers in x_i."""

    @abstractmethod
    def vectors(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """Vectors x_i before the joint clip, float64 ``[U, size]``; sensitive."""

    @abstractmethod
    def value(self, problem: Problem, mean: Tensor) -> tuple[float, Tensor]:
        """The function f and its gradient ``[size]``, at a released mean ``[size]``."""

    @abstractmethod
    def bias(self) -> str:
        """What may be wrong, in one sentence."""

    @abstractmethod
    def row_bytes(self, problem: Problem) -> int:
        """See `Estimator.row_bytes`."""

    def plan(self, problem: Problem, gaussian_mean: float) -> Plan:
        """See `Estimator.plan`.

        Raises:
            PipelineError: actions are not discrete.
        """
        if not problem.discrete_actions:
            raise PipelineError(
                f"evaluation.private: {self.name}: needs discrete actions: the policy is deterministic, and of actions "
                "in a box it never takes exactly the logged one; leave this estimator out"
            )
        fit = self.fit
        left = gaussian_mean if fit is None else gaussian_mean * math.sqrt(1 - fit.budget_share)
        sums = noise_multiplier(left * math.sqrt(1 - _SPREAD_SHARE))
        size, norm = self.size(problem), self.norm(problem)
        spread = noise_multiplier(left * math.sqrt(_SPREAD_SHARE))
        queries: tuple[GaussianQuery, ...] = (GaussianQuery.of(self.name + SPREAD, BoundedSum(1, 1.0), spread),)
        if fit is None:
            sampler, clip, rounds, multiplier = PoissonSampler(1.0), L2Clip(norm), 1, sums
        else:
            queries = (GaussianQuery.of(self.name + SUMS, BoundedSum(size, norm), sums), *queries)
            sampler, clip, rounds = PoissonSampler(fit.sampling_probability), L2Clip(fit.clipping_norm), fit.rounds
            mean = gaussian_mean * math.sqrt(fit.budget_share)
            multiplier = noise_multiplier(mean, fit.sampling_probability, fit.rounds)
        return Plan(problem.units, problem.unit, sampler, clip, multiplier, rounds, problem.delta, queries)

    def begin(self, problem: Problem) -> dict[str, Tensor]:
        """See `Estimator.begin`."""
        return {} if self.fit is None else self.fit.begin(problem)

    def contributions(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """See `Estimator.contributions`: x_i, or gradients of the behaviour's fit."""
        if self.fit is None:
            return self.vectors(problem, values, episodes)
        return self.fit.gradients(problem, values, episodes)

    def stepped(self, problem: Problem, values: Mapping[str, Tensor], released: Tensor, done: int) -> dict[str, Tensor]:
        """See `Estimator.stepped`."""
        if self.fit is None:
            return {**values, self.name + SUMS: released.double()}
        return self.fit.stepped(values, released, done)

    def query_total(self, problem: Problem, query: str, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """See `Estimator.query_total`."""
        norm = self.norm(problem)
        vectors = self.vectors(problem, values, episodes)
        if query == self.name + SUMS:
            return BoundedSum(vectors.shape[1], norm).total(vectors)
        _, gradient = self.value(problem, values[self.name + SUMS])
        influence = L2Clip(norm).finish(vectors) @ gradient.to(vectors.device)
        return BoundedSum(1, 1.0).total((influence / _largest_influence(norm, gradient)).square()[:, None])

    def estimates(self, problem: Problem, plan: Plan, state: EvaluationState) -> tuple[Estimate, ...]:
        """See `Estimator.estimates`.

        The interval is normal: ± 1.96 √(variance of the sample mean + variance of the noise). One standard deviation
        of its own noise is added to the noisy second moment, so that the interval is rather too wide.
        """
        sums = self.name + SUMS
        mean = (state.values if self.fit is None else state.answers)[sums].double()
        noise = {query.what: query.standard_deviation / plan.units for query in plan.queries}
        if self.fit is None:
            noise[sums] = noise_of(plan)
        value, gradient = self.value(problem, mean)
        square = _largest_influence(self.norm(problem), gradient) ** 2
        second = float(state.answers[self.name + SPREAD]) + noise[self.name + SPREAD]
        sampling = max(second * square - float(gradient @ mean) ** 2, 0.0) / plan.units
        half = NORMAL_QUANTILE * math.sqrt(sampling + float(gradient.square().sum()) * noise[sums] ** 2)
        low, high = problem.return_low, problem.return_high
        held, *ends = (min(max(number, low), high) for number in (value, value - half, value + half))
        return (
            Estimate(
                estimator=self.name,
                of="policy",
                what="mean return",
                value=held,
                ci95=(ends[0], ends[1]),
                covers="sampling and privacy noise, not the bias",
                bias=self.bias(),
            ),
        )

    def weights(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """w_t of every row, float64 ``[U, M]``, within 0 and ``largest_weight``; sensitive.

        A probability below 1 / ``largest_weight``, or one that is zero, changes nothing beside that bound; NaN counts
        as 1. Ratios are 0 or at least 1, so a product held at the bound once is the same as one
        that is held at every step.

        Raises:
            PipelineError: the log names no probabilities, and there is neither a clone nor a fit.
            ValueError: there is no clone where the weights are to be its.
        """
        if isinstance(self.behaviour, Cloned):
            probability = cloned_probabilities(problem, episodes)
        elif self.behaviour is not None:
            probability = fitted_probabilities(problem, values, episodes)
        elif episodes.probability is not None:
            probability = episodes.probability
        else:
            raise PipelineError(
                f"evaluation.private: {self.name}: the log names no probabilities of its actions, and none are fitted"
            )
        probability = probability.nan_to_num(nan=1.0).clamp(1 / self.largest_weight, 1.0)
        differs = problem.actions(episodes.observation).argmax(-1) != episodes.action.argmax(-1)
        logs = _last(-probability.log(), episodes.step, self.lookback)
        products = logs.exp().clamp(1.0, self.largest_weight)
        return torch.where(_last(differs.long(), episodes.step, self.lookback) == 0, products, 0.0)


def _last(rows: Tensor, step: Tensor, lookback: int) -> Tensor:
    """Sums over the last ``lookback`` steps of the same trajectory, ``[U, M]``."""
    sums = torch.cat((torch.zeros_like(rows[:, :1]), rows.cumsum(1)), 1)
    place = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
    before = place - torch.minimum(step, torch.full_like(step, lookback - 1))
    return sums[:, 1:] - sums.gather(1, before)


def _largest_influence(norm: float, gradient: Tensor) -> float:
    return norm * max(float(torch.linalg.vector_norm(gradient)), 1e-12)
