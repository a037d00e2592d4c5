"""What both kinds of SAC share: the networks, α, and the one step that improves them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.exported import DeterministicPolicy, side_by_side
from primorl.policy.graphs import CudaGraphStep
from primorl.policy.networks import Adam, Networks, initial_layers
from primorl.policy.prior import Leash
from primorl.policy.replay import ReplayColumns, Scaling
from primorl.policy.settings import SacConfig

_LEASH_RATE, _LEASH_GRADIENT = 3e-3, 1.0  # at Adam's rate α does not get there within a training
_LEASH_LOG_ALPHA = (-7.0, 5.0)


class ActorCritic(ABC):
    """Actor, twin critics, their targets and α of every seed, and the one step that improves them.

    Args:
        config: see `SacConfig`.
        columns: layout of the rows given to ``update``.
        generators: of the actions' randomness; the networks live on their device.
        seeds: of initial weights; one policy each.
        outputs: of the actor.
        values: input and output size of each critic.
        target_entropy: H̄.
        leash: a prior π_b that every policy is held near; None: there is none. With one, log π(a|s) - log π_b(a|s)
            takes the place of log π(a|s) everywhere, and κ that of -H̄. A prior with the hidden layers of ``config`` is
            also where every actor begins.
    """

    def __init__(
        self,
        config: SacConfig,
        columns: ReplayColumns,
        generators: SeedGenerators,
        seeds: Sequence[int],
        *,
        outputs: int,
        values: tuple[int, int],
        target_entropy: float,
        leash: Leash | None = None,
    ) -> None:
        self._config = config
        self._target_entropy = target_entropy
        self._leash = leash
        self._columns = columns
        self._generators = generators
        device, G = generators.device, len(seeds)
        actors, critics = [], []
        begun = None if leash is None else leash.initial_actor(config.hidden)
        for seed in seeds:
            initial = torch.Generator().manual_seed(seed)
            random = initial_layers((columns.observation_size, *config.hidden, outputs), 1, initial)
            actors.append(begun or random)
            critics.append(initial_layers((values[0], *config.hidden, values[1]), 2, initial))
        self.actor, self.critic = (Networks(side_by_side(parts), device) for parts in (actors, critics))
        self.target = self.critic.copy()
        self.log_alpha = torch.zeros(G, device=device)
        self._alpha_gradient = torch.zeros_like(self.log_alpha)
        self._critic_adam = Adam([self.critic.vector], [self.critic.gradient], config.learning_rate)
        learned, gradients = [self.actor.vector], [self.actor.gradient]
        if leash is None:
            learned, gradients = [*learned, self.log_alpha], [*gradients, self._alpha_gradient]
        self._actor_adam = Adam(learned, gradients, config.learning_rate)
        self._figures = ("critic_loss", "actor_loss", "q_mean", "divergence" if leash else "entropy", "alpha")
        self._rows = torch.zeros(G, config.batch_size, columns.width, device=device)
        self._step = CudaGraphStep(self._plain_step, generators) if device.type == "cuda" else self._plain_step
        self._sums = torch.zeros(len(self._figures), G, device=device)
        self._updates = 0

    @abstractmethod
    def act(self, observation: Tensor) -> Tensor:
        """Sample actions for standardised observations: ``[G, B, S]`` to ``[G, B, A]``, in [-1, 1] or one-hot."""

    @abstractmethod
    def _look(self, rows: Tensor) -> tuple[Any, Any]:
        """The actor at s' and at s, in one product for both: it does not change in between."""

    @abstractmethod
    def _critic_gradient(self, rows: Tensor, following: Any) -> Tensor:
        """Leave the gradient of Σ_i E (Q_i(s, a) - y)², y = r + γ V̄(s'), in ``critic``.

        Args:
            rows: ``[G, B, width]``, see `ReplayColumns`.
            following: of ``_look``.

        Returns:
            The loss, ``[G]``.
        """

    @abstractmethod
    def _actor_gradient(self, rows: Tensor, current: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Leave the gradient of E [α log π(a|s) - min_j Q_j(s, a)], a ~ π(s), in ``actor``.

        Args:
            rows: ``[G, B, width]``; those of ``_critic_gradient``, which is called before.
            current: of ``_look``.

        Returns:
            The loss, E log π(a|s) and E min_j Q_j(s, a), all ``[G]``. With a leash, the second is the divergence
            E [log π(a|s) - log π_b(a|s)].
        """

    def update(self, rows: Tensor) -> None:
        """One step of critics, targets, actor and α on ``rows [G, B, width]``; never waits for a GPU.

        α descends -log α (E log π + H̄), the form whose step does not shrink with α itself. With a leash it descends
        log α (κ - KL) by plain steps, whose gradient is held within ±1.
        """
        self._rows.copy_(rows)
        self._step()
        self._updates += 1

    @torch.inference_mode()
    def _plain_step(self) -> None:
        rows = self._rows
        following, current = self._look(rows)
        critic_loss = self._critic_gradient(rows, following)
        self._critic_adam.step()
        self.target.vector.lerp_(self.critic.vector, self._config.target_rate)
        actor_loss, log_density, value = self._actor_gradient(rows, current)
        if self._leash is None:
            torch.sub(-self._target_entropy, log_density, out=self._alpha_gradient)
            self._actor_adam.step()
            log_density = -log_density
        else:
            self._actor_adam.step()
            slack = (self._leash.targets - log_density).clamp_(-_LEASH_GRADIENT, _LEASH_GRADIENT)
            self.log_alpha.sub_(slack, alpha=_LEASH_RATE).clamp_(*_LEASH_LOG_ALPHA)
        self._sums += torch.stack((critic_loss, actor_loss, value, log_density, self.log_alpha.exp()))

    def pop_figures(self) -> tuple[dict[str, float], ...]:
        """Of each seed, means over the updates since the last call; the only place where a GPU is waited for."""
        means = (self._sums / self._updates).T.tolist()
        self._sums.zero_()
        self._updates = 0
        return tuple(dict(zip(self._figures, of_seed, strict=True)) for of_seed in means)

    def snapshot(self, scaling: Scaling) -> DeterministicPolicy:
        """The actors' means (or their logits) as policies of their own, copies on the CPU."""
        *hidden, weight, bias = self.actor.layers
        A = self._columns.action_size
        return DeterministicPolicy(
            tuple(
                layer.cpu().clone(memory_format=torch.contiguous_format)
                for layer in (*hidden, weight[:, :A], bias[..., :A])
            ),
            scaling.observation_mean.cpu(),
            scaling.observation_scale.cpu(),
            scaling.action_low.cpu(),
            scaling.action_high.cpu(),
            scaling.discrete_actions,
        )

    def _both_states(self, rows: Tensor) -> Tensor:
        """The states s' and s, one above the other: ``[G, 2 B, S]``."""
        G, B, _ = rows.shape
        S = self._columns.observation_size
        both = rows[..., : 2 * S].view(G, B, 2, S).transpose(1, 2)
        return both.reshape(G, 2 * B, S)

    def _wanted(self, rows: Tensor, value: Tensor) -> Tensor:
        """The critics' target y = r + γ V̄(s'), ``[G, B]``; V̄(s') is worth nothing after a termination."""
        columns = self._columns
        return rows[..., columns.reward] + self._config.discount * rows[..., columns.continues] * value
