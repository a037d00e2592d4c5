"""The slow, obvious update: one user after the other, with autograd. It judges the fast one."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from primorl.online.learning import PARAMETERS, Cohort, Trajectories, Update, Values
from primorl.online.network import PolicyNetwork
from primorl.online.updates import DPPG
from research.paper_mode import AdamDPPG
from research.regression import NaturalGradientByDescent, PolicyGradient, Rebel


class Policy:
    """The policy at parameters that are a leaf of autograd."""

    def __init__(self, network: PolicyNetwork, parameters: Tensor) -> None:
        self.network, self.leaf = network, parameters.detach().clone().requires_grad_()

    def logs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities of actions: ``[t, S]`` and ``[t(, A)]`` to ``[t]``."""
        network, at, layers = self.network, 0, [part[0] for part in self.network.fixed]
        for size, width in pairwise(network.sizes):
            for shape in ((width, size), (1, width)):
                layers.append(self.leaf[at : at + math.prod(shape)].view(shape))
                at += math.prod(shape)
        signal = (observations - network.observation_mean) / network.observation_scale
        for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
            signal = (signal @ weight.T + bias).relu()
        outputs = signal @ layers[-2].T + layers[-1]
        if network.discrete_actions:
            return outputs.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return torch.distributions.Normal(outputs, self.leaf[at:].exp()).log_prob(actions).sum(-1)

    def gradient(self, total: Tensor, *, create_graph: bool = False) -> Tensor:
        """Gradient of a number by the parameters, ``[d]``."""
        return torch.autograd.grad(total, self.leaf, create_graph=create_graph)[0]


@dataclass(frozen=True)
class Looped:
    """An update that computes every user's vector by itself.

    Attributes:
        update: of which it makes the steps.
    """

    name: ClassVar[str] = "loop"

    update: Update

    @property
    def releases(self) -> int:
        """See `Update.releases`."""
        return self.update.releases

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """See `Update.apply`."""
        theta, update = values[PARAMETERS], self.update
        assert isinstance(update, DPPG | PolicyGradient | NaturalGradientByDescent | Rebel)
        users = [_User(network, met, user) for user in range(met.users)]

        def mean(vector: Callable[[_User], Tensor]) -> Tensor:
            return cohort.noisy_mean(
                (vector(user).unsqueeze(0) for user in users), update.clipping_norm
            )

        if isinstance(update, DPPG):
            schedule = update.schedule(met.steps, number)
            step = mean(lambda user: user.local_update(update, theta, schedule))
            return {PARAMETERS: theta + update.learning_rate * step}
        for user in users:
            user.advantages = normalised(user.returns(update.discount))
        if isinstance(update, PolicyGradient):
            step = mean(lambda user: user.policy_gradient(theta))
            return {PARAMETERS: theta + update.learning_rate * step}
        if isinstance(update, Rebel):
            point = theta
            for _ in range(update.steps):
                step = mean(
                    partial(_User.regression_on_pairs, update=update, start=theta, theta=point)
                )
                point = point + update.step_size * step
            return {PARAMETERS: point}
        direction = torch.zeros_like(theta)
        for _ in range(update.steps):
            step = mean(partial(_User.regression_on_scores, theta=theta, direction=direction))
            direction = direction + update.step_size * step
            direction = direction * min(1.0, update.ball / float(direction.norm()))
        return {PARAMETERS: theta + update.learning_rate * direction}


