"""The papers' mode of online learning, which guarantees nothing, and what its critic reveals.

python -m research.paper_mode

The papers carry a critic from user to user without noise (DPPG), and normalise advantages over all
users of a cohort. Either lets something of a user past the noise, so the pipeline has neither.

The attack: a canary is among the users of the first of two cohorts of DPPG, or an empty user is in
her place. Her rewards are far from the others'. The adversary knows all trajectories and sees both
releases. Where updates are strict, the second release says nothing about the canary. In the papers'
mode she moves the critic, which moves what all users of the second cohort contribute: the release
is a Gaussian mechanism on a distance of several S.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import RESULTS_PAGE, put
from primorl.online.learning import (
    PARAMETERS,
    Cohort,
    SimulatedUsers,
    Trajectories,
    Values,
    online_mechanism,
)
from primorl.online.network import PolicyNetwork, StepGradients
from primorl.online.updates import DPPG, generalised_advantages, normalise, returns_to_go, within
from primorl.privacy.accounting.epsilon import gaussian_epsilon
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.simulators.environments import Floats
from research.classic_control import batch
from research.networks import random_network
from research.rows import Row, complete_rows

_CRITIC, _FIRST, _SECOND, _STEPS = (
    "critic",
    "critic_first_moment",
    "critic_second_moment",
    "critic_steps",
)
_FIRST_DECAY, _SECOND_DECAY, _LEAST = 0.9, 0.999, 1e-8  # of Adam
_LATE = 10_000  # gradients after which Adam corrects its moments no more


def over_cohort(values: Tensor, valid: Tensor) -> Tensor:
    """Normalise over the steps of all users together, ``[U, T]``, which couples the users."""
    return normalise(values.view(1, -1), valid.view(1, -1)).view_as(values)


class CoupledAdvantages:
    """Mixin of updates whose Â is a normalised return."""

    discount: float

    def advantages(self, met: Trajectories) -> Tensor:
        """Compute Â, ``[U, T]``, normalised over the cohort. Sensitive."""
        return over_cohort(returns_to_go(met, self.discount), met.valid)


@dataclass
class Adam:
    """Moments of gradients for many vectors at once (Kingma and Ba 2015, Algorithm 1).

    Attributes:
        first: ``[.., n]``.
        second: ``[.., n]``.
        steps: gradients so far.
    """

    first: Tensor
    second: Tensor
    steps: int = 0

    def direction(self, gradient: Tensor) -> Tensor:
        """Update the moments and return the uphill step of length 1."""
        self.first = _FIRST_DECAY * self.first + (1 - _FIRST_DECAY) * gradient
        self.second = _SECOND_DECAY * self.second + (1 - _SECOND_DECAY) * gradient.square()
        self.steps += 1
        first = self.first / (1 - _FIRST_DECAY**self.steps)
        second = self.second / (1 - _SECOND_DECAY**self.steps)
        return first / (second.sqrt() + _LEAST)


class AdamDPPG(DPPG):
    """DPPG with the local steps of the paper's experiments: Adam's, from moments of zero for every
    user.
    """

    def rule(self, parameters: Tensor) -> Callable[[Tensor], Tensor]:
        """See `DPPG.rule`."""
        return Adam(torch.zeros_like(parameters), torch.zeros_like(parameters)).direction


@dataclass(frozen=True, kw_only=True)
class AnnealedDPPG(AdamDPPG):
    """The same with a learning rate that falls to zero along a line, as in CleanRL.

    Attributes:
        cohorts: of the run.
    """

    cohorts: int

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """See `primorl.online.learning.Update.apply`."""
        moved = super().apply(network, values, met, cohort, number)[PARAMETERS] - values[PARAMETERS]
        return {PARAMETERS: values[PARAMETERS] + (1 - number / self.cohorts) * moved}


@dataclass(frozen=True, kw_only=True)
class ReleasedMoments(AdamDPPG):
    """The same, whose moments begin with the last release and its square (DPPG, C.2.3), which cost
    nothing. The first cohort begins at zero.

    Attributes:
        last: the release before, ``[d]``; None: there is none.
    """

    last: Tensor | None = field(default=None, repr=False)

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """See `primorl.online.learning.Update.apply`."""
        begun = replace(self, last=values.get(_FIRST))
        after = super(ReleasedMoments, begun).apply(network, values, met, cohort, number)
        moved = after[PARAMETERS] - values[PARAMETERS]
        return {**after, _FIRST: moved / self.learning_rate}

    def rule(self, parameters: Tensor) -> Callable[[Tensor], Tensor]:
        """See `DPPG.rule`."""
        if self.last is None:
            return super().rule(parameters)
        first = self.last.expand_as(parameters)
        return Adam(first, first.square(), _LATE).direction


@dataclass(frozen=True, kw_only=True)
class CarriedCritic(AdamDPPG):
    """DPPG with a critic that is carried from user to user without clip and noise, and coupled
    advantages.

    Attributes:
        entropy_coefficient: of the entropy of the policy, which is added to what the local steps
            climb.
    """

    entropy_coefficient: float = 0.0

    def gradients(
        self, steps: StepGradients, old: Tensor, advantages: Tensor, weights: Tensor
    ) -> Tensor:
        """See `DPPG.gradients`; with the entropy H, whose derivative by an output is -π (log π +
        H).
        """
        if not self.entropy_coefficient or not steps.network.discrete_actions:
            return super().gradients(steps, old, advantages, weights)
        # the error is 1 - π where the action was taken, -π elsewhere
        chances = (steps.error > 0).float() - steps.error
        logs = chances.clamp(min=1e-30).log()
        entropy = -(chances * logs).sum(1, keepdim=True)
        gains = (steps.logs - old).exp() * advantages
        error = steps.error * gains.unsqueeze(1)
        error -= self.entropy_coefficient * chances * (logs + entropy)
        return replace(steps, error=error).sums(weights)

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """See `primorl.online.learning.Update.apply`; the first cohort begins a new critic."""
        critic = critic_of(network).initial(1.0)
        zeros, steps = torch.zeros_like(critic), torch.zeros((), dtype=torch.int64)
        values = {_CRITIC: critic, _FIRST: zeros, _SECOND: zeros, _STEPS: steps, **values}
        before, raw = self._raw(network, values, met)
        fitted = self._fit(network, values, met, raw + before, self.schedule(met.steps, number))
        return {**super().apply(network, values, met, cohort, number), **fitted}

    def advantages(self, network: PolicyNetwork, values: Values, met: Trajectories) -> Tensor:
        """See `DPPG.advantages`."""
        return over_cohort(self._raw(network, values, met)[1], met.valid)

    def _raw(
        self, network: PolicyNetwork, values: Values, met: Trajectories
    ) -> tuple[Tensor, Tensor]:
        """V of the observations, and Â before it is normalised."""
        before, after = (
            self._estimates(network, values, seen)
            for seen in (met.observations, met.next_observations)
        )
        return before, generalised_advantages(met, before, after, self.discount, self.decay)

    def _estimates(self, network: PolicyNetwork, values: Values, observations: Tensor) -> Tensor:
        """V of observations: ``[U, T, S]`` to ``[U, T]``."""
        flat = observations.flatten(0, 1).unsqueeze(0)
        return (
            critic_of(network)
            .outputs(values[_CRITIC].unsqueeze(0), flat)
            .view(observations.shape[:2])
        )

    def _fit(
        self,
        network: PolicyNetwork,
        values: Values,
        met: Trajectories,
        targets: Tensor,
        schedule: list[Tensor],
    ) -> dict[str, Tensor]:
        """V after steps of Adam on the squared error of all users' steps. Sensitive."""
        shape, parameters = critic_of(network), values[_CRITIC].unsqueeze(0)
        adam = Adam(values[_FIRST].unsqueeze(0), values[_SECOND].unsqueeze(0), int(values[_STEPS]))
        for steps in schedule:
            leaf = parameters.detach().requires_grad_()
            outputs = shape.outputs(
                leaf, met.observations[:, steps].flatten(0, 1).unsqueeze(0)
            ).flatten()
            valid = met.valid[:, steps].flatten()
            errors = torch.where(valid, outputs - targets[:, steps].float().flatten(), 0.0)
            (gradient,) = torch.autograd.grad(
                -errors.square().sum() / valid.sum().clamp(min=1), leaf
            )
            parameters = parameters + self.local_learning_rate * adam.direction(gradient)
        moments = {_FIRST: adam.first[0], _SECOND: adam.second[0], _STEPS: torch.tensor(adam.steps)}
        return {_CRITIC: parameters.detach()[0], **moments}


