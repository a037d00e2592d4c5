"""Soft actor-critic on a model's transitions (Haarnoja et al. 2018; PriMORL, Algorithm 4).

`Sac` is for actions in a box. `DiscreteSac` (Christodoulou 2019) is for finitely many: its critics have a value for
each, so that where the other samples an action it takes the exact expectation over all of them.

With a prior, such as a clone of the behaviour in the log, log π(a|s) - log π_b(a|s) takes the place of log π(a|s), and
the temperature α holds the divergence KL(π‖π_b) at a target κ (as in BRAC, Wu et al. 2019).

Several seeds train side by side: G leads every shape, and nothing of one seed enters another. All gradients are written
out by hand (`tests/policy/reference.py` has the same by autograd), which leaves out those that nobody needs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.actor_critic import ActorCritic
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.model import Model
from primorl.policy.networks import Networks
from primorl.policy.prior import Leash, Prior
from primorl.policy.replay import ReplayBuffer, ReplayColumns, Scaling
from primorl.policy.rollouts import Rollouts
from primorl.policy.settings import SacConfig
from primorl.policy.squashed import Squashed
from primorl.project.errors import PipelineError

Sampler = Callable[[ReplayBuffer, int, int, SeedGenerators], Iterator[Tensor]]
"""From the model's buffer, a number of updates and a batch size to as many batches of rows ``[G, B, width]``.

``ReplayBuffer.batches`` is the one for policies that see the model and nothing else.
"""


@dataclass(frozen=True)
class Epoch:
    """What training reports.

    Attributes:
        number: of the epoch, from 1.
        metrics: means over it, of each seed.
        policies: at its end, of all seeds side by side.
    """

    number: int
    metrics: tuple[dict[str, float], ...]
    policies: DeterministicPolicy


class _Drawn(NamedTuple):
    """Actions that the actor drew.

    Attributes:
        sample: the actions, and how they came about.
        cost: what α multiplies, ``[G, B]``: log π(a|s), less the prior's if there is one.
        pull: the slope of -log π_b(a|s) in the action, ``[G, B, A]``; None: there is no prior.
    """

    sample: Squashed
    cost: Tensor
    pull: Tensor | None


class Sac(ActorCritic):
    """For actions in a box: V(s) = E [min_j Q_j(s, a) - α log π(a|s)] from one reparametrised sample a ~ π(s)."""

    def __init__(
        self,
        config: SacConfig,
        columns: ReplayColumns,
        generators: SeedGenerators,
        seeds: Sequence[int] = (0,),
        leash: Leash | None = None,
    ) -> None:
        S, A = columns.observation_size, columns.action_size
        entropy = config.entropy_of(None)
        values = (S + A, 1)
        super().__init__(
            config, columns, generators, seeds, outputs=2 * A, values=values, target_entropy=entropy, leash=leash
        )
        self._pairs = self._rows.new_zeros(len(seeds), 2, config.batch_size, S + A)  # (s, a), once a critic

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Sample actions in [-1, 1]."""
        return Squashed.of(self.actor.forward(observation), self._noise(observation)).action

    def _look(self, rows: Tensor) -> tuple[_Drawn, _Drawn]:
        states = self._both_states(rows)
        output = self.actor.forward(states)
        both, B = Squashed.of(output, self._noise(output)), rows.shape[1]
        cost, pull = both.log_density, None
        if self._leash is not None:
            normals = self._leash.normals(states)
            cost = cost - normals.log_density(both.action)
            pull = -normals.slope(both.action)
        parts = (both.action, both.log_density, both.spread, both.free)

        def half(which: slice) -> _Drawn:
            own = Squashed(*(part[:, which] for part in parts))
            return _Drawn(own, cost[:, which], None if pull is None else pull[:, which])

        return half(slice(0, B)), half(slice(B, None))

    def _critic_gradient(self, rows: Tensor, following: _Drawn) -> Tensor:
        columns, S, B = self._columns, self._columns.observation_size, rows.shape[1]
        self._pairs[..., :S] = rows[:, None, :, columns.next_observation]
        self._pairs[..., S:] = following.sample.action[:, None]
        alpha = self.log_alpha.exp().unsqueeze(1)
        value = torch.minimum(*self._values(self.target)) - alpha * following.cost
        self._pairs.copy_(rows[:, None, :, columns.observation_action])
        values = torch.stack(self._values(self.critic), dim=1)
        error = values - self._wanted(rows, value).unsqueeze(1)
        self.critic.backward((error * (2 / B)).view(-1, B, 1))
        return error.square().sum((1, 2)) / B

    def _actor_gradient(self, rows: Tensor, current: _Drawn) -> tuple[Tensor, Tensor, Tensor]:
        S, B = self._columns.observation_size, rows.shape[1]
        self._pairs[..., S:] = current.sample.action[:, None]
        first, second = self._values(self.critic)
        of_first = first.le(second).to(first.dtype).mul_(-1 / B)  # -E min_j Q_j falls with the lesser one only
        of_values = torch.stack((of_first, -1 / B - of_first), dim=1)
        slopes = self.critic.input_slope(of_values.view(-1, B, 1), S).view(-1, 2, B, self._columns.action_size)
        alpha = self.log_alpha.exp()
        of_action, of_cost = slopes.sum(1), (alpha / B).view(-1, 1, 1)
        if current.pull is not None:
            of_action = of_action + of_cost * current.pull
        self.actor.backward(current.sample.slope(of_action, of_cost), B)
        cost, mean_value = current.cost.mean(1), torch.minimum(first, second).mean(1)
        return alpha * cost - mean_value, cost, mean_value

    def _values(self, critic: Networks) -> tuple[Tensor, Tensor]:
        """Of both critics, ``[G, B]`` each, for the pairs (s, a) that are laid out."""
        first, second = critic.forward(self._pairs.flatten(0, 1)).view(self._pairs.shape[:3]).unbind(1)
        return first, second

    def _noise(self, like: Tensor) -> Tensor:
        G, B, _ = like.shape
        return self._generators.randn(G * B, self._columns.action_size).view(G, B, -1)


