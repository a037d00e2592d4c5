"""Charge the ledger, train in one or several processes, and save checkpoints: the model, and the clone."""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dp_accounting import dp_event
from torch import Tensor

import primorl
from primorl.config.params import Params
from primorl.privacy.ledger.charges import Payment, pay_or_resume, spent_on_dataset
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.statement import SpentOnDataset
from primorl.project.errors import PipelineError
from primorl.project.files import check_writable, home
from primorl.project.paths import CHECKPOINTS, FITS, SECRET
from primorl.project.progress import progress_bar
from primorl.setup import accounts
from primorl.setup.compute import Place, ThreadChoice, kept_bytes
from primorl.setup.launcher import joined
from primorl.setup.paid_work import PrivateStage
from primorl.setup.partitions import Partitions
from primorl.tracking import StageRun
from primorl.training.distributed import Group, announce_grant, check_coverage, serve, wait_for_grant
from primorl.training.independence import check_setup
from primorl.training.policy_network import Network
from primorl.training.public_evaluation import PublicEvaluation
from primorl.training.setup import TrainingSetup
from primorl.training.training import ENGINE_VERSION, Trained, TrainingState, train
from primorl.trajectories.storage.store import ShardedStore, UnitStore

_COPIES = 8  # of the parameters on disk at most: a checkpoint holds four, and is replaced by a new one; then the model
_ACCOUNTING_SHARE = 200  # ε so far may take one part in so many of the time
OnRound = Callable[[int, PublicEvaluation | None], None]


@dataclass(frozen=True)
class PaidModel:
    """A trained model and its ledger entry.

    Attributes:
        trained: weights, normaliser, answers to the queries.
        charge: id of the charge that paid for it.
        spent: on the same units so far, this charge included.
        engine_version: of the engine that began the training.
        commit: records in the ledger that all is well; takes the SHA-256 of every file that was written, by name.
    """

    trained: Trained
    charge: str
    spent: SpentOnDataset
    engine_version: int
    commit: Callable[[Mapping[str, str]], None]


@contextmanager
def paid_training(
    stage: PrivateStage, params: Params, setup: TrainingSetup, partitions: Partitions, place: Place, run: StageRun
) -> Iterator[PaidModel]:
    """Pay for the training and train. The block writes the model and commits the charge (`PaidModel.commit`).

    What was paid for under the same `PrivateStage.identity` is resumed or restored at no cost, whatever code made it.

    Args:
        stage: that pays.
        params: every choice.
        setup: of this process, which is the first.
        partitions: whose private rows are opened after the ledger has granted the charge.
        place: of this process among all that train together.
        run: the stage's MLflow run.

    Raises:
        PipelineError: the budget does not allow it, training diverged, or another process was lost.
    """
    pooled = stage.pooled if params.dynamics.variant == "mopo" else None
    baseline = pooled is not None
    if setup.plan.is_private and not baseline:
        check_setup(setup)
    accounts.check_evaluation(params, partitions.manifest)
    check_writable([stage.output, home() / CHECKPOINTS / "charge"], _COPIES * 4 * setup.architecture.parameters)
    request = accounts.request(
        params,
        run,
        partitions.manifest,
        partitions.version,
        stage=stage.name,
        event=dp_event.NonPrivateDpEvent() if baseline else setup.plan.event,
        identity=stage.identity(params, partitions),
    )
    kept = setup.plan.is_private and not baseline
    begin = TrainingState.begin(setup.first_weights(), setup.digest) if kept else None
    with (
        closing(accounts.project_ledger(params)) as ledger,
        pay_or_resume(
            ledger,
            request,
            accounts.budget(params, partitions.manifest.private_units),
            accounts.checkpoints(),
            begin,
            partial(_restored, setup),
        ) as payment,
    ):
        run.tag("charge", payment.charge.id)
        _say_what_is_restored(stage, payment)
        if pooled is not None:
            trained = pooled(params, setup, partitions, run)
        else:
            threads = ThreadChoice(params.compute, setup.execution.device)
            started = payment.state.started if payment.state else 0
            with TrainingReport(run, setup, stage.name, started, threads.update) as report:
                trained = _train(stage, params, setup, partitions, payment, place, report)
        _check(stage, trained, ledger, payment)
        spent = spent_on_dataset(ledger, partitions.version, params.privacy.budget.delta)
        engine = payment.state.engine if payment.state else ENGINE_VERSION
        yield PaidModel(trained, payment.charge.id, spent, engine, partial(ledger.commit, payment.charge.id))


def work_for_first(params: Params, stage: PrivateStage, folder: Path) -> None:
    """Sum over the units of this process, which is not the first, once the ledger has granted the charge.

    Args:
        params: every choice; the first process has the same.
        stage: that the processes work for.
        folder: of the partitions.

    Raises:
        PipelineError: this process would train another model than the first one has paid for.
    """
    if not stage.asked(params):
        return  # one process does what there is to do
    place = Place.of(params.compute)
    with Group() as group:
        granted = wait_for_grant(group)
        if granted is None:
            return
        if not (home() / SECRET).exists():
            raise PipelineError(
                f"{SECRET}: not there; all processes need the project's secret and data/partitions as the first has "
                "them: share the project's folder, or copy both (inside the trust boundary)"
            )
        partitions = Partitions.open(folder)
        setup = stage.setup(params, partitions.manifest, partitions.public, place)
        if _agreed(stage.identity(params, partitions), setup) != granted:
            raise PipelineError(
                f"params.yaml, data/partitions, {FITS} or the project's code differ from those of the first process; "
                "give all processes the same"
            )
        if setup.plan.is_private:
            check_setup(setup)
        private = _open_private(params, setup, partitions, place)
        check_coverage(group, setup.plan.units, private.numbers)
        serve(group, setup, setup.source_of(private))


