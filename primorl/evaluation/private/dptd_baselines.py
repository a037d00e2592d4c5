"""What DPTD is compared with: the same loss, networks, clip and accounting, and other steps.

TD is `Dptd` itself with a plan without noise and clip.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from primorl.evaluation.private.dptd import Dptd, projected
from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.problem import Problem


@dataclass(frozen=True, kw_only=True)
class DescentAscent(Dptd):
    """SGD: projected gradient descent of θ with step κ and ascent of ω with step η, without averaging of any kind.

    With the steps of `langevin_step` it is DPGLD, stochastic gradient Langevin dynamics (Wang, Chen and Xu 2019).
    """

    name: ClassVar[str] = "sgd"

    def stepped(self, problem: Problem, values: Mapping[str, Tensor], released: Tensor, done: int) -> dict[str, Tensor]:
        """θ ← P(θ - κ g^θ), ω ← P(ω + η g^ω)."""
        of_theta, of_omega = released.double().view(self.members, 2, -1).unbind(1)
        return self._moved(values, of_theta, of_omega, done)

    def _moved(self, values: Mapping[str, Tensor], p: Tensor, d: Tensor, done: int) -> dict[str, Tensor]:
        return dict(values) | {
            "p": p,
            "d": d,
            "output": self._output(values, done),
            "theta": projected(values["theta"] - self.kappa * p),
            "omega": projected(values["omega"] + self.eta * d),
        }


@dataclass(frozen=True, kw_only=True)
class RecursiveMomentum(DescentAscent):
    """DPSRM: stochastic recursive momentum (Wang, Jayaraman, Evans and Gu 2019).

    p_t = (1 - a) p_{t-1} + g_t(θ_t) - (1 - a) g_t(θ_{t-1}), both gradients on the cohort of round t, and a step as of
    `DescentAscent`; d and ω likewise. A unit contributes the difference of its gradients, which is clipped.

    Attributes:
        momentum: a.
    """

    name: ClassVar[str] = "dpsrm"

    momentum: float

    def begin(self, problem: Problem) -> dict[str, Tensor]:
        """See `Estimator.begin`."""
        values = super().begin(problem)
        return values | {
            "earlier_theta": values["theta"],
            "earlier_omega": values["omega"],
            "kept": values["p"][:1, :1],
        }

    def contributions(self, problem: Problem, values: Mapping[str, Tensor], episodes: Episodes) -> Tensor:
        """g(θ_t) - (1 - a) g(θ_{t-1}), ``[U, N·2d]``; in the first round g(θ_0)."""
        now = super().contributions(problem, values, episodes)
        earlier = {"theta": values["earlier_theta"], "omega": values["earlier_omega"]}
        return now - float(values["kept"]) * super().contributions(problem, earlier, episodes)

    def stepped(self, problem: Problem, values: Mapping[str, Tensor], released: Tensor, done: int) -> dict[str, Tensor]:
        """The recursion and a projected step."""
        of_theta, of_omega = released.double().view(self.members, 2, -1).unbind(1)
        kept = 1 - self.momentum
        moved = self._moved(values, kept * values["p"] + of_theta, kept * values["d"] + of_omega, done)
        return moved | {
            "earlier_theta": values["theta"],
            "earlier_omega": values["omega"],
            "kept": values["kept"].new_full((1, 1), kept),
        }


def langevin_step(inverse_temperature: float, noise: float, most: float) -> float:
    """The step η at which noise of standard deviation σ on the gradient is the heat of Langevin dynamics.

    Langevin dynamics adds √(2η/β) N(0, I) to a step of size η. A noisy gradient adds η σ N(0, I). They are equal at
    η = 2 / (β σ²), held below ``most``.
    """
    return most if noise == 0 else min(most, 2 / (inverse_temperature * noise**2))
