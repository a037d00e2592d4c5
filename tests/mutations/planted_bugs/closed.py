"""Planted bugs of a ledger that must fail closed: its head, what it has lost, the secret, and who only reads."""

from tests.mutations.planted_bugs.bug import Bug

_ANCHOR = "tests/privacy/ledger/test_anchor.py"
_SHARED = "tests/privacy/ledger/test_shared.py"
_LOSSES = "tests/commands/test_ledger_losses.py"
_READ = "tests/commands/test_ledger_read_only.py"
_STAGE = "tests/pipeline/test_train_model_losses.py"
_RELEASE = "tests/release/test_release_losses.py"

CLOSED = [
    Bug(
        "closed-head-not-wanted",
        "ledger",
        "primorl/privacy/ledger/ledger.py",
        "        if self._history.chain.hashes:\n            self.check_head()\n        else:\n",
        "        if not self._history.chain.hashes:\n",
        "records without a head are added to, and get a new one",
        (_ANCHOR,),
    ),
    Bug(
        "closed-first-head-too-late",
        "ledger",
        "primorl/privacy/ledger/ledger.py",
        "            self._anchor.advance(BEGUN)\n",
        "            pass\n",
        "a kill in the first charge of all looks like a lost head",
        (_ANCHOR,),
    ),
    Bug(
        "closed-reading-heals-the-head",
        "ledger",
        "primorl/privacy/ledger/ledger.py",
        "        self._history, self._directory = self._read_again()\n        self.progress",
        "        self._history, self._directory = self._read_again()\n        self._remember()\n        self.progress",
        "`verify` and `release` write a new head, and call a cut ledger whole",
        (_ANCHOR, _LOSSES, _RELEASE),
    ),
    Bug(
        "closed-deleted-ledger-is-empty",
        "ledger",
        "primorl/setup/losses.py",
        "    found = losses(ledger)\n    if found:\n",
        "    found = losses(ledger)\n    if False:\n",
        "charges that models name and the ledger lacks stop nothing",
        (_LOSSES,),
    ),
    Bug(
        "closed-lock-file-unread",
        "ledger",
        "primorl/setup/losses.py",
        '    if not known and not named and is_recorded("train_model"):\n',
        "    if False:\n",
        "an empty ledger beside a lock file that tells of training is taken for a new one",
        (_LOSSES,),
    ),
    Bug(
        "closed-cache-unread",
        "ledger",
        "primorl/setup/losses.py",
        "        recorded = recorded_file(folder, _STATEMENT)\n",
        "        recorded = None\n",
        "the model's charge is forgotten as soon as DVC has deleted the model to train it again",
        (_LOSSES,),
    ),
    Bug(
        "closed-repair-forgets",
        "ledger",
        "primorl/setup/ledger_repair.py",
        "            ledger.reserve(request, None, charge)\n",
        "            str(request)\n",
        "what a repair says that it recorded again counts nowhere",
        (_LOSSES,),
    ),
    Bug(
        "closed-repair-accepts-every-loss",
        "ledger",
        "primorl/setup/ledger_repair.py",
        "    if not accept_loss and (",
        "    if accept_loss and (",
        "a repair drops charges without being told to",
        (_LOSSES,),
    ),
    Bug(
        "closed-another-secret",
        "ledger",
        "primorl/setup/accounts.py",
        "    if manifest.secret_check not in (None, secret_check(project_secret())):\n",
        "    if False:\n",
        "units are charged under digests by which the ledger recognises nobody",
        (_STAGE,),
    ),
    Bug(
        "closed-public-units-by-number",
        "ledger",
        "primorl/setup/charged_units.py",
        "    if found.to_bytes() != version.public:\n",
        "    if False:\n",
        "the ledger is told that others are public than those that are published",
        (_STAGE,),
    ),
    Bug(
        "closed-reading-creates",
        "ledger",
        "primorl/privacy/ledger/store.py",
        "            if not read_only:\n                self._create_tables()\n",
        "            self._create_tables()\n            if not read_only:\n                pass\n",
        "to look at a ledger needs the right to create its tables",
        (_SHARED, _LOSSES, _READ),
    ),
    Bug(
        "closed-clone-cannot-verify",
        "ledger",
        "primorl/commands/ledger.py",
        "refuse_losses(ledger, head=params.ledger.url is None)",
        "refuse_losses(ledger)",
        "a clone that has not charged yet cannot verify the shared ledger",
        (_SHARED,),
    ),
    Bug(
        "closed-release-without-head",
        "release",
        "primorl/release/making.py",
        "        ledger.verify()\n        refuse_losses(ledger)\n",
        "        ledger.verify()\n",
        "a bundle states the charges of a ledger whose end may have been cut off",
        (_RELEASE,),
    ),
]