class CarriedUsers(SimulatedUsers):
    """Users who go on in the environments of the cohort before, at the states in which its users
    left them.

    So CleanRL, which the paper builds on, collects steps. It voids the guarantee: a user's actions
    decide on the states that a later user begins with, without any noise.
    """

    _begun = False

    def first_observations(self, count: int, seed: int) -> Floats:
        """See `SimulatedUsers.first_observations`."""
        if not self._begun:
            self._begun = True
            return self.batch.reset(count, seed)
        return self.batch.restart(np.zeros(count, bool))


def critic_of(network: PolicyNetwork) -> PolicyNetwork:
    """Make V of the policy's sizes, with one output and random weights."""
    one = network.action_low.new_zeros(1)
    hidden = [len(weight[0]) for weight in network.layers[:-2:2]]
    mean, scale = network.observation_mean, network.observation_scale
    return random_network(hidden, mean, scale, one, one + 1, True).to(network.device)


def loose(update: Any) -> Any:
    """Put an update of `primorl.online` into the papers' mode."""
    if isinstance(update, AdamDPPG):
        return CarriedCritic(**vars(update))
    return type(f"Paper{type(update).__name__}", (CoupledAdvantages, type(update)), {})(
        **vars(update)
    )


USERS, STEPS, DELTA, Z, TRIALS = 8, 64, 1e-5, 3.73, 20
REWARD = -1000.0  # of the canary's steps, the others' are 1


