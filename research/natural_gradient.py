"""DP-NPG's other oracles: noisy sufficient statistics, and private choices from a class of
directions.

python -m research.natural_gradient

Prints, for a cohort of CartPole users and a log-linear policy, by how much the step of each oracle
lowers the loss of the regression, as a share of what the least squares solution does; and that of
the oracle by descent, which the pipeline has (`primorl.online.updates.NaturalGradientByDescent`). ε
of all is that of one zeroed-out user by the same accountant, at δ = 1e-5.
"""

import math
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from primorl.evaluate.statistics import MeanInterval
from primorl.model.numerics import Workspace
from primorl.online.learning import (
    PARAMETERS,
    Cohort,
    SimulatedUsers,
    Trajectories,
    Values,
    online_plan,
)
from primorl.online.network import PolicyNetwork
from primorl.online.updates import NaturalGradientByDescent, ReturnBasedUpdate, own_weights, within
from primorl.privacy.accounting.epsilon import spent
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.mechanism.sampling import Entropy, SystemEntropy, uniforms
from research.classic_control import batch
from research.permute_and_flip import ONE, choose, sum_scores


@dataclass(frozen=True)
class NaturalGradientByStatistics(ReturnBasedUpdate):
    """DP-NPG (private policy optimisation, Algorithm 3) by noisy sufficient statistics, for few
    parameters.

    w ≈ argmin_w E[(Â - wᵀψ)²], ψ = ∇ log π(a | s), and θ ← θ + η w. A user's vector is the upper
    triangle of the mean of ψψᵀ over her steps and the mean of ψÂ, d (d + 3) / 2 numbers, clipped to
    S together. Of the noisy means F and g, w = F⁻¹ g, where eigenvalues of F below the ridge are
    raised to it. The ridge is 2σ√d, the norm of a symmetric matrix of noise of standard deviation σ
    = zS / m, and at least ``ridge``: so the noise decides on no direction.

    Sheffet 2019 ("Old techniques in differentially private linear regression") has a ridge that
    depends on β as well; this one is the expected norm. The paper's reference for log-linear
    policies, ISSP (Brown et al. 2024, "Insufficient statistics perturbation"), is another
    algorithm: it leaves outlying users out and adds noise of F's shape to w.

    Attributes:
        learning_rate: η.
        clipping_norm: S.
        ridge: least eigenvalue of F, and all of it in the non-private twin.
        largest_step: what the norm of η w is scaled back to.
    """

    name: ClassVar[str] = "dp-npg-statistics"
    releases: ClassVar[int] = 1

    learning_rate: float
    clipping_norm: float
    ridge: float
    largest_step: float

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """See `Update.apply`."""
        d = network.parameters
        statistics = self.statistics(network, values[PARAMETERS], met)
        mean = cohort.noisy_mean(statistics, self.clipping_norm).double()
        triangle, gradient = mean[:-d], mean[-d:]
        fisher = triangle.new_zeros(d, d)
        row, column = _upper(d, fisher.device)
        fisher[row, column] = triangle
        fisher = fisher + fisher.triu(1).mT
        noise = cohort.noise_multiplier * self.clipping_norm / cohort.users
        eigenvalues, vectors = torch.linalg.eigh(fisher)
        floor = max(self.ridge, 2 * noise * math.sqrt(d))
        direction = (vectors @ (vectors.mT @ gradient / eigenvalues.clamp(min=floor))).float()
        return {
            PARAMETERS: values[PARAMETERS]
            + within(self.learning_rate * direction, self.largest_step)
        }

    def statistics(self, network: PolicyNetwork, parameters: Tensor, met: Trajectories) -> Tensor:
        """Every user's vector, ``[U, d (d + 3) / 2]``. Sensitive."""
        weights = own_weights(met.valid).unsqueeze(-1)
        scores = step_scores(network, parameters, met)
        squares = scores.mT @ (scores * weights)
        row, column = _upper(network.parameters, squares.device)
        products = scores.mT @ (self.advantages(met).unsqueeze(-1) * weights)
        return torch.cat([squares[:, row, column], products.squeeze(-1)], 1)


