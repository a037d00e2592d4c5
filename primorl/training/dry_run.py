"""A private training rehearsed on public units: what its noise leaves of what it learns. Reads no private byte.

The public units are cut into two halves, the second one of at most 24. Weights that begin from the public split are
made of the first half. The second half stands in for the private units: all of them join every round, the plan's clip
and the noise that the plan adds to the mean of the private cohort are applied, and they judge the result. So the loss
comes close to that of the private training before anything is spent (docs/fitted-plan.md has figures).
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import Weights, row_losses
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.entropy import SeededEntropy
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.training.cohort import CohortSource, local_batches
from primorl.training.local_update import Kernel
from primorl.training.pooled import Units, public_start, shuffled
from primorl.training.public_evaluation import constant_loss
from primorl.training.settings import LEAST_OF_A_DRY_RUN, EarlyStopping, Execution
from primorl.training.setup import TrainingSetup
from primorl.training.training import train

_MOST_UNITS = 48  # of which every other one judges: enough to tell settings apart, in about a second
_ROWS_OF_A_REHEARSAL = 8192
_SEED = 1
_SAME = 1e-4  # of a column's scale; one that varies less is a counter or a trait, which everything predicts
_WORST = 5.0  # nats of a row beyond a constant's loss
_UNCLIPPED = 1e6
_LARGE = 0.9  # quantile; units with large updates often know of rare events, which a lower clip would unlearn


@dataclass(frozen=True)
class Outcome:
    """Mean losses of the transitions that judge; of each, at most `_WORST` more than a constant's mean loss.

    Columns whose change never varies, counters and traits, count in ``in_all`` alone: a constant predicts them without
    a model, and noise may set them in motion.

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
            raise ValueError(f"a dry run needs {LEAST_OF_A_DRY_RUN} public units, found {public.units}")
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
        rehearsed = Plan(units, plan.unit, everybody, plan.clip, multiplier, plan.rounds, plan.delta, entropy=entropy)
        execution = Execution(torch.device("cpu"), setup.execution.chunk_bytes)
        server = replace(setup.server, early_stopping=EarlyStopping(every=plan.rounds, patience=None))
        once = replace(setup, plan=rehearsed, start=weights, normaliser="public", execution=execution, server=server)
        result = train(once, self._second, self._rows)
        assert result.public_loss is not None, "there are rows that judge"
        shape, varying = setup.ensemble, self._varying
        constant = constant_loss(shape, self._judging[1], varying)
        start, loss = (self._losses(shape, each, constant, varying) for each in (weights, result.weights))
        in_all = self._losses(shape, result.weights, result.public_loss.constant).mean()
        by_unit = torch.stack([part.mean() for part in (start - loss).tensor_split(units)])  # about a unit each
        doubt = float(by_unit.std()) / math.sqrt(units)
        return Outcome(float(start.mean()), float(loss.mean()), constant, float(in_all), doubt)

    @torch.no_grad()
    def _losses(self, shape: Architecture, weights: Weights, constant: float, counted: Tensor | None = None) -> Tensor:
        """Losses of rows ``[R]``, each at most `_WORST` more than a constant's: a row unlike others decides little."""
        most, (inputs, targets) = constant + _WORST, self._judging
        losses, _ = row_losses(shape, weights, inputs.expand(shape.members, -1, -1), targets, counted=counted)
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
