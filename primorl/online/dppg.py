"""DPPG: each user's local PPO update, clipped after every step, and the noisy mean of them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from primorl.online import critic
from primorl.online.adam import Adam
from primorl.online.advantages import (
    CARRIED,
    COUPLED,
    Guarantee,
    generalised_advantages,
    normalised,
    normalised_over_cohort,
    own_baseline,
)
from primorl.online.learning import PARAMETERS, Values
from primorl.online.mechanism import Cohort
from primorl.online.network import PolicyNetwork
from primorl.online.returns import within
from primorl.online.trajectories import Trajectories

_AT_ONCE = 32
"""Users whose local updates are computed side by side: more do not fit a core's cache, and are slower."""

RELEASED = "released_mean"
"""Among the values: the noisy mean of the cohort before, ``[d]``; zero before the first."""


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

    Where this departs from the paper (its privacy notes): with ``guarantee="strict"`` there is no critic; Â is GAE over
    a linear baseline that is fitted inside the user's data (`own_baseline`), and normalised inside her data.
    ``guarantee="paper"`` carries a critic from user to user without noise and normalises over the cohort: the statement
    is void.

    Attributes:
        clipping_norm: S.
        local_learning_rate: of the steps inside a user.
        epochs: E.
        minibatches: M.
        entropy_coefficient: β.
        decay: λ of GAE.
        learning_rate: η, on the released mean. The paper's table has one rate only, the local one.
        discount: γ.
        guarantee: see above.
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
    guarantee: Guarantee = "strict"
    local_steps: Literal["adam", "gradient"] = "adam"
    moments: Literal["zero", "released"] = "zero"

    @property
    def void(self) -> str | None:
        """See `Update.void`."""
        return None if self.guarantee == "strict" else f"{CARRIED}, and {COUPLED}"

    def begin(self, network: PolicyNetwork, parameters: Tensor) -> dict[str, Tensor]:
        """See `Update.begin`."""
        values = {PARAMETERS: parameters, RELEASED: torch.zeros_like(parameters)}
        return values if self.guarantee == "strict" else values | critic.begin(network)

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        schedule = self._schedule(met.steps, number)
        carried: dict[str, Tensor] = {}
        if self.guarantee == "strict":
            before, after = own_baseline(network, met, self.discount)
            raw = generalised_advantages(met, before, after, self.discount, self.decay)
            advantages = normalised(raw, met.valid)
        else:
            before, after = (critic.estimates(network, values, x) for x in (met.observations, met.next_observations))
            raw = generalised_advantages(met, before, after, self.discount, self.decay)
            advantages = normalised_over_cohort(raw, met.valid)
            carried = critic.fitted(network, values, met, raw + before, schedule, self.local_learning_rate)
        bound = self.clipping_norm if cohort.noise_multiplier > 0 else float("inf")
        pieces = (slice(at, at + _AT_ONCE) for at in range(0, met.users, _AT_ONCE))
        deltas = (self.local_updates(network, values, met.of(own), advantages[own], schedule, bound) for own in pieces)
        mean = cohort.noisy_mean(deltas, self.clipping_norm)
        return {PARAMETERS: values[PARAMETERS] + self.learning_rate * mean, RELEASED: mean, **carried}

    def local_updates(
        self,
        network: PolicyNetwork,
        values: Values,
        met: Trajectories,
        advantages: Tensor,
        schedule: list[Tensor],
        bound: float,
    ) -> Tensor:
        """θ - θ₀ of every user, ``[U, d]``; zero for one without steps. Sensitive.

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

    def _schedule(self, steps: int, number: int) -> list[Tensor]:
        """Numbers of the steps of every minibatch of every epoch, of public permutations."""
        generator = torch.Generator().manual_seed(number)
        return [
            part
            for _ in range(self.epochs)
            for part in torch.randperm(steps, generator=generator).tensor_split(self.minibatches)
        ]
