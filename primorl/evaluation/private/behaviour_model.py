"""Probabilities of the logged actions where the log names none: of the private clone, or of a model fitted for them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.problem import Problem
from primorl.project.values import ClippingNorm, LearningRate, Probability, Share, Steps

_WEIGHTS, _AVERAGE = "behaviour.weights", "behaviour.average"
_FIRST, _SECOND = "behaviour.first", "behaviour.second"  # Adam's moments of released gradients
_DECAYS, _TINY = (0.9, 0.99), 1e-8
_AVERAGED = 0.5  # share of the rounds, the last ones, whose iterates are averaged


@dataclass(frozen=True)
class Cloned:
    """The probabilities are those of the private clone (`Problem.clone`), which is released and costs nothing more."""


@dataclass(frozen=True, kw_only=True)
class BehaviourFit:
    """How the behaviour is fitted where the log names no probabilities and there is no clone.

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
        """Weights of a uniform behaviour, ``[S + 1, A]``."""
        zeros = torch.zeros(problem.observation_size + 1, problem.action_size, dtype=torch.float64)
        return {name: zeros.clone() for name in (_WEIGHTS, _AVERAGE, _FIRST, _SECOND)}

    def gradients(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """Each unit's gradient, float64 ``[U, (S + 1) A]``; sensitive."""
        features = _features(problem, episodes.observation)
        chances = torch.softmax(features @ values[_WEIGHTS].to(features.device), -1)
        share = episodes.own / episodes.own.sum(1, keepdim=True)
        errors = (chances - problem.centred(episodes.action)) * share[..., None]
        return torch.einsum("umf,uma->ufa", features, errors).flatten(1)

    def stepped(self, values: Mapping[str, Tensor], released: Tensor, done: int) -> dict[str, Tensor]:
        """The values after one step of Adam (Kingma and Ba 2015, Algorithm 1) along a released gradient."""
        weights = values[_WEIGHTS]
        gradient = released.double().view_as(weights)
        first = torch.lerp(gradient, values[_FIRST], _DECAYS[0])
        second = torch.lerp(gradient.square(), values[_SECOND], _DECAYS[1])
        bias, spread = (1 - decay ** (done + 1) for decay in _DECAYS)
        weights = weights - self.learning_rate * (first / bias) / ((second / spread).sqrt() + _TINY)
        before = max(0, done - math.floor(self.rounds * (1 - _AVERAGED)))  # iterates that are in the average already
        average = values[_AVERAGE] * (before / (before + 1)) + weights / (before + 1)
        return {**values, _WEIGHTS: weights, _AVERAGE: average, _FIRST: first, _SECOND: second}


def cloned_probabilities(problem: Problem, episodes: Episodes) -> Tensor:
    """The clone's probabilities of the logged actions, float64 ``[U, M]``; sensitive.

    Raises:
        ValueError: the problem has no clone.
    """
    if problem.clone is None:
        raise ValueError("no clone of the behaviour was made")
    chances = problem.asked(problem.clone, episodes.observation)
    return chances.gather(-1, episodes.action.argmax(-1, keepdim=True))[..., 0]


def fitted_probabilities(problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
    """The fitted probabilities of the logged actions, float64 ``[U, M]``; sensitive."""
    features = _features(problem, episodes.observation)
    chances = torch.softmax(features @ values[_AVERAGE].to(features.device), -1)
    return chances.gather(-1, episodes.action.argmax(-1, keepdim=True))[..., 0]


def _features(problem: Problem, observation: Tensor) -> Tensor:
    """``[.., S]`` to ``[.., S + 1]``, of norm 5 at most."""
    standard = problem.standardised(observation)
    return torch.cat((standard, torch.ones_like(standard[..., :1])), -1) / math.sqrt(problem.observation_size + 1)
