"""Trajectory-level private training of the ensemble (PriMORL, Algorithms 1 and 2), and its state
between two rounds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from primorl.engine.local_update import CohortSource
from primorl.engine.public import PublicEvaluation, PublicEvaluator, Rows
from primorl.engine.rounds import Rounds
from primorl.engine.settings import ServerTraining
from primorl.engine.setup import Answers, TrainingSetup
from primorl.engine.shards import ALONE, Group, Message, Processes, join_answers
from primorl.model.architecture import PublicLosses
from primorl.model.ensemble import Normaliser, Weights
from primorl.model.numerics import flatten, to_device
from primorl.privacy.ledger.checkpoint import State

ENGINE_VERSION = 2
"""Version of the private engine.

Developers raise it when a release could differ in distribution: another way to sample, clip, add
noise, train locally, or step the server. A faster way to the same sums leaves it alone. Models
state the version that made them. A paid model is restored whatever the version: an upgrade never
charges the same people again by itself.
"""
_ANSWERS = "answers."  # before the names of answers, among a checkpoint's tensors


@dataclass(frozen=True)
class TrainingState(State):
    """The state of a training after some rounds; weights are vectors ``[d]`` (`flatten`).

    Attributes:
        weights: after the rounds so far.
        velocity: the last step, for the server's momentum.
        average: weighted sum of the iterates.
        best: the release if training stopped here.
        mass: sum of the weights in ``average``.
        best_loss: public loss of ``best``; None before the first evaluation, and without patience.
        since_best: evaluations since ``best``.
        done: rounds with releases in ``weights``.
        started: rounds that began. A round counts as spent from here on, also where its process
            died.
        finished: no round is left to run.
        asked: number of the mechanism's queries that were answered, or may have been. They count as
            spent from here on.
        engine: version of the engine that began the training.
        about: digest of the settings of the rounds (`TrainingSetup.digest`).
        answers: to the queries, by name; empty before they are known.
    """

    weights: Tensor
    velocity: Tensor
    average: Tensor
    best: Tensor
    mass: float = 0.0
    best_loss: float | None = None
    since_best: int = 0
    done: int = 0
    started: int = 0
    finished: bool = False
    asked: int = 0
    engine: int = ENGINE_VERSION
    about: str = ""
    answers: Answers = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        """Whether a query may have been answered and its answer is gone.

        The same charge cannot ask it again.
        """
        return self.asked > len(self.answers)

    def tensors(self) -> dict[str, Tensor]:
        """Return a checkpoint's tensors: the weights, and the answers."""
        answers = {f"{_ANSWERS}{name}": answer for name, answer in self.answers.items()}
        return super().tensors() | answers

    def facts(self) -> dict[str, Any]:
        """Return the counts."""
        return {name: value for name, value in super().facts().items() if name != "answers"}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> "TrainingState":
        """Rebuild the state from a checkpoint's `tensors` and `facts`.

        Raises:
            ValueError, KeyError, TypeError: they are of no training.
        """
        parts: dict[str, Any] = dict(tensors)
        names = [name for name in tensors if name.startswith(_ANSWERS)]
        answers = {name.removeprefix(_ANSWERS): parts.pop(name) for name in names}
        return cls(**parts, **facts, answers=answers)

    @classmethod
    def begin(cls, setup: TrainingSetup) -> "TrainingState":
        """Make the state before the first release."""
        start = flatten(setup.first_weights())
        zeros = torch.zeros_like(start)
        return cls(start, zeros, zeros, start, about=setup.digest)

    def to(self, device: torch.device) -> "TrainingState":
        """Move the weights to ``device``."""
        return to_device(self, device)

    def step(self, step: Tensor, server: ServerTraining) -> "TrainingState":
        """Make the state after one more release, ``step``."""
        past = server.server_averaging
        velocity = server.server_momentum * self.velocity + step
        weights = self.weights + velocity
        return replace(
            self,
            weights=weights,
            velocity=velocity,
            average=past * self.average + (1 - past) * weights,
            mass=past * self.mass + (1 - past),
            done=self.done + 1,
        )

    def average_weights(self) -> Tensor:
        """Average the released iterates, corrected for the start of the running average."""
        return self.average / self.mass if self.mass else self.weights

    def end(self) -> "TrainingState":
        """Make the state after the last round: the average is released."""
        return replace(self, best=self.average_weights(), finished=True)

    def judge(self, loss: float, averaged: Tensor, patience: int) -> "TrainingState":
        """Make the state after ``averaged`` had this public loss; ``patience`` evaluations without
        a better one end training.
        """
        if loss < (math.inf if self.best_loss is None else self.best_loss):
            return replace(self, best=averaged, best_loss=loss, since_best=0)
        since_best = self.since_best + 1
        return replace(self, since_best=since_best, finished=since_best >= patience)


