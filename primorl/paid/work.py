"""A piece of paid work: charged once, run or restored, and committed with the files that it made."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Generic

from primorl.base.files import home
from primorl.base.paths import CHECKPOINTS
from primorl.config.params import Params
from primorl.paid.accounts import budget, project_ledger
from primorl.privacy.ledger.charges import Payment, pay_or_resume, spent_on_dataset
from primorl.privacy.ledger.checkpoint import Restore, S
from primorl.privacy.ledger.history import Request
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.tracking import StageRun


@dataclass(frozen=True)
class Work(Generic[S]):
    """A piece of paid work: model, clone, answer, choice or online run.

    Attributes:
        ledger: that holds its charge.
        request: that was granted, or that an earlier run was granted.
        payment: the charge, and the state that it pays for.
        delta: at which the account of the same units is stated.
    """

    ledger: Ledger
    request: Request
    payment: Payment[S]
    delta: float

    @property
    def spent(self) -> SpentOnDataset:
        """Everything spent on the same units so far, this charge included."""
        return spent_on_dataset(self.ledger, self.request.version, self.delta)

    def stated(self, statement: Statement) -> Statement:
        """Add the charge to a statement of this work."""
        return statement.with_payment(self.payment.charge.id, self.spent)

    def commit(self, made: Mapping[str, str] | None = None) -> None:
        """Record in the ledger that all is well, with the SHA-256 of every file that was written, by name."""
        self.ledger.commit(self.payment.charge.id, made)


@contextmanager
def paid_work(
    params: Params, run: StageRun, request: Request, begin: S | None, restore: Restore[S]
) -> Iterator[Work[S]]:
    """Resume or restore work that was paid for under this identity, or else reserve a charge; see `pay_or_resume`."""
    with closing(project_ledger(params)) as ledger, work_of(params, ledger, request, begin, restore) as work:
        run.tag("charge", work.payment.charge.id)
        yield work


@contextmanager
def work_of(
    params: Params, ledger: Ledger, request: Request, begin: S | None, restore: Restore[S]
) -> Iterator[Work[S]]:
    """`paid_work` in a ledger that is open, as several pieces of work need it."""
    limit = budget(params, request.version.units)
    with pay_or_resume(ledger, request, limit, home() / CHECKPOINTS, begin, restore) as payment:
        yield Work(ledger, request, payment, params.privacy.budget.delta)
