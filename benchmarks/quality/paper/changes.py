"""Changes of training that are no setting: servers, weights of other physics, layer norm, policies with more doubt."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, silu

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Weights, gaussian, negative_log_likelihood
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.networks import Networks
from primorl.policy.rollouts import Act, Batch, Rollouts
from primorl.policy.sac import Sac
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.training.local_update import LocalBatches
from primorl.training.pooled import train_pooled
from primorl.training.settings import LocalTraining, PooledTraining
from primorl.training.setup import TrainingSetup
from primorl.training.state import TrainingState
from primorl.trajectories.storage.store import UnitStore

ENVIRONMENT = "Pendulum-v1"
_FIRST, _SECOND, _TINY = 0.9, 0.99, 1e-8  # Adam's decay rates
_OTHER = {"g": 12.0, "m": 1.3, "l": 0.8}  # Pendulum-v1 has 10, 1 and 1
_EPISODES, _STEPS = 100, 200

Step = Callable[[TrainingState, Weights], Weights]
"""From the state and what a round released to what the server moves by."""


def plain(state: TrainingState, released: Weights) -> Weights:
    """The server of `Base`."""
    del state
    return released


class Shrinking:
    """Steps that shrink linearly to nothing; their sum is nearly that of constant ones (T + 1 for T)."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def __call__(self, state: TrainingState, released: Weights) -> Weights:
        """Scale ``released``."""
        share = 2 * (1 - state.done / self._rounds)  # of the first round 2
        return tuple(share * part for part in released)


class Adam:
    """Server Adam (Reddi et al. 2021); with ``variance``, that of the noise is taken out of its second moment.

    The noise's variance is known: (z C / (q K))² in each weight. What is left is held above a tenth of it.

    Args:
        rate: length of a step in each weight.
        variance: of the noise; 0: the plain one.
    """

    def __init__(self, rate: float, variance: float) -> None:
        self._rate, self._variance = rate, variance
        self._first: Weights | None = None
        self._second: Weights | None = None

    def __call__(self, state: TrainingState, released: Weights) -> Weights:
        """Adam's step along ``released``."""
        zeros = tuple(torch.zeros_like(part) for part in released)
        first, second, t = self._first or zeros, self._second or zeros, state.done + 1
        self._first = tuple(_FIRST * m + (1 - _FIRST) * part for m, part in zip(first, released, strict=True))
        self._second = tuple(
            _SECOND * v + (1 - _SECOND) * part.square() for v, part in zip(second, released, strict=True)
        )
        return tuple(
            self._rate * m / (1 - _FIRST**t) / self._size(v / (1 - _SECOND**t))
            for m, v in zip(self._first, self._second, strict=True)
        )

    def _size(self, second: Tensor) -> Tensor:
        return (second - self._variance).clamp(min=max(_TINY**2, 0.1 * self._variance)).sqrt()


def other_physics(setup: TrainingSetup, public: UnitStore) -> Weights:
    """Weights that random torques on another pendulum make: public, and of no recorded trajectory."""
    environment, generator = gymnasium.make(ENVIRONMENT).unwrapped, np.random.default_rng(0)
    for name, value in _OTHER.items():
        setattr(environment, name, value)
    inputs, targets = [], []
    for episode in range(_EPISODES):
        observation, _ = environment.reset(seed=episode)
        for _ in range(_STEPS):
            action = generator.uniform(-2, 2, 1).astype(np.float32)
            following, reward, *_ = environment.step(action)
            inputs.append(np.concatenate((observation, action)))
            targets.append(np.append(following - observation, float(reward)))
            observation = following
    rows = tuple(torch.tensor(np.array(part), dtype=torch.float32) for part in (inputs, targets))
    return train_pooled(
        setup.architecture,
        (rows[0], rows[1]),
        None,
        normaliser=setup.make_normaliser(public.flat(), {}),
        pooled=PooledTraining(batch_size=256, learning_rate=2e-3, weight_decay=1e-3, max_epochs=30, patience=10),
        seed=setup.seed,
        device=torch.device("cpu"),
        on_epoch=lambda evaluation: None,
    ).weights


Outputs = Callable[[Weights, Tensor], Tensor]
"""`primorl.dynamics.ensemble.outputs`, or one like it."""


def layer_normed(weights: Weights, inputs: Tensor) -> Tensor:
    """`primorl.dynamics.ensemble.outputs` with a layer norm, without weights of its own, before each Swish."""
    hidden, last = inputs, len(weights) - 2
    for layer in range(0, len(weights), 2):
        hidden = torch.baddbmm(weights[layer + 1], hidden, weights[layer])
        if layer != last:
            hidden = silu(layer_norm(hidden, hidden.shape[-1:]))
    return hidden


