"""Auditing one run of training, end to end, with canary trajectories (Steinke et al. 2023, arXiv 2305.08846).

The same guesses bound ε twice: as those of any (ε, δ) mechanism, and as those of T Poisson-sampled Gaussian releases
(Mahloujifar et al. 2024, arXiv 2410.22235), which refutes more.

Unlike the audit of the mechanism (`primorl.privacy.audits.canaries`) this one goes through everything that training
does with a trajectory: batches, local steps, clipping, chunks, sampling, noise, the server's momentum and average.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding

from primorl.base.errors import PipelineError
from primorl.engine.local_update import CohortSource, local_batches
from primorl.engine.setup import TrainingSetup
from primorl.engine.training import TrainingState, train
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser, Weights, flat, gaussian, outputs, row_losses
from primorl.privacy.audits.bounds import ASSUMPTIONS, Bound, Family, f_dp_bound
from primorl.privacy.audits.one_run import epsilon_lower_bound, guesses

Floats = NDArray[np.float64]

_RADIUS = 10.0  # of a canary's inputs, in standard deviations of the public split
_GAP = 5.0  # of its targets from what the initial weights predict, in their public spread
_GUESSED = 0.25  # share of the canaries that is guessed "in", and the same share "out"
_FEWEST = 8
_RIDGE = 1e-3  # of the Gram matrix of updates of length 1
_MOST_EVIDENCE = (
    50.0  # that one round gives: without noise a single wrong estimate must not outweigh all others
)


@dataclass(frozen=True)
class Units:
    """U trajectories of M transitions each; a `CohortSource`. ``inputs [U, M, S + A]``, ``targets [U, M, S + 1]``."""

    inputs: Tensor
    targets: Tensor

    @property
    def units(self) -> int:
        """U."""
        return len(self.inputs)

    def lengths(self, units: Tensor) -> Tensor:
        """M for each of ``units``."""
        return torch.full((len(units),), self.inputs.shape[1], dtype=torch.int64)

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """See `CohortSource.transitions`; steps past a unit's end give its own last row."""
        length = self.inputs.shape[1]
        rows = units.unsqueeze(1) * length + steps.clamp(max=length - 1)
        inputs, targets = self.flat()
        return embedding(rows, inputs), embedding(rows, targets)

    def flat(self) -> tuple[Tensor, Tensor]:
        """All inputs ``[U·M, S + A]`` and targets ``[U·M, S + 1]``."""
        return self.inputs.flatten(0, 1), self.targets.flatten(0, 1)


@dataclass(frozen=True)
class WithCanaries:
    """The real units of ``source``, then those of ``canaries``, of which only the ``included`` (bool) have rows.

    A canary that is left out keeps its number and its coin in every round but has no transitions, so its update is
    zero: exactly as if it were removed from the sum, while K, the denominator and the numbers of all others stay.
    """

    source: CohortSource
    canaries: Units
    included: Tensor

    @property
    def units(self) -> int:
        """Real units and all canaries, included or not."""
        return self.source.units + self.canaries.units

    def lengths(self, units: Tensor) -> Tensor:
        """Transitions of each unit; 0 for a canary that is left out."""
        real, canary = self._split(units)
        lengths = torch.empty_like(units)
        lengths[real] = self.source.lengths(units[real])
        planted = units[canary] - self.source.units
        lengths[canary] = self.canaries.lengths(planted) * self.included[planted]
        return lengths

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """See `CohortSource.transitions`; steps past a unit's end may give any row of its own."""
        real, canary = self._split(units)
        inputs = torch.empty(*steps.shape, self.canaries.inputs.shape[-1])
        targets = torch.empty(*steps.shape, self.canaries.targets.shape[-1])
        known, following = self.source.transitions(units[real], steps[real])
        # A source's rows may have a flag behind that is not learned.
        inputs[real], targets[real] = known, following[..., : targets.shape[-1]]
        inputs[canary], targets[canary] = self.canaries.transitions(
            units[canary] - self.source.units, steps[canary]
        )
        return inputs, targets

    def _split(self, units: Tensor) -> tuple[Tensor, Tensor]:
        canary = units >= self.source.units
        return (~canary).nonzero().squeeze(1), canary.nonzero().squeeze(1)


@dataclass(frozen=True)
class AttackResult:
    """Guesses of one attacker, and the bounds that follow.

    Attributes:
        guesses: made.
        correct: right ones.
        epsilon: every ε below it is refuted, for any mechanism.
        epsilon_fdp: every ε below it is refuted, if the rounds are Gaussian releases of Poisson samples with the
            plan's q; 0 where the plan claims nothing.
    """

    guesses: int
    correct: int
    epsilon: float
    epsilon_fdp: float