class _User:
    """One user's steps, without padding."""

    def __init__(self, network: PolicyNetwork, met: Trajectories, user: int) -> None:
        own = met.valid[user]
        self.network, self.valid, self.count, self.of_all = network, own, int(own.sum()), met.steps
        names = "observations", "actions", "next_observations", "rewards", "ends", "terminated"
        parts = (getattr(met, name)[user][own] for name in names)
        self.observations, self.actions, self.next_observations, self.rewards, *rest = parts
        self.ends, self.terminated = rest
        self.advantages = self.old = torch.zeros(self.count)

    def returns(self, discount: float) -> Tensor:
        """Discounted sums of rewards to the end of every episode; where it was cut off, her mean
        reward goes on.
        """
        beyond = self.rewards.double().sum() / max(1, self.count) / (1 - discount)
        found, following = torch.zeros(self.count, dtype=torch.float64), 0.0
        for step in reversed(range(self.count)):
            if self.ends[step]:
                following = 0.0 if self.terminated[step] else beyond
            found[step] = following = self.rewards[step].double() + discount * following
        return found

    def generalised_advantages(self, discount: float, decay: float) -> Tensor:
        """GAE over a ridge regression on her own returns."""
        returns = self.returns(discount)
        here, there = (
            self._features(seen, late)
            for seen, late in ((self.observations, 0), (self.next_observations, 1))
        )
        penalty = 1e-3 * torch.eye(here.shape[1], dtype=torch.float64)
        count, mean = max(1, self.count), returns.sum() / max(1, self.count)
        weights = torch.linalg.solve(
            here.T @ here / count + penalty, here.T @ (returns - mean) / count
        )
        before, after = mean + here @ weights, (mean + there @ weights) * ~self.terminated
        errors, found, following = self.rewards + discount * after - before, [], 0.0
        for error, end in zip(errors.flip(0), self.ends.flip(0), strict=True):
            following = error + (0.0 if end else discount * decay * following)
            found.append(following)
        return torch.stack(found[::-1]) if found else torch.zeros(0, dtype=torch.float64)

    def _features(self, observations: Tensor, late: int) -> Tensor:
        scaled = (
            (observations - self.network.observation_mean) / self.network.observation_scale
        ).double()
        time = (torch.nonzero(self.valid) + late).double() / self.of_all
        return torch.cat([scaled, scaled.square(), time, torch.ones_like(time)], 1)

    def policy_gradient(self, theta: Tensor) -> Tensor:
        policy = Policy(self.network, theta)
        return policy.gradient(
            (policy.logs(self.observations, self.actions) * self.advantages).sum()
        )

    def regression_on_scores(self, theta: Tensor, direction: Tensor) -> Tensor:
        """Σ_t (Â_t - wᵀψ_t) ψ_t / n.

        The gradient is linear in weights of the steps: its derivative by them is wᵀψ.
        """
        policy, weights = Policy(self.network, theta), torch.ones(self.count, requires_grad=True)
        logs = policy.logs(self.observations, self.actions)
        (products,) = torch.autograd.grad(
            policy.gradient((logs * weights).sum(), create_graph=True) @ direction, weights
        )
        logs = policy.logs(self.observations, self.actions)
        return policy.gradient((logs * (self.advantages - products)).sum() / max(1, self.count))

    def regression_on_pairs(self, update: Rebel, start: Tensor, theta: Tensor) -> Tensor:
        policy = Policy(self.network, theta)
        logs = policy.logs(self.observations, self.actions)
        if theta is start:
            self.old = logs.detach()
        errors = self.advantages - (logs.detach() - self.old) / update.temperature
        return policy.gradient(
            (logs * (errors - errors.sum() / max(1, self.count))).sum() / max(1, self.count)
        )

    def local_update(self, update: DPPG, start: Tensor, schedule: list[Tensor]) -> Tensor:
        advantages = normalised(self.generalised_advantages(update.discount, update.decay))
        place = self.valid.cumsum(0) - 1
        with torch.no_grad():
            old = Policy(self.network, start).logs(self.observations, self.actions)
        own = start.clone().requires_grad_()
        kind = torch.optim.Adam if isinstance(update, AdamDPPG) else torch.optim.SGD
        optimiser = kind([own], update.local_learning_rate, maximize=True)
        for steps in schedule:
            rows = place[steps[self.valid[steps]]]
            if not len(rows):
                continue
            policy = Policy(self.network, own.detach())
            logs = policy.logs(self.observations[rows], self.actions[rows])
            own.grad = policy.gradient(((logs - old[rows]).exp() * advantages[rows]).mean())
            optimiser.step()
            with torch.no_grad():
                delta = own - start
                bound = update.clipping_norm / max(float(delta.norm()), 1e-30)
                own.copy_(start + delta * min(1.0, bound))
        return (own - start).detach()


def normalised(values: Tensor) -> Tensor:
    """Standardise, float32; zeros where all are equal."""
    deviation = values.std(correction=0) if len(values) else torch.zeros(())
    if deviation <= 1e-6:
        return torch.zeros(len(values))
    return ((values - values.mean()) / deviation).float()
