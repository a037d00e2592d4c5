"""DP-NPG's other two oracles: noisy sufficient statistics, and the exponential mechanism over a class of directions.

python -m research.natural_gradient

Prints, for a cohort of CartPole users and a log-linear policy, by how much the step of each oracle lowers the loss of
the regression, as a share of what the least squares solution does; and that of the oracle by descent, which the
pipeline has (`primorl.online.updates.NaturalGradientByDescent`).
"""

import math
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from primorl.online.learning import PARAMETERS, Cohort, Trajectories, Values, online_plan
from primorl.online.network import PolicyNetwork
from primorl.online.updates import NaturalGradientByDescent, ReturnBasedUpdate, own_weights, within
from primorl.paid.online import SimulatedUsers
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.mechanism.selection import Selection
from primorl.simulators.batches import batch


@dataclass(frozen=True)
class NaturalGradientByStatistics(ReturnBasedUpdate):
    """DP-NPG (private policy optimisation, Algorithm 3) by noisy sufficient statistics, for few parameters.

    w ≈ argmin_w E[(Â - wᵀψ)²], ψ = ∇ log π(a | s), and θ ← θ + η w. A user's vector is the upper triangle of the mean
    of ψψᵀ over her steps and the mean of ψÂ, d (d + 3) / 2 numbers, clipped to S together. Of the noisy means F and g,
    w = F⁻¹ g, where eigenvalues of F below the ridge are raised to it. The ridge is 2σ√d, the norm of a symmetric
    matrix of noise of standard deviation σ = zS / m, and at least ``ridge``: so the noise decides on no direction.

    Sheffet 2019 ("Old techniques in differentially private linear regression") is the paper's reference for such an
    oracle. His ridge depends on β as well; this one is the expected norm.

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

    def updated(self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int) -> Values:
        """See `Update.updated`."""
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
        return {PARAMETERS: values[PARAMETERS] + within(self.learning_rate * direction, self.largest_step)}

    def statistics(self, network: PolicyNetwork, parameters: Tensor, met: Trajectories) -> Tensor:
        """Every user's vector, ``[U, d (d + 3) / 2]``. Sensitive."""
        weights = own_weights(met.valid).unsqueeze(-1)
        scores = step_scores(network, parameters, met)
        squares = scores.mT @ (scores * weights)
        row, column = _upper(network.parameters, squares.device)
        products = scores.mT @ (self.advantages(met).unsqueeze(-1) * weights)
        return torch.cat([squares[:, row, column], products.squeeze(-1)], 1)


@dataclass(frozen=True, kw_only=True)
class ChoiceCohort(Selection):
    """One cohort's mechanism of choices: of each user pure ε / ``choices`` in a run of pure ε.

    Formal guarantee: a user is in at most ``choices`` choices; the choices of other cohorts are post-processing with
    respect to her. By basic composition the run is ε-differentially private for her, which is what `event` says of
    ``epsilon``. A user who is not there scores 0.

    Attributes:
        cohort: m, the most users who score in one choice; public.
        choices: that one user takes part in: those of an update times the cohorts that she is in.
    """

    cohort: int
    choices: int = 1

    @property
    def one_choice(self) -> Selection:
        """Mechanism of one choice."""
        return Selection(self.cohort, self.unit, self.candidates, self.epsilon / self.choices, self.delta, self.entropy)

    def chosen(self, scores: Tensor) -> int:
        """Choose the candidate whose sum of scores, one row ``[k]`` for each user, is about the largest. Sensitive."""
        if len(scores) > self.cohort:
            raise ValueError(f"{len(scores)} users in a cohort of {self.cohort}")
        return self.one_choice.choose(self.one_choice.scores.total(scores.detach().cpu()))


