"""DPPG: each user's local PPO update, clipped after every step, and the noisy mean of them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from primorl.online.advantages import generalised_advantages, normalised, own_baseline, within
from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort
from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories

_AT_ONCE = 32
"""Users whose local updates are computed side by side: more do not fit a core's cache, and are slower."""

RELEASED = "released_mean"
"""Among the values: the noisy mean of the cohort before, ``[d]``; zero before the first."""

_FIRST_DECAY, _SECOND_DECAY, _LEAST = 0.9, 0.999, 1e-8


@dataclass
class Adam:
    """Moments of gradients for many vectors at once (Kingma and Ba 2015, Algorithm 1).

    Attributes:
        first: ``[.., n]``.
        second: ``[.., n]``.
        steps: gradients so far; None where the moments need no correction for having begun at zero.
    """

    first: Tensor
    second: Tensor
    steps: int | None

    @classmethod
    def fresh(cls, like: Tensor) -> "Adam":
        """Begin with moments of zero, which are corrected."""
        return cls(torch.zeros_like(like), torch.zeros_like(like), 0)

    def direction(self, gradient: Tensor) -> Tensor:
        """Update the moments and return the uphill step of length 1."""
        self.first = _FIRST_DECAY * self.first + (1 - _FIRST_DECAY) * gradient
        self.second = _SECOND_DECAY * self.second + (1 - _SECOND_DECAY) * gradient.square()
        if self.steps is None:
            return self.first / (self.second.sqrt() + _LEAST)
        self.steps += 1
        first = self.first / (1 - _FIRST_DECAY**self.steps)
        second = self.second / (1 - _SECOND_DECAY**self.steps)
        return first / (second.sqrt() + _LEAST)