@dataclass(frozen=True)
class ChoiceCohort:
    """One cohort's mechanism of choices, by permute-and-flip: of each user ε / ``choices`` in a run
    of ε.

    Formal guarantee: a user is in at most ``choices`` choices; the choices of other cohorts are
    post-processing with respect to her. By basic composition the run is ε-differentially private
    for her, at δ = 0. A user who is not there scores 0.

    Attributes:
        cohort: m, the most users who score in one choice; public.
        epsilon: of the run.
        choices: that one user takes part in: those of an update times the cohorts that she is in.
        entropy: source of the coins.
    """

    cohort: int
    epsilon: float
    choices: int = 1
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)

    def chosen(self, scores: Tensor) -> int:
        """Choose the candidate whose sum of scores, one row ``[k]`` for each user, is about the
        largest. Sensitive.
        """
        if len(scores) > self.cohort:
            raise ValueError(f"{len(scores)} users in a cohort of {self.cohort}")
        return self.choose(sum_scores(scores.detach().cpu()))

    def choose(self, total: Tensor) -> int:
        """Choose by the sums of scores."""
        return choose(total, self.epsilon / self.choices, self.entropy)


@dataclass(frozen=True)
class ExponentialCohort(ChoiceCohort):
    """The paper's mechanism instead of permute-and-flip: P(w) ∝ exp(ε · sum of scores).

    The sums are monotone with sensitivity 1, so zeroing out a user changes log P by at most ε. The
    paper has half the rate, as it replaces users, and Algorithm 4's 4 R² is the largest loss. In
    floating point: for comparison only.
    """

    def choose(self, total: Tensor) -> int:
        """Choose by the sums of scores."""
        gumbel = -(-uniforms(self.entropy, tuple(total.shape)).log()).log()
        gaps = (total - total.max()).double() / ONE
        return int((self.epsilon / self.choices * gaps + gumbel).argmax())


@dataclass(frozen=True)
class NaturalGradientByChoice(ReturnBasedUpdate):
    """DP-NPG (private policy optimisation, Algorithm 4): a private choice from a finite class of
    directions.

    The class is w = 0 and k - 1 directions of norm B, drawn anew for every cohort from a public
    seed. A user scores w with 1 - loss / L, loss being the mean of (Â - wᵀψ)² over her steps, held
    within [0, L]; the cohort's choice is `ChoiceCohort.chosen`, of pure ε, and θ ← θ + η w.

    `ChoiceCohort` is never worse than the paper's mechanism, `ExponentialCohort`. The bound L of
    the loss is held to instead of assumed.

    Attributes:
        learning_rate: η.
        candidates: k.
        ball: B.
        largest_loss: L; 1 is the loss of w = 0.
    """

    name: ClassVar[str] = "dp-npg-choice"
    releases: ClassVar[int] = 1

    learning_rate: float
    candidates: int
    ball: float
    largest_loss: float

    def apply(
        self,
        network: PolicyNetwork,
        values: Values,
        met: Trajectories,
        cohort: ChoiceCohort,
        number: int,
    ) -> dict[str, Tensor]:
        """See `Update.apply`."""
        directions = self.directions(values[PARAMETERS], number)
        chosen = cohort.chosen(self.scores(network, values[PARAMETERS], met, directions))
        return {PARAMETERS: values[PARAMETERS] + self.learning_rate * directions[chosen]}

    def directions(self, parameters: Tensor, number: int) -> Tensor:
        """The class, ``[k, d]``: public."""
        drawn: Tensor = torch.randn(
            self.candidates, len(parameters), generator=torch.Generator().manual_seed(number)
        )
        drawn *= self.ball / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        drawn[0] = 0.0
        return drawn.to(parameters.device)

    def scores(
        self, network: PolicyNetwork, parameters: Tensor, met: Trajectories, directions: Tensor
    ) -> Tensor:
        """What every user adds to the scores, ``[U, k]``; zero for one without steps. Sensitive."""
        errors = (
            self.advantages(met).unsqueeze(-1)
            - step_scores(network, parameters, met) @ directions.mT
        )
        losses = (errors.square() * own_weights(met.valid).unsqueeze(-1)).sum(1)
        found: Tensor = torch.where(
            met.valid.any(1, keepdim=True), 1 - losses / self.largest_loss, 0.0
        )
        return found