def autograd_sum(outputs: Outputs) -> Callable[..., list[Tensor]]:
    """What `primorl.training.local_update.sum_of_updates` is, for networks with other ``outputs``, by autograd."""

    def summed(
        start: Weights,
        batches: LocalBatches,
        shape: Architecture,
        local: LocalTraining,
        clip: EnsembleClip,
        workspace: object = None,
        grid: float = 0.0,
    ) -> list[Tensor]:
        del workspace, grid
        N, U = shape.members, batches.weights.shape[1]
        first = [part.repeat(U, 1, 1) for part in start]  # of every (unit, member) pair
        moved = [torch.zeros_like(part) for part in first]
        for inputs, targets, share in zip(batches.inputs, batches.targets, batches.weights, strict=True):
            now = [(a + b).requires_grad_() for a, b in zip(first, moved, strict=True)]
            x, y, weight = (part.repeat_interleave(N, 0) for part in (inputs, targets, share))
            with torch.enable_grad():
                output = outputs(tuple(now), x)
                mean, log_variance = gaussian(output, shape.log_variance_low, shape.log_variance_high)
                loss = (weight * negative_log_likelihood(mean, log_variance, y, local.beta_nll)).sum()
                slopes = torch.autograd.grad(loss, now)
            decay = local.weight_decay * (weight.amax(1) > 0)[:, None, None]
            moved = [
                m - local.learning_rate * (g + decay * w.detach()) for m, g, w in zip(moved, slopes, now, strict=True)
            ]
            squares = torch.stack([part.square().sum((1, 2)) for part in moved], 1).unflatten(1, (-1, 2)).sum(2)
            factors = clip.factors(squares).repeat_interleave(2, 1)
            moved = [part * factors[:, i, None, None] for i, part in enumerate(moved)]
        layers = clip.finish([torch.cat(pair, 1) for pair in zip(moved[::2], moved[1::2], strict=True)])
        totals = [layer.double().view(U, N, *layer.shape[1:]).sum(0) for layer in layers]
        return [part for total in totals for part in (total[:, :-1], total[:, -1:])]

    return summed


class TruncatedRollouts(Rollouts):
    """Rollouts that begin again at a start state where the uncertainty is above ``most``; nothing ends there.

    The step across is kept, and bootstrapped like all others.
    """

    def __init__(self, *given: Any, most: float, **named: Any) -> None:
        self._most = most
        super().__init__(*given, **named)

    @torch.no_grad()
    def collect(self, act: Act) -> Batch:
        """See `Rollouts.collect`; for models without terminations."""
        observation = self._begin()
        rows, rewards, doubts = [], [], []
        for _ in range(self._horizon):
            action = self._scaling.environment_action(act(self._by_seed(self._scaling.observation(observation))))
            taken = action.flatten(0, 1)
            step = self._model.step(observation, taken, self._generators)
            over = step.uncertainty > self._most
            row = self._scaling.rows(observation, taken, step.reward, step.next_observation, torch.zeros_like(over))
            rows.append(self._by_seed(row))
            rewards.append(self._by_seed(step.reward))
            doubts.append(self._by_seed(step.uncertainty))
            observation = torch.where(over.unsqueeze(1), self._draw_starts(len(over)), step.next_observation)
        self._ends = observation
        return Batch(torch.cat(rows, dim=1), torch.stack(rewards).mean((0, 2)), torch.stack(doubts).mean((0, 2)))


class PessimisticSac(Sac):
    """SAC whose critics learn from min_j Q_j less half their gap: their mean less two standard deviations, not one."""

    def _values(self, critic: Networks) -> tuple[Tensor, Tensor]:
        first, second = super()._values(critic)
        if critic is not self.target:
            return first, second
        lower = torch.minimum(first, second) - (first - second).abs() / 2
        return lower, lower


def averaged(policies: DeterministicPolicy) -> DeterministicPolicy:
    """P policies as one network of P times the width, whose output before tanh is their mean."""
    P = policies.policies
    if P == 1:
        return policies
    *hidden, weight, bias = policies.layers
    layers: list[Tensor] = []
    for number, (w, b) in enumerate(zip(hidden[::2], hidden[1::2], strict=True)):
        wide = torch.cat(tuple(w), 0) if number == 0 else torch.block_diag(*w)
        layers += [wide[None], b.reshape(1, 1, -1)]
    layers += [torch.cat(tuple(weight), 1)[None] / P, bias.mean(0, keepdim=True)]
    return replace(policies, layers=tuple(layers))
