"""SAC written the slow, obvious way: one module a network, ``torch.distributions``, ``torch.optim``, loops."""

import copy

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from pipeline.policy.replay import Columns
from pipeline.policy.sac import Sac, SacConfig


def module(layers: tuple[Tensor, ...], network: int | None = None) -> nn.Sequential:
    """The network that ``layers`` describe (the given one of several), as a module of its own."""
    parts: list[nn.Module] = []
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        w, b = (weight, bias) if network is None else (weight[network], bias[network])
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


class Reference:
    """Starts from a `Sac`'s weights; ``update`` takes the noise that the other draws for itself."""

    def __init__(self, sac: Sac, config: SacConfig, columns: Columns) -> None:
        self.config, self.columns = config, columns
        self.actor = module(sac.actor.layers)
        self.critics = [module(sac.critic.layers, i) for i in range(2)]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = sac.log_alpha.clone().requires_grad_()
        rate = config.learning_rate
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), rate)
        self.critic_adam = torch.optim.Adam([p for critic in self.critics for p in critic.parameters()], rate)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], rate)

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """(next_observation, observation, action, reward, continues)."""
        S, A = self.columns.observation_size, self.columns.action_size
        following, observation, action, reward, continues = torch.split(rows, [S, S, A, 1, 1], dim=1)
        return following, observation, action, reward[:, 0], continues[:, 0]

    def critic_loss(self, rows: Tensor, noise: Tensor) -> Tensor:
        following, observation, action, reward, continues = self.split(rows)
        with torch.no_grad():
            next_action, log_density = sampled(self.actor, following, noise)
            first, second = (target(torch.cat((following, next_action), 1))[:, 0] for target in self.targets)
            value = torch.minimum(first, second) - self.log_alpha.exp() * log_density
            wanted = reward + self.config.discount * continues * value
        inputs = torch.cat((observation, action), 1)
        return sum((nn.functional.mse_loss(critic(inputs)[:, 0], wanted) for critic in self.critics), torch.zeros(()))

    def actor_loss(self, rows: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        observation = self.split(rows)[1]
        action, log_density = sampled(self.actor, observation, noise)
        first, second = (critic(torch.cat((observation, action), 1))[:, 0] for critic in self.critics)
        alpha = self.log_alpha.exp().detach()
        return (alpha * log_density - torch.minimum(first, second)).mean(), log_density.detach()

    def update(self, rows: Tensor, critic_noise: Tensor, actor_noise: Tensor) -> None:
        self.critic_adam.zero_grad()
        self.critic_loss(rows, critic_noise).backward()
        self.critic_adam.step()
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.copy_((1 - self.config.target_rate) * old + self.config.target_rate * new)
        self.actor_adam.zero_grad()
        loss, log_density = self.actor_loss(rows, actor_noise)
        loss.backward()
        self.actor_adam.step()
        self.alpha_adam.zero_grad()
        (-self.log_alpha * (log_density + self.config.target_entropy)).mean().backward()
        self.alpha_adam.step()
