"""Trajectory-level private training of the ensemble (PriMORL, Algorithms 1 and 2)."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Architecture, Normaliser, Weights, row_losses
from primorl.privacy.mechanism.plan import Plan
from primorl.project.files import finite
from primorl.training.cohort import CohortSource
from primorl.training.distributed import Group, SharedRounds
from primorl.training.local_update import LocalTraining
from primorl.training.rounds import Execution, Rounds

TENSORS = ("weights", "velocity", "average", "best")
_ANSWERS = "answers."  # before the names of answers, among a checkpoint's tensors
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
    of the members' mean prediction, one number a target (`Architecture.target_names`), in units of the public variance.
    """

    round: int
    loss: float
    error: tuple[float, ...]


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
        losses, predicted = row_losses(shape, weights, inputs, self._targets)
        error = (predicted.mean(0) - self._targets).square().mean(0) / self._variance
        return Look(after, float(losses.mean()), tuple(error.tolist()))


@dataclass(frozen=True)
class Progress:
    """All that training carries from one round to the next: released things only, so it may be written down.

    Attributes:
        weights: after the rounds so far.
        velocity: the last step, for the server's momentum.
        average: weighted sum of the iterates, and ``mass`` the sum of its weights.
        mass: see ``average``.
        best: what would be released if training stopped here.
        best_loss: its public loss; infinite before the first look, and without patience.
        since_best: looks since then.
        done: rounds whose releases are in ``weights``.
        started: rounds that began, or may have: spent, also where the release died with its process.
        finished: no round is left to run.
        looks: at the public split.
        asked: the plan's queries were asked, or may have been: spent, also where the answers died with their process.
        answers: to the queries, by name; empty before they are there.
    """

    weights: Weights
    velocity: Weights
    average: Weights
    mass: float
    best: Weights
    best_loss: float
    since_best: int
    done: int
    started: int
    finished: bool
    looks: tuple[Look, ...]
    asked: bool = False
    answers: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        """Whether queries were asked whose answers are gone: they cannot be asked again under the same charge."""
        return self.asked and not self.answers

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds: each set of weights as one vector, and the answers.

        A file of two dozen small tensors takes twice the time, and one is written every round.
        """
        parts = {name: torch.cat([w.detach().flatten() for w in getattr(self, name)]) for name in TENSORS}
        return parts | {f"{_ANSWERS}{name}": answer for name, answer in self.answers.items()}

    def facts(self) -> dict[str, Any]:
        """The counts and looks, as strict JSON; see `restore`."""
        plain = {key: value for key, value in vars(self).items() if key not in (*TENSORS, "answers")}
        looks = [[look.round, finite(look.loss), [finite(e) for e in look.error]] for look in self.looks]
        return plain | {"best_loss": finite(self.best_loss), "looks": looks}

    @classmethod
    def restore(cls, shape: Architecture, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> "Progress":
        """Rebuild the state of an ensemble of ``shape`` from a checkpoint's `tensors` and `facts`.

        Raises:
            ValueError, KeyError, TypeError: they are of another ensemble, or of no training.
        """
        parts = {name: _as_weights(tensors[name], shape) for name in TENSORS}
        answers = {name.removeprefix(_ANSWERS): part for name, part in tensors.items() if name.startswith(_ANSWERS)}
        looks = tuple(Look(at, _number(loss), tuple(map(_number, error))) for at, loss, error in facts["looks"])
        return cls(**facts | parts | {"answers": answers, "looks": looks, "best_loss": _number(facts["best_loss"])})

    @classmethod
    def begin(cls, weights: Weights) -> "Progress":
        """Before the first round."""
        nothing = tuple(torch.zeros_like(w) for w in weights)
        return cls(weights, nothing, nothing, 0.0, weights, math.inf, 0, 0, 0, False, ())

    def to(self, device: torch.device) -> "Progress":
        """The same on ``device``."""
        moved: dict[str, Any] = {name: tuple(w.to(device) for w in getattr(self, name)) for name in TENSORS}
        return replace(self, **moved)

    def stepped(self, step: Weights, server: ServerTraining) -> "Progress":
        """After one more release, of which ``step`` is the outcome."""
        past = server.averaging
        velocity = tuple(server.momentum * v + s for v, s in zip(self.velocity, step, strict=True))
        weights = tuple(w + v for w, v in zip(self.weights, velocity, strict=True))
        average = tuple(past * a + (1 - past) * w for a, w in zip(self.average, weights, strict=True))
        mass = past * self.mass + (1 - past)
        return replace(self, weights=weights, velocity=velocity, average=average, mass=mass, done=self.done + 1)

    def averaged(self) -> Weights:
        """The running average of the released iterates, unbiased from the first round on."""
        return tuple(part / self.mass for part in self.average) if self.mass else self.weights

    def ended(self) -> "Progress":
        """After the last round where nothing public could be looked at: the average is what is released."""
        return replace(self, best=self.averaged(), finished=True)

    def judged(self, look: Look, averaged: Weights, patience: int | None, *, last: bool) -> "Progress":
        """After a look at ``averaged``; ``patience`` looks without a better loss end training."""
        seen = replace(self, looks=(*self.looks, look))
        if patience is None:
            return replace(seen, best=averaged, finished=last)
        if look.loss < self.best_loss:
            return replace(seen, best=averaged, best_loss=look.loss, since_best=0, finished=last)
        since_best = self.since_best + 1
        return replace(seen, since_best=since_best, finished=last or since_best >= patience)


def _as_weights(vector: Tensor, shape: Architecture) -> Weights:
    sizes = [size for i, o in shape.layers for size in ((shape.members, i, o), (shape.members, 1, o))]
    lengths = [math.prod(size) for size in sizes]
    if vector.shape != (sum(lengths),):
        raise ValueError(f"found {tuple(vector.shape)} numbers, {sum(lengths)} are needed")
    return tuple(part.clone().view(size) for part, size in zip(torch.split(vector, lengths), sizes, strict=True))


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def ask(
    plan: Plan,
    totals: Mapping[str, Callable[[], Tensor]],
    progress: Progress,
    keep: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Ask the plan's queries, once, before the rounds; answers that are there already are kept.

    They count as spent from the moment this is announced to ``keep``, before any private row is touched. A process that
    dies between that and the answers' being kept leaves progress that is `Progress.lost`.

    Args:
        plan: whose queries are asked.
        totals: makes the sum of each query, by its name: sensitive, called where there is no answer yet.
        progress: so far.
        keep: must have stored the progress durably when it returns.

    Raises:
        ValueError: the progress is lost.
    """
    if not plan.queries or progress.answers:
        return progress
    if progress.lost:
        raise ValueError("the queries of this charge were asked and their answers are lost: it cannot go on")
    keep(replace(progress, asked=True))
    answers = {query.what: plan.answer(query, totals[query.what]()) for query in plan.queries}
    progress = replace(progress, asked=True, answers=answers)
    keep(progress)
    return progress


