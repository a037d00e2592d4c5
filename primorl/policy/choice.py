"""Which of several candidates is written: the one that gains most over the behaviour in the member that likes it least.

A gain is doubted by `DOUBT_SHARE` times what the model is less sure of along the candidate's way than along the
clone's.
Members that were trained on the same noised rounds are wrong alike, which their spread does not show. So a gain counts
only if it is larger than half of what the model gets wrong of the clone itself, whose return public episodes tell
within their own sampling error.

Candidates, clone and ensemble are released or made from what is released, so that the choice costs no privacy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.policy.config import CandidateRecord
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.member_values import Policies, returns_by_member, uncertainty_of

DIVERGENCES = (0.3, 1.0, 3.0)
"""Targets κ of the candidates: from nearly the clone to where the clone hardly holds (docs/benchmarks.md)."""
DOUBT_SHARE = 3.0
"""A gain counts as far as it is larger than so many times the uncertainty that a policy has beyond the clone."""
_ROLLOUTS = 512
_SHARE_OF_ERROR, _SAMPLING_ERRORS = 0.5, 2.0


@dataclass(frozen=True)
class Contest:
    """What candidates are compared by.

    Attributes:
        ensemble: the released one, on the CPU.
        clone: the clone as it is released, on the CPU.
        starts: first states in the environment's units, ``[n, S]``.
        weights: w_t of every step, float64 ``[T]``: the share of episodes that are longer than t.
        seed: of the draws, which all policies share.
        observed: mean return of public episodes and its standard error; None: fewer than two are public.
        divergences: κ of every candidate, ascending.
    """

    ensemble: GaussianEnsemble
    clone: Policies
    starts: Tensor
    weights: Tensor
    seed: int
    observed: tuple[float, float] | None
    divergences: Sequence[float] = DIVERGENCES

    def judge(self, candidates: DeterministicPolicy) -> "Verdict":
        """Roll the clone and all candidates out in every member: ``G = seeds · candidates`` policies side by side."""
        of_clone = self._returns(self.clone)
        gains = (self._returns(candidates) - of_clone).mean(-1)
        error = 0.0
        if self.observed is not None:
            mean, sampling = self.observed
            error = max(0.0, abs(float(of_clone.mean()) - mean) - _SAMPLING_ERRORS * sampling)
        doubts = self._uncertainty(candidates) - self._uncertainty(self.clone)
        count = len(self.divergences)
        return Verdict(gains.view(-1, count, gains.shape[1]), doubts.view(-1, count), tuple(self.divergences), error)

    def _returns(self, policy: Policies) -> Tensor:
        return returns_by_member(
            self.ensemble, policy, self.starts, rollouts=_ROLLOUTS, weights=self.weights, seed=self.seed
        )

    def _uncertainty(self, policy: Policies) -> Tensor:
        """Mean over rollouts, ``[P]``."""
        return uncertainty_of(
            self.ensemble, policy, self.starts, rollouts=_ROLLOUTS, weights=self.weights, seed=self.seed
        ).mean(-1)


@dataclass(frozen=True)
class Verdict:
    """What every candidate gains over the clone, and which one is taken.

    Attributes:
        gains: mean return less the clone's, in each member: ``[seeds, candidates, N]``.
        doubts: uncertainty less the clone's, in units of the return: ``[seeds, candidates]``.
        divergences: κ of every candidate, ascending.
        error: the difference between the model's value of the clone and what public episodes returned, less what their
            sampling explains.
    """

    gains: Tensor
    doubts: Tensor
    divergences: tuple[float, ...]
    error: float

    @property
    def chosen(self) -> list[int]:
        """Of each seed: the candidate whose smallest gain, less its doubt, is largest.

        If that is not larger than half of ``error``: the nearest to the clone.
        """
        doubted = self.gains.amin(-1) - DOUBT_SHARE * self.doubts.clamp(min=0)
        smallest = torch.nan_to_num(doubted, nan=-torch.inf)
        largest, best = smallest.max(-1)
        return [int(place) for place in torch.where(largest > _SHARE_OF_ERROR * self.error, best, 0)]

    def policy(self, seed: int) -> int:
        """The place of the chosen candidate of seed number ``seed`` among all policies."""
        return seed * len(self.divergences) + self.chosen[seed]

    def records(self, seed: int) -> tuple[CandidateRecord, ...]:
        """What ``config.json`` says of the candidates of seed number ``seed``."""
        return tuple(
            CandidateRecord(divergence=divergence, gains=tuple(gains), doubt=doubt, chosen=place == self.chosen[seed])
            for place, (divergence, gains, doubt) in enumerate(
                zip(self.divergences, self.gains[seed].tolist(), self.doubts[seed].tolist(), strict=True)
            )
        )
