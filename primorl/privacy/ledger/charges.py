"""Paying for a mechanism: reserve a charge before any private byte is read, and resume after a kill at no cost."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from dp_accounting import dp_event

from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.checkpoint import Restore, S, read_checkpoint, write_checkpoint
from primorl.privacy.ledger.ledger import Budget, Charge, Ledger, Request, Version, new_charge_id
from primorl.privacy.statement import SpentOnDataset
from primorl.project.errors import PipelineError
from primorl.project.files import finite, locked


@dataclass(frozen=True)
class Payment(Generic[S]):
    """A charge, and the state of the work that it pays for.

    Attributes:
        charge: the ledger's entry.
        state: where the work stands; None for work without a guarantee, which is never written to disk.
        file: the checkpoint; None for work without a guarantee.
        resumed: how often a process resumed this work after another one died.
    """

    charge: Charge
    state: S | None
    file: Path | None
    resumed: int = 0

    @property
    def finished(self) -> bool:
        """Whether an earlier run completed the work, so that no private byte needs to be read."""
        return self.state is not None and self.state.finished

    def save_checkpoint(self, state: S) -> None:
        """Write the checkpoint, durably. Call it before every release and after the last one."""
        if self.file is not None:
            write_checkpoint(self.file, state, charge=self.charge.id, resumed=self.resumed)


@contextmanager
def pay_or_resume(
    ledger: Ledger,
    request: Request,
    budget: Budget | None,
    checkpoints: Path,
    begin: S | None,
    restore: Restore[S],
) -> Iterator[Payment[S]]:
    """Resume or restore work that was paid for under the same identity; otherwise reserve a new charge.

    A checkpoint that another living process works on is left to that process. An open charge whose checkpoint is
    missing (deleted, or on another machine) or is an old copy stays spent. Completed work is never paid for again.

    Args:
        ledger: holds the charges.
        request: what to reserve.
        budget: the limit; None counts without one.
        checkpoints: folder of the checkpoints, one file for each charge.
        begin: state to begin from; None for work without a guarantee, which is neither saved nor resumed.
        restore: rebuilds a state from a checkpoint.

    Raises:
        BudgetExceeded: the budget does not allow the request. Nothing is spent.
        ValueError: ``begin`` is given for an event without a guarantee.
        PipelineError: the checkpoint to resume from is damaged, or that of completed work is missing.
    """
    if begin is not None and isinstance(request.event, dp_event.NonPrivateDpEvent):
        raise ValueError("begin: work without a guarantee must not be saved; give None")
    if begin is None:
        yield Payment(ledger.reserve(request, budget), None, None)
        return
    with ExitStack() as locks:
        for charge in reversed(ledger.charges()):
            file = _file(checkpoints, charge.id)
            if charge.identity != request.identity or charge.state == "aborted" or not file.exists():
                continue
            payment = _resumed(ledger, charge, file, restore, locks)
            if payment is not None:
                yield payment
                return
        _refuse_to_pay_twice(ledger, request, checkpoints)
        yield _reserved(ledger, request, budget, checkpoints, begin, locks)


def spent_on_dataset(ledger: Ledger, version: Version, delta: float) -> SpentOnDataset:
    """What was spent on the same units so far, for the privacy statement.

    Args:
        ledger: holds the charges.
        version: whose units.
        delta: at which ε is read.
    """
    total = ledger.account(version).total(delta)
    return SpentOnDataset(
        epsilon=finite(total.epsilon),
        epsilon_fixed=finite(total.epsilon_fixed),
        epsilon_rdp=finite(total.epsilon_rdp),
        delta=delta,
        charges=total.charges,
    )


def _refuse_to_pay_twice(ledger: Ledger, request: Request, checkpoints: Path) -> None:
    """Refuse a request that was completed before under the same identity, and whose result is not here."""
    for charge in ledger.charges():
        file = _file(checkpoints, charge.id)
        if charge.identity == request.identity and charge.state == "committed":
            found = "an old copy" if file.exists() else "not there"
            raise PipelineError(
                f"{file}: {found}, and charge {charge.id} of {charge.time} has paid for exactly this result; bring "
                "the file back from where it was paid for, or the result by `dvc checkout` or `dvc pull`; to pay for "
                "another draw of the noise, set privacy.draw in params.yaml to a new number"
            )


def _resumed(ledger: Ledger, charge: Charge, file: Path, restore: Restore[S], locks: ExitStack) -> Payment[S] | None:
    """The payment to go on with; None if another process works on it, or it must not resume."""
    found = read_checkpoint(file, restore, charge.id)
    if not (charge.state == "committed" and found.state.finished):
        if not locks.enter_context(locked(file.with_suffix(".lock"))):
            return None
        found = read_checkpoint(file, restore, charge.id)  # its owner may have written until it released the lock
    if found.state.lost:
        if charge.state == "reserved":
            ledger.abort(charge.id, "died while it asked its queries")
        _say(
            f"warning: {file}: the run died after asking its queries and before saving the answers; a charge pays for "
            "one answer only; it stays spent"
        )
        return None
    if found.state.finished:
        return Payment(charge, found.state, file, found.resumed)
    if not ledger.take(charge.id, found.resumed):
        _say(
            f"warning: {file}: a copy of this checkpoint was resumed before, or its charge has ended; the checkpoint "
            "is ignored and its charge stays spent"
        )
        return None
    payment = Payment(charge, found.state, file, found.resumed + 1)
    payment.save_checkpoint(found.state)
    _say(f"{charge.stage}: charge {charge.id} resumes after {found.state.started} of its rounds; nothing more is spent")
    return payment


def _reserved(
    ledger: Ledger, request: Request, budget: Budget | None, checkpoints: Path, begin: S, locks: ExitStack
) -> Payment[S]:
    """A new charge. Its checkpoint is written first, so that a full disk costs nothing."""
    name = new_charge_id()
    file = _file(checkpoints, name)
    lock = file.with_suffix(".lock")
    locks.enter_context(locked(lock))
    write_checkpoint(file, begin, charge=name, resumed=0)
    try:
        charge = ledger.reserve(request, budget, name)
    except BaseException:
        file.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
        raise
    cost = "no guarantee" if charge.epsilon is None else f"ε {at_most(charge.epsilon, 4)} at δ {at_most(charge.delta)}"
    _say(f"{request.stage}: charge {name} reserved: {cost}")
    return Payment(charge, begin, file)


def _file(checkpoints: Path, charge: str) -> Path:
    return checkpoints / f"{charge}.safetensors"


def _say(line: str) -> None:
    print(line, file=sys.stderr)
