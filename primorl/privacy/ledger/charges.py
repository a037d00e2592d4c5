"""Paying for a mechanism: reserve a charge before any private byte is read, and resume after a kill
at no cost.
"""

import hashlib
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from dp_accounting import dp_event

from primorl.base.errors import Busy, PipelineError
from primorl.base.files import finite, home, locked, sync, workspace
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.checkpoint import (
    Checkpoint,
    Restore,
    S,
    State,
    has_begun,
    read_checkpoint,
    write_checkpoint,
)
from primorl.privacy.ledger.history import NEVER_RESUMED, Charge, Refused, Request, Version
from primorl.privacy.ledger.ledger import Budget, Ledger, new_charge_id
from primorl.privacy.ledger.store import Mark, Progress
from primorl.privacy.statement import SpentOnDataset

_CHARGE = re.compile("[0-9a-f]{16}")  # `new_charge_id`
_ANOTHER_DRAW = (
    "to pay for another draw of the noise, set privacy.draw in params.yaml to a new number "
    "(draw in online.yaml for the stage online)"
)
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


def _writer(
    file: Path, tokens: tuple[str, ...], progress: Progress, mark: Mark
) -> Callable[[State], None]:
    """Make the function that saves the states of a charge; ``mark`` is the one that this process
    wrote last.
    """

    def save(state: State) -> None:
        nonlocal mark
        write_checkpoint(file, state, charge=mark.charge, tokens=tokens, saves=mark.saves + 1)
        mark = progress.advance(mark)

    return save


@contextmanager
def pay_or_resume(
    ledger: Ledger,
    request: Request,
    budget: Budget | None,
    checkpoints: Path,
    begin: S,
    restore: Restore[S],
) -> Iterator[Payment[S]]:
    """Resume or restore work that was paid for under the same identity; otherwise reserve a new
    charge.

    Formal property: a process may die at any line, by any signal, and the next call with the same
    identity goes on with the same charge, or is refused where an answer is lost. For the checkpoint
    is on the disk before the reservation is asked for, and is deleted only where the ledger is
    known to hold no such charge: after a refusal (`Refused`), or as an orphan.

    | case | what happens |
    |----------------------------------------------------|---------------------------------------------------------|
    | completed before | restored; nothing is spent, no lock is needed |
    | begun by a process that died | resumed from its checkpoint; nothing is spent |
    | it died between a query's noise and its answer | refused; the charge stays spent |
    | another living process works on it | refused; an experiment in DVC's copy waits for it |
    | its checkpoint is not here, or is an old copy | refused; the charge stays spent |
    | two processes begin at once, here or elsewhere | one is granted, the other is refused |
    | an error while it reserved, outcome unknown | the checkpoint stays; the next call finds out |
    | its charge is not in the ledger | deleted, if nothing was done under it; else refused |

    *Orphans.* A process that died before its reservation was written leaves a checkpoint of a
    charge that is not in the ledger. Its lock is taken first, so its owner is dead and asks for
    nothing more. Then this process appends a record. Whatever the owner had asked for, and a server
    may still be about to commit, was meant for this record's place or an earlier one, and each
    place is used once. So a charge that the ledger does not hold now will never be in it, and the
    checkpoint is deleted. A checkpoint under which something may have been released is never
    deleted: the ledger has lost records, and nothing is paid, resumed or restored, for it would be
    stated that less is spent than was.

    Args:
        ledger: holds the charges.
        request: to be reserved.
        budget: the limit; None counts without one.
        checkpoints: folder of the checkpoints, one file for each charge.
        begin: state to begin from. Work without a guarantee is neither saved nor resumed.
        restore: rebuilds a state from a checkpoint.

    Raises:
        BudgetExceeded: the budget does not allow the request. Nothing is spent.
        PipelineError: one of the refusals above, or the checkpoint to resume from is damaged.
            Nothing is spent.
    """
    if isinstance(request.event, dp_event.NonPrivateDpEvent):
        yield Payment(ledger.reserve(request, budget), begin)
        return
    said = False
    while True:
        with ExitStack() as locks:
            try:
                _refuse_lost_work(ledger, checkpoints)
                payment = _restored(ledger, request.identity, checkpoints, restore)
                if payment is None:
                    _lock_identity(ledger, request.identity, checkpoints, locks)
                    payment = _resumed(ledger, request.identity, checkpoints, restore, locks)
                if payment is None:
                    orphans = _orphans(ledger, checkpoints, locks)
                    payment = _reserved(ledger, request, budget, checkpoints, begin, locks)
                    _delete_orphans(ledger, orphans)
            except Busy:
                if workspace().resolve() == home():
                    raise
            else:
                yield payment
                return
        if not said:
            _say(f"{request.stage}: another process pays for exactly this result; it is waited for")
            said = True
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def spent_on_dataset(ledger: Ledger, version: Version, delta: float) -> SpentOnDataset:
    """Read the account of the units of ``version`` at ``delta``, for the privacy statement."""
    # By the accountant that the statement names.
    events = ledger.account(version).events
    return SpentOnDataset(epsilon=finite(total_of(events, delta)), delta=delta, charges=len(events))