@dataclass(frozen=True)
class DPPG:
    """DPPG of Rio et al.: their Algorithm 2 with the local update of Algorithm 3.

    From the released θ₀, every user makes E epochs over M minibatches of her own steps. A step climbs the mean
    of (π_θ / π_θ0)(a_t | s_t) Â_t + β H(π_θ(s_t)), without a clip of the ratio, and θ - θ₀ is scaled back to norm at
    most S. What she contributes is the last θ - θ₀; then θ₀ ← θ₀ + η (mean of the contributions + noise).
    All users are computed side by side: their parameters are ``[U, d]``, and a step is one product for all.

    With ``local_steps="gradient"`` the steps are those of Algorithm 3 as it is printed, else Adam's.
    Adam's moments begin at zero for every user, or with ``moments="released"`` at g̃ and g̃², g̃ being the mean that the
    cohort before released (their Appendix C.2). The step goes uphill, so g̃ keeps its sign. No correction is made then
    for moments that began at zero, as they did not; before anything was released they are zero, and corrected. Where
    the noise of g̃ is as large as g̃, the first local steps go where the last noise went, each coordinate by a whole
    learning rate: hence zero is the default.

    Where this departs from the paper: there is no critic, because one that is carried from user to user without noise
    would void ε (`research.paper_mode`). Â is GAE over a linear baseline that is fitted inside the user's data
    (`own_baseline`), and normalised inside her data.

    Attributes:
        clipping_norm: S.
        local_learning_rate: of the steps inside a user.
        epochs: E.
        minibatches: M.
        entropy_coefficient: β.
        decay: λ of GAE.
        learning_rate: η, on the released mean. The paper's table has one rate only, the local one.
        discount: γ.
        local_steps: ``adam``, or ``gradient`` for plain steps, which suit runs of few cohorts: what a user contributes
            then follows her own gradients alone, and not the mean that was released before.
        moments: what Adam's begin at, see above.
    """

    name: ClassVar[str] = "dppg"
    releases: ClassVar[int] = 1

    clipping_norm: float
    local_learning_rate: float
    epochs: int
    minibatches: int
    entropy_coefficient: float = 0.0
    decay: float = 0.95
    learning_rate: float = 1.0
    discount: float = 0.99
    local_steps: Literal["adam", "gradient"] = "adam"
    moments: Literal["zero", "released"] = "zero"

    def begin(self, network: PolicyNetwork, parameters: Tensor) -> dict[str, Tensor]:
        """See `Update.begin`."""
        return {PARAMETERS: parameters, RELEASED: torch.zeros_like(parameters)}

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        before, after = own_baseline(network, met, self.discount)
        raw = generalised_advantages(met, before, after, self.discount, self.decay)
        schedule = self.schedule(met.steps, number)
        return self.step(network, values, met, normalised(raw, met.valid), schedule, cohort)

    def step(
        self,
        network: PolicyNetwork,
        values: Values,
        met: Trajectories,
        advantages: Tensor,
        schedule: list[Tensor],
        cohort: Cohort,
    ) -> dict[str, Tensor]:
        """Release the mean of all local updates and move θ₀ along it.

        Args:
            network: shape of the policy.
            values: released before.
            met: what users did.
            advantages: Â, ``[U, T]``.
            schedule: see `schedule`.
            cohort: the mechanism.
        """
        bound = self.clipping_norm if cohort.noise_multiplier > 0 else float("inf")
        pieces = (slice(at, at + _AT_ONCE) for at in range(0, met.users, _AT_ONCE))
        deltas = (self.local_updates(network, values, met.of(own), advantages[own], schedule, bound) for own in pieces)
        mean = cohort.noisy_mean(deltas, self.clipping_norm)
        return {PARAMETERS: values[PARAMETERS] + self.learning_rate * mean, RELEASED: mean}

    def local_updates(
        self,
        network: PolicyNetwork,
        values: Values,
        met: Trajectories,
        advantages: Tensor,
        schedule: list[Tensor],
        bound: float,
    ) -> Tensor:
        """Compute θ - θ₀ of every user, ``[U, d]``; zero for one without steps. Sensitive.

        Args:
            network: shape of the policy.
            values: released before.
            met: what users did.
            advantages: Â, ``[U, T]``.
            schedule: numbers of the steps of every minibatch, the same for all users.
            bound: S; infinite for the non-private twin.
        """
        start = values[PARAMETERS].expand(met.users, -1)
        with torch.no_grad():
            old = network.log_probabilities(start, met.observations, met.actions)
        deltas, adam = torch.zeros_like(start), self._moments(values[RELEASED], met.users)
        for steps in schedule:
            valid = met.valid[:, steps]
            counts = valid.sum(1, keepdim=True)
            own = (start + deltas).requires_grad_()
            outputs = network.outputs(own, met.observations[:, steps])
            ratios = (network.scores(own, outputs, met.actions[:, steps]) - old[:, steps]).exp()
            gains = ratios * advantages[:, steps] + self.entropy_coefficient * network.entropy(own, outputs)
            (gradients,) = torch.autograd.grad((torch.where(valid, gains, 0.0) / counts.clamp(min=1)).sum(), own)
            moved = deltas + self.local_learning_rate * (adam.direction(gradients) if adam else gradients)
            # Who has no step here stays: moments that began at the released mean would move even an empty user.
            deltas = within(torch.where(counts > 0, moved, deltas), bound)
        return deltas

    def _moments(self, released: Tensor, users: int) -> Adam | None:
        if self.local_steps == "gradient":
            return None
        rows = released.expand(users, -1)
        known = self.moments == "released" and bool(released.any())
        return Adam(rows, rows.square(), None) if known else Adam.fresh(rows)

    def schedule(self, steps: int, number: int) -> list[Tensor]:
        """Draw the steps of every minibatch of every epoch by public permutations."""
        generator = torch.Generator().manual_seed(number)
        return [
            part
            for _ in range(self.epochs)
            for part in torch.randperm(steps, generator=generator).tensor_split(self.minibatches)
        ]
