"""Planted bugs of the ledger, payments and checkpoints."""

from tests.mutations.planted_bugs.bug import Bug

_ACCOUNTING = "tests/privacy/accounting/test_epsilon.py"
_TRAINING = "tests/training/test_training.py"
_CHECKPOINT = "tests/training/test_checkpoint.py"
_STAGE = "tests/pipeline/test_train_model.py"
_PAID = "tests/pipeline/test_train_model_payment.py"
_RESUMED = "tests/pipeline/test_train_model_resumption.py"
_LEDGER = "tests/privacy/ledger/test_ledger.py"
_CHAIN = "tests/privacy/ledger/test_chain.py"
_RACES = "tests/privacy/ledger/test_races.py"

PAYMENT = [
    Bug(
        "ledger-each-run-alone",
        "ledger",
        "primorl/privacy/ledger/account.py",
        "by_filter = (self.cost + cost(event)).epsilon(delta)",
        "by_filter = cost(event).epsilon(delta)",
        "the budget is compared with the run's own ε",
        (_LEDGER,),
    ),
    Bug(
        "ledger-aborted-is-free",
        "ledger",
        "primorl/privacy/ledger/sharing.py",
        "if self._history.version_of[each.id] in sharing]",
        'if self._history.version_of[each.id] in sharing and each.state != "aborted"]',
        "what was aborted is not counted",
        (_LEDGER,),
    ),
    Bug(
        "ledger-open-is-free",
        "ledger",
        "primorl/privacy/ledger/sharing.py",
        "if self._history.version_of[each.id] in sharing]",
        'if self._history.version_of[each.id] in sharing and each.state != "reserved"]',
        "what died after its reservation is not counted",
        (_LEDGER,),
    ),
    Bug(
        "ledger-equal-versions-only",
        "ledger",
        "primorl/privacy/ledger/sharing.py",
        'roster.shares(\n                "private", self._directory.roster(sequence), "private"\n            ):',
        "(\n                known.fingerprint == version.fingerprint\n            ):",
        "another version of the data begins with a full budget",
        (_LEDGER,),
    ),
    Bug(
        "ledger-one-shared-unit-passes",
        "ledger",
        "primorl/privacy/ledger/roster.py",
        "bool((mine[segment] & bits).any())",
        "bool(np.unpackbits(mine[segment] & bits).sum() > 1)",
        "versions that have one unit in common share no spending",
        (_LEDGER,),
    ),
    Bug(
        "ledger-largest-instead-of-composed",
        "ledger",
        "primorl/privacy/accounting/epsilon.py",
        "rounds[inner] = rounds.get(inner, 0) + count",
        "rounds[inner] = max(rounds.get(inner, 0), count)",
        "equal runs are counted once",
        (_ACCOUNTING, _LEDGER),
    ),
    Bug(
        "ledger-no-guarantee-is-free",
        "ledger",
        "primorl/privacy/accounting/epsilon.py",
        "            return Spent(math.inf, math.inf, delta)\n",
        "            continue\n",
        "a run without a guarantee costs nothing",
        (_ACCOUNTING, _LEDGER),
    ),
    Bug(
        "ledger-tail-cut",
        "ledger",
        "primorl/privacy/ledger/ledger.py",
        "        if anchored is None or anchored == BEGUN:\n            return\n",
        "        return\n",
        "the last records may be cut off",
        (_CHAIN,),
    ),
    Bug(
        "ledger-chain-without-key",
        "ledger",
        "primorl/privacy/ledger/chain.py",
        "self._records_key = hmac.digest(secret, _RECORDS, hashlib.sha256)",
        'self._records_key = hmac.digest(b"", _RECORDS, hashlib.sha256)',
        "whoever can write the database can forge its records",
        (_CHAIN,),
    ),
    Bug(
        "ledger-order-unchecked",
        "ledger",
        "primorl/privacy/ledger/chain.py",
        "if record.previous != previous:",
        "if False:",
        "an older state may be given another future",
        (_CHAIN,),
    ),
    Bug(
        "ledger-members-unchecked",
        "ledger",
        "primorl/privacy/ledger/directory.py",
        "if content is None or self._history.chain.members_digest(content) != digest:",
        "if content is None:",
        "edited members let a version look like one that shares nobody",
        (_CHAIN,),
    ),
    Bug(
        "ledger-history-not-read-again",
        "ledger",
        "primorl/privacy/ledger/ledger.py",
        "            self._refresh()\n            if charge_id is not None:\n",
        "            if attempt == 0:\n                self._refresh()\n            if charge_id is not None:\n",
        "whoever loses a race decides on the old history",
        (_LEDGER, _RACES),
    ),
    Bug(
        "ledger-publishes-the-private",
        "ledger",
        "primorl/privacy/ledger/refusals.py",
        'if roster.shares("public", earlier, "private"):',
        "if False:",
        "units that were charged for as private may become public",
        (_LEDGER, _PAID, _STAGE),
    ),
    Bug(
        "charge-for-other-units",
        "ledger",
        "primorl/setup/charged_units.py",
        "if store.info != manifest.info or found.to_bytes() != version.members:",
        "if store.info != manifest.info:",
        "the rows that are read are not those of the units that were charged",
        (
            _PAID,
            _STAGE,
        ),
    ),
    Bug(
        "charge-after-reading",
        "ledger",
        "primorl/setup/paid_training.py",
        "    request = accounts.request(\n",
        '    UnitStore.open(partitions.folder / "private")\n    request = accounts.request(\n',
        "the private partition is opened before the ledger is asked",
        (
            _PAID,
            _STAGE,
        ),
    ),
    Bug(
        "charge-of-nothing",
        "ledger",
        "primorl/setup/paid_training.py",
        "event=dp_event.NonPrivateDpEvent() if baseline else setup.plan.event,",
        "event=dp_event.NoOpDpEvent() if baseline else setup.plan.event,",
        "variant mopo is charged as nothing",
        (
            _PAID,
            _STAGE,
        ),
    ),
    Bug(
        "charge-again-for-an-edit",
        "ledger",
        "primorl/setup/model_work.py",
        '        "draw": params.privacy.draw,\n',
        '        "draw": params.privacy.draw,\n        "engine": ENGINE_VERSION,\n',
        "an edit of the engine charges the same people again without being asked to",
        (
            _PAID,
            _STAGE,
        ),
    ),
    Bug(
        "charge-identity-without-draw",
        "ledger",
        "primorl/setup/model_work.py",
        '        "draw": params.privacy.draw,\n',
        "",
        "another draw that was asked for is not made",
        (
            _PAID,
            _RESUMED,
            _STAGE,
        ),
    ),
    Bug(
        "charge-identity-without-data",
        "ledger",
        "primorl/setup/partitions.py",
        '            "members": hashlib.sha256(self.version.members).hexdigest(),\n',
        "",
        "other people's model is restored",
        (
            _PAID,
            _STAGE,
        ),
    ),
]

