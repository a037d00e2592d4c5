"""Which of several candidates is written: the one that gains most over the behaviour in the member that likes it least.

Candidates, clone and ensemble are released or made from what is released, so that the choice costs no privacy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.policy.config import CandidateRecord
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.member_values import Policies, returns_by_member

DIVERGENCES = (0.3, 1.0, 3.0)
"""Targets κ of the candidates: from nearly the clone to where the clone hardly holds (docs/benchmarks.md)."""
_ROLLOUTS = 512


@dataclass(frozen=True)
class Contest:
    """What candidates are compared by.

    Attributes:
        ensemble: the released one, on the CPU.
        clone: the clone's mean policy, on the CPU.
        starts: first states in the environment's units, ``[n, S]``.
        weights: w_t of every step, float64 ``[T]``: the share of episodes that are longer than t.
        seed: of the draws, which all policies share.
        divergences: κ of every candidate.
    """

    ensemble: GaussianEnsemble
    clone: Policies
    starts: Tensor
    weights: Tensor
    seed: int
    divergences: Sequence[float] = DIVERGENCES

    def judge(self, candidates: DeterministicPolicy) -> "Verdict":
        """Roll the clone and all candidates out in every member: ``G = seeds · candidates`` policies side by side."""
        gains = self._returns(candidates) - self._returns(self.clone)
        return Verdict(gains.view(-1, len(self.divergences), gains.shape[1]), tuple(self.divergences))

    def _returns(self, policy: Policies) -> Tensor:
        return returns_by_member(
            self.ensemble, policy, self.starts, rollouts=_ROLLOUTS, weights=self.weights, seed=self.seed
        )


@dataclass(frozen=True)
class Verdict:
    """What every candidate gains over the clone, and which one is taken.

    Attributes:
        gains: mean return less the clone's, in each member: ``[seeds, candidates, N]``.
        divergences: κ of every candidate.
    """

    gains: Tensor
    divergences: tuple[float, ...]

    @property
    def chosen(self) -> list[int]:
        """Of each seed: the candidate whose smallest gain is largest."""
        smallest = torch.nan_to_num(self.gains.amin(-1), nan=-torch.inf)
        return [int(best) for best in smallest.argmax(-1)]

    def policy(self, seed: int) -> int:
        """The place of the chosen candidate of seed number ``seed`` among all policies."""
        return seed * len(self.divergences) + self.chosen[seed]

    def records(self, seed: int) -> tuple[CandidateRecord, ...]:
        """What ``config.json`` says of the candidates of seed number ``seed``."""
        return tuple(
            CandidateRecord(divergence=divergence, gains=tuple(gains), chosen=place == self.chosen[seed])
            for place, (divergence, gains) in enumerate(zip(self.divergences, self.gains[seed].tolist(), strict=True))
        )
