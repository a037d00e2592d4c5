"""What training carries from one round to the next. All of it is released, so it may be written down."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from primorl.dynamics.ensemble import Weights
from primorl.project.files import finite
from primorl.training.policy_network import Network
from primorl.training.public_evaluation import PublicEvaluation
from primorl.training.settings import ServerTraining

ENGINE_VERSION = 4
"""Version of the private engine.

Developers raise it when a release could differ in distribution: another way to sample, clip, add noise, train locally,
or step the server. A faster way to the same sums leaves it alone. Models state the version that made them. A paid model
is restored whatever the version: an upgrade never charges the same people again by itself.
"""
TENSORS = ("weights", "velocity", "average", "best")
_ANSWERS = "answers."  # before the names of answers, among a checkpoint's tensors


@dataclass(frozen=True)
class TrainingState:
    """The state of a training after some rounds.

    Attributes:
        weights: after the rounds so far.
        velocity: the last step, for the server's momentum.
        average: weighted sum of the iterates.
        mass: sum of the weights in ``average``.
        best: what would be released if training stopped here.
        best_loss: its public loss; infinite before the first evaluation, and without patience.
        since_best: evaluations since ``best``.
        done: rounds whose releases are in ``weights``.
        started: rounds that began. A round counts as spent from here on, also where its process died.
        finished: no round is left to run.
        evaluations: on the public split.
        asked: the plan's queries were asked, or may have been. They count as spent from here on.
        engine: version of the engine that began the training.
        answers: to the queries, by name; empty before they are known.
        settings: digest of what the rounds follow (`TrainingSetup.digest`); None: it was not written down.
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
    evaluations: tuple[PublicEvaluation, ...]
    asked: bool = False
    engine: int = ENGINE_VERSION
    answers: Mapping[str, Tensor] = field(default_factory=dict)
    settings: str | None = None

    @property
    def lost(self) -> bool:
        """Whether queries were asked and their answers are gone. The same charge cannot ask them again."""
        return self.asked and not self.answers

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds: each set of weights as one vector, and the answers.

        One vector each, for a file of two dozen small tensors takes twice the time, and every round writes one.
        """
        parts = {name: torch.cat([w.detach().flatten() for w in getattr(self, name)]) for name in TENSORS}
        return parts | {f"{_ANSWERS}{name}": answer for name, answer in self.answers.items()}

    def facts(self) -> dict[str, Any]:
        """The counts and evaluations, as strict JSON; see `restore`."""
        plain = {key: value for key, value in vars(self).items() if key not in (*TENSORS, "answers")}
        evaluations = [[each.round, finite(each.loss), [finite(e) for e in each.error]] for each in self.evaluations]
        return plain | {"best_loss": finite(self.best_loss), "evaluations": evaluations}

    @classmethod
    def restore(cls, architecture: Network, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> "TrainingState":
        """Rebuild the state of networks of ``architecture`` from a checkpoint's `tensors` and `facts`.

        Raises:
            ValueError, KeyError, TypeError: they are of another ensemble, or of no training.
        """
        parts = {name: _as_weights(tensors[name], architecture) for name in TENSORS}
        answers = {name.removeprefix(_ANSWERS): part for name, part in tensors.items() if name.startswith(_ANSWERS)}
        evaluations = tuple(
            PublicEvaluation(at, _number(loss), tuple(map(_number, error))) for at, loss, error in facts["evaluations"]
        )
        rest = {"answers": answers, "evaluations": evaluations, "best_loss": _number(facts["best_loss"])}
        return cls(**facts | parts | rest)

    @classmethod
    def begin(cls, weights: Weights, settings: str | None = None) -> "TrainingState":
        """The state before the first round."""
        zeros = tuple(torch.zeros_like(w) for w in weights)
        return cls(weights, zeros, zeros, 0.0, weights, math.inf, 0, 0, 0, False, (), settings=settings)

    def to(self, device: torch.device) -> "TrainingState":
        """The same state on ``device``."""
        moved: dict[str, Any] = {name: tuple(w.to(device) for w in getattr(self, name)) for name in TENSORS}
        return replace(self, **moved)

    def stepped(self, step: Weights, server: ServerTraining) -> "TrainingState":
        """The state after one more release, ``step``."""
        past = server.server_averaging
        velocity = tuple(server.server_momentum * v + s for v, s in zip(self.velocity, step, strict=True))
        weights = tuple(w + v for w, v in zip(self.weights, velocity, strict=True))
        average = tuple(past * a + (1 - past) * w for a, w in zip(self.average, weights, strict=True))
        mass = past * self.mass + (1 - past)
        return replace(self, weights=weights, velocity=velocity, average=average, mass=mass, done=self.done + 1)

    def averaged(self) -> Weights:
        """The running average of the released iterates, corrected for its start."""
        return tuple(part / self.mass for part in self.average) if self.mass else self.weights

    def ended(self) -> "TrainingState":
        """The state after the last round where there is no public split: the average is released."""
        return replace(self, best=self.averaged(), finished=True)

    def evaluated(
        self, evaluation: PublicEvaluation, averaged: Weights, patience: int | None, *, last: bool
    ) -> "TrainingState":
        """The state after ``averaged`` was evaluated; ``patience`` evaluations without a better loss end training."""
        seen = replace(self, evaluations=(*self.evaluations, evaluation))
        if patience is None:
            return replace(seen, best=averaged, finished=last)
        if evaluation.loss < self.best_loss:
            return replace(seen, best=averaged, best_loss=evaluation.loss, since_best=0, finished=last)
        since_best = self.since_best + 1
        return replace(seen, since_best=since_best, finished=last or since_best >= patience)


def _as_weights(vector: Tensor, architecture: Network) -> Weights:
    sizes = [
        size for i, o in architecture.layers for size in ((architecture.members, i, o), (architecture.members, 1, o))
    ]
    lengths = [math.prod(size) for size in sizes]
    if vector.shape != (sum(lengths),):
        raise ValueError
    return tuple(part.clone().view(size) for part, size in zip(torch.split(vector, lengths), sizes, strict=True))


def _number(value: float | None) -> float:
    return math.inf if value is None else value
