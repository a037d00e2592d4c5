"""Per-decision doubly robust estimation: the model's value, corrected by weighted people."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from primorl.base.records import (
    ClippingNorm,
    LearningRate,
    Positive,
    Probability,
    Share,
    Steps,
    Within,
)
from primorl.evaluate.private.estimator import (
    About,
    EvaluationState,
    Values,
    estimate,
    noise_multiplier,
    noise_of,
    plan_for,
)
from primorl.evaluate.private.model_values import ModelCorrection
from primorl.evaluate.private.problem import Episodes, Problem, counted, row_by_row, sum_of_rows
from primorl.evaluate.private.results import MEAN_RETURN, Answer
from primorl.evaluate.statistics import NORMAL_QUANTILE
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import BoundedSum, GaussianQuery, register_query

SUMS, SPREAD = "doubly_robust_sums", "doubly_robust_spread"
"""Names of the two queries."""
_SPREAD_SHARE = 0.1  # of what the two releases cost together, as squared Gaussian mean

_WEIGHTS, _AVERAGE = "behaviour.weights", "behaviour.average"
_FIRST, _SECOND = "behaviour.first", "behaviour.second"  # Adam's moments of released gradients
_DECAYS, _TINY = (0.9, 0.99), 1e-8


@dataclass(frozen=True)
class Cloned:
    """The probabilities are those of the private clone (`Problem.clone`), which is released and costs nothing more."""


@dataclass(frozen=True, kw_only=True)
class BehaviourFit:
    """Fit of the behaviour's probabilities, where the log names none and there is no clone.

    The model is b(a | s) ∝ exp(θ_a·x(s)), x being the standardised observation and a constant, divided by the root of
    their number. In each round every unit of a Poisson cohort contributes the gradient of the mean cross-entropy of
    its rows; Adam steps along the released means, and the iterates of the second half are averaged.

    Attributes:
        sampling_probability: q.
        rounds: T.
        clipping_norm: C of one unit's gradient.
        learning_rate: of Adam.
        budget_share: the share of the estimator's budget, as squared Gaussian mean, that pays for the fit.
    """

    sampling_probability: Probability
    rounds: Steps
    clipping_norm: ClippingNorm
    learning_rate: LearningRate
    budget_share: Share

    def begin(self, problem: Problem) -> dict[str, Tensor]:
        """Begin with the weights of a uniform behaviour, ``[S + 1, A]``."""
        zeros = torch.zeros(problem.observation_size + 1, problem.action_size, dtype=torch.float64)
        return {name: zeros.clone() for name in (_WEIGHTS, _AVERAGE, _FIRST, _SECOND)}

    def gradients(self, problem: Problem, values: Values, episodes: Episodes) -> Tensor:
        """Compute each unit's gradient, float64 ``[U, (S + 1) A]``; sensitive."""
        features = _features(problem, episodes.observation)
        chances = torch.softmax(features @ values[_WEIGHTS].to(features.device), -1)
        share = episodes.own / episodes.own.sum(1, keepdim=True)
        errors = (chances - problem.centred(episodes.action)) * share[..., None]
        return torch.einsum("umf,uma->ufa", features, errors).flatten(1)

    def stepped(self, values: Values, released: Tensor, done: int) -> dict[str, Tensor]:
        """Take one step of Adam (Kingma and Ba 2015, Algorithm 1) along a released gradient."""
        weights = values[_WEIGHTS]
        gradient = released.double().view_as(weights)
        first = torch.lerp(gradient, values[_FIRST], _DECAYS[0])
        second = torch.lerp(gradient.square(), values[_SECOND], _DECAYS[1])
        bias, spread = (1 - decay ** (done + 1) for decay in _DECAYS)
        weights = weights - self.learning_rate * (first / bias) / ((second / spread).sqrt() + _TINY)
        before = max(0, done - self.rounds // 2)  # iterates that are in the average already
        average = values[_AVERAGE] * (before / (before + 1)) + weights / (before + 1)
        return {**values, _WEIGHTS: weights, _AVERAGE: average, _FIRST: first, _SECOND: second}

    def probabilities(self, problem: Problem, values: Values, observation: Tensor) -> Tensor:
        """Compute the fitted probabilities of all actions, float64 ``[.., A]``; sensitive."""
        features = _features(problem, observation)
        return torch.softmax(features @ values[_AVERAGE].to(features.device), -1)


@register_query(SPREAD)
@register_query(SUMS)
@dataclass(frozen=True, kw_only=True)
class DoublyRobust(ModelCorrection):
    """Per-decision doubly robust estimation (Jiang and Li 2016; Thomas and Brunskill 2016, section 3).

    A unit contributes one number x_i within ±1: the mean over its trajectories of

        ψ = V̂(s_0) + Σ_t γ^t w_t (r_t + γ V̂(s_{t+1}) - Q̂(s_t, a_t)),

    held within the return's bounds, widened by ``largest_correction`` times their distance on either side. Q̂ is the
    mean of the model members' action-values (`ModelQ`), V̂(s) = Q̂(s, π(s)).

    The policy is deterministic, so the weight of step t is w_t = 1[a_t = π(s_t)] / b(a_t | s_t), held at
    ``largest_weight``: the correction is the model's mean error at the policy's actions, in the states of the
    behaviour. Weights of several steps, multiplied, would die out.

    There are two releases: the mean of the x_i, which gives the value, and the mean of the x_i², which gives the
    sampling variance. Where b is fitted, the rounds fit it and the first release is a query; otherwise the first
    release is the plan's only round, at q = 1.

    Attributes:
        largest_weight: the bound on a weight; public.
        behaviour: source of b, the private clone or a fit; None: the log names its probabilities.
        largest_correction: how far ψ may lie outside the return's bounds, in units of their distance.
    """

    name: ClassVar[str] = "doubly_robust"

    largest_weight: Annotated[float, Within(ge=1, le=1e6)]
    behaviour: BehaviourFit | Cloned | None
    largest_correction: Positive

    @property
    def about(self) -> tuple[About, ...]:
        """See `Estimator.about`."""
        return (
            ("model", "policy", "clone")
            if isinstance(self.behaviour, Cloned)
            else ("model", "policy")
        )

    @property
    def _fit(self) -> BehaviourFit | None:
        return self.behaviour if isinstance(self.behaviour, BehaviourFit) else None

    def plan(self, problem: Problem, gaussian_mean: float) -> Plan:
        """See `Estimator.plan`. Actions must be discrete: in a box the policy never takes exactly the logged one."""
        fit = self._fit
        left = gaussian_mean if fit is None else gaussian_mean * math.sqrt(1 - fit.budget_share)
        sums = noise_multiplier(left * math.sqrt(1 - _SPREAD_SHARE))
        spread = GaussianQuery.of(
            SPREAD, BoundedSum(1, 1.0), noise_multiplier(left * math.sqrt(_SPREAD_SHARE))
        )
        if fit is None:
            return plan_for(problem, 1.0, sums, spread)
        q, rounds = fit.sampling_probability, fit.rounds
        multiplier = noise_multiplier(gaussian_mean * math.sqrt(fit.budget_share), q, rounds)
        first = GaussianQuery.of(SUMS, BoundedSum(1, 1.0), sums)
        return plan_for(problem, fit.clipping_norm, multiplier, first, spread, q=q, rounds=rounds)

    def begin(self, problem: Problem) -> dict[str, Tensor]:
        """Fit Q̂, and begin the fit of the behaviour if there is one."""
        return ({} if self._fit is None else self._fit.begin(problem)) | self.model(problem).fit()

    def contributions(self, problem: Problem, values: Values, episodes: Episodes) -> Tensor:
        """Compute the x_i, or gradients of the behaviour's fit; sensitive."""
        if self._fit is None:
            return self.numbers(problem, values, episodes)
        return self._fit.gradients(problem, values, episodes)

    def stepped(
        self, problem: Problem, values: Values, released: Tensor, done: int
    ) -> dict[str, Tensor]:
        """See `Estimator.stepped`."""
        if self._fit is None:
            return {**values, SUMS: released.double()}
        return self._fit.stepped(values, released, done)

    def query_total(
        self, problem: Problem, query: str, values: Values, episodes: Episodes
    ) -> Tensor:
        """Sum the x_i, or their squares."""
        numbers = self.numbers(problem, values, episodes)
        if query == SUMS:
            return BoundedSum(1, 1.0).total(numbers)
        return BoundedSum(1, 1.0).total(L2Clip(1.0).finish(numbers).square())

    def estimates(self, problem: Problem, plan: Plan, state: EvaluationState) -> tuple[Answer, ...]:
        """Compute the value and its normal interval: ± 1.96 √(variance of the sample mean + variance of the noise).

        One standard deviation of its own noise is added to the noisy second moment, so that the interval is rather too
        wide.
        """
        mean = float((state.values if self._fit is None else state.answers)[SUMS].double()[0])
        noise = {query.what: query.standard_deviation / plan.units for query in plan.queries}
        if self._fit is None:
            noise[SUMS] = noise_of(plan)
        half_range = self._half_range(problem)
        value = problem.return_centre + half_range * mean
        second = float(state.answers[SPREAD]) + noise[SPREAD]
        sampling = max(second * half_range**2 - (half_range * mean) ** 2, 0.0) / plan.units
        half = NORMAL_QUANTILE * math.sqrt(sampling + half_range**2 * noise[SUMS] ** 2)
        held, *ends = (
            problem.held_return(number) for number in (value, value - half, value + half)
        )
        doubt = ""
        if self.behaviour is not None:
            doubt = f", the {'fitted behaviour' if self._fit else 'clone of the behaviour'} may be wrong"
        covers = "sampling and privacy noise, not the bias"
        bias = (
            f"the model's error times the weights': weights above {self.largest_weight:g} are cut, ratios of the last "
            f"1 steps alone are multiplied{doubt}; large corrections are cut"
        )
        return (estimate(self.name, "policy", MEAN_RETURN, held, (ends[0], ends[1]), covers, bias),)

    def numbers(self, problem: Problem, values: Values, episodes: Episodes) -> Tensor:
        """Compute the x_i, float64 ``[U, 1]``, within ±1; sensitive."""
        now, following, step = episodes.observation, episodes.following, episodes.step

        def value(observation: Tensor, action: Tensor, step: Tensor) -> Tensor:
            return (
                self.model(problem)
                .action_values(values, observation, action, step[:, 0].long())
                .mean(0)[:, None]
            )

        def q(observation: Tensor, action: Tensor, step: Tensor) -> Tensor:
            return row_by_row(value, observation, action, step[..., None])[..., 0]

        ahead = q(following, problem.actions(following), step + 1) * problem.continues(
            step, episodes.terminated
        )
        logged = q(now, episodes.action, step)
        error = problem.reward(episodes.reward) + problem.discount * ahead - logged
        rows = (
            self.weights(problem, values, episodes)
            * problem.discounts(step)
            * error
            * counted(problem, episodes)
        )
        first = q(now, problem.actions(now), step).where(episodes.begins, 0.0)
        corrected = (sum_of_rows(rows + first) / episodes.trajectories)[:, None]
        return ((corrected - problem.return_centre) / self._half_range(problem)).clamp(-1, 1)

    def weights(self, problem: Problem, values: Values, episodes: Episodes) -> Tensor:
        """Compute w_t of every row, float64 ``[U, M]``, within 0 and ``largest_weight``; sensitive.

        A probability below 1 / ``largest_weight``, or one that is zero, changes nothing beside that bound; NaN counts
        as 1.
        """
        probability = self._logged_probability(problem, values, episodes)
        probability = probability.nan_to_num(nan=1.0).clamp(1 / self.largest_weight, 1.0)
        same = problem.actions(episodes.observation).argmax(-1) == episodes.action.argmax(-1)
        return torch.where(same, 1 / probability, 0.0)

    def _logged_probability(self, problem: Problem, values: Values, episodes: Episodes) -> Tensor:
        """Compute b(a_t | s_t) of every row, ``[U, M]``: of the log, of the fit or of the clone; sensitive."""
        if self.behaviour is None:
            if episodes.probability is None:
                raise ValueError("the log names no probabilities of actions: give a clone or a fit")
            return episodes.probability
        if isinstance(self.behaviour, BehaviourFit):
            fitted = partial(self.behaviour.probabilities, problem, values)
            chances = row_by_row(fitted, episodes.observation)
        elif problem.clone is None:
            raise ValueError("there is no clone of the behaviour: give a fit")
        else:
            chances = problem.asked(problem.clone, episodes.observation)
        return chances.gather(-1, episodes.action.argmax(-1, keepdim=True))[..., 0]

    def _half_range(self, problem: Problem) -> float:
        """Compute half of the width of the interval that ψ is held within."""
        return problem.return_half * (1 + 2 * self.largest_correction)


def _features(problem: Problem, observation: Tensor) -> Tensor:
    """Map observations ``[.., S]`` to features ``[.., S + 1]`` of norm at most 5."""
    standard = problem.standardised(observation)
    return torch.cat((standard, torch.ones_like(standard[..., :1])), -1) / math.sqrt(
        problem.observation_size + 1
    )
