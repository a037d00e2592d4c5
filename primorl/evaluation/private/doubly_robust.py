"""Doubly robust evaluation: the model's value, corrected by what the model got wrong on the logged steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.model_q import ModelQ
from primorl.evaluation.private.problem import Problem
from primorl.evaluation.private.rows import counted
from primorl.evaluation.private.weighting import SPREAD, SUMS, WeightedEstimator
from primorl.privacy.mechanism.queries import register_query
from primorl.project.values import Positive, PositiveInt, Steps


@register_query("doubly_robust" + SPREAD)
@register_query("doubly_robust" + SUMS)
@dataclass(frozen=True, kw_only=True)
class DoublyRobust(WeightedEstimator):
    """Per-decision doubly robust estimation (Jiang and Li 2016; Thomas and Brunskill 2016, section 3).

    A unit contributes one number, the mean over its trajectories of

        ψ = V̂(s_0) + Σ_t γ^t w_t (r_t + γ V̂(s_{t+1}) - Q̂(s_t, a_t)),

    held within the return's bounds, widened by ``largest_correction`` times their distance on either side. Q̂ is the
    mean of the model members' action-values (`ModelQ`), V̂(s) = Q̂(s, π(s)). With ``lookback`` 1 the weights are w_t =
    1[a_t = π(s_t)] / b: the correction is the model's mean error at the policy's actions, in the states of the
    behaviour.

    Attributes:
        model_features: random features of the members' values (`ModelQ`).
        rollouts: of each member (`ModelQ`).
        largest_correction: how far ψ may lie outside the return's bounds, in units of their distance.
    """

    name: ClassVar[str] = "doubly_robust"

    model_features: PositiveInt
    rollouts: Steps
    largest_correction: Positive

    def norm(self, problem: Problem) -> float:
        """1: the contribution is scaled to within ±1."""
        return 1.0

    def size(self, problem: Problem) -> int:
        """One number."""
        return 1

    def row_bytes(self, problem: Problem) -> int:
        """See `Estimator.row_bytes`."""
        return self._model(problem).row_bytes

    def begin(self, problem: Problem) -> dict[str, Tensor]:
        """See `Estimator.begin`: Q̂ as well."""
        return super().begin(problem) | self._model(problem).fit()

    def vectors(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """See `WeightedEstimator.vectors`."""
        now, following, step = episodes.observation, episodes.following, episodes.step
        ahead = self.action_values(problem, values, following, problem.actions(following), step + 1)
        ahead = ahead * problem.continues(step, episodes.terminated)
        logged = self.action_values(problem, values, now, episodes.action, step)
        error = problem.reward(episodes.reward) + problem.discount * ahead - logged
        rows = self.weights(problem, values, episodes) * problem.discount**step * error * counted(problem, episodes)
        first = self.action_values(problem, values, now, problem.actions(now), step).where(episodes.begins, 0.0)
        corrected = (rows + first).sum(1, keepdim=True) / episodes.trajectories[:, None]
        middle, half = self._range(problem)
        return ((corrected - middle) / half).clamp(-1, 1)

    def action_values(
        self, problem: Problem, values: Mapping[str, Tensor], observation: Tensor, action: Tensor, step: Tensor
    ) -> Tensor:
        """Q̂, float64 ``[..]``, for ``[.., S]``, ``[.., A]`` and steps ``[..]``."""
        return self._model(problem).action_values(values, observation, action, step).mean(0)

    def value(self, problem: Problem, mean: Tensor) -> tuple[float, Tensor]:
        """See `WeightedEstimator.value`."""
        middle, half = self._range(problem)
        return middle + half * float(mean[0]), torch.full_like(mean, half)

    def bias(self) -> str:
        """See `WeightedEstimator.bias`."""
        weights = f", {self.doubt}" if self.doubt else ""
        return (
            f"the model's error times the weights': weights above {self.largest_weight:g} are cut, ratios of the last "
            f"{self.lookback} steps alone are multiplied{weights}; large corrections are cut"
        )

    def _model(self, problem: Problem) -> ModelQ:
        return ModelQ(problem, self.model_features, self.rollouts)

    def _range(self, problem: Problem) -> tuple[float, float]:
        """Middle and half of the width of what ψ is held within."""
        middle, half = (problem.return_high + problem.return_low) / 2, (problem.return_high - problem.return_low) / 2
        return middle, half * (1 + 2 * self.largest_correction)