SaveCheckpoint = Callable[[TrainingState], None]
OnRound = Callable[[PublicEvaluation | None], None]


@dataclass(frozen=True)
class Trained:
    """The result of training.

    Attributes:
        weights: to release.
        rounds: that were run.
        normaliser: of inputs and targets.
        answers: to the mechanism's queries, by name.
        public_loss: of the released weights beside two trivial models; None without a public split.
        engine: version of the engine that began the training.
    """

    weights: Weights
    rounds: int
    normaliser: Normaliser
    answers: Answers
    public_loss: PublicLosses | None
    engine: int

    @property
    def finite(self) -> bool:
        """Whether all weights are finite."""
        return all(bool(w.isfinite().all()) for w in self.weights)


def train(
    setup: TrainingSetup,
    source: CohortSource | None,
    public: Rows | None,
    *,
    state: TrainingState | None = None,
    save_checkpoint: SaveCheckpoint = lambda state: None,
    on_round: OnRound = lambda evaluation: None,
    group: Group = ALONE,
) -> Trained:
    """Answer the mechanism's queries and run its rounds, or those that an interrupted run left.

    A round counts as spent from the moment it is announced to ``save_checkpoint``, before any row
    of its cohort is read. However often a run dies and is resumed, at most ``mechanism.rounds``
    rounds compute on the data. Rounds that died are not repeated. Noise and cohorts are drawn
    afresh: there is no generator with a state that could be replayed.

    Args:
        setup: everything but the data.
        source: the private units, or those of this process; None is enough where ``state`` is
            finished.
        public: rows of the public split; None: there is none, and all rounds are run.
        state: of an earlier process; None: begin.
        save_checkpoint: must have stored the state durably when it returns; called before the
            queries, before every round and at the end.
        on_round: called after every round, with its evaluation where it had one.
        group: of processes, this one being the first; the others call `serve`.

    Raises:
        ValueError: the source does not hold the number of units that the mechanism declares, there
            is no source for what is left to do, patience is asked for without a public split, or
            the answers to the queries are lost.
    """
    if source is not None and source.units != len(range(0, setup.mechanism.units, group.ranks)):
        raise ValueError("the number of private units differs from the one the mechanism declares")
    if public is None and setup.server.early_stopping.patience is not None:
        raise ValueError("early stopping needs a public split")
    state = state or TrainingState.begin(setup)
    first = FirstProcess(setup, source, save_checkpoint, group)
    state = first.answer_queries(state).to(setup.execution.device)
    normaliser = setup.make_normaliser(public, state.answers)
    maps = normaliser.to(setup.execution.device)
    evaluate = None if public is None else PublicEvaluator(setup.architecture, maps, public)
    if not state.finished:
        if source is None:
            raise ValueError("rounds are left to run, and there are no units to run them on")
        group.ask(Message.ROUNDS, len(state.answers), join_answers(state.answers))
        with Rounds(setup, source, maps) as rounds:
            state = first.run_rounds(rounds, evaluate, state, on_round)
        state = first.ask_late(maps, state)
    save_checkpoint(state)
    return first.release(evaluate, state, normaliser)


def serve(
    group: Processes, setup: TrainingSetup, source: CohortSource, public: Rows | None
) -> None:
    """Answer the requests of the first process until it stops; every other process runs this.

    Args:
        group: the processes.
        setup: of the training.
        source: this process's units.
        public: of the public split, as `train` takes it.
    """
    sizes = {name: query.contribution.size for name, query in setup.early_queries({}).items()}
    late, device = list(setup.late_queries().values()), setup.execution.device
    while True:
        request, number, released = group.wait()
        if request == Message.STOP:
            return
        if request in (Message.QUERY, Message.ROUNDS):
            known = list(sizes)[:number]
            parts = torch.split(released, [sizes[name] for name in known])
            answers = dict(zip(known, parts, strict=True))
        if request == Message.QUERY:
            query = list(setup.early_queries(answers).values())[number]
            group.total(query.total(source))
        elif request == Message.ROUNDS:
            maps = setup.make_normaliser(public, answers).to(device)
            rounds = Rounds(setup, source, maps)
        elif request == Message.ROUND:
            group.total(rounds.sum(released.float().to(device)))
        elif request == Message.LATE:
            weights = setup.shape(released.float().to(device))
            group.total(late[number].total(source, maps, weights))