@dataclass(frozen=True)
class OneRun:
    """The report of the audit.

    Attributes:
        claimed: the plan's ε at ``delta``; None where it claims nothing.
        model: by the likelihood of the canaries under the released weights.
        rounds: by every round's release, which ε covers too.
        delta: at which all are read.
        confidence: with which all four bounds hold together; each is made at (1 - confidence)/4.
        canaries: m.
        units: real ones, that the canaries were among.
    """

    claimed: float | None
    model: AttackResult
    rounds: AttackResult
    delta: float
    confidence: float
    canaries: int
    units: int

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The four lower bounds, each with its assumption."""
        views, family = (("rounds", self.rounds), ("model", self.model)), ASSUMPTIONS["one_run_fdp"]
        free = (Bound(name, view.epsilon, "nothing") for name, view in views)
        return (*free, *(Bound(f"{name}_fdp", view.epsilon_fdp, family) for name, view in views))

    @property
    def epsilon(self) -> float:
        """The largest of the lower bounds."""
        return max(bound.epsilon for bound in self.bounds)

    @property
    def refutes_the_claim(self) -> bool:
        """Whether training leaks more than the plan states."""
        return self.claimed is not None and self.epsilon > self.claimed


def canary_trajectories(
    count: int, rows: int, weights: Weights, shape: Architecture, normaliser: Normaliser
) -> Units:
    """Trajectories made to leave a trace: far from all data, each pulling its own way, every round the same.

    A canary repeats one transition. Its input lies 10 standard deviations from the public mean in a random direction,
    where gradients are large and no other trajectories matter, so that its update has the clip's full norm.
    Its targets lie on random sides of the predictions of the public initial weights: far enough to pull for long,
    near enough that the mean's gradient counts beside the variance's, which pulls all canaries one way. As all
    rows are equal, no shuffling, subset or batch hides anything: the weights alone tell a canary's update.

    Args:
        count: m.
        rows: M, of each.
        weights: the initial ones.
        shape: of the ensemble.
        normaliser: the public one.
    """
    direction = torch.randn(count, shape.inputs)
    far = _RADIUS * direction / direction.norm(dim=1, keepdim=True)
    predicted, _ = gaussian(shape, outputs(weights, far.expand(shape.members, -1, -1)))
    wanted = predicted.mean(0) + _GAP * torch.randn(count, shape.targets).sign()
    inputs = far * normaliser.input_scale + normaliser.input_mean
    targets = wanted * normaliser.target_scale + normaliser.target_mean
    if shape.learned_termination:
        targets = torch.cat((targets, torch.randint(2, (count, 1)).float()), dim=1)
    return Units(inputs.unsqueeze(1).repeat(1, rows, 1), targets.unsqueeze(1).repeat(1, rows, 1))


def audit_one_run(
    setup: TrainingSetup,
    source: CohortSource,
    public: tuple[Tensor, Tensor],
    *,
    canaries: int,
    confidence: float,
    on_round: Callable[[], object],
) -> OneRun:
    """Train once on ``source`` and canaries that fair coins include, guess the coins, bound ε.

    The model may have memorised its units: nothing of it is returned or written.

    Args:
        setup: of the training; the plan's K must be ``source.units`` + ``canaries``.
        source: real units. They are trained on: private ones would have to be paid for.
        public: inputs and targets of the public split, as `train` takes them.
        canaries: m, from 8 to 1/(2δ).
        confidence: of the result.
        on_round: called after every round.

    Raises:
        PipelineError: too few canaries to guess about, or too many for the plan's δ.
        ValueError: the plan's K is another.
    """
    plan, architecture = setup.plan, setup.ensemble
    if canaries < _FEWEST or 2 * canaries * plan.delta > 1:
        raise PipelineError(
            f"audit: found {canaries} canaries, allowed are {_FEWEST} to {0.5 / plan.delta:g}, half of one over delta"
        )
    initial = setup.first_weights()
    setup = replace(setup, normaliser="public")
    normaliser = setup.make_normaliser(public, {})
    planted = canary_trajectories(
        canaries, setup.local.batch_size, initial, architecture, normaliser
    )
    included = np.random.default_rng().random(canaries) < 0.5
    witness = Witness(setup, planted, normaliser)
    everybody = WithCanaries(source, planted, torch.from_numpy(included))
    trained = train(
        setup, everybody, public, save_checkpoint=witness, on_round=lambda *_: on_round()
    )  # type: ignore[arg-type]
    weights = tuple(w.cpu() for w in trained.weights)
    likelihood = _likelihood(weights, planted, architecture, normaliser)
    each = 1 - (1 - confidence) / 4

    def view(scores: Floats) -> AttackResult:
        count = int(_GUESSED * canaries)
        made, right = guesses(scores, included, count, count)
        by_family = (
            f_dp_bound(Family.of(plan), canaries, made, right, each) if plan.is_private else 0.0
        )
        return AttackResult(
            made, right, epsilon_lower_bound(canaries, made, right, plan.delta, each), by_family
        )

    spent = plan.spent()
    claimed = spent.epsilon_pld if spent else None
    return OneRun(
        claimed,
        view(likelihood),
        view(witness.scores),
        plan.delta,
        confidence,
        canaries,
        source.units,
    )


class Witness:
    """Sees every release as training goes on, and sums up for each canary how likely it seems to be in.

    A round's release times qK is Σ_i b_i v_i + noise + all others, where v_i is canary i's clipped update at the
    weights before, which the witness computes, and b_i says whether it joined: 1 with probability q if it is in. The
    best linear estimate of b is ridge regression on the v_i; from its error follows a log-likelihood ratio of "in" to
    "out" for every canary and round. The noise is measured, as the rest that the canaries cannot explain, and not taken
    from the plan: a plan that lies about it would mislead. Call it with the progress before every round and after the
    last.
    """

    def __init__(self, setup: TrainingSetup, canaries: Units, normaliser: Normaliser) -> None:
        self._plan, self._momentum, self._kernel = (
            setup.plan,
            setup.server.server_momentum,
            setup.kernel(),
        )
        whole, everybody = (
            replace(setup.local, max_transitions_per_unit=None),
            torch.arange(canaries.units),
        )
        on_device = normaliser.to(setup.execution.device)
        self._batches = local_batches(canaries, everybody, on_device, whole, self._plan.entropy)
        self._before: TrainingState | None = None
        self.scores: Floats = np.zeros(canaries.units)

    def __call__(self, state: TrainingState) -> None:
        """Learn from the release between the last state and this one."""
        before, self._before = self._before, state
        if before is None or state.done == before.done:
            return
        step = flat(state.velocity) - self._momentum * flat(before.velocity)
        self.scores += self._evidence(before.weights, step * self._plan.expected_cohort)

    def _evidence(self, weights: Weights, total: Tensor) -> Floats:
        q, count = self._plan.sampling_probability, len(self.scores)
        moved = self._kernel.updates(
            tuple(w.to(self._kernel.device) for w in weights), self._batches
        )
        updates = torch.cat([part.flatten(1) for part in moved], dim=1)  # [m, parameters]
        scale = updates.norm(dim=1).mean()
        updates, total = updates / scale, total / scale
        gram, seen = (updates @ updates.T).double(), (updates @ total).double()
        if not bool(gram.isfinite().all() & seen.isfinite().all()):
            return np.zeros(count)  # training diverged, or no canary moves: nothing to see
        small = torch.eye(count, dtype=torch.float64, device=gram.device) * _RIDGE
        unexplained = total.double().square().sum() - seen @ torch.linalg.solve(gram + small, seen)
        noise = unexplained.clamp(min=0) / max(1, len(total) - count)
        # Before the release b_i is 1 with probability q/2, independently: mean and variance of the prior.
        mean, variance = q / 2, q / 2 * (1 - q / 2)
        ridge = small * (1 + float(noise) / variance / _RIDGE)
        estimate = torch.linalg.solve(gram + ridge, seen - gram.sum(1) * mean)
        shrinkage = torch.linalg.solve(gram + ridge, gram).diagonal().clamp(1e-9, 1 - 1e-9)
        joined = (estimate / shrinkage + mean).cpu().numpy()
        error = (variance * (1 - shrinkage) / shrinkage).cpu().numpy()
        with np.errstate(divide="ignore"):
            ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2 * joined - 1) / (2 * error))
        return np.asarray(np.clip(ratio, -_MOST_EVIDENCE, _MOST_EVIDENCE))


def _likelihood(
    weights: Weights, canaries: Units, shape: Architecture, normaliser: Normaliser
) -> Floats:
    """Log-likelihood of each canary's transition under the released weights, made finite."""
    inputs, targets = (
        normaliser.inputs(canaries.inputs[:, 0]),
        normaliser.targets(canaries.targets[:, 0]),
    )
    losses, _ = row_losses(shape, weights, inputs.expand(shape.members, -1, -1), targets)
    return np.asarray((-losses.mean(0)).double().nan_to_num(nan=-1e300, neginf=-1e300).numpy())
