"""Pay for a piece of work once, run or restore it, and commit it with the files that it made.

A stage opens `paid_work`, adds the charge to its privacy statement, writes its files, and commits
their digests.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Generic

from primorl.base.files import home
from primorl.base.paths import CHECKPOINTS
from primorl.config.params import Params
from primorl.privacy.ledger.charges import Payment, pay_or_resume, spent_on_dataset
from primorl.privacy.ledger.checkpoint import Restore, S
from primorl.privacy.ledger.history import Request
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.tracking import StageRun
from primorl.work.accounts import budget, project_ledger


@dataclass(frozen=True)
class Work(Generic[S]):
    """A piece of paid work: model, clone, answer or online run.

    Attributes:
        ledger: holds the charge.
        request: was granted, now or to an earlier run.
        payment: the charge, and the state that it pays for.
        delta: δ at which `spent` is stated.
    """

    ledger: Ledger
    request: Request
    payment: Payment[S]
    delta: float

    @property
    def spent(self) -> SpentOnDataset:
        """Sum up everything spent on the same units so far, including this charge."""
        return spent_on_dataset(self.ledger, self.request.version, self.delta)

    def add_charge_to(self, statement: Statement) -> Statement:
        """Return the statement with this charge and everything spent so far."""
        return statement.with_payment(self.payment.charge.id, self.spent)

    def commit(self, made: Mapping[str, str] | None = None) -> None:
        """Record in the ledger that the work is finished; ``made`` maps each written file's name to
        its SHA-256.
        """
        self.ledger.commit(self.payment.charge.id, made)


@contextmanager
def paid_work(
    params: Params, run: StageRun, request: Request, begin: S | None, restore: Restore[S]
) -> Iterator[Work[S]]:
    """Resume or restore work that was paid for under this identity, or else reserve a charge.

    Args:
        params: name the ledger and the budget.
        run: gets the id of the charge as a tag.
        request: the charge to make; its ``identity`` finds an earlier payment.
        begin: the state before the first release; None: work without a guarantee, which is neither
            saved nor resumed.
        restore: rebuilds a state from a checkpoint's tensors and facts.

    Raises:
        BudgetExceeded: the budget does not allow the request. Nothing is spent.
        PipelineError: one of the refusals of `pay_or_resume`. Nothing is spent.
    """
    with (
        closing(project_ledger(params)) as ledger,
        paid_work_in(params, ledger, request, begin, restore) as work,
    ):
        run.tag("charge", work.payment.charge.id)
        yield work


@contextmanager
def paid_work_in(
    params: Params, ledger: Ledger, request: Request, begin: S | None, restore: Restore[S]
) -> Iterator[Work[S]]:
    """Do as `paid_work` in an open ledger, which several pieces of work may share."""
    limit = budget(params, request.version.units)
    with pay_or_resume(ledger, request, limit, home() / CHECKPOINTS, begin, restore) as payment:
        yield Work(ledger, request, payment, params.privacy.budget.delta)