def _train(
    stage: PrivateStage,
    params: Params,
    setup: TrainingSetup,
    partitions: Partitions,
    payment: Payment[TrainingState],
    place: Place,
    on_round: OnRound,
) -> Trained:
    """Run the rounds that the payment has left, or restore what an earlier run finished."""
    with joined(place, stage.name, needed=not payment.finished) as group:
        private = None
        if not payment.finished:
            private = setup.source_of(_granted(params, setup, partitions, payment, place, group))
        public = setup.public_of(partitions.public.flat()) if partitions.public.units else None
        return train(
            setup,
            private,
            public,
            state=payment.state,
            save_checkpoint=payment.save_checkpoint,
            on_round=on_round,
            group=group,
        )


def _granted(
    params: Params,
    setup: TrainingSetup,
    partitions: Partitions,
    payment: Payment[TrainingState],
    place: Place,
    group: Group | None,
) -> UnitStore | ShardedStore:
    """Open the private units in all processes, now that the ledger has granted the charge."""
    if group is None:
        return _open_private(params, setup, partitions, place)
    announce_grant(group, _agreed(payment.charge.identity, setup))
    private = _open_private(params, setup, partitions, place)
    check_coverage(group, setup.plan.units, private.numbers)
    return private


def _open_private(
    params: Params, setup: TrainingSetup, partitions: Partitions, place: Place
) -> UnitStore | ShardedStore:
    own = slice(setup.plan.process, None, setup.plan.processes)
    return partitions.open_private(kept_bytes(params.compute, place), own)


def _restored(setup: TrainingSetup, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> TrainingState:
    """The state of a checkpoint, whose rounds must follow what these do: the charge paid for no others.

    Raises:
        PipelineError: what is fitted to the data, or set by this version, was otherwise when the charge was reserved.
        ValueError, KeyError, TypeError: see `TrainingState.restore`.
    """
    if facts.get("settings") not in (None, setup.digest):
        raise PipelineError(
            f"{FITS}: the settings that are fitted to the data, or set by this version, were others when this result "
            "was paid for; bring back the folder, or the version, that it was paid for with; to pay for another "
            "draw with the new ones, set privacy.draw in params.yaml to a new number"
        )
    return TrainingState.restore(setup.architecture, tensors, facts)


def _agreed(identity: str, setup: TrainingSetup) -> str:
    agreed = hashlib.sha256(f"{identity} {setup.digest}".encode())
    for file in sorted(Path(primorl.__file__).parent.rglob("*.py")):
        agreed.update(hashlib.sha256(file.read_bytes()).digest())
    return agreed.hexdigest()


def _say_what_is_restored(stage: PrivateStage, payment: Payment[TrainingState]) -> None:
    if payment.state is None or payment.state.started == 0:
        return
    other = payment.state.engine != ENGINE_VERSION
    made = f" Engine version {payment.state.engine} began it; this is version {ENGINE_VERSION}." if other else ""
    if payment.finished:
        paid = f"charge {payment.charge.id} of {payment.charge.time} has paid for exactly this {stage.what}"
        print(
            f"{stage.name}: {paid}: it is restored, and nothing is spent.{made} To pay for another draw of the noise, "
            "set privacy.draw to a new number",
            file=sys.stderr,
        )
    elif made:
        print(f"{stage.name}: charge {payment.charge.id} is resumed.{made}", file=sys.stderr)


def _check(stage: PrivateStage, trained: Trained, ledger: Ledger, payment: Payment[TrainingState]) -> None:
    """Refuse a result that training has not made better; the charge stays spent."""
    refusal = stage.refusal(trained)
    if refusal is None:
        return
    ledger.commit(payment.charge.id)
    free_again = "" if payment.file is None else ", and the same settings cost nothing again"
    raise PipelineError(f"{refusal}. The last good {stage.what} is untouched; the charge stays spent{free_again}")


class TrainingReport:
    """Reports every round of a training: a progress bar and MLflow metrics, of released things only.

    ε is computed at evaluations, but never for more than a 200th of the time, and after the last round.

    Args:
        run: the stage's MLflow run.
        setup: of the training.
        stage: name of the stage.
        started: rounds that an earlier run began.
        between: called before the first round and after every round.
    """

    def __init__(
        self,
        run: StageRun,
        setup: TrainingSetup,
        stage: str,
        started: int = 0,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._setup, self._started, self._between = run, setup, started, between
        self._bar = progress_bar(setup.plan.rounds, stage, "round")
        self._due = 0.0

    def __enter__(self) -> Self:
        self._bar.__enter__()
        self._bar.update(self._started)
        self._between()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def __call__(self, started: int, evaluation: PublicEvaluation | None) -> None:
        """Report a round.

        Args:
            started: rounds spent so far.
            evaluation: of the released weights, where this round had one.
        """
        plan = self._setup.plan
        self._between()
        self._bar.update()
        if evaluation is not None:
            log_evaluation(self._run, self._setup.architecture, evaluation)
            self._bar.set_postfix(public_loss=f"{evaluation.loss:.3f}", refresh=False)
        began = time.monotonic()
        if started < plan.rounds and (evaluation is None or began < self._due):
            return
        spent = plan.spent(started)
        if spent is not None:
            self._run.metric("epsilon_so_far", spent.epsilon_pld, started)
        self._due = began + _ACCOUNTING_SHARE * (time.monotonic() - began)


def log_evaluation(run: StageRun, architecture: Network, evaluation: PublicEvaluation) -> None:
    """Log the public loss and each target's error."""
    run.metric("public_loss", evaluation.loss, evaluation.round)
    for name, error in zip(architecture.target_names, evaluation.error, strict=True):
        run.metric(f"public_error.{name}", error, evaluation.round)