def _restored(
    ledger: Ledger, identity: str, checkpoints: Path, restore: Restore[S]
) -> Payment[S] | None:
    """Restore completed work. It needs no lock, as its checkpoint is not written any more."""
    for charge in _paid(ledger, identity):
        file = _file(checkpoints, charge.id)
        if charge.state == "committed" and file.exists():
            found = read_checkpoint(file, restore, charge.id)
            if found.state.finished:
                return Payment(charge, found.state)
    return None


def _resumed(
    ledger: Ledger, identity: str, checkpoints: Path, restore: Restore[S], locks: ExitStack
) -> Payment[S] | None:
    """Find the payment to resume; None if there is none.

    Raise if an open charge cannot be resumed here or now.
    """
    refusals = []
    for charge in _paid(ledger, identity):
        file = _file(checkpoints, charge.id)
        if not file.exists():
            refusals.append(_refusal(charge, file, "not there"))
            continue
        if not locks.enter_context(locked(file.with_suffix(".lock"))):
            raise _busy(charge, file)
        found = read_checkpoint(file, restore, charge.id)
        if found.state.finished:  # killed between the last checkpoint and the commit
            # Or killed just before it did so, and after the commit this state must stay.
            sync(file.parent)
            return Payment(charge, found.state)
        last = ledger.last_take(charge.id)
        old = last not in found.tokens or ledger.progress.behind(charge.id, found.saves)
        if found.state.lost and not old:
            raise PipelineError(
                f"{file}: the run died after a query's noise and before its answer was saved, and "
                f"charge {charge.id} of {charge.time} pays for one answer only; it stays spent; "
                f"{_ANOTHER_DRAW}"
            )
        save = (
            None if old or charge.state != "reserved" else _taken(ledger, charge, file, found, last)
        )
        if save is not None:
            _say(
                f"{charge.stage}: charge {charge.id} resumes after {found.state.started} of its "
                "rounds; nothing more is spent"
            )
            return Payment(charge, found.state, save)
        refusals.append(_refusal(charge, file, "an old copy"))
    if refusals:
        raise refusals[0]
    return None


def _taken(
    ledger: Ledger, charge: Charge, file: Path, found: Checkpoint[S], last: str
) -> Callable[[State], None] | None:
    """Resume from a checkpoint that knows the ledger's ``last`` token; None if another copy is
    resumed meanwhile.

    Wherever this is killed, the checkpoint knows the ledger's last token (`Ledger.take`).
    """
    token = secrets.token_hex(16)
    tokens = (last, token)
    write_checkpoint(file, found.state, charge=charge.id, tokens=tokens, saves=found.saves)
    if not ledger.take(charge.id, last, token):
        return None
    mark = ledger.progress.claim(charge.id, token, found.saves)
    return None if mark is None else _writer(file, tokens, ledger.progress, mark)


def _reserved(
    ledger: Ledger,
    request: Request,
    budget: Budget | None,
    checkpoints: Path,
    begin: S,
    locks: ExitStack,
) -> Payment[S]:
    """Reserve a new charge. Its checkpoint is written first, so that a full disk costs nothing."""
    name = new_charge_id()
    file = _file(checkpoints, name)
    lock = file.with_suffix(".lock")
    locks.enter_context(locked(lock))
    write_checkpoint(file, begin, charge=name)
    try:
        charge = ledger.reserve(request, budget, name)
    except Refused:  # after any other error the ledger may hold the charge
        file.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
        raise
    mark = ledger.progress.claim(name, secrets.token_hex(16), 0)
    assert mark is not None, "the charge is new and nobody else has its lock"
    cost = (
        "no guarantee"
        if charge.epsilon is None
        else f"ε {at_most(charge.epsilon, 4)} at δ {at_most(charge.delta)}"
    )
    _say(f"{request.stage}: charge {name} reserved: {cost}")
    return Payment(charge, begin, _writer(file, (NEVER_RESUMED,), ledger.progress, mark))


