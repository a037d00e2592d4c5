"""Private least-squares temporal differences: one noisy release of sufficient statistics, then a linear system."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from primorl.base.records import ClippingNorm, PositiveInt, Share
from primorl.evaluate.private.estimator import (
    NOISE,
    EvaluationState,
    FirstStateValue,
    Values,
    estimate,
)
from primorl.evaluate.private.model_values import ModelCorrection
from primorl.evaluate.private.problem import (
    Episodes,
    Problem,
    first_rows,
    mean_over_trajectories,
    row_by_row,
    row_shares,
    sum_of_rows,
    thinned,
)
from primorl.evaluate.private.results import MEAN_RETURN, Answer
from primorl.evaluate.statistics import NORMAL_QUANTILE
from primorl.privacy.mechanism.plan import Plan

_RIDGE = 1e-6  # beside statistics of order 1, where no noise asks for more
_SPREADS = 3.0  # the scale is so many root mean square differences of the members
_LEAST_SPREAD = 1e-4  # of the range of returns


@dataclass(frozen=True, kw_only=True)
class Lstd(ModelCorrection):
    """LSTD-Q (Lagoudakis and Parr 2003) of the released model's errors, from one noisy release over all units.

    The action-value is Q̄ + ⟨θ, φ⟩. Q̄ is the mean of the model members' action-values (`ModelQ`), which costs nothing.
    The features φ(s, a, t), of norm at most 1, are how far each member but the last is from Q̄ — so that the data say
    which mixture of members fits their Bellman equation. With δ = r + γ Q̄(s', π(s'), t + 1) - Q̄(s, a, t), a unit
    contributes

        A_i = Σ w φ (φ - γ φ')ᵀ,  b_i = Σ w φ δ,  w = γ^t / Σ γ^t over the unit's rows,

    as one clipped vector. The release gives θ by ridge regression on A θ = b, the ridge being the norm of the noise in
    A, so that θ fades to 0, the model's own value, as noise grows; and η by Aᵀη = E φ(s₀, π(s₀)) over public
    first states. Then one query asks for the mean and the second moment over units of

        ψ_i = Q(s₀, π(s₀)) + Σ w ⟨η, φ⟩ (r + γ Q(s', π(s')) - Q(s, a)),  Q = Q̄ + ⟨θ, φ⟩,

    a doubly robust correction; its errors are products of those of θ and of η (Kallus and Uehara 2020). It removes to
    first order the effect of noise and ridge on θ, and its spread over units is the sampling error of the estimate.

    Attributes:
        rows: of a unit, at most, evenly spaced.
        clipping_norm: C.
        query_share: share of the squared Gaussian mean that the query takes.
    """

    name: ClassVar[str] = "lstd"
    rows: PositiveInt
    clipping_norm: ClippingNorm
    query_share: Share

    def plan(self, problem: Problem, gaussian_mean: float) -> Plan:
        """Plan one round over all units, and one query."""
        return FirstStateValue(problem).plan(self.clipping_norm, gaussian_mean, self.query_share)

    def begin(self, problem: Problem) -> dict[str, Tensor]:
        """Fit the members' values, and find the scale of their differences at public first states."""
        model = self.model(problem)
        fitted = model.fit()
        found = model.at_starts(fitted)
        spread = (found - found.mean(0)).square().mean().sqrt()
        least = _LEAST_SPREAD * (problem.return_high - problem.return_low)
        zeros = torch.zeros(len(found) - 1, dtype=torch.float64)
        return fitted | {"scale": _SPREADS * spread.clamp(min=least), "theta": zeros, "eta": zeros}

    def contributions(self, problem: Problem, values: Values, episodes: Episodes) -> Tensor:
        """Compute A_i and b_i side by side, float64 ``[U, d² + d]``; sensitive."""
        episodes = thinned(episodes, self.rows)
        size = len(values["theta"])
        found = row_by_row(
            lambda *rows: self._differences(problem, values, *rows), *_rows(problem, episodes)
        )
        here, gap, error = torch.split(found, [size, size, 1], -1)
        weighted = here * row_shares(problem, episodes)[..., None]
        matrices = torch.einsum("umi,umj->uij", weighted, gap).flatten(1)
        return torch.cat((matrices, torch.einsum("umi,um->ui", weighted, error[..., 0])), 1)

    def stepped(
        self, problem: Problem, values: Values, released: Tensor, done: int
    ) -> dict[str, Tensor]:
        """Solve for θ and η by the noisy A and b."""
        size = problem.ensemble.architecture.members - 1
        entries, vector = torch.split(released.double(), [size * size, size])
        matrix = entries.view(size, size)
        ridge = (
            float(values[NOISE]) * 2 * math.sqrt(size) + _RIDGE
        )  # 2σ√d: the spectral norm of the noise in A
        penalty = ridge**2 * torch.eye(size, dtype=torch.float64)
        states, steps = problem.starts.double(), torch.zeros(len(problem.starts), dtype=torch.int64)
        start = self._features(problem, values, states, problem.actions(states), steps)[0].mean(0)
        theta = torch.linalg.solve(matrix.T @ matrix + penalty, matrix.T @ vector)
        eta = torch.linalg.solve(matrix @ matrix.T + penalty, matrix @ start)
        return dict(values) | {"theta": theta, "eta": eta}

    def query_total(
        self, problem: Problem, query: str, values: Values, episodes: Episodes
    ) -> Tensor:
        """Sum the ψ_i and their squares."""
        some, first = thinned(episodes, self.rows), first_rows(episodes)
        theta, eta, scale = (
            values[name].to(some.reward.device) for name in ("theta", "eta", "scale")
        )

        def corrections(*rows: Tensor) -> Tensor:
            found = self._differences(problem, values, *rows)
            here, gap, error = torch.split(found, [len(theta), len(theta), 1], 1)
            return here @ eta[:, None] * (error - gap @ theta[:, None])

        def at_first(state: Tensor, action: Tensor) -> Tensor:
            features, model = self._features(
                problem, values, state, action, torch.zeros_like(state[:, 0]).long()
            )
            found: Tensor = model[:, None] + scale * (features @ theta[:, None])
            return found

        left_over = row_by_row(corrections, *_rows(problem, some))[..., 0] * row_shares(
            problem, some
        )
        begin = row_by_row(at_first, first.observation, problem.actions(first.observation))[..., 0]
        return FirstStateValue(problem).total(
            mean_over_trajectories(first, begin) + scale * sum_of_rows(left_over)
        )

    def estimates(self, problem: Problem, plan: Plan, state: EvaluationState) -> tuple[Answer, ...]:
        """Estimate the mean of the ψ_i; the interval allows for a bias, which no theory bounds, by a rule of thumb.

        The variance of the members' own values is added, and the squared distance of the mean from theirs: if the data
        moved the model's value by so much, the remaining error may be as large.
        """
        value, deviation = FirstStateValue(problem).mean(plan, state.answers)
        members = self.model(problem).at_starts(state.values).mean(1)
        half = NORMAL_QUANTILE * math.hypot(
            deviation, float(members.std()), value - float(members.mean())
        )
        covers = (
            "sampling and privacy noise, and a bias as large as the correction of the model's value"
        )
        bias = "where the features do not hold the policy's true action-values, up to the model's own error"
        return (
            estimate(
                self.name, "policy", MEAN_RETURN, value, (value - half, value + half), covers, bias
            ),
        )

    def _differences(self, problem: Problem, values: Values, *rows: Tensor) -> Tensor:
        """Compute φ, φ - γφ', and δ in units of the scale, side by side, ``[B, 2 d + 1]``, for `_rows` ``[B, ..]``."""
        state, action, next_state, next_action, (step, discount, reward) = (
            *rows[:4],
            torch.split(rows[4], 1, 1),
        )
        number = step[:, 0].long()
        here, model = self._features(problem, values, state, action, number)
        then, later = self._features(problem, values, next_state, next_action, number + 1)
        error = reward + discount * later[:, None] - model[:, None]
        return torch.cat(
            (here, here - discount * then, error / values["scale"].to(error.device)), 1
        )

    def _features(
        self, problem: Problem, values: Values, observation: Tensor, action: Tensor, step: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute φ ``[B, d]``, of norm at most 1, and Q̄ ``[B]``."""
        found = self.model(problem).action_values(values, observation, action, step)
        mean = found.mean(0)
        parts = ((found[:-1] - mean) / values["scale"].to(mean.device)).movedim(0, -1)
        norms = torch.linalg.vector_norm(parts, dim=-1, keepdim=True)
        return parts / norms.clamp(min=1.0), mean


def _rows(problem: Problem, episodes: Episodes) -> tuple[Tensor, ...]:
    """Put together states, actions, next states, the policy's actions there, and step, discount and reward."""
    discount = problem.discount * problem.continues(episodes.step, episodes.terminated)
    last = torch.stack((episodes.step.double(), discount, problem.reward(episodes.reward)), -1)
    return (
        episodes.observation,
        episodes.action,
        episodes.following,
        problem.actions(episodes.following),
        last,
    )
