"""Planted bugs of interrupted and repeated payments."""

from tests.mutations.planted_bugs.bug import Bug

_PAYING = "tests/privacy/ledger/test_paying.py"
_ORPHANS = "tests/privacy/ledger/test_orphans.py"
_INTERRUPTED = "tests/privacy/ledger/test_interruptions.py"

PAYMENTS = [
    Bug(
        "ledger-copies-of-a-checkpoint",
        "crash safety",
        "primorl/privacy/ledger/ledger.py",
        'if self.last_take(charge_id) != last or self._charge(charge_id).state != "reserved":',
        'if self._charge(charge_id).state != "reserved":',
        "every copy of a checkpoint is gone on with, on one charge",
        (_PAYING,),
    ),
    Bug(
        "crash-lock-ignored",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        '        if not locks.enter_context(locked(file.with_suffix(".lock"))):\n'
        "            raise _busy(charge, file)\n",
        '        locks.enter_context(locked(file.with_suffix(".lock")))\n',
        "two processes work on one charge",
        (_PAYING,),
    ),
    Bug(
        "checkpoint-deleted-after-any-error",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        "    except Refused:  # after",
        "    except BaseException:  # after",
        "an interruption after the reservation's commit leaves a charge without a checkpoint",
        (_INTERRUPTED,),
    ),
    Bug(
        "resumption-granted-before-it-is-known",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        "    write_checkpoint(file, found.state, charge=charge.id, tokens=tokens, saves=found.saves)\n"
        "    if not ledger.take(charge.id, last, token):\n"
        "        return None\n",
        "    if not ledger.take(charge.id, last, token):\n"
        "        return None\n"
        "    write_checkpoint(file, found.state, charge=charge.id, tokens=tokens, saves=found.saves)\n",
        "a kill between the ledger's record and the checkpoint makes the true checkpoint a copy",
        (_INTERRUPTED,),
    ),
    Bug(
        "resumption-forgets-the-last-one",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        "    tokens = (last, token)\n",
        "    tokens = (token,)\n",
        "a kill before the ledger's record leaves a checkpoint that knows only a token that was never granted",
        (_INTERRUPTED,),
    ),
    Bug(
        "progress-not-counted",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        "        self.mark = self.progress.advance(self.mark)\n",
        "",
        "a checkpoint from a backup runs rounds twice",
        (_PAYING,),
    ),
    Bug(
        "progress-counted-before-the-checkpoint",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        "        write_checkpoint(self.file, state, charge=self.mark.charge, "
        "tokens=self.tokens, saves=self.mark.saves + 1)\n"
        "        self.mark = self.progress.advance(self.mark)\n",
        "        self.mark = self.progress.advance(self.mark)\n"
        "        write_checkpoint(self.file, state, charge=self.mark.charge, "
        "tokens=self.tokens, saves=self.mark.saves)\n",
        "a kill between the two makes the true checkpoint an old one",
        (_INTERRUPTED,),
    ),
    Bug(
        "progress-looked-at-too-late",
        "crash safety",
        "primorl/privacy/ledger/progress.py",
        "return mark is not None and mark.saves > saves",
        "return False",
        "an old copy takes the charge from the newest checkpoint before it is refused",
        (_PAYING,),
    ),
    Bug(
        "progress-original-goes-on",
        "crash safety",
        "primorl/privacy/ledger/progress.py",
        "if not self._store.replace_progress(mark, after) and self._store.progress(mark.charge) != after:",
        "if not self._store.replace_progress(mark, after) and False:",
        "a living process and a resumed copy both run rounds",
        (_PAYING,),
    ),
    Bug(
        "progress-without-key",
        "crash safety",
        "primorl/privacy/ledger/progress.py",
        "if type(mark.saves) is not int or mark != self._mark(mark.charge, str(mark.owner), mark.saves):",
        "if False:",
        "whoever can write the database can put an old checkpoint back",
        (_PAYING,),
    ),
    Bug(
        "equal-runs-both-pay",
        "crash safety",
        "primorl/privacy/ledger/ledger.py",
        "            if charge_id is not None:\n",
        "            if charge_id is None:\n",
        "two machines that begin at once pay twice for one result",
        (_PAYING,),
    ),
    Bug(
        "equal-runs-lock-ignored",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        "    if not locks.enter_context(locked(file)):\n",
        "    if not locks.enter_context(locked(file)) and False:\n",
        "two processes of one machine both begin",
        (_PAYING,),
    ),
    Bug(
        "missing-checkpoint-is-paid-again",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        '            refusals.append(_refusal(charge, file, "not there"))\n',
        "",
        "an open charge whose checkpoint is elsewhere is paid for again without a word",
        (_PAYING,),
    ),
    Bug(
        "orphan-of-a-lost-ledger-deleted",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        "        if has_begun(file):\n",
        "        if False:\n",
        "a ledger that lost its records is believed, and the proof of it is deleted",
        (_ORPHANS,),
    ),
    Bug(
        "orphan-deleted-too-early",
        "crash safety",
        "primorl/privacy/ledger/charges.py",
        "        if file.stem not in known:\n            file.unlink",
        "        if True:\n            file.unlink",
        "a reservation that the server commits late loses its checkpoint",
        (_ORPHANS,),
    ),
]
