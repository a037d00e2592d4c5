"""The desk: where a job is paid, given its rows, and committed.

No other module reserves a charge or opens private rows; see the import contracts in pyproject.toml.
Training the model and cloning go

    desk = Desk.open(params)
    plan = desk.read_plan(params)
    request = request_for(plan.model, desk.partitions)
    with desk.pay(request, begin) as paid:  # no private row was read before
        result = ...(paid.state, paid.save, paid.open_rows(mechanism))  # saved, then released
        with paid.finish(folder, paid.state_privacy(mechanism)) as fresh:
            ...  # files are written; then the charge is committed

Asking commits when the answers are written (`Paid.commit`).
Learning online pays for users who arrive (`Desk.open_for`), whose rows are nowhere.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from primorl.base import PipelineError, say
from primorl.base.dvc import REMAKE
from primorl.base.files import (
    CHECKPOINTS,
    PARTITIONS,
    PLAN,
    PRIVATE,
    file_sha256,
    home,
    replaced_directory,
)
from primorl.base.processes import read_number
from primorl.config.params import Params
from primorl.data.identity.membership import Membership, project_secret
from primorl.data.private import open_units
from primorl.data.storage.rows import EVERY, UnitStore
from primorl.privacy.accounting.epsilon import event_to_json
from primorl.privacy.ledger.charges import Payment, pay_or_resume, read_spent_on_dataset
from primorl.privacy.ledger.checkpoint import S
from primorl.privacy.ledger.history import Budget, Request, Version
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.work.bill import Bill, stage_of
from primorl.work.data import (
    Partitions,
    budget_of,
    list_assumptions,
    open_to_charge,
    refuse_stale,
)
from primorl.work.jobs import (
    CLONE_BEHAVIOUR,
    EVALUATE_PRIVATE,
    TRAIN_MODEL,
    RunPlan,
)

ALLOWED_STAGES = (TRAIN_MODEL, CLONE_BEHAVIOUR, EVALUATE_PRIVATE)
"""Stages that may open private rows, each for a charge of its own."""


@dataclass
class Desk:
    """A stage's place to pay.

    Attributes:
        ledger: of the project.
        budget: of all runs on the same units; None: without a limit.
        delta: at which totals are stated.
        version: the units, as the ledger knows them.
        bill: of all jobs of the run, once its plan is read.
    """

    ledger: Ledger
    budget: Budget | None
    delta: float
    version: Version
    bill: Bill | None = None
    _partitions: Partitions | None = None

    @classmethod
    def open(cls, params: Params) -> "Desk":
        """Open the ledger and ``data/partitions``, all but its private rows.

        Raises:
            Refused: a public unit was charged for as private.
            PipelineError: a part of the ledger or of the partitions is missing or broken.
        """
        ledger = open_to_charge(params)
        partitions = Partitions.read(ledger)
        refuse_stale(partitions)
        return cls(
            ledger=ledger,
            budget=budget_of(params, partitions.manifest.private_units),
            delta=params.privacy.delta,
            version=partitions.version,
            _partitions=partitions,
        )

    @classmethod
    def open_for(cls, params: Params, users: Version) -> "Desk":
        """Open the ledger for users who arrive, whose rows are nowhere."""
        budget = budget_of(params, users.units)
        return cls(open_to_charge(params), budget, params.privacy.delta, users)

    @property
    def partitions(self) -> Partitions:
        """The data, all but their private rows."""
        assert self._partitions is not None, "users who arrive have no partitions"
        return self._partitions

    def read_plan(self, params: Params) -> RunPlan:
        """Read the run's plan, and make the bill that `pay` holds each of its jobs to.

        Raises:
            PipelineError: see `RunPlan.read_for` and `Bill.of`; or a job is of another δ.
        """
        plan = RunPlan.read_for(params, self.partitions)
        for job in plan.paid_jobs:
            if job.delta != self.delta:
                raise PipelineError(
                    f"{PLAN}: delta: found {job.delta!r}, allowed is privacy.delta of params.yaml, "
                    f"{self.delta!r}; run `dvc repro plan`"
                )
        # what the file says is for readers
        own = replace(plan.price(self.partitions), figures=None)
        self.bill = Bill.of(params, own, self.partitions)
        return plan

    @contextmanager
    def pay(self, request: Request, begin: S) -> Iterator["Paid[S]"]:
        """Resume or restore work that was paid for under this identity, or else reserve a charge.

        Leaving the block frees the locks and commits nothing: `Paid.finish` or `Paid.commit` does.
        After an error the charge stays spent; the next run under the same identity resumes it.

        Args:
            request: of the job.
            begin: the state before the first release. Work without a guarantee is neither saved nor
                resumed.

        Raises:
            BudgetExceeded: the budget does not allow it, or not all jobs of the run that are still
                to be paid. Nothing is spent.
            PipelineError: one of the refusals of `pay_or_resume`, or a job of the run that is paid
                for cannot be restored here. Nothing is spent.
        """
        if self.bill is not None:
            stage = stage_of(request.stage)
            now = self.ledger.account(self.version)  # other processes may have charged meanwhile
            bill = replace(self.bill, account=now, changed={stage})
            unpaid = [each.identity for each in bill.unpaid]
            due = request.identity in unpaid
            if due:  # what is paid is restored
                bill.refuse_beyond_budget()
                first = request.identity == unpaid[0] and len(unpaid) > 1
                if first and bill.plan.model.variant == "private":
                    say(f"{stage}: this run is still to charge {bill.total}")
            if due or request.identity in [each.identity for each in bill.lost]:
                bill.refuse_lost()
        checkpoints = home() / CHECKPOINTS
        paying = pay_or_resume(self.ledger, request, self.budget, checkpoints, begin)
        with paying as payment:
            yield Paid(payment.charge, payment.state, payment.write, desk=self)


@dataclass(frozen=True)
class Paid(Payment[S]):
    """A piece of paid work: model, clone, answer or online run; its charge is open.

    Attributes:
        desk: that it was paid at.
    """

    desk: Desk = field(kw_only=True)

    @property
    def spent(self) -> SpentOnDataset:
        """Sum up everything spent on the same units so far, including this charge."""
        return read_spent_on_dataset(self.desk.ledger, self.desk.version, self.desk.delta)

    def open_rows(self, mechanism: Mechanism, own: slice = EVERY) -> UnitStore:
        """Open the private units for the mechanism that was charged; see `open_private`.

        Args:
            mechanism: that will release.
            own: the units of this process.

        Raises:
            ValueError: see `check_event`; or the charge is not of a stage in `ALLOWED_STAGES`.
        """
        charge = self.charge
        if stage_of(charge.stage) not in ALLOWED_STAGES:
            raise ValueError(f"charge {charge.id} of {charge.stage} opens no private rows")
        self.check_event(mechanism)
        return open_private(self.desk.partitions, own)

    def check_event(self, mechanism: Mechanism) -> None:
        """Raise ValueError if the mechanism that will release is not the one that was charged."""
        if event_to_json(mechanism.event) != self.charge.event:
            raise ValueError(
                f"charge {self.charge.id}: paid for another event than the mechanism's"
            )

    def state_privacy(self, mechanism: Mechanism, termination: str | None = None) -> Statement:
        """State the privacy of what a mechanism released, with this charge and all that was spent.

        Args:
            mechanism: that released.
            termination: how a dynamics model ends episodes; None for other mechanisms.
        """
        manifest = self.desk.partitions.manifest
        statement = mechanism.statement(
            dataset_fingerprint=manifest.info.dataset_fingerprint,
            public_assumptions=list_assumptions(manifest),
            termination=termination,
        )
        public, most = manifest.public_units, manifest.info.trajectories_per_person
        statement = replace(statement, public_units=public, trajectories_per_person=most)
        return statement.with_payment(self.charge.id, self.spent)

    @contextmanager
    def finish(self, folder: Path, statement: Statement) -> Iterator[Path]:
        """Replace a folder by the files that the block writes and their statement, and commit the
        charge.

        The ledger gets the digest of every file. So a statement is bound to the bytes that it
        speaks of. After an error in the block the old folder stays, and the charge stays open.

        Raises:
            PipelineError: the files are of another draw than the charge made first.

        Args:
            folder: to be replaced.
            statement: of the files.

        Yields:
            The folder to write into.
        """
        with replaced_directory(folder) as fresh:
            yield fresh
            statement.write(fresh)
            made = {file.name: file_sha256(file) for file in sorted(fresh.iterdir())}
            self.charge.refuse_another_draw(made)
        # Last: after a kill before it, the next run restores the result and writes it again.
        self.commit(made)

    def commit(self, made: Mapping[str, str] | None = None) -> None:
        """Record in the ledger that the work is finished; ``made`` maps each written file's name to
        its SHA-256.
        """
        self.desk.ledger.commit(self.charge.id, made)


def rows_in_memory() -> int:
    """Return how many bytes of rows this process may keep: its share of half the free memory."""
    half = int(psutil.virtual_memory().available) // 2
    return half // read_number("LOCAL_WORLD_SIZE", 1)


def open_private(partitions: Partitions, own: slice = EVERY) -> UnitStore:
    """Open the private units of the account, once the ledger has granted a charge on them; of
    several processes the first holds the charge, and announces it to the others.

    Args:
        partitions: of the units.
        own: the units of this process; all are read, and compared with the account.

    Raises:
        PipelineError: a file is missing or broken, or the rows are not of the units in the account.
    """
    info = partitions.manifest.info
    found = Membership(project_secret(), info.population)
    store = open_units(PRIVATE, rows_in_memory(), found.update, own)
    if store.info != info or found.to_bytes() != partitions.version.members:
        raise PipelineError(f"{PARTITIONS}: its parts are of different partitions; run {REMAKE}")
    return store