CRASHES = [
    Bug(
        "resume-round-numbers-reused",
        "crash safety",
        "primorl/training/training.py",
        "now = replace(now, started=now.started + 1)",
        "now = replace(now, started=now.done + 1)",
        "rounds that died are made up for: more run than were paid",
        (_TRAINING, _PAID, _RESUMED, _STAGE),
    ),
    Bug(
        "resume-announced-too-late",
        "crash safety",
        "primorl/training/training.py",
        "                save_checkpoint(now)\n"
        "                total = rounds.sum(now.weights, last=now.started >= plan.rounds)\n",
        "                total = rounds.sum(now.weights, last=now.started >= plan.rounds)\n"
        "                save_checkpoint(now)\n",
        "a round touches data before it is written down",
        (_TRAINING,),
    ),
    Bug(
        "checkpoint-holds-generator-state",
        "crash safety",
        "primorl/privacy/ledger/checkpoint.py",
        "    content = save(tensors, {",
        '    tensors["generator"] = __import__("torch").get_rng_state()\n    content = save(tensors, {',
        "a generator's state is on the disk",
        (_CHECKPOINT,),
    ),
    Bug(
        "checkpoint-damage-unseen",
        "crash safety",
        "primorl/privacy/ledger/checkpoint.py",
        "if hashlib.sha256(content).digest() != digest:",
        "if False:",
        "a damaged checkpoint is taken up",
        (_CHECKPOINT,),
    ),
    Bug(
        "checkpoint-of-another-charge",
        "crash safety",
        "primorl/privacy/ledger/checkpoint.py",
        'if header["charge"] != charge:',
        'if not header["charge"]:',
        "another charge's progress is taken up",
        (_CHECKPOINT,),
    ),
    Bug(
        "checkpoint-of-an-unprotected-run",
        "crash safety",
        "primorl/setup/paid_training.py",
        "kept = setup.plan.is_private and not baseline",
        "kept = not baseline",
        "weights without a guarantee are kept and restored",
        (
            _PAID,
            _RESUMED,
            _STAGE,
        ),
    ),
]