def step_scores(network: PolicyNetwork, parameters: Tensor, met: Trajectories) -> Tensor:
    """Compute ψ_t = ∇ log π(a_t | s_t) of every step, ``[U, T, d]``; 0 at padding. Sensitive."""
    observations, actions = (
        each.flatten(0, 1).unsqueeze(1) for each in (met.observations, met.actions)
    )
    steps = network.step_gradients(parameters.unsqueeze(0), observations, actions, Workspace())
    scores = steps.sums(torch.ones_like(steps.logs))
    held: Tensor = torch.where(met.valid.unsqueeze(-1), scores.view(met.users, met.steps, -1), 0.0)
    return held


def _upper(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the upper triangle of a square matrix."""
    both = torch.triu_indices(size, size, device=device)
    return both[0], both[1]


def gain(
    network: PolicyNetwork,
    theta: Tensor,
    met: Trajectories,
    update: ReturnBasedUpdate,
    direction: Tensor,
) -> float:
    """Measure how much less loss a direction leaves than none does, as a share of what least
    squares takes away.
    """
    weights = own_weights(met.valid).sqrt().flatten().double().unsqueeze(1)
    rows = step_scores(network, theta, met).flatten(0, 1).double() * weights
    targets = update.advantages(met).flatten().double() * weights[:, 0]
    best = torch.linalg.pinv(rows, rtol=1e-4) @ targets
    none, least, own = (
        float((targets - rows @ each).square().sum())
        for each in (0 * best, best, direction.double())
    )
    return (none - own) / (none - least)


def main() -> None:
    """Print the mean gains of all oracles, with 95% intervals over twenty cohorts of 500 users."""
    cartpole, m, delta = batch("CartPole-v1"), 500, 1e-5
    low, high = torch.from_numpy(cartpole.action_low), torch.from_numpy(cartpole.action_high)
    network = PolicyNetwork(
        (), torch.zeros(4), torch.tensor([2.4, 2.0, 0.2, 2.0]), low, high, discrete_actions=True
    )
    theta, users = network.initial(0), SimulatedUsers(cartpole, 200, 1, 0)
    choice = NaturalGradientByChoice(1.0, 64, 0.5, 2.0)
    oracles: dict[str, tuple[Any, Any]] = {
        "noisy sufficient statistics": (NaturalGradientByStatistics(1.0, 1.0, 1e-3, 10.0), Cohort),
        "noisy descent": (
            NaturalGradientByDescent(
                learning_rate=1.0, clipping_norm=0.1, steps=2, step_size=0.5, ball=0.5
            ),
            Cohort,
        ),
        "permute-and-flip": (choice, ChoiceCohort),
        "exponential mechanism": (choice, ExponentialCohort),
    }
    sizes = {"users": m, "cohort": m, "appearances": 1, "delta": delta}
    cohorts = [
        users.meet(range(number * m, (number + 1) * m), network, theta) for number in range(20)
    ]
    best = [
        max(gain(network, theta, met, choice, each) for each in choice.directions(theta, number))
        for number, met in enumerate(cohorts)
    ]
    print(f"the best of the class: {fmean(best):.2f} of the gain of least squares")
    for epsilon, (name, (update, kind)) in product((0.1, 1.0, 10.0), oracles.items()):
        gains = []
        for number, met in enumerate(cohorts):
            if kind is Cohort:
                z = solve_noise_multiplier(epsilon, delta, 1.0, update.releases)
                plan = online_plan(**sizes, noise_multiplier=z, releases=update.releases)
                mechanism = Cohort(plan, update.releases)
                cost = spent(plan.event, delta).epsilon_pld
            else:
                mechanism, cost = kind(m, epsilon), epsilon
            moved = (
                update.apply(network, {PARAMETERS: theta}, met, mechanism, number)[PARAMETERS]
                - theta
            )
            gains.append(gain(network, theta, met, update, moved))
        found = MeanInterval.of(np.array(gains))
        print(f"ε {cost:.3g} {name:27} {found.mean:.2f} ± {found.high - found.mean:.2f}")


if __name__ == "__main__":
    main()
