"""The plan: sampler, clip, noise and accounted event from one frozen object, so that they cannot disagree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from dp_accounting import dp_event
from torch import Tensor

from primorl.privacy.accounting import accountant as accounting
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.entropy import Entropy, SystemEntropy, normals
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler


@dataclass(frozen=True)
class Plan:
    """PriMORL's Algorithm 2, all that bears on privacy.

    Each round: every one of ``units`` private units joins with probability q (`cohort`); each joins with an update
    whose joint norm over the ensemble is at most C (`clip`); their sum, plus one Gaussian draw of
    standard deviation zC over all members' parameters, is divided by the constant qK (`release`). Before the rounds,
    each of ``queries`` is asked once, of all units (`answer`).

    Formal guarantee: with ``noise_multiplier`` > 0, C finite and unseeded entropy, the sequence of the answers and
    ``rounds`` releases is (ε, δ)-DP under adding or removing one unit, ε being `spent`. K is public.

    | case                  | what happens                                                          |
    |-----------------------|-----------------------------------------------------------------------|
    | empty cohort          | pure noise is released; skipping the round would tell                  |
    | noise multiplier 0    | the exact sum is released; `is_private` is False, ε is infinite        |
    | C infinite            | only with noise multiplier 0 (`no_clip`): no noise could cover it      |
    | fewer rounds are run  | ε stays that of ``rounds``: stopping early may depend on what was seen |
    | a query is not asked  | ε stays that of all of them                                            |
    | seeded entropy        | tests only; `void` says so                                             |
    | several processes     | each tosses the coins of its own units; only the first draws noise     |

    With several processes, process r of P holds units r, r + P, r + 2P … (`of_process`): their coins are independent as
    ever, the sums of all add up to the whole cohort's, and K, q, C, noise and event are those of the whole.
    """

    units: int
    unit: str
    sampling_probability: float
    noise_multiplier: float
    clipping_norm: float
    clipping: Literal["flat", "per_layer"]
    rounds: int
    delta: float
    members: int
    layers: int
    queries: tuple[GaussianQuery, ...] = ()
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)
    process: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        """Refuse a plan whose parts contradict each other.

        Raises:
            ValueError: no units, noise asked for without a finite clipping norm, rounds with noise and a query
                without, no such process, or several with one seed.
        """
        if self.units < 1:
            raise ValueError(f"a plan needs at least one private unit, found {self.units}")
        if self.noise_multiplier > 0 and not math.isfinite(self.clipping_norm):
            raise ValueError("noise covers only clipped updates: give a finite clipping norm")
        if self.is_private and any(query.noise_multiplier == 0 for query in self.queries):
            raise ValueError("a query without noise would be covered by no noise of the rounds: give it a multiplier")
        if not 0 <= self.process < self.processes:
            raise ValueError(f"there is no process {self.process} of {self.processes}")
        if self.processes > 1 and self.entropy.seeded:
            raise ValueError("from one seed, units of several processes would share their coins")

    def of_process(self, process: int, processes: int) -> "Plan":
        """The same plan for one of several processes that make every round together."""
        return replace(self, process=process, processes=processes)

    @property
    def held(self) -> range:
        """Which of the K units are this process's to sample: disjoint between processes, and together all."""
        return range(self.process, self.units, self.processes)

    @property
    def is_private(self) -> bool:
        """Whether anything is guaranteed at all."""
        return self.noise_multiplier > 0

    @property
    def expected_cohort(self) -> float:
        """qK, the fixed denominator. The realised size would depend on who is there."""
        return self.sampling_probability * self.units

    @property
    def clip(self) -> EnsembleClip:
        """How every unit's update is bounded."""
        return EnsembleClip(self.clipping_norm, self.clipping, self.members, self.layers)

    @property
    def event(self) -> dp_event.DpEvent:
        """What the accountant is told."""
        if not self.is_private:
            return dp_event.NonPrivateDpEvent()
        return self._accounted(self.rounds).event

    def cohort(self) -> Tensor:
        """Draw this round's cohort: indices among the units held, ``[U]``. Sensitive: discard right after use."""
        return PoissonSampler(self.sampling_probability).sample(len(self.held), self.entropy)

    def release(self, total: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """(sum of clipped updates + N(0, (zC)² I)) / (qK): all that ever leaves a round.

        Args:
            total: float64 tensors that together hold the sum over the cohort of all members' updates;
                sensitive, discard right after use.

        Returns:
            Tensors of the same shapes, float32.

        Raises:
            ValueError: this is not the first process, which alone draws noise, once.
        """
        self._refuse_others()
        sizes = [part.numel() for part in total]
        if self.is_private:
            scale = self.noise_multiplier * self.clip.sensitivity
            drawn = (normals(self.entropy, sum(sizes)) * scale).to(total[0].device)
            noise = torch.split(drawn, sizes)
            total = [part + draw.view_as(part) for part, draw in zip(total, noise, strict=True)]
        return tuple((part / self.expected_cohort).to(torch.float32) for part in total)

    def answer(self, query: GaussianQuery, total: Tensor) -> Tensor:
        """(sum of the units' contributions + noise) / K: all that ever leaves a query.

        Args:
            query: one of ``queries``; it may be asked once.
            total: as `GaussianQuery.release` wants it; sensitive, discard right after use.

        Returns:
            The same shape, float64: a mean over the units.

        Raises:
            ValueError: this is not the first process.
        """
        self._refuse_others()
        return query.release(total, self.entropy) / self.units

    def _refuse_others(self) -> None:
        if self.process != 0:
            raise ValueError(f"process {self.process} holds a part of the sum only: the first process releases")

    def spent(self, rounds: int | None = None) -> accounting.Spent | None:
        """ε after the queries and ``rounds`` (default: the whole reservation); None where nothing is guaranteed."""
        count = self.rounds if rounds is None else rounds
        return self._accounted(count).spent(self.delta) if self.is_private else None

    def _accounted(self, rounds: int) -> accounting.Training:
        queries = tuple(query.noise_multiplier for query in self.queries)
        return accounting.Training(self.sampling_probability, self.noise_multiplier, rounds, queries)

    def void(self) -> list[str]:
        """Reasons for which the statement of a run of this plan must not be relied on."""
        reasons = {
            "noise is seeded": self.entropy.seeded,
            f"delta is not below one over the number of units, {self.units}": self.is_private
            and self.delta >= 1 / self.units,
            "no noise is added": not self.is_private,
            "updates are not clipped": math.isinf(self.clipping_norm),
        }
        return [reason for reason, holds in reasons.items() if holds]

    def statement(self, *, dataset_fingerprint: str, public_assumptions: Sequence[str]) -> dict[str, Any]:
        """The content of ``privacy.json`` (see docs/privacy.md for every key)."""
        spent = self.spent()
        return {
            "private": self.is_private,
            "epsilon": spent.epsilon_pld if spent else None,
            "delta": self.delta,
            "unit": self.unit,
            "neighboring_relation": accounting.RELATION_NAME,
            "accountant": accounting.ACCOUNTANT,
            "epsilon_rdp": spent.epsilon_rdp if spent else None,
            "event": accounting.event_to_json(self.event),
            "sampling_probability": self.sampling_probability,
            "noise_multiplier": self.noise_multiplier,
            "clipping_norm": self.clipping_norm if math.isfinite(self.clipping_norm) else None,
            "clipping": self.clipping,
            "rounds": self.rounds,
            "queries": [query.statement(self.delta) for query in self.queries],
            "units": self.units,
            "public_assumptions": list(public_assumptions),
            "dataset_fingerprint": dataset_fingerprint,
            "void": self.void(),
        }
