"""Trajectory-level private training of the ensemble (PriMORL, Algorithms 1 and 2)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.dynamics.cohort import CohortSource, local_batches
from pipeline.dynamics.ensemble import Architecture, Normaliser, Weights, forward, negative_log_likelihood
from pipeline.dynamics.local_update import LocalTraining, sum_of_updates
from pipeline.privacy.plan import Plan

_MOST_PUBLIC_ROWS = 16384


@dataclass(frozen=True)
class ServerTraining:
    """What is done with released rounds: post-processing, free of charge.

    Attributes:
        momentum: share of the last step in the next one; 0 is the paper's plain server.
        averaging: weight of the past in the running average of released weights; 0 keeps the last.
        look_every: rounds between two looks at the public split.
        patience: looks without a better public loss before stopping; None: run all rounds.
    """

    momentum: float
    averaging: float
    look_every: int
    patience: int | None


@dataclass(frozen=True)
class Look:
    """What the public split says of the released weights after ``round`` rounds.

    ``loss`` is the mean negative log-likelihood of standardised targets; ``error`` is the mean squared error
    of the members' mean prediction, one number a target, in units of the public variance.
    """

    round: int
    loss: float
    error: tuple[float, ...]


@dataclass(frozen=True)
class Execution:
    """What changes speed and nothing else: the device, and a bound in bytes on one chunk's buffers."""

    device: torch.device
    chunk_bytes: int


@dataclass(frozen=True)
class Trained:
    """Weights to release, how many rounds were run, and the looks at the public split."""

    weights: Weights
    rounds: int
    looks: tuple[Look, ...]


class PublicLook:
    """Judge weights on the public split: at most 16,384 of its transitions, evenly spaced."""

    def __init__(self, shape: Architecture, normaliser: Normaliser, inputs: Tensor, targets: Tensor) -> None:
        stride = -(-len(inputs) // _MOST_PUBLIC_ROWS)
        self._shape = shape
        self._inputs = normaliser.inputs(inputs[::stride])
        self._targets = normaliser.targets(targets[::stride])
        variance = self._targets.var(dim=0)
        self._variance = torch.where(variance > 0, variance, torch.ones_like(variance))

    @torch.no_grad()
    def __call__(self, weights: Weights, after: int) -> Look:
        """Look at ``weights`` after ``after`` rounds (or epochs)."""
        shape = self._shape
        inputs = self._inputs.expand(shape.members, -1, -1)
        mean, log_variance = forward(weights, inputs, shape.log_variance_low, shape.log_variance_high)
        loss = negative_log_likelihood(mean, log_variance, self._targets).mean()
        error = (mean.mean(0) - self._targets).square().mean(0) / self._variance
        return Look(after, float(loss), tuple(error.tolist()))


def train(
    plan: Plan,
    shape: Architecture,
    source: CohortSource,
    public: tuple[Tensor, Tensor],
    *,
    local: LocalTraining,
    server: ServerTraining,
    max_transitions: int | None,
    seed: int,
    execution: Execution,
    on_round: Callable[[int, Look | None], None],
) -> tuple[Trained, Normaliser]:
    """Run the plan's rounds.

    Args:
        plan: sampler, clip, noise and what they cost; the only thing here that touches privacy.
        shape: sizes of the ensemble.
        source: the private units.
        public: inputs ``[R, S + A]`` and targets ``[R, S + 1]`` of the public split: the normaliser and the
            looks are made from these alone.
        local: the units' local steps.
        server: what follows a release.
        max_transitions: cap on a unit's transitions in a round.
        seed: of the initial weights.
        execution: where and in what portions.
        on_round: called after every round with its number and, after a look, with the look.

    Raises:
        ValueError: the source does not hold the number of units that the plan declares.
    """
    if source.units != plan.units:
        raise ValueError("the number of private units differs from the one the plan declares")
    device = execution.device
    inputs, targets = (part.to(device) for part in public)
    normaliser = Normaliser.from_public(inputs, targets)
    look_at = PublicLook(shape, normaliser, inputs, targets)
    weights: Weights = tuple(w.to(device) for w in shape.initial_weights(seed))
    velocity = tuple(torch.zeros_like(w) for w in weights)
    average = _Average(server.averaging)
    looks: list[Look] = []
    best = weights
    best_loss, since_best = float("inf"), 0
    done = 0
    for done in range(1, plan.rounds + 1):
        step = plan.release(_round_sum(plan, shape, source, weights, normaliser, local, max_transitions, execution))
        velocity = tuple(server.momentum * v + s for v, s in zip(velocity, step, strict=True))
        weights = tuple(w + v for w, v in zip(weights, velocity, strict=True))
        averaged = average.update(weights)
        if done % server.look_every and done != plan.rounds:
            on_round(done, None)
            continue
        looks.append(look_at(averaged, done))
        on_round(done, looks[-1])
        if server.patience is None:
            best = averaged
        elif looks[-1].loss < best_loss:
            best, best_loss, since_best = averaged, looks[-1].loss, 0
        else:
            since_best += 1
            if since_best >= server.patience:
                break
    return Trained(best, done, tuple(looks)), normaliser


def _round_sum(
    plan: Plan,
    shape: Architecture,
    source: CohortSource,
    weights: Weights,
    normaliser: Normaliser,
    local: LocalTraining,
    max_transitions: int | None,
    execution: Execution,
) -> list[Tensor]:
    """Sum of the clipped updates of a fresh cohort, chunk by chunk, in float64. Sensitive."""
    cohort = plan.cohort()
    # Neighbours in length share a chunk: little padding. The sum does not care about the order.
    lengths = source.lengths(cohort)
    by_length = lengths.argsort()
    longest = int(lengths.max()) if len(cohort) else 0
    if max_transitions is not None:
        longest = min(longest, max_transitions)
    units = max(1, execution.chunk_bytes // _bytes_of_a_unit(shape, local, longest))
    total = [torch.zeros(w.shape, dtype=torch.float64, device=w.device) for w in weights]
    chunks = torch.split(cohort[by_length.to(cohort.device)], units) if len(cohort) else ()
    for chunk in chunks:
        batches = local_batches(
            source,
            chunk,
            normaliser,
            batch_size=local.batch_size,
            epochs=local.epochs,
            max_transitions=max_transitions,
            entropy=plan.entropy,
        )
        for whole, part in zip(total, sum_of_updates(weights, batches, shape, local, plan.clip), strict=True):
            whole += part
    return total


def _bytes_of_a_unit(shape: Architecture, local: LocalTraining, transitions: int) -> int:
    """float32 buffers of one unit in a chunk: weights twice, activations of one step, its batches."""
    activations = 3 * sum(shape.hidden) + 8 * shape.targets + shape.inputs
    members = shape.members * local.batch_size * activations + 2 * shape.parameters
    rows = local.epochs * transitions * (shape.inputs + shape.targets + 1) * 2
    return 4 * (members + rows)


class _Average:
    """Exponential running average of released weights, unbiased from the first round on."""

    def __init__(self, past: float) -> None:
        self._past = past
        self._sum: Weights | None = None
        self._mass = 0.0

    def update(self, weights: Weights) -> Weights:
        if not self._past:
            return weights
        previous = self._sum or tuple(torch.zeros_like(w) for w in weights)
        self._sum = tuple(self._past * p + (1 - self._past) * w for p, w in zip(previous, weights, strict=True))
        self._mass = self._past * self._mass + (1 - self._past)
        return tuple(part / self._mass for part in self._sum)