def _lock_identity(ledger: Ledger, identity: str, checkpoints: Path, locks: ExitStack) -> None:
    """Keep other processes of this machine from the same work (`Busy`), also before any of them has
    a charge.
    """
    file = checkpoints / f"identity-{hashlib.sha256(identity.encode()).hexdigest()[:32]}.lock"
    if not locks.enter_context(locked(file)):
        charges = _paid(ledger, identity)
        if charges:
            raise _busy(charges[0], _file(checkpoints, charges[0].id))
        raise Busy(
            f"{file}: another process is about to pay for exactly this result; wait for it; "
            f"{_ANOTHER_DRAW}"
        )
    locks.callback(file.unlink, missing_ok=True)


def _refuse_lost_work(ledger: Ledger, checkpoints: Path) -> None:
    """Refuse (PipelineError) checkpoints under which a release was made, and whose charge the
    ledger does not hold.

    No lock is needed: a charge is in the ledger before its first release, so before its checkpoint
    says so.
    """
    begun = [file for file in _unknown(ledger, checkpoints) if has_begun(file)]
    for file in _without_charge(ledger, begun):
        if file.exists():  # another process may have deleted it while it was read
            raise PipelineError(
                f"{file}: work was done under charge {file.stem}, which the ledger does not hold: "
                "it has lost records, or is another one; restore its database from the backup (or "
                "ledger.url), or move this file away if its charge is in another ledger"
            )


def _orphans(ledger: Ledger, checkpoints: Path, locks: ExitStack) -> list[Path]:
    """Find and lock the checkpoints of dead processes that have no charge in the ledger."""
    free = [
        file
        for file in _unknown(ledger, checkpoints)
        if locks.enter_context(locked(file.with_suffix(".lock")))
        and file.exists()
        and not has_begun(file)
    ]
    return _without_charge(ledger, free)  # again: their owners may have reserved meanwhile


def _unknown(ledger: Ledger, checkpoints: Path) -> list[Path]:
    return _without_charge(
        ledger,
        [
            file
            for file in sorted(checkpoints.glob("*.safetensors"))
            if _CHARGE.fullmatch(file.stem)
        ],
    )


def _delete_orphans(ledger: Ledger, orphans: list[Path]) -> None:
    """Delete those that will never have a charge; this process has appended to the ledger since it
    locked them.
    """
    for file in _without_charge(ledger, orphans):
        file.unlink(missing_ok=True)
        file.with_suffix(".lock").unlink(missing_ok=True)


def _without_charge(ledger: Ledger, files: list[Path]) -> list[Path]:
    """Return the checkpoints that have no charge in the ledger as it is now."""
    known = {charge.id for charge in ledger.charges()} if files else set()
    return [file for file in files if file.stem not in known]


def _paid(ledger: Ledger, identity: str) -> list[Charge]:
    return [charge for charge in reversed(ledger.charges()) if charge.identity == identity]


def _busy(charge: Charge, file: Path) -> Busy:
    return Busy(
        f"{file}: another process works on charge {charge.id} of {charge.time}, which pays for "
        f"exactly this result; wait for it; {_ANOTHER_DRAW}"
    )


def _refusal(charge: Charge, file: Path, found: str) -> PipelineError:
    if charge.state == "committed":
        return PipelineError(
            f"{file}: {found}, and charge {charge.id} of {charge.time} has paid for exactly this "
            "result; bring the file back from where it was paid for, or the result by `dvc "
            f"checkout` or `dvc pull`; {_ANOTHER_DRAW}"
        )
    return PipelineError(
        f"{file}: {found}, and charge {charge.id} of {charge.time} pays for exactly this result; "
        f"go on where its newest checkpoint is, or bring that file here; {_ANOTHER_DRAW}"
    )


def _file(checkpoints: Path, charge: str) -> Path:
    return checkpoints / f"{charge}.safetensors"


def _say(line: str) -> None:
    print(line, file=sys.stderr)
