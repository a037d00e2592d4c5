"""Advantages and policy gradients of a user's steps, each computed from her own data alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from threading import local
from typing import ClassVar

import torch
from torch import Tensor

from primorl.model.numerics import Workspace, map_in_threads, start_pool
from primorl.online.learning import PARAMETERS, Cohort, Trajectories, Values, fill
from primorl.online.network import PolicyNetwork, StepGradients

_LEAST_SCALE = 1e-6
_RIDGE = 1e-3


def returns_to_go(met: Trajectories, discount: float) -> Tensor:
    """Sum the discounted rewards from each step to the end of its episode, ``[U, T]``; 0 at
    padding.

    Where an episode was cut off, rewards go on as they were: the mean reward of the user's own
    steps for ever, so that the last steps before a time limit do not look worse than the first
    ones. In float64, so that equal returns are equal: `normalise` would make advantages of
    rounding errors.
    """
    rewards = met.rewards.double()
    counts = met.valid.sum(1, keepdim=True).clamp(min=1)
    beyond = rewards.sum(1, keepdim=True) / counts / (1 - discount)
    cut = met.ends & ~met.terminated
    return _discount(met, rewards + discount * torch.where(cut, beyond, 0.0), discount) * met.valid


def _discount(met: Trajectories, terms: Tensor, factor: float) -> Tensor:
    """Compute x_t = terms_t + factor · x_{t+1} inside every episode, float64 ``[U, T]``."""
    sums, goes_on = terms.clone(), factor * (~met.ends).double()
    for step in reversed(range(met.steps - 1)):
        sums[:, step] += goes_on[:, step] * sums[:, step + 1]
    return sums


def normalise(values: Tensor, valid: Tensor) -> Tensor:
    """Standardise over each user's own valid steps, float32 ``[U, T]``; 0 at padding.

    A user with equal values gets zeros.
    """
    weights = valid.to(values.dtype)
    counts = weights.sum(1, keepdim=True).clamp(min=1)
    centred = (values - (values * weights).sum(1, keepdim=True) / counts) * weights
    scale = (centred.square().sum(1, keepdim=True) / counts).sqrt()
    return torch.where(scale > _LEAST_SCALE, centred / scale, 0.0).float()


def generalised_advantages(
    met: Trajectories, before: Tensor, after: Tensor, discount: float, decay: float
) -> Tensor:
    """Compute GAE (Schulman et al. 2016, equation 16), ``[U, T]``; 0 at padding.

    Â_t = δ_t + γλ Â_{t+1} inside an episode, δ_t = r_t + γ V(s_{t+1}) - V(s_t). V is 0 after a
    terminal step; it counts after one at which an episode was cut off.

    Args:
        met: trajectories.
        before: V of the observations, ``[U, T]``.
        after: V of the next observations, ``[U, T]``.
        discount: γ.
        decay: λ.
    """
    errors = met.rewards.double() + discount * torch.where(met.terminated, 0.0, after) - before
    return torch.where(met.valid, _discount(met, errors, discount * decay), 0.0)


def own_baseline(
    network: PolicyNetwork, met: Trajectories, discount: float
) -> tuple[Tensor, Tensor]:
    """Estimate V of observations and next ones, float64 ``[U, T]`` each, by ridge regression on a
    user's own returns.

    Features are (s, s², t/T, 1), with s standardised as the policy does it. All users' normal
    equations are solved at once, each for herself.
    """
    returns = returns_to_go(met, discount)
    counts = met.valid.sum(1, keepdim=True).clamp(min=1)
    # About her mean, so that a shift of all returns shifts V and no advantage.
    mean = returns.sum(1, keepdim=True) / counts
    targets = torch.where(met.valid, returns - mean, 0.0).unsqueeze(-1)
    time = torch.arange(met.steps + 1, device=returns.device) / met.steps
    here = _features(network, met.observations, time[:-1]) * met.valid.unsqueeze(-1)
    there = _features(network, met.next_observations, time[1:])
    penalty = _RIDGE * torch.eye(here.shape[-1], dtype=torch.float64, device=here.device)
    # A user's matrix that is not finite spoils her own weights only.
    own = counts.unsqueeze(-1)
    weights, _ = torch.linalg.solve_ex(here.mT @ here / own + penalty, here.mT @ targets / own)
    return mean + (here @ weights).squeeze(-1), mean + (there @ weights).squeeze(-1)


def _features(network: PolicyNetwork, observations: Tensor, time: Tensor) -> Tensor:
    """Return ``[U, T, 2 S + 2]``, float64."""
    standardised = ((observations - network.observation_mean) / network.observation_scale).double()
    shape = (*observations.shape[:-1], 1)
    clock = time.double().view(1, -1, 1).expand(shape)
    return torch.cat([standardised, standardised.square(), clock, torch.ones_like(clock)], -1)


def own_weights(valid: Tensor) -> Tensor:
    """Weigh each step by one over the number of its user's steps, ``[U, T]``."""
    return valid / valid.sum(1, keepdim=True).clamp(min=1)