class Noiseless(Cohort):
    """Cohort that clips and adds no noise; keeps what it returns."""

    def __init__(self, mechanism: Mechanism):
        super().__init__(mechanism)
        self.mean = torch.empty(0)

    def noisy_mean(self, contributions: Iterable[Tensor], clipping_norm: float) -> Tensor:
        """See `Cohort.noisy_mean`."""
        rows = torch.cat(list(contributions))
        self.mean = within(rows, clipping_norm).sum(0) / self.users
        return self.mean


def measure(update: DPPG, trials: int) -> float:
    """Run both cohorts many times; return by how far the canary in the first moves the sum of the
    second, in units of S: the median.
    """
    cartpole = batch("CartPole-v1")
    low, high = torch.from_numpy(cartpole.action_low), torch.from_numpy(cartpole.action_high)
    scale = torch.tensor([2.4, 2.0, 0.2, 2.0])
    network = random_network((16,), torch.zeros(4), scale, low, high, cartpole.discrete_actions)
    parameters, users = network.initial(1.0), SimulatedUsers(cartpole, STEPS, None, 0)
    first, second = (users.meet(range(at, at + USERS), network, parameters) for at in (0, USERS))
    first.rewards[0] *= REWARD
    empty = Trajectories(**{name: value.clone() for name, value in vars(first).items()})
    for value in vars(empty).values():
        value[0] = 0
    mechanism = online_mechanism(
        users=2000, cohort=USERS, noise_multiplier=Z, releases=1, delta=DELTA
    )
    cohort, begun = Noiseless(mechanism), {PARAMETERS: parameters}
    # the critic after the first cohort does not depend on what is released
    afters = [update.apply(network, begun, data, cohort, 0) for data in (empty, first)]
    moved = []
    for _ in range(trials):
        noise = torch.randn_like(cohort.mean) * Z * update.clipping_norm / USERS
        released = parameters + update.learning_rate * (cohort.mean + noise)
        seconds = []
        for after in afters:
            update.apply(network, {**after, PARAMETERS: released}, second, cohort, 1)
            seconds.append(cohort.mean.double())
        moved.append(float((seconds[1] - seconds[0]).norm()) * USERS / update.clipping_norm)
    return float(np.median(moved))


def make_row(key: Row) -> Row:
    """Attack one mode."""
    strict = AdamDPPG(clipping_norm=0.5, local_learning_rate=0.02, epochs=16, minibatches=4)
    return {"distance": measure(strict if key["mode"] == "strict" else loose(strict), TRIALS)}


def table(rows: Sequence[Row]) -> str:
    """Write how far the canary moves the second sum, and the ε of a release at that distance."""
    lines = ["| mode | stated ε | distance in units of S | ε of the second release |"]
    lines.append("|---" * 4 + "|")
    stated = at_most(gaussian_epsilon(1 / Z, DELTA), 3)
    for row in rows:
        far = row["distance"]
        found = at_most(gaussian_epsilon(far / Z, DELTA), 3) if far else "0"
        lines.append(f"| {row['mode']} | {stated} | {far:.3g} | {found} |")
    return "\n".join(lines)


def main() -> None:
    """Attack both modes and write the table of benchmarks/results.md."""
    keys = [{"mode": mode, "trials": TRIALS} for mode in ("strict", "paper")]
    put(RESULTS_PAGE, "critic", table(complete_rows("paper_mode", keys, make_row)))


if __name__ == "__main__":
    main()