def train(
    plan: Plan,
    shape: Architecture,
    source: CohortSource | None,
    public: tuple[Tensor, Tensor] | None,
    *,
    normaliser: Normaliser,
    local: LocalTraining,
    server: ServerTraining,
    max_transitions: int | None,
    seed: int,
    execution: Execution,
    progress: Progress | None = None,
    keep: Callable[[Progress], None] = lambda progress: None,
    on_round: Callable[[int, Look | None], None],
    group: Group | None = None,
) -> Trained:
    """Run the plan's rounds, or those that an interrupted run left.

    A round counts as spent from the moment it is announced to ``keep``, before its weights meet any private row. (Rows
    of its cohort may have been read by then, see `Rounds`, which releases nothing.) So however often a run dies and is
    taken up again, at most ``plan.rounds`` rounds ever compute on the data: those that died are not made up for. Noise
    and cohorts are drawn afresh; there is no generator whose state could be replayed.

    Args:
        plan: sampler, clip, noise and what they cost; the only thing here that touches privacy.
        shape: sizes of the ensemble.
        source: the private units, or those that are this process's; None is enough where ``progress`` is finished.
        public: inputs ``[R, S + A]`` and targets ``[R, >= columns]`` of the public split, which is looked at; None:
            there is none, and all rounds are run.
        normaliser: of inputs and targets; released or public.
        local: the units' local steps.
        server: what follows a release.
        max_transitions: cap on a unit's transitions in a round.
        seed: of the initial weights.
        execution: where and in what portions.
        progress: of an earlier process; None: begin.
        keep: must have stored the progress durably when it returns; called before every round and at the end.
        on_round: called after every round with the number of rounds spent and, after a look, with the look.
        group: of several processes, this one being the first; the others `serve`. None: there are no others.

    Raises:
        ValueError: the source does not hold the number of units that the plan declares, the plan is for another number
            of processes, or patience is asked for with nothing public to look at.
        LostError: another process is gone; the round is spent.
    """
    if source is not None and source.units != len(plan.held):
        raise ValueError("the number of private units differs from the one the plan declares")
    if source is not None and plan.processes != (1 if group is None else group.processes):
        raise ValueError("the plan is for another number of processes")
    if public is None and server.patience is not None:
        raise ValueError("stopping early needs something public to look at")
    device = execution.device
    normaliser = replace(normaliser.to(device), flag=shape.learned_termination)
    look_at = None
    if public is not None:
        look_at = PublicLook(shape, normaliser, public[0].to(device), public[1][:, : shape.columns].to(device))
    now = (progress or Progress.begin(shape.initial_weights(seed))).to(device)
    rounds: Rounds | SharedRounds | None = None
    if source is not None:
        own = Rounds(plan, shape, source, normaliser, local, max_transitions=max_transitions, execution=execution)
        rounds = own if group is None else SharedRounds(group, own, normaliser)
    with rounds or nullcontext():
        while not now.finished:
            if now.started < plan.rounds:
                if rounds is None:
                    raise ValueError("rounds are left to run, and there are no units to run them on")
                now = replace(now, started=now.started + 1)
                keep(now)
                total = rounds.sum(now.weights, last=now.started >= plan.rounds)
                now = now.stepped(plan.release(total), server)
            last = now.started >= plan.rounds
            look = None
            if look_at is None:
                now = now.ended() if last else now
            elif last or now.done % server.look_every == 0:
                averaged = now.averaged()
                look = look_at(averaged, now.done)
                now = now.judged(look, averaged, server.patience, last=last)
            on_round(now.started, look)
    keep(now)
    return Trained(now.best, now.done, now.looks)
