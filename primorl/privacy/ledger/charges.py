"""Paying for a mechanism: reserve a charge before any private byte is read, and resume after a kill
at no cost.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic

from primorl.base import Busy, PipelineError, say
from primorl.base.files import finite, home, locked, sync, workspace
from primorl.privacy.accounting import dp
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.checkpoint import (
    S,
    State,
    has_begun,
    read_checkpoint,
    write_checkpoint,
)
from primorl.privacy.ledger.history import Budget, Charge, Refused, Request, Version
from primorl.privacy.ledger.ledger import Ledger, new_charge_id
from primorl.privacy.ledger.store import Mark, Progress
from primorl.privacy.statement import SpentOnDataset

_CHARGES = f"{'[0-9a-f]' * 16}.safetensors"  # `new_charge_id`
_SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Payment(Generic[S]):
    """A charge, and the state of the work that it pays for.

    Attributes:
        charge: in the ledger.
        state: to go on from.
        write: writes a state to the checkpoint; None without a guarantee, and for finished work.
    """

    charge: Charge
    state: S
    write: Callable[[State], None] | None = None

    @property
    def finished(self) -> bool:
        """Whether an earlier run completed the work, so that no private byte needs to be read."""
        return self.state.finished

    def save(self, state: S) -> None:
        """Write the checkpoint, durably, and count it in the ledger's database (`Progress`).

        Call it before every release and after the last one. Work without a guarantee is never
        written to disk.

        Raises:
            PipelineError: the release must not be made, because the database cannot be used, or
                another process has resumed the charge from a copy.
        """
        if self.write is not None:
            self.write(state)


def _writer(file: Path, progress: Progress, mark: Mark) -> Callable[[State], None]:
    """Make the function that saves the states of a charge; ``mark`` is the one that this process
    wrote last.
    """

    def save(state: State) -> None:
        nonlocal mark
        write_checkpoint(file, state, charge=mark.charge, saves=mark.saves + 1)
        mark = progress.advance(mark)

    return save


@contextmanager
def pay_or_resume(
    ledger: Ledger,
    request: Request,
    budget: Budget | None,
    checkpoints: Path,
    begin: S,
) -> Iterator[Payment[S]]:
    """Resume or restore work that was paid for under the same identity; otherwise reserve a new
    charge.

    Formal property: a process may die at any line, and the next call with the same identity goes on
    with the same charge, or is refused where an answer is lost: the checkpoint is on the disk
    before the reservation is asked for, and is deleted only after a refusal (`Refused`).

    | case | what happens |
    |----------------------------------------------------|---------------------------------------------------------|
    | completed before | restored; nothing is spent, no lock is needed |
    | begun by a process that died | resumed from its checkpoint; nothing is spent |
    | it died between a query's noise and its answer | refused; the charge stays spent |
    | another living process works on it | refused; an experiment in DVC's copy waits for it |
    | its checkpoint is not here, or is an old copy | refused; the charge stays spent |
    | it rests on another version, policy or bounds | refused; the charge stays spent |
    | two processes begin at once, here or elsewhere | one is granted, the other is refused |
    | an error while it reserved, outcome unknown | the checkpoint stays; the next call finds out |
    | the ledger lacks its charge | ignored, or refused if something was done under it |

    Args:
        ledger: holds the charges.
        request: to be reserved.
        budget: the limit; None counts without one.
        checkpoints: folder of the checkpoints, one file for each charge.
        begin: state to begin from. Work without a guarantee is neither saved nor resumed.

    Raises:
        BudgetExceeded: the budget does not allow the request. Nothing is spent.
        PipelineError: one of the refusals above, or the checkpoint to resume from is damaged.
            Nothing is spent.
    """
    if isinstance(request.event, dp.NonPrivateDpEvent):
        yield Payment(ledger.reserve(request, budget), begin)
        return
    said = False
    while True:
        with ExitStack() as locks:
            try:
                _refuse_lost_work(ledger, checkpoints)
                payment = _resume(ledger, request.identity, checkpoints, begin, locks)
                if payment is None:
                    payment = _reserve(ledger, request, budget, checkpoints, begin, locks)
            except Busy:
                if workspace().resolve() == home():
                    raise
            else:
                yield payment
                return
        if not said:
            say(f"{request.stage}: another process pays for exactly this result; it is waited for")
            said = True
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def read_spent_on_dataset(ledger: Ledger, version: Version, delta: float) -> SpentOnDataset:
    """Read the account of the units of ``version`` at ``delta``, for the privacy statement."""
    # By the accountant that the statement names.
    events = ledger.account(version).events
    return SpentOnDataset(epsilon=finite(total_of(events, delta)), delta=delta, charges=len(events))


def _resume(
    ledger: Ledger,
    identity: str,
    checkpoints: Path,
    begin: S,
    locks: ExitStack,
) -> Payment[S] | None:
    """Find the payment to restore or resume; None if nothing was paid.

    Raise if it cannot be resumed here or now.
    """
    charge = next((c for c in reversed(ledger.charges()) if c.identity == identity), None)
    if charge is None:
        return None
    file = checkpoints / f"{charge.id}.safetensors"
    if not file.exists():
        raise _refusal(charge, file, "not there")
    read = partial(read_checkpoint, file, type(begin), charge.id, f"; {charge.another_draw}")
    state, saves = read()
    if not (state.finished and charge.state == "committed"):
        if not locks.enter_context(locked(file.with_suffix(".lock"))):
            raise Busy(
                f"{file}: another process works on {charge}; wait for it; {charge.another_draw}"
            )
        # its owner may have gone on
        state, saves = read()
    # Its owner may have been killed before its rename was durable: what is read here must stay, as
    # the ledger will say that it was reached.
    sync(file.parent)
    if state.about != begin.about:
        raise PipelineError(
            f"{charge.stage}: {charge} paid for this with {begin.OTHER}; put back what it used; "
            f"{charge.another_draw}"
        )
    if state.finished:  # perhaps killed between the last checkpoint and the commit
        found = "has paid for exactly this: it is restored, and nothing is spent"
        say(f"{charge.stage}: {charge} {found}; {charge.another_draw}")
        return Payment(charge, state)
    if charge.state != "reserved" or ledger.progress.behind(charge.id, saves):
        raise _refusal(charge, file, "an old copy")
    if state.lost:
        raise PipelineError(
            f"{file}: the run died between a query's noise and its answer, and {charge} pays for "
            f"one answer only; it stays spent; {charge.another_draw}"
        )
    mark = ledger.progress.claim(charge.id, secrets.token_hex(16), saves)
    if mark is None:
        raise _refusal(charge, file, "an old copy")
    say(f"{charge.stage}: {charge} resumes after {state.started} rounds; nothing more is spent")
    return Payment(charge, state, _writer(file, ledger.progress, mark))


def _reserve(
    ledger: Ledger,
    request: Request,
    budget: Budget | None,
    checkpoints: Path,
    begin: S,
    locks: ExitStack,
) -> Payment[S]:
    """Reserve a new charge. Its checkpoint is written first, so that a full disk costs nothing."""
    name = new_charge_id()
    file = checkpoints / f"{name}.safetensors"
    lock = file.with_suffix(".lock")
    locks.enter_context(locked(lock))
    write_checkpoint(file, begin, charge=name)
    try:
        charge = ledger.reserve(request, budget, name)
    except (Refused, Busy):  # after any other error the ledger may hold the charge
        file.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
        raise
    mark = ledger.progress.claim(name, secrets.token_hex(16), 0)
    assert mark is not None, "the charge is new and nobody else has its lock"
    cost = "no guarantee"
    if charge.epsilon is not None:
        cost = f"ε {at_most(charge.epsilon)} at δ {at_most(charge.delta)}"
    say(f"{request.stage}: charge {name} reserved: {cost}")
    return Payment(charge, begin, _writer(file, ledger.progress, mark))


def _refuse_lost_work(ledger: Ledger, checkpoints: Path) -> None:
    """Refuse (PipelineError) checkpoints under which a release was made, and whose charge the
    ledger does not hold.

    No lock is needed: a charge is in the ledger before its first release, so before its checkpoint
    says so.
    """
    files = list(checkpoints.glob(_CHARGES))
    begun = [file for file in _without_charge(ledger, files) if has_begun(file)]
    for file in _without_charge(ledger, begun):
        raise PipelineError(
            f"{file}: work was done under charge {file.stem}, which the ledger lacks; restore its "
            "database (or ledger.url), or move this file away if another ledger has its charge"
        )


def _without_charge(ledger: Ledger, files: Sequence[Path]) -> list[Path]:
    """Return the checkpoints that have no charge in the ledger as it is now."""
    known = {charge.id for charge in ledger.charges()} if files else set()
    return [file for file in files if file.stem not in known and file.exists()]


def _refusal(charge: Charge, file: Path, found: str) -> PipelineError:
    remedy = "go on where its newest checkpoint is, or bring that file here"
    if charge.state == "committed":
        remedy = "bring it back, or the result by `dvc checkout` or `dvc pull`"
    why = f"{charge} pays for exactly this result"
    return PipelineError(f"{file}: {found}, and {why}; {remedy}; {charge.another_draw}")