@dataclass(frozen=True)
class FirstProcess:
    """The process that releases.

    Attributes:
        setup: everything but the data.
        source: the private units, or those of this process; None is enough where all is known.
        save_checkpoint: must have stored the state durably when it returns.
        group: of the processes.
    """

    setup: TrainingSetup
    source: CohortSource | None
    save_checkpoint: SaveCheckpoint
    group: Group

    def answer_queries(self, state: TrainingState) -> TrainingState:
        """Answer the mechanism's queries that are asked before the rounds, once; answers that are
        known already stay.

        A query counts as spent from the moment it is announced to ``save_checkpoint``, after its
        rows were summed and before any noise is drawn. So a process that dies while it reads rows
        has released nothing, and goes on; one that dies before the answer is saved leaves a state
        that is `TrainingState.lost`.

        Raises:
            ValueError: the state is lost.
        """
        mechanism, late = self.setup.mechanism, self.setup.late_queries()
        queries = [query for query in mechanism.queries if query.what not in late]
        if not queries:
            return state
        if state.lost:
            raise ValueError("a query of this charge was asked and its answer is lost")
        # A file of answers does not keep their order; other processes count on the mechanism's.
        names = [query.what for query in mechanism.queries if query.what in state.answers]
        state = replace(state, answers={name: state.answers[name] for name in names})
        for query in queries[len(names) :]:
            assert self.source is not None, "answers that are known are not asked for again"
            self.group.ask(Message.QUERY, len(state.answers), join_answers(state.answers))
            asked = self.setup.early_queries(state.answers)[query.what]
            total = self.group.total(asked.total(self.source))
            state = replace(state, asked=state.asked + 1)
            self.save_checkpoint(state)
            answers = {**state.answers, query.what: mechanism.answer(query, total)}
            state = replace(state, answers=answers)
            self.save_checkpoint(state)
        return state

    def run_rounds(
        self,
        rounds: Rounds,
        evaluate: PublicEvaluator | None,
        now: TrainingState,
        on_round: OnRound,
    ) -> TrainingState:
        """Run the rounds that are left, and evaluate now and then."""
        mechanism, stopping = self.setup.mechanism, self.setup.server.early_stopping
        while not now.finished:
            if now.started < mechanism.rounds:
                now = replace(now, started=now.started + 1)
                self.save_checkpoint(now)
                self.group.ask(Message.ROUND, released=now.weights)
                total = self.group.total(rounds.sum(now.weights))
                now = now.step(mechanism.release(total), self.setup.server)
                if now.started == mechanism.rounds:  # late queries may take long
                    self.save_checkpoint(now)
            last, evaluation = now.started >= mechanism.rounds, None
            if evaluate is not None and (last or now.done % stopping.every == 0):
                averaged = now.average_weights()
                evaluation = evaluate(self.setup.shape(averaged), now.done)
                if stopping.patience is not None:
                    now = now.judge(evaluation.loss, averaged, stopping.patience)
            if last:
                now = replace(now, finished=True) if stopping.patience is not None else now.end()
            on_round(evaluation)
        return now

    def ask_late(self, maps: Normaliser, state: TrainingState) -> TrainingState:
        """Answer the mechanism's queries that are asked after the rounds, about the released
        weights, by the units of all processes.

        A finished state announces them, after their rows were summed and before any noise is drawn:
        they count as spent then, and answers that are lost are not asked for again. What they would
        tell is unknown.
        """
        mechanism, late = self.setup.mechanism, self.setup.late_queries()
        if not late:
            return state
        assert self.source is not None, "rounds were run"
        released = self.setup.shrink(self.setup.shape(state.best))
        totals = []
        for number, query in enumerate(late.values()):
            self.group.ask(Message.LATE, number, flatten(released))
            totals.append(self.group.total(query.total(self.source, maps, released)))
        self.save_checkpoint(state)
        answers, charged = dict(state.answers), {each.what: each for each in mechanism.queries}
        for name, total in zip(late, totals, strict=True):
            answers[name] = mechanism.answer(charged[name], total)
        return replace(state, answers=answers)

    def release(
        self, evaluate: PublicEvaluator | None, state: TrainingState, normaliser: Normaliser
    ) -> Trained:
        """Make the result of a finished training, and compare it on the public split."""
        setup, losses = self.setup, None
        best = setup.shrink(setup.shape(state.best))
        if evaluate is not None:
            device = setup.execution.device
            initial = tuple(w.to(device) for w in setup.architecture.initial_weights(setup.seed))
            start = None if setup.start is None else tuple(w.to(device) for w in setup.start)
            losses = evaluate.compare(initial, best, start)
        return Trained(best, state.done, normaliser, state.answers, losses, state.engine)
