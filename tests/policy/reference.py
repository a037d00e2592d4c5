"""SAC written the slow, obvious way: one module a network, ``torch.distributions``,
``torch.optim``, loops.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    Normal,
    TransformedDistribution,
)
from torch.distributions.transforms import TanhTransform

from primorl.policy import sac as fast
from primorl.policy.config import SacConfig
from primorl.policy.replay import ReplayColumns
from primorl.policy.sac import ActorCritic

Prior = Callable[[Tensor], Distribution] | None


def gradient_layers(networks: fast.Networks) -> tuple[Tensor, ...]:
    """The gradient, laid out as ``layers``."""
    return (networks._gradients[0].mT, *networks._gradients[1:])


def module(layers: tuple[Tensor, ...], network: int = 0) -> nn.Sequential:
    """The given one of the networks that ``layers`` describe, as a module of its own."""
    parts: list[nn.Module] = []
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        w, b = weight[network], bias[network]
        linear = nn.Linear(w.shape[1], w.shape[0])
        with torch.no_grad():
            linear.weight.copy_(w)
            linear.bias.copy_(b[0])
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def distribution(actor: nn.Module, observation: Tensor) -> TransformedDistribution:
    mean, log_std = actor(observation).chunk(2, dim=-1)
    normal = Independent(Normal(mean, log_std.clamp(-20, 2).exp()), 1)
    return TransformedDistribution(normal, [TanhTransform(cache_size=1)])


def sampled(actor: nn.Module, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    policy = distribution(actor, observation)
    x = policy.base_dist.base_dist.loc + policy.base_dist.base_dist.scale * noise
    action = policy.transforms[0](x)
    return action, policy.log_prob(action)


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


class Networks:
    """Starts from the fast one's weights of one seed (by its place); the order of the steps, the
    targets and α.

    With a ``prior``, from standardised observations to a distribution, and κ, KL(π‖prior) is held
    at κ.
    """

    def __init__(
        self,
        sac: ActorCritic,
        config: SacConfig,
        columns: ReplayColumns,
        seed: int,
        prior: Prior,
        kappa: float,
    ) -> None:
        self.config, self.columns, self.seed = config, columns, seed
        self.prior, self.kappa = prior, kappa
        self.actor = module(sac.actor.layers, seed)
        self.critics = [module(sac.critic.layers, 2 * seed + i) for i in range(2)]
        self.targets = [module(sac.target.layers, 2 * seed + i) for i in range(2)]
        self.critic_gradients: list[Tensor] = []
        self.log_alpha = sac.log_alpha[seed : seed + 1].clone().requires_grad_()
        rate = config.learning_rate
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), rate)
        self.critic_adam = torch.optim.Adam(
            [p for critic in self.critics for p in critic.parameters()], rate
        )
        self.alpha_adam = torch.optim.Adam([self.log_alpha], rate)

    def target_entropy(self) -> float:
        raise NotImplementedError

    def prior_density(self, observation: Tensor, action: Tensor) -> Tensor:
        """log π_b(a|s), or nothing at all."""
        return torch.zeros(()) if self.prior is None else self.prior(observation).log_prob(action)

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """(next_observation, observation, action, reward, continues)."""
        S, A = self.columns.observation_size, self.columns.action_size
        following, observation, action, reward, continues = torch.split(
            rows, [S, S, A, 1, 1], dim=1
        )
        return following, observation, action, reward[:, 0], continues[:, 0]

    def assert_same(self, sac: ActorCritic, **tolerance: float) -> None:
        """Parameters and last gradients of the seed in ``sac`` are these."""
        own, actor = self.seed, [*self.actor.parameters()]
        of_actor = [part[own] for part in (*sac.actor.layers, *gradient_layers(sac.actor))]
        found = [*of_actor, sac.log_alpha[own : own + 1]]
        true = [*actor, *(gradient(parameter) for parameter in actor), self.log_alpha]
        for i in range(2):
            ours = *sac.critic.layers, *sac.target.layers
            found += [part[2 * own + i] for part in ours]
            true += [*self.critics[i].parameters(), *self.targets[i].parameters()]
        found += [part[2 * own + i] for i in range(2) for part in gradient_layers(sac.critic)]
        true += self.critic_gradients
        for one, other in zip(found, true, strict=True):
            torch.testing.assert_close(one.view_as(other), other.detach(), **tolerance)

    def step(
        self, critic_loss: Callable[[], Tensor], actor_loss: Callable[[], tuple[Tensor, Tensor]]
    ) -> None:
        self.critic_adam.zero_grad()
        critic_loss().backward()
        self.critic_gradients = [
            gradient(p) for critic in self.critics for p in critic.parameters()
        ]
        self.critic_adam.step()
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.copy_((1 - self.config.target_rate) * old + self.config.target_rate * new)
        self.actor_adam.zero_grad()
        loss, log_density = actor_loss()
        loss.backward()
        self.actor_adam.step()
        if self.prior is not None:
            with torch.no_grad():
                self.log_alpha -= 3e-3 * (self.kappa - log_density.mean()).clamp(-1, 1)
                self.log_alpha.clamp_(-7, 5)
            return
        self.alpha_adam.zero_grad()
        (-self.log_alpha * (log_density + self.target_entropy())).mean().backward()
        self.alpha_adam.step()


class Reference(Networks):
    """SAC for actions in a box; ``update`` takes the noise that the other draws for itself."""

    def target_entropy(self) -> float:
        return self.config.target_entropy

    def critic_loss(self, rows: Tensor, noise: Tensor) -> Tensor:
        following, observation, action, reward, continues = self.split(rows)
        with torch.no_grad():
            next_action, log_density = sampled(self.actor, following, noise)
            first, second = (
                target(torch.cat((following, next_action), 1))[:, 0] for target in self.targets
            )
            log_density = log_density - self.prior_density(following, next_action)
            value = torch.minimum(first, second) - self.log_alpha.exp() * log_density
            wanted = reward + self.config.discount * continues * value
        inputs = torch.cat((observation, action), 1)
        return sum(
            (nn.functional.mse_loss(critic(inputs)[:, 0], wanted) for critic in self.critics),
            torch.zeros(()),
        )

    def actor_loss(self, rows: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        observation = self.split(rows)[1]
        action, log_density = sampled(self.actor, observation, noise)
        log_density = log_density - self.prior_density(observation, action)
        first, second = (
            critic(torch.cat((observation, action), 1))[:, 0] for critic in self.critics
        )
        alpha = self.log_alpha.exp().detach()
        return (alpha * log_density - torch.minimum(first, second)).mean(), log_density.detach()

    def update(self, rows: Tensor, critic_noise: Tensor, actor_noise: Tensor) -> None:
        self.step(
            lambda: self.critic_loss(rows, critic_noise), lambda: self.actor_loss(rows, actor_noise)
        )


class DiscreteReference(Networks):
    """SAC for discrete actions, with ``torch.distributions.Categorical``."""

    def target_entropy(self) -> float:
        return self.config.discrete_target_entropy * math.log(self.columns.action_size)

    def policy(self, observation: Tensor) -> Categorical:
        return Categorical(logits=self.actor(observation))

    def log_densities(self, observation: Tensor) -> Tensor:
        """log π, or log π/π_b, of every action."""
        logits = self.policy(observation).logits
        return logits if self.prior is None else logits - self.prior(observation).logits

    def critic_loss(self, rows: Tensor) -> Tensor:
        following, observation, action, reward, continues = self.split(rows)
        with torch.no_grad():
            first, second = (target(following) for target in self.targets)
            bonus = self.log_alpha.exp() * self.log_densities(following)
            value = (self.policy(following).probs * (torch.minimum(first, second) - bonus)).sum(1)
            wanted = reward + self.config.discount * continues * value
        chosen = action.argmax(1, keepdim=True)
        losses = (
            nn.functional.mse_loss(critic(observation).gather(1, chosen)[:, 0], wanted)
            for critic in self.critics
        )
        return sum(losses, torch.zeros(()))

    def actor_loss(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        observation = self.split(rows)[1]
        probabilities = self.policy(observation).probs
        log_densities = self.log_densities(observation)
        first, second = (critic(observation).detach() for critic in self.critics)
        alpha = self.log_alpha.exp().detach()
        loss = probabilities * (alpha * log_densities - torch.minimum(first, second))
        return loss.sum(1).mean(), (probabilities * log_densities).sum(1).mean().detach()

    def update(self, rows: Tensor) -> None:
        self.step(lambda: self.critic_loss(rows), lambda: self.actor_loss(rows))