def within(vectors: Tensor, bound: float) -> Tensor:
    """Scale vectors ``[.., n]`` to norm at most ``bound``."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    scaled: Tensor = vectors * (bound / norms).clamp(max=1.0)
    return scaled


# users who are computed side by side: more are hardly faster, and small cohorts are filled up to
# them
_AT_ONCE = 16


PieceFunction = Callable[[Trajectories, Tensor, Workspace], Tensor]
"""From trajectories of U users, rows of values and memory to work in to a row for each user."""


def by_pieces(function: PieceFunction, met: Trajectories, values: Tensor) -> Iterator[Tensor]:
    """Compute one row for each user from trajectories, rows of ``values`` and memory to work in.

    The rounding of a product may depend on the number of users, and that of an operation that
    threads share on where it is cut. So every piece has the same number of users, the last one with
    empty users, and one thread computes it.
    """
    threads = torch.get_num_threads() if values.device.type == "cpu" else 1
    of_thread = local()  # a workspace for each thread

    def rows(number: int) -> Tensor:
        if not hasattr(of_thread, "workspace"):
            of_thread.workspace = Workspace(values.device)
        users = slice(number * _AT_ONCE, (number + 1) * _AT_ONCE)
        part, own = met.of(users), fill(values[users], _AT_ONCE)
        return function(part.fill(_AT_ONCE), own, of_thread.workspace)[: part.users]

    pieces = range(max(1, -(-met.users // _AT_ONCE)))
    torch.set_num_threads(1)
    try:
        with start_pool(threads) as pool:
            yield from map_in_threads(pool, threads, rows, pieces)
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True)
class DPPG:
    """DPPG of Rio et al.: their Algorithm 2 with the local update of Algorithm 3.

    From the released θ₀, every user makes E epochs over M minibatches of her own steps. A step
    climbs the mean of (π_θ / π_θ0)(a_t | s_t) Â_t, without a clip of the ratio, and θ - θ₀ is
    scaled back to norm at most S. What a user contributes is the last θ - θ₀; then θ₀ ← θ₀ + η
    (mean of the contributions + noise). Users are computed side by side: their parameters are ``[U,
    d]``, and a step is one batched product for all (`by_pieces`).

    Where this departs from the paper: there is no critic, because one that is carried from user to
    user without noise would void ε (`research.paper_mode`). Â is GAE over a linear baseline that is
    fitted inside the user's data (`own_baseline`), and normalised inside her data. Steps follow the
    gradient itself, which suits runs of few cohorts; the paper's experiments take Adam's.

    Attributes:
        clipping_norm: S.
        local_learning_rate: of the steps inside a user.
        epochs: E.
        minibatches: M.
        decay: λ of GAE.
        learning_rate: η, on the released mean. The paper's table has one rate only, the local one.
        discount: γ.
    """

    name: ClassVar[str] = "dppg"
    releases: ClassVar[int] = 1

    clipping_norm: float
    local_learning_rate: float
    epochs: int
    minibatches: int
    decay: float = 0.95
    learning_rate: float = 1.0
    discount: float = 0.99

    def apply(
        self, network: PolicyNetwork, values: Values, met: Trajectories, cohort: Cohort, number: int
    ) -> Values:
        """See `Update.apply`."""
        start, schedule = values[PARAMETERS], self.schedule(met.steps, number)
        local_updates = partial(self.local_updates, network, start, schedule)
        rows = by_pieces(local_updates, met, self.advantages(network, values, met))
        return {
            PARAMETERS: start + self.learning_rate * cohort.noisy_mean(rows, self.clipping_norm)
        }

    def advantages(self, network: PolicyNetwork, values: Values, met: Trajectories) -> Tensor:
        """Compute Â, ``[U, T]``. Sensitive."""
        before, after = own_baseline(network, met, self.discount)
        return normalise(
            generalised_advantages(met, before, after, self.discount, self.decay), met.valid
        )

    def local_updates(
        self,
        network: PolicyNetwork,
        start: Tensor,
        schedule: list[Tensor],
        met: Trajectories,
        advantages: Tensor,
        workspace: Workspace,
    ) -> Tensor:
        """Compute θ - θ₀ of every user, ``[U, d]``; zero for one without steps. Sensitive.

        Args:
            network: shape of the policy.
            start: θ₀.
            schedule: numbers of the steps of every minibatch, the same for all users.
            met: trajectories.
            advantages: Â, ``[U, T]``.
            workspace: memory to work in.
        """
        begin = start.expand(met.users, -1)
        deltas, climb, old = torch.zeros_like(begin), self.rule(begin), torch.zeros_like(advantages)
        # else the first step, which begins at θ₀, computes them by the way
        if self.minibatches > 1:
            old = network.step_gradients(begin, met.observations, met.actions, workspace).logs
        for step, rows in enumerate(schedule):
            valid, seen, done = met.valid[:, rows], met.observations[:, rows], met.actions[:, rows]
            part = network.step_gradients(begin + deltas, seen, done, workspace)
            if self.minibatches == 1 and step == 0:
                old[:, rows] = part.logs
            gradients = self.gradients(part, old[:, rows], advantages[:, rows], own_weights(valid))
            # 0 for users without steps among these
            rates = self.local_learning_rate * valid.any(1, keepdim=True)
            deltas = within(deltas + rates * climb(gradients), self.clipping_norm)
        return deltas

    def gradients(
        self, steps: StepGradients, old: Tensor, advantages: Tensor, weights: Tensor
    ) -> Tensor:
        """Compute the gradient of Σ_t w_t (π_θ / π_θ0)(a_t | s_t) Â_t, which the local steps climb,
        ``[U, d]``.

        Args:
            steps: log-probabilities and gradients at every user's θ.
            old: log π_θ0(a_t | s_t), ``[U, t]``.
            advantages: Â, ``[U, t]``.
            weights: w, ``[U, t]``; 0 at padding.
        """
        ratios = steps.workspace.apart("ratios", 0, len(old), 1, old.shape[1]).squeeze(1)
        gains = torch.sub(steps.logs, old, out=ratios).exp_() * advantages * weights
        return steps.sums(torch.where(weights > 0, gains, 0.0))

    def rule(self, parameters: Tensor) -> Callable[[Tensor], Tensor]:
        """Make the rule from users' gradients ``[U, d]`` to uphill steps, for parameters of this
        shape.
        """
        return lambda gradients: gradients

    def schedule(self, steps: int, number: int) -> list[Tensor]:
        """Draw the steps of every minibatch of every epoch by public permutations."""
        generator = torch.Generator().manual_seed(number)
        orders = [torch.randperm(steps, generator=generator) for _ in range(self.epochs)]
        return [part for order in orders for part in order.tensor_split(self.minibatches)]
