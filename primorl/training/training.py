"""Trajectory-level private training of the ensemble (PriMORL, Algorithms 1 and 2)."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from primorl.dynamics.config import PublicLosses
from primorl.dynamics.ensemble import Weights
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.plan import Plan
from primorl.training.cohort import CohortSource
from primorl.training.distributed import DistributedRounds, Group, distributed_total
from primorl.training.public_evaluation import PublicEvaluation, PublicEvaluator
from primorl.training.rounds import Rounds
from primorl.training.setup import TrainingSetup
from primorl.training.state import TrainingState

SaveCheckpoint = Callable[[TrainingState], None]


@dataclass(frozen=True)
class Trained:
    """What training releases.

    Attributes:
        weights: to release.
        rounds: how many rounds were run; epochs of the pooled baseline.
        evaluations: on the public split.
        normaliser: of inputs and targets.
        answers: to the plan's queries, by name.
        public_loss: of the released weights beside two trivial models; None without a public split.
    """

    weights: Weights
    rounds: int
    evaluations: tuple[PublicEvaluation, ...]
    normaliser: Normaliser
    answers: Mapping[str, Tensor] = field(default_factory=dict)
    public_loss: PublicLosses | None = None

    @property
    def finite(self) -> bool:
        """Whether all weights are finite."""
        return all(bool(w.isfinite().all()) for w in self.weights)


def train(
    setup: TrainingSetup,
    source: CohortSource | None,
    public: tuple[Tensor, Tensor] | None,
    *,
    state: TrainingState | None = None,
    save_checkpoint: SaveCheckpoint = lambda state: None,
    on_round: Callable[[int, PublicEvaluation | None], None] = lambda started, evaluation: None,
    group: Group | None = None,
) -> Trained:
    """Answer the plan's queries and run its rounds, or those that an interrupted run left.

    A round counts as spent from the moment it is announced to ``save_checkpoint``, before any row of its cohort is
    read. However often a run dies and is resumed, at most ``plan.rounds`` rounds compute on the data. Rounds that died
    are not repeated. Noise and cohorts are drawn afresh: there is no generator whose state could be replayed.

    Args:
        setup: everything but the data.
        source: the private units, or those of this process; None is enough where ``state`` is finished.
        public: inputs ``[R, S + A]`` and targets ``[R, >= columns]`` of the public split; None: there is none, and all
            rounds are run.
        state: of an earlier process; None: begin.
        save_checkpoint: must have stored the state durably when it returns; called before the queries, before every
            round and at the end.
        on_round: called after every round with the number of rounds spent and, after an evaluation, with it.
        group: of several processes, this one being the first; the others call `distributed.serve`.

    Raises:
        ValueError: the source does not hold the number of units that the plan declares, the plan is for another number
            of processes, patience is asked for without a public split, or the answers to the queries are lost.
        ProcessLostError: another process is gone; the round is spent.
    """
    plan, architecture, device = setup.plan, setup.architecture, setup.execution.device
    _check(setup, source, public, group)
    now = state or TrainingState.begin(setup.first_weights())
    totals: dict[str, Callable[[], Tensor]] = {}
    if source is not None:
        for number, (name, query) in enumerate(setup.queries().items()):
            of_own = partial(query.total, source)
            totals[name] = partial(distributed_total, group, number, of_own) if group else of_own
    now = answer_queries(plan, totals, now, save_checkpoint)
    now = now.to(device)
    normaliser = setup.make_normaliser(public, now.answers)
    on_device = normaliser.to(device)
    evaluate = None
    if public is not None:
        inputs, targets = public[0].to(device), public[1][:, : architecture.columns].to(device)
        evaluate = PublicEvaluator(architecture, on_device, inputs, targets)
    rounds: Rounds | DistributedRounds | None = None
    if source is not None:
        own = Rounds(setup, source, on_device)
        rounds = own if group is None else DistributedRounds(group, own, on_device)
    stopping = setup.server.early_stopping
    with rounds or nullcontext():
        while not now.finished:
            if now.started < plan.rounds:
                if rounds is None:
                    raise ValueError("rounds are left to run, and there are no units to run them on")
                now = replace(now, started=now.started + 1)
                save_checkpoint(now)
                total = rounds.sum(now.weights)
                now = now.stepped(plan.release(total), setup.server)
            last = now.started >= plan.rounds
            evaluation = None
            if evaluate is None:
                now = now.ended() if last else now
            elif last or now.done % stopping.every == 0:
                averaged = now.averaged()
                evaluation = evaluate(averaged, now.done)
                now = now.evaluated(evaluation, averaged, stopping.patience, last=last)
            on_round(now.started, evaluation)
    save_checkpoint(now)
    loss = evaluate.compare(tuple(w.to(device) for w in setup.initial_weights()), now.best) if evaluate else None
    return Trained(now.best, now.done, now.evaluations, normaliser, now.answers, loss)


def answer_queries(
    plan: Plan,
    totals: Mapping[str, Callable[[], Tensor]],
    state: TrainingState,
    save_checkpoint: SaveCheckpoint = lambda state: None,
) -> TrainingState:
    """Answer the plan's queries, once, before the rounds; answers that are known already stay.

    The queries count as spent from the moment they are announced to ``save_checkpoint``, before any private row is
    read. A process that dies before the answers are saved leaves a state that is `TrainingState.lost`.

    Args:
        plan: whose queries are answered.
        totals: computes the sum of each query, by its name; sensitive, called where there is no answer yet.
        state: so far.
        save_checkpoint: must have stored the state durably when it returns.

    Raises:
        ValueError: the state is lost.
    """
    if not plan.queries or state.answers:
        return state
    if state.lost:
        raise ValueError("the queries of this charge were asked and their answers are lost: it cannot go on")
    save_checkpoint(replace(state, asked=True))
    answers = {query.what: plan.answer(query, totals[query.what]()) for query in plan.queries}
    state = replace(state, asked=True, answers=answers)
    save_checkpoint(state)
    return state


def _check(
    setup: TrainingSetup, source: CohortSource | None, public: tuple[Tensor, Tensor] | None, group: Group | None
) -> None:
    if source is not None and source.units != len(setup.plan.local_units):
        raise ValueError("the number of private units differs from the one the plan declares")
    if source is not None and setup.plan.processes != (1 if group is None else group.processes):
        raise ValueError("the plan is for another number of processes")
    if public is None and setup.server.early_stopping.patience is not None:
        raise ValueError("early stopping needs a public split")
