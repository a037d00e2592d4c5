"""Planted bugs of what leaves the project, and several processes."""

from tests.mutations.planted_bugs.bug import Bug

_PROCESSES = "tests/training/test_distributed.py"
_WORKERS = "tests/setup/test_launcher.py"
_STAGE = "tests/pipeline/test_train_model.py"
_PAID = "tests/pipeline/test_train_model_payment.py"
_RESUMED = "tests/pipeline/test_train_model_resumption.py"
_RELEASE = "tests/release/test_release.py"
_RECEIVED = "tests/release/test_received_bundle.py"
_CARD = "tests/release/test_card.py"
_SECURITY = "tests/test_security.py"

RELEASE = [
    Bug(
        "statement-of-realised-rounds",
        "statement",
        "primorl/setup/model_files.py",
        '    plan = None if variant == "mopo" else setup.plan\n',
        "    from dataclasses import replace as other\n\n"
        '    plan = None if variant == "mopo" else other(setup.plan, rounds=max(1, trained.rounds))\n',
        "ε of the rounds that ran, not of those that were reserved",
        (
            _STAGE,
            _PAID,
            _RESUMED,
        ),
    ),
    Bug(
        "statement-without-the-ledger",
        "statement",
        "primorl/privacy/ledger/charges.py",
        "total = total_of(ledger.account(version).events, delta)",
        "total = total_of([], delta)",
        "what was spent on the dataset is this run's alone",
        (
            _STAGE,
            _PAID,
        ),
    ),
    Bug(
        "statement-private-numbers-logged",
        "statement",
        "primorl/setup/paid_training.py",
        '        run.tag("charge", payment.charge.id)\n',
        '        run.tag("charge", payment.charge.id)\n'
        '        rows = UnitStore.open(partitions.folder / "private").flat()[0]\n'
        '        run.metric("first", float(rows[0, 0]))\n',
        "a private number is logged",
        (
            _STAGE,
            _PAID,
        ),
    ),
    Bug(
        "release-void-leaves",
        "release",
        "primorl/release/bundle.py",
        "if not statement.sound:",
        "if False:",
        "what must not be relied on leaves unasked",
        (_RELEASE,),
    ),
    Bug(
        "release-hashes-unsearched",
        "release",
        "primorl/release/making.py",
        "if any(known in run or known.startswith(run) for known in hashes):",
        "if False:",
        "unkeyed hashes of private data may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-counts-unsearched",
        "release",
        "primorl/release/making.py",
        "        if found & counts:\n",
        "        if False:\n",
        "row counts of private data may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-paths-unsearched",
        "release",
        "primorl/release/bundle.py",
        "if _PATH.search(_text(folder / name)):",
        "if False:",
        "paths of the machine may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-undeclared-keys",
        "release",
        "primorl/project/records.py",
        '{"extra": "forbid", "strict"',
        '{"extra": "ignore", "strict"',
        "JSON keys that nobody declared may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-tensors-unchecked",
        "release",
        "primorl/release/bundle.py",
        "if (again / Path(file).name).read_bytes() != (folder / file).read_bytes():",
        "if False:",
        "tensors and metadata that no loader reads may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-more-files",
        "release",
        "primorl/release/bundle.py",
        '(found - allowed, "does not belong in a bundle"), ',
        "",
        "any file beside the declared ones may leave",
        (_RECEIVED,),
    ),
    Bug(
        "release-archives-pass",
        "release",
        "primorl/release/bundle.py",
        "if zipfile.is_zipfile(folder / name):",
        "if False:",
        "an archive with a pickle passes as a declared file",
        (_RECEIVED,),
    ),
    Bug(
        "release-epsilon-unchecked",
        "release",
        "primorl/release/accounted.py",
        "    if not agrees:\n",
        "    if False:\n",
        "a stranger's ε is believed",
        (_RECEIVED,),
    ),
    Bug(
        "loading-a-pickle",
        "release",
        "primorl/policy/saved.py",
        "import itertools\n",
        "import itertools\nimport pickle  # noqa: F401\n",
        "an artefact's loader can run what is in it",
        (_SECURITY,),
    ),
    Bug(
        "card-markdown-unescaped",
        "release",
        "primorl/release/card.py",
        "finalize=None if page else _md,",
        "finalize=None,",
        "a name in a file puts links and tables into the card",
        (_CARD,),
    ),
    Bug(
        "card-page-unescaped",
        "release",
        "primorl/release/card.py",
        "autoescape=page,",
        "autoescape=False,",
        "a name in a file puts markup into the card's page",
        (_CARD,),
    ),
]

PROCESSES = [
    Bug(
        "processes-share-units",
        "processes",
        "primorl/privacy/mechanism/plan.py",
        "return range(self.process, self.units, self.processes)",
        "return range(self.units)",
        "every process samples every unit, so one joins as often as there are processes",
        (_PROCESSES,),
    ),
    Bug(
        "processes-denominator-of-a-shard",
        "processes",
        "primorl/privacy/mechanism/plan.py",
        "return self.sampling_probability * self.units",
        "return self.sampling_probability * len(self.local_units)",
        "the denominator is that of one process's units",
        (_PROCESSES,),
    ),
    Bug(
        "processes-all-draw-noise",
        "processes",
        "primorl/privacy/mechanism/plan.py",
        "        if self.process != 0:\n            raise ValueError(",
        "        if False:\n            raise ValueError(",
        "any process may release its part, with noise of its own",
        (_PROCESSES,),
    ),
    Bug(
        "processes-part-of-the-sum",
        "processes",
        "primorl/training/distributed.py",
        "    for part in parts[1:]:\n        total += part\n",
        "",
        "the first process's units alone are released",
        (_PROCESSES,),
    ),
    Bug(
        "processes-uncovered-units",
        "processes",
        "primorl/training/distributed.py",
        "== 1).all())",
        ">= 1).all())",
        "a unit that two processes hold goes unnoticed",
        (_PROCESSES,),
    ),
    Bug(
        "processes-unpaid",
        "processes",
        "primorl/setup/paid_training.py",
        "        if _agreed(stage.identity(params, partitions), setup) != granted:\n",
        "        if not granted:\n",
        "others train another model than the ledger has granted",
        (_WORKERS,),
    ),
]