class _Logs(NamedTuple):
    """Of every action, ``[G, B, A]``: log π(a|s), and what α multiplies, which is the same less the prior's."""

    policy: Tensor
    cost: Tensor


class DiscreteSac(ActorCritic):
    """For A actions: V(s) = Σ_a π(a|s) [min_j Q_j(s, a) - α log π(a|s)], exactly (Christodoulou 2019, eq. 10)."""

    def __init__(
        self,
        config: SacConfig,
        columns: ReplayColumns,
        generators: SeedGenerators,
        seeds: Sequence[int] = (0,),
        leash: Leash | None = None,
    ) -> None:
        S, A = columns.observation_size, columns.action_size
        entropy = config.entropy_of(A)
        super().__init__(
            config, columns, generators, seeds, outputs=A, values=(S, A), target_entropy=entropy, leash=leash
        )

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Sample one-hot actions: the first of A exponential clocks, running at the rates π(a|s), to ring."""
        log_policy = self.actor.forward(observation).log_softmax(-1)
        G, B, A = log_policy.shape
        clocks = self._generators.exponential(G * B, A).view(G, B, A)
        return one_hot((log_policy - clocks.log()).argmax(-1), A).to(observation.dtype)

    def _look(self, rows: Tensor) -> tuple[_Logs, _Logs]:
        states = self._both_states(rows)
        policy = self.actor.forward(states).log_softmax(-1)
        cost = policy if self._leash is None else policy - self._leash.log_probabilities(states)
        following, current = (_Logs(*parts) for parts in zip(policy.chunk(2, 1), cost.chunk(2, 1), strict=True))
        return following, current

    def _critic_gradient(self, rows: Tensor, following: _Logs) -> Tensor:
        columns, B = self._columns, rows.shape[1]
        alpha = self.log_alpha.exp().view(-1, 1, 1)
        values = self._values(self.target, rows[..., columns.next_observation]).amin(1) - alpha * following.cost
        value = (following.policy.exp() * values).sum(-1)
        taken = rows[:, None, :, columns.action]
        found = (self._values(self.critic, rows[..., columns.observation]) * taken).sum(-1)
        error = found - self._wanted(rows, value).unsqueeze(1)
        self.critic.backward(((2 / B) * error.unsqueeze(-1) * taken).flatten(0, 1))
        return error.square().sum((1, 2)) / B

    def _actor_gradient(self, rows: Tensor, current: _Logs) -> tuple[Tensor, Tensor, Tensor]:
        B, policy = rows.shape[1], current.policy.exp()
        alpha = self.log_alpha.exp()
        values = self._values(self.critic, rows[..., self._columns.observation]).amin(1)
        costs = alpha.view(-1, 1, 1) * current.cost - values
        slope = policy * (costs - (policy * costs).sum(-1, keepdim=True)) / B
        self.actor.backward(slope, B)
        value, cost = ((policy * part).sum((1, 2)) / B for part in (values, current.cost))
        return alpha * cost - value, cost, value

    def _values(self, critic: Networks, observation: Tensor) -> Tensor:
        """Of every action at ``observation [G, B, S]``: ``[G, 2, B, A]``."""
        G, B, _ = observation.shape
        twice = observation.unsqueeze(1).expand(-1, 2, -1, -1).flatten(0, 1)
        return critic.forward(twice).view(G, 2, B, -1)


def train(
    model: Model,
    starts: Tensor,
    config: SacConfig,
    sampler: Sampler,
    *,
    seeds: Sequence[int] = (0,),
    reset_fraction: float = 1.0,
    prior: Prior | None = None,
    divergences: Sequence[float] = (),
) -> Iterator[Epoch]:
    """Train a policy for every seed, or for every seed and κ, in ``model`` (PriMORL, Algorithm 4).

    Training reports after every epoch.

    Every ``rollout_every`` updates the current policies are rolled out and their transitions enter the ring.
    Nothing but ``model``, ``starts`` and ``prior`` is seen, so by post-processing the policies, however many, are as
    private as these together, unless ``sampler`` brings rows from elsewhere. The same seeds give the same weights on a
    CPU, and a seed what it gives alone but for rounding.

    Args:
        model: the pessimistic MDP.
        starts: start states in the environment's units, ``[n, S]``; training runs on their device.
        config: see `SacConfig`.
        sampler: picks the batches.
        seeds: of initial weights, rollouts and batches; one policy each.
        reset_fraction: share of rollouts that begin at a start state, see `Rollouts`.
        prior: a policy on the device of ``starts`` that all others are held near; None: there is none.
        divergences: with a prior, targets κ of KL(π‖π_b), per dimension of actions in a box, or in all if they are
            discrete. There is a policy for each of them and every seed: all of the first seed's, then the second's.

    Raises:
        ValueError: a prior without divergences or the other way round, or one with actions of the other kind.
        PipelineError: actions have no finite bounds, or training diverged.
    """
    if (prior is None) != (not divergences):
        raise ValueError("give both a prior and divergences, or neither")
    scaling, leash = Scaling.of(model, config.reward_scale), None
    if prior is not None:
        leash = Leash.of(prior, scaling, tuple(divergences) * len(seeds), starts.device)
        seeds = [seed for seed in seeds for _ in divergences]
    generators = SeedGenerators.of(seeds, starts.device)
    algorithm = DiscreteSac if scaling.discrete_actions else Sac
    sac = algorithm(config, scaling.columns, generators, seeds, leash)
    rollouts = Rollouts(
        model,
        scaling,
        starts,
        batch=config.rollout_batch,
        horizon=config.horizon,
        reset_fraction=reset_fraction,
        generators=generators,
    )
    buffer = ReplayBuffer(config.buffer_size, scaling.columns.width, starts.device, len(seeds))
    done = 0
    for number in range(1, config.epochs + 1):
        while done < number * config.updates_per_epoch:
            if done % config.rollout_every == 0:
                batch = rollouts.collect(sac.act)
                buffer.extend(batch.rows)
            until_rollout = config.rollout_every - done % config.rollout_every
            updates = min(until_rollout, number * config.updates_per_epoch - done)
            for rows in sampler(buffer, updates, config.batch_size, generators):
                sac.update(rows)
            done += updates
        of_model = zip(batch.reward.tolist(), batch.uncertainty.tolist(), strict=True)
        metrics = tuple(
            figures | {"model_reward": reward, "model_uncertainty": uncertainty}
            for figures, (reward, uncertainty) in zip(sac.pop_figures(), of_model, strict=True)
        )
        for seed, figures in zip(seeds, metrics, strict=True):
            if not all(map(math.isfinite, figures.values())):
                raise PipelineError(
                    f"params.yaml: policy: SAC diverged in epoch {number}, seed {seed}: {figures}; "
                    "lower learning_rate or reward_scale, or raise penalty"
                )
        yield Epoch(number, metrics, sac.snapshot(scaling))
