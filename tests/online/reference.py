"""The slow, obvious update: one user after the other, with autograd. It judges the fast one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from primorl.online.learning import PARAMETERS, Cohort, Trajectories, Update, Values
from primorl.online.network import PolicyNetwork
from primorl.online.updates import DPPG
from research.paper_mode import AdamDPPG
from research.regression import NaturalGradientByDescent, PolicyGradient, Rebel


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
            step = mean(lambda user: user.scores(theta).T @ user.advantages)
            return {PARAMETERS: theta + update.learning_rate * step}
        if isinstance(update, Rebel):
            for user in users:
                user.before = user.logs(theta)
            for _ in range(update.steps):
                step = mean(partial(_User.paired, theta=theta, temperature=update.temperature))
                theta = theta + update.step_size * step
            return {PARAMETERS: theta}
        direction = torch.zeros_like(theta)
        for _ in range(update.steps):
            step = mean(partial(_User.regressed, theta=theta, direction=direction))
            direction = direction + update.step_size * step
            direction = direction * min(1.0, update.ball / float(direction.norm()))
        return {PARAMETERS: theta + update.learning_rate * direction}


class _User:
    """One user's n steps, without padding."""

    def __init__(self, network: PolicyNetwork, met: Trajectories, user: int) -> None:
        own = met.valid[user]
        self.network, self.valid, self.count, self.of_all = network, own, int(own.sum()), met.steps
        names = "observations", "actions", "next_observations", "rewards", "ends", "terminated"
        parts = (getattr(met, name)[user][own] for name in names)
        self.observations, self.actions, self.next_observations, self.rewards, *rest = parts
        self.ends, self.terminated = rest
        self.advantages = self.before = torch.zeros(self.count)

    def logs(self, theta: Tensor) -> Tensor:
        """log π_θ of the actions, ``[n]``."""
        network, at, layers = self.network, 0, [part[0] for part in self.network.fixed]
        for learned in network.layers[len(layers) :]:
            layers.append(theta[at : at + learned.numel()].view(learned.shape[1:]))
            at += learned.numel()
        signal = (self.observations - network.observation_mean) / network.observation_scale
        for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
            signal = (signal @ weight.T + bias).relu()
        outputs = signal @ layers[-2].T + layers[-1]
        if network.discrete_actions:
            return outputs.log_softmax(-1).gather(-1, self.actions.unsqueeze(-1)).squeeze(-1)
        normal = torch.distributions.Normal(outputs, theta[at:].exp())
        return normal.log_prob(self.actions).sum(-1)

    def scores(self, theta: Tensor) -> Tensor:
        """ψ = ∂ log π / ∂θ of each step, ``[n, d]``."""
        nothing = torch.zeros(0, len(theta))
        found: Tensor = jacobian(self.logs, theta, vectorize=True) if self.count else nothing
        return found

    def regressed(self, theta: Tensor, direction: Tensor) -> Tensor:
        """Σ_t (Â_t - wᵀψ_t) ψ_t / n."""
        scores = self.scores(theta)
        return scores.T @ (self.advantages - scores @ direction) / max(1, self.count)

    def paired(self, theta: Tensor, temperature: float) -> Tensor:
        """Σ_t (e_t - ē) ψ_t / n, where e = Â - log(π_θ/π_before)/η."""
        errors = self.advantages - (self.logs(theta) - self.before) / temperature
        count = max(1, self.count)
        return self.scores(theta).T @ (errors - errors.sum() / count) / count

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
        returns, count = self.returns(discount), max(1, self.count)
        here = self._features(self.observations, 0)
        there = self._features(self.next_observations, 1)
        penalty, mean = 1e-3 * torch.eye(here.shape[1]).double(), returns.sum() / count
        moments = here.T @ here / count + penalty
        weights = torch.linalg.solve(moments, here.T @ (returns - mean) / count)
        before, after = mean + here @ weights, (mean + there @ weights) * ~self.terminated
        errors = self.rewards + discount * after - before
        found, following = torch.zeros_like(errors), 0.0
        for step in reversed(range(self.count)):
            following = 0.0 if self.ends[step] else discount * decay * following
            found[step] = following = errors[step] + following
        return found

    def _features(self, observations: Tensor, late: int) -> Tensor:
        scaled = (observations - self.network.observation_mean) / self.network.observation_scale
        time = (torch.nonzero(self.valid) + late).double() / self.of_all
        parts = scaled.double(), scaled.double().square(), time, torch.ones_like(time)
        return torch.cat(parts, 1)

    def local_update(self, update: DPPG, start: Tensor, schedule: list[Tensor]) -> Tensor:
        advantages = normalised(self.generalised_advantages(update.discount, update.decay))
        place, old = self.valid.cumsum(0) - 1, self.logs(start)
        own = start.clone().requires_grad_()
        kind = torch.optim.Adam if isinstance(update, AdamDPPG) else torch.optim.SGD
        optimiser = kind([own], update.local_learning_rate, maximize=True)
        for steps in schedule:
            rows = place[steps[self.valid[steps]]]
            if not len(rows):
                continue
            optimiser.zero_grad()
            ratios = (self.logs(own) - old)[rows].exp()
            (ratios * advantages[rows]).mean().backward()
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