@dataclass(frozen=True)
class NaturalGradientByChoice(ReturnBasedUpdate):
    """DP-NPG (private policy optimisation, Algorithm 4): the exponential mechanism over a finite class of directions.

    The class is w = 0 and k - 1 directions of norm B, drawn anew for every cohort from a public seed. A user scores
    w with 1 - loss / L, loss being the mean of (Â - wᵀψ)² over her steps, held within [0, L]; the cohort's choice is
    `ChoiceCohort.chosen`, of pure ε, and θ ← θ + η w.

    The mechanism is permute-and-flip, which is never worse than the paper's, and the bound L of the loss is held to
    instead of assumed.

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

    def updated(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: ChoiceCohort, number: int
    ) -> dict[str, Tensor]:
        """See `Update.updated`."""
        directions = self.directions(values[PARAMETERS], number)
        chosen = cohort.chosen(self.scores(network, values[PARAMETERS], met, directions))
        return {PARAMETERS: values[PARAMETERS] + self.learning_rate * directions[chosen]}

    def directions(self, parameters: Tensor, number: int) -> Tensor:
        """The class, ``[k, d]``: public."""
        drawn: Tensor = torch.randn(self.candidates, len(parameters), generator=torch.Generator().manual_seed(number))
        drawn *= self.ball / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        drawn[0] = 0.0
        return drawn.to(parameters.device)

    def scores(self, network: PolicyNetwork, parameters: Tensor, met: Trajectories, directions: Tensor) -> Tensor:
        """What every user adds to the scores, ``[U, k]``; zero for one without steps. Sensitive."""
        errors = self.advantages(met).unsqueeze(-1) - step_scores(network, parameters, met) @ directions.mT
        losses = (errors.square() * own_weights(met.valid).unsqueeze(-1)).sum(1)
        found: Tensor = torch.where(met.valid.any(1, keepdim=True), 1 - losses / self.largest_loss, 0.0)
        return found


def step_scores(network: PolicyNetwork, parameters: Tensor, met: Trajectories) -> Tensor:
    """Compute ψ_t = ∇ log π(a_t | s_t) of every step, ``[U, T, d]``; 0 at padding. Sensitive."""
    own = parameters.expand(met.users * met.steps, -1).contiguous().requires_grad_()
    logs = network.log_probabilities(
        own, met.observations.flatten(0, 1).unsqueeze(1), met.actions.flatten(0, 1).unsqueeze(1)
    )
    (scores,) = torch.autograd.grad(logs.sum(), own)
    held: Tensor = torch.where(met.valid.unsqueeze(-1), scores.view(met.users, met.steps, -1), 0.0)
    return held


def _upper(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the upper triangle of a square matrix."""
    both = torch.triu_indices(size, size, device=device)
    return both[0], both[1]


def gain(
    network: PolicyNetwork, theta: Tensor, met: Trajectories, update: ReturnBasedUpdate, direction: Tensor
) -> float:
    """Measure how much less loss a direction leaves than none does, as a share of what least squares takes away."""
    weights = own_weights(met.valid).sqrt().flatten().double().unsqueeze(1)
    rows = step_scores(network, theta, met).flatten(0, 1).double() * weights
    targets = update.advantages(met).flatten().double() * weights[:, 0]
    best = torch.linalg.pinv(rows, rtol=1e-4) @ targets
    none, least, own = (float((targets - rows @ each).square().sum()) for each in (0 * best, best, direction.double()))
    return (none - own) / (none - least)


def main() -> None:
    """Draw directions of all oracles at ε 1 and 10, for twenty cohorts of 500 users, and print their mean gains."""
    cartpole, m, delta = batch("CartPole-v1"), 500, 1e-5
    low, high = torch.from_numpy(cartpole.action_low), torch.from_numpy(cartpole.action_high)
    network = PolicyNetwork((), torch.zeros(4), torch.tensor([2.4, 2.0, 0.2, 2.0]), low, high, discrete_actions=True)
    theta, users = network.initial(0), SimulatedUsers(cartpole, 200, 1, 0)
    oracles = (
        NaturalGradientByStatistics(1.0, 1.0, 1e-3, 10.0),
        NaturalGradientByDescent(learning_rate=1.0, clipping_norm=0.1, steps=2, step_size=0.5, ball=0.5),
        NaturalGradientByChoice(1.0, 64, 0.5, 2.0),
    )
    for epsilon in (1.0, 10.0):
        for update in oracles:
            gains = []
            for number in range(20):
                met = users.meet(range(number * m, (number + 1) * m), network, theta)
                if isinstance(update, NaturalGradientByChoice):
                    cohort = ChoiceCohort(m, "user", update.candidates, epsilon, delta, cohort=m)
                else:
                    z, releases = solve_noise_multiplier(epsilon, delta, 1.0, update.releases), update.releases
                    plan = online_plan(
                        users=m, cohort=m, noise_multiplier=z, releases=releases, appearances=1, delta=delta
                    )
                    cohort = Cohort(plan, releases)
                moved = update.updated(network, {PARAMETERS: theta}, met, cohort, number)[PARAMETERS] - theta
                gains.append(gain(network, theta, met, update, moved))
            print(f"ε {epsilon:g} {update.name:18} {fmean(gains):.2f} of the gain of least squares")


if __name__ == "__main__":
    main()
