"""Charge the ledger, train in one or several processes, and save checkpoints: the model, and the clone."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
from primorl.setup import accounts, charged_units
from primorl.setup.compute import Place, ThreadChoice, kept_bytes
from primorl.setup.launcher import joined
from primorl.setup.partitions import Partitions
from primorl.setup.reporting import TrainingReport
from primorl.tracking import StageRun
from primorl.training.distributed import Group, announce_grant, check_coverage, serve, wait_for_grant
from primorl.training.independence import check_setup
from primorl.training.public_evaluation import PublicEvaluation
from primorl.training.setup import TrainingSetup
from primorl.training.state import ENGINE_VERSION, TrainingState
from primorl.training.training import Trained, train
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import ShardedStore, UnitStore

_COPIES = 8  # of the parameters on disk at most: a checkpoint holds four, and is replaced by a new one; then the model
OnRound = Callable[[int, PublicEvaluation | None], None]


@dataclass(frozen=True)
class PrivateStage:
    """A stage that pays for one private training.

    Attributes:
        name: of the stage, as the ledger, errors and processes name it.
        output: folder of what it trains.
        what: it trains, as errors name it.
        setup: from params.yaml, the manifest and the public split; refuses what can be refused without private data.
        identity: a digest of everything that determines the result but chance and code. Equal digests are one piece of
            paid work.
        asked: whether the settings ask for a private training: all processes agree on it without the ledger.
        pooled: trains the non-private baseline, for variant mopo; None: that variant does not reach this stage.
        refusal: why a finished training is not to be used, one line that names the remedy; None: it is.
    """

    name: str
    output: Path
    what: str
    setup: Callable[[Params, Manifest, UnitStore, Place], TrainingSetup]
    identity: Callable[[Params, Partitions], str]
    asked: Callable[[Params], bool]
    pooled: Callable[[Params, TrainingSetup, Partitions, StageRun], Trained] | None
    refusal: Callable[[Trained], str | None]


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
    """The part of every process but the first: sums over its own units, once the ledger has granted the charge.

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
    """The private units of this process, which are among those that were charged."""
    own = slice(setup.plan.process, None, setup.plan.processes)
    return charged_units.open_private(
        partitions.manifest, partitions.version, partitions.folder, kept_bytes(params.compute, place), own
    )


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
    """What all processes must agree on: the model's identity, what is fitted, and the very code of the library."""
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
    """Refuse what training has not made better.

    Raises:
        PipelineError: the stage refuses it; the charge stays spent.
    """
    refusal = stage.refusal(trained)
    if refusal is not None:
        ledger.commit(payment.charge.id)
        raise PipelineError(
            f"{refusal}. The last good {stage.what} is untouched; the charge stays spent{_free_again(payment)}"
        )


def _free_again(payment: Payment[TrainingState]) -> str:
    return "" if payment.file is None else ", and the same settings cost nothing again"
