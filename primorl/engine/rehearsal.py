"""NOT PRIVATE. Plain mini-batches over pooled transitions, no clip, no noise.

They train the MOPO baseline, and weights to begin a private training from, made of the public split alone: those cost
nothing, since no private byte is read.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from primorl.engine.local_update import CohortSource, Kernel, local_batches
from primorl.engine.policy_network import Network
from primorl.engine.public_evaluation import (
    PublicEvaluation,
    PublicEvaluator,
    constant_loss,
    losses_of_rows,
)
from primorl.engine.queries import all_rows
from primorl.engine.settings import (
    LEAST_OF_A_DRY_RUN,
    LEAST_UNITS,
    EarlyStopping,
    Execution,
    PooledTraining,
)
from primorl.engine.setup import TrainingSetup
from primorl.engine.training import Trained, train
from primorl.model.adam import Adam
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser, Weights, row_losses
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler, SeededEntropy

_CPU = torch.device("cpu")
_HELD_OUT = 4  # one unit in so many
_MOST_ROWS, _HELD_OUT_ROWS = 262_144, 16_384
_EPOCH_ROWS = 16_384
_POOLED = PooledTraining(
    batch_size=256, learning_rate=2e-3, weight_decay=1e-3, max_epochs=300, patience=10
)
_BATCHES = 50  # of an epoch, at least, where rows are few
_LEAST_BATCH = 32
_ORDER_SEED = 3


def train_pooled(
    architecture: Network,
    private: tuple[Tensor, Tensor],
    public: tuple[Tensor, Tensor] | None,
    *,
    normaliser: Normaliser,
    pooled: PooledTraining,
    seed: int,
    device: torch.device = _CPU,
    on_epoch: Callable[[PublicEvaluation | None], None] = lambda evaluation: None,
    beta_nll: float = 0.0,
    epoch_rows: int | None = None,
) -> Trained:
    """Train by maximum likelihood on all private transitions (MOPO, Yu et al. 2020, section 4.3).

    Args:
        architecture: sizes of the network.
        private: inputs ``[R, inputs]`` and targets ``[R, >= columns]`` of every private transition.
        public: the same of the public split, for evaluation; None: there is none.
        normaliser: of inputs and targets.
        pooled: batches, step size, epochs.
        seed: of the initial weights and the batches.
        device: where to compute.
        on_epoch: called with the evaluation after every epoch.
        beta_nll: β of an ensemble's loss, see `primorl.engine.settings.LocalTraining`.
        epoch_rows: rows of an epoch, where there are more; None: all.

    Returns:
        The weights with the best public loss; without a public split, those after the last epoch. ``rounds`` counts
        epochs.
    """
    normaliser = replace(normaliser, flag=architecture.columns > architecture.targets)
    maps = normaliser.to(device)
    evaluate = None if public is None else PublicEvaluator(architecture, maps, public)
    inputs, targets = maps.inputs(private[0].to(device)), maps.targets(private[1].to(device))
    initial = tuple(w.to(device) for w in architecture.initial_weights(seed))
    weights = tuple(w.clone().requires_grad_() for w in initial)
    gradients = [torch.zeros_like(w) for w in weights]
    for w, gradient in zip(weights, gradients, strict=True):
        w.grad = gradient
    optimiser = Adam(weights, gradients, pooled.learning_rate, pooled.weight_decay)
    generator = torch.Generator(device).manual_seed(seed)
    evaluations: list[PublicEvaluation] = []
    best, best_loss, since_best, epoch = weights, float("inf"), 0, 0
    steps = max(1, min(len(inputs), epoch_rows or len(inputs)) // pooled.batch_size)
    for epoch in range(1, pooled.max_epochs + 1):
        for _ in range(steps):
            size = (architecture.members, pooled.batch_size)
            rows = torch.randint(len(inputs), size, generator=generator, device=device)
            losses, _ = losses_of_rows(architecture, weights, inputs[rows], targets[rows], beta_nll)
            loss = losses.mean(1).sum()
            torch._foreach_zero_(gradients)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        if evaluate is None:
            on_epoch(None)
            continue
        evaluations.append(evaluate(weights, epoch))
        on_epoch(evaluations[-1])
        if evaluations[-1].loss < best_loss:
            best_loss, since_best = evaluations[-1].loss, 0
            best = tuple(w.detach().clone() for w in weights)
        else:
            since_best += 1
            if since_best >= pooled.patience:
                break
    released = best if evaluations else tuple(w.detach() for w in weights)
    comparison = evaluate.compare(initial, released) if evaluate else None
    return Trained(released, epoch, tuple(evaluations), normaliser, public_loss=comparison)


class Units:
    """Some units of a source as a source of their own."""

    def __init__(self, source: CohortSource, chosen: Tensor) -> None:
        self._source, self._chosen = source, chosen
        self.units = len(chosen)

    def lengths(self, units: Tensor) -> Tensor:
        """See `CohortSource.lengths`."""
        return self._source.lengths(self._chosen[units])

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """See `CohortSource.transitions`."""
        return self._source.transitions(self._chosen[units], steps)

    def rows(self, most: int | None = None) -> tuple[Tensor, Tensor]:
        """Inputs ``[R, inputs]`` and targets ``[R, >= columns]``, evenly thinned to at most ``most`` rows."""
        parts = [(inputs[own], targets[own]) for inputs, targets, own in all_rows(self, 0, 1)]
        inputs, targets = (torch.cat(same) for same in zip(*parts, strict=True))
        stride = 1 if most is None else -(-len(inputs) // most)
        return inputs[::stride], targets[::stride]


def shuffled(source: CohortSource) -> Tensor:
    """All units of a source in a random order, the same every time."""
    return torch.randperm(source.units, generator=torch.Generator().manual_seed(_ORDER_SEED))


def public_start(
    architecture: Network, normaliser: Normaliser, public: CohortSource, seed: int, beta_nll: float
) -> Weights:
    """Maximum likelihood on public units, stopped when units that are held out no longer gain from it.

    The number of epochs is found with one unit in four held out. Then all units are trained on for as many.

    Args:
        architecture: sizes of the network, an ensemble or a policy.
        normaliser: of inputs and targets.
        public: the public units, as training sees them (`TrainingSetup.source_of`).
        seed: of the initial weights and the batches.
        beta_nll: β of an ensemble's loss.

    Raises:
        ValueError: there are fewer than `LEAST_UNITS` units.
    """
    if public.units < LEAST_UNITS:
        raise ValueError(
            f"a start from public units needs {LEAST_UNITS} of them, found {public.units}"
        )
    order = shuffled(public)
    held_out = max(1, public.units // _HELD_OUT)
    rows = Units(public, order[held_out:]).rows(_MOST_ROWS)
    size = min(_POOLED.batch_size, max(_LEAST_BATCH, len(rows[0]) // _BATCHES))
    pooled = replace(_POOLED, batch_size=size)
    train = partial(
        train_pooled,
        architecture,
        normaliser=normaliser,
        seed=seed,
        beta_nll=beta_nll,
        epoch_rows=_EPOCH_ROWS,
    )
    judged = train(rows, Units(public, order[:held_out]).rows(_HELD_OUT_ROWS), pooled=pooled)
    losses = [evaluation.loss for evaluation in judged.evaluations]
    epochs = 1 + losses.index(min(losses))
    everybody = Units(public, order).rows(_MOST_ROWS)
    return train(everybody, None, pooled=replace(pooled, max_epochs=epochs)).weights


_MOST_UNITS = (
    48  # of which every other one judges: enough to tell settings apart, in about a second
)
_ROWS_OF_A_REHEARSAL = 8192
_SEED = 1
_SAME = 1e-4  # of a column's scale; one that varies less is a counter or a trait, which everything predicts
_WORST = 5.0  # nats of a row beyond a constant's loss
_UNCLIPPED = 1e6
_LARGE = 0.9  # quantile; units with large updates often know of rare events, which a lower clip would unlearn


@dataclass(frozen=True)
class Outcome:
    """Mean losses of the transitions that judge; of each, at most `_WORST` more than a constant's mean loss.

    Columns with a change that never varies, counters and traits, count in ``in_all`` alone: a constant predicts them
    without a model, and noise may set them in motion.

    Attributes:
        start: of the weights that it begins from.
        loss: at its end.
        constant: of the best constant prediction.
        in_all: at its end, all columns counted.
        doubt: standard error of ``start - loss``, over the units that judge.
    """

    start: float
    loss: float
    constant: float
    in_all: float
    doubt: float = 0.0


class DryRun:
    """Rehearses settings on one dataset's public units.

    Args:
        public: the public units.
        flag: whether a termination is learned, so that a target's last column is its flag.

    Raises:
        ValueError: there are fewer than `LEAST_OF_A_DRY_RUN` public units.
    """

    def __init__(self, public: CohortSource, *, flag: bool) -> None:
        if public.units < LEAST_OF_A_DRY_RUN:
            raise ValueError(
                f"a dry run needs {LEAST_OF_A_DRY_RUN} public units, found {public.units}"
            )
        chosen = shuffled(public)
        second = torch.zeros(public.units, dtype=torch.bool)
        second[1:_MOST_UNITS:2] = True
        self._first, self._second = Units(public, chosen[~second]), Units(public, chosen[second])
        inputs, targets = self._second.rows(_ROWS_OF_A_REHEARSAL)
        self._rows = inputs, targets[:, : None if flag else -1]
        self._normaliser = Normaliser.from_public(*self._rows, flag)
        self._judging = self._normaliser.inputs(inputs), self._normaliser.targets(self._rows[1])
        self._varying = self._judging[1][:, : len(self._normaliser.target_scale)].std(dim=0) > _SAME
        self._varying[-1] = True  # the reward
        self._starts: dict[tuple[Architecture, int, float], Weights] = {}

    def outcome(self, setup: TrainingSetup, *, from_public: bool, noise: float = 1.0) -> Outcome:
        """Rehearse the training of ``setup``.

        Args:
            setup: of the private training.
            from_public: whether its weights begin from the public split.
            noise: the share of the plan's noise that is added; 0: none, 0.5: as with twice as many people.
        """
        plan, weights = setup.plan, self._start(setup, from_public=from_public)
        multiplier = noise * plan.noise_multiplier * self._second.units / plan.expected_cohort
        units, everybody, entropy = self._second.units, PoissonSampler(1.0), SeededEntropy(_SEED)
        rehearsed = Plan(
            units,
            plan.unit,
            everybody,
            plan.clip,
            multiplier,
            plan.rounds,
            plan.delta,
            entropy=entropy,
        )
        execution = Execution(torch.device("cpu"), setup.execution.chunk_bytes)
        server = replace(
            setup.server, early_stopping=EarlyStopping(every=plan.rounds, patience=None)
        )
        once = replace(
            setup,
            plan=rehearsed,
            start=weights,
            normaliser="public",
            execution=execution,
            server=server,
        )
        result = train(once, self._second, self._rows)
        assert result.public_loss is not None, "there are rows that judge"
        shape, varying = setup.ensemble, self._varying
        constant = constant_loss(shape, self._judging[1], varying)
        start, loss = (
            self._losses(shape, each, constant, varying) for each in (weights, result.weights)
        )
        in_all = self._losses(shape, result.weights, result.public_loss.constant).mean()
        by_unit = torch.stack(
            [part.mean() for part in (start - loss).tensor_split(units)]
        )  # about a unit each
        doubt = float(by_unit.std()) / math.sqrt(units)
        return Outcome(float(start.mean()), float(loss.mean()), constant, float(in_all), doubt)

    @torch.no_grad()
    def _losses(
        self, shape: Architecture, weights: Weights, constant: float, counted: Tensor | None = None
    ) -> Tensor:
        """Losses of rows ``[R]``, each at most `_WORST` more than a constant's: a row unlike others decides little."""
        most, (inputs, targets) = constant + _WORST, self._judging
        losses, _ = row_losses(
            shape, weights, inputs.expand(shape.members, -1, -1), targets, counted=counted
        )
        return losses.nan_to_num(nan=most).clamp(max=most).mean(0)

    def usual_norm(self, setup: TrainingSetup, *, from_public: bool) -> float:
        """The `_LARGE` quantile of the norm of a unit's unclipped update; infinite where updates diverge."""
        units, start = self._second, self._start(setup, from_public=from_public)
        everybody, entropy = torch.arange(units.units), SeededEntropy(_SEED)
        batches = local_batches(units, everybody, self._normaliser, setup.local, entropy)
        clip = replace(setup.kernel().clip, clipping_norm=_UNCLIPPED)
        updates = Kernel(setup.architecture, setup.local, clip).updates(start, batches)
        norms = torch.cat([part.flatten(1) for part in updates], dim=1).double().norm(dim=1)
        usual = float(norms.quantile(_LARGE))
        return usual if 0 < usual < _UNCLIPPED / 10 else math.inf

    def _start(self, setup: TrainingSetup, *, from_public: bool) -> Weights:
        if not from_public:
            return setup.initial_weights()
        key = setup.ensemble, setup.seed, setup.local.beta_nll
        if key not in self._starts:
            self._starts[key] = public_start(
                setup.ensemble, self._normaliser, self._first, setup.seed, setup.local.beta_nll
            )
        return self._starts[key]
