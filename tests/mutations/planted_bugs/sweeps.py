"""Planted bugs of sweeps."""

from tests.mutations.planted_bugs.bug import Bug

_TRIAL = "tests/sweeps/test_trial.py"
_NEXT = "tests/setup/test_next_run.py"
_SWEEPING = "tests/sweeps/test_sweeping.py"

SWEEPS = [
    Bug(
        "sweep-unasked",
        "sweep",
        "primorl/sweeps/trial.py",
        "    try:\n        ask()\n        for stage in stages():",
        "    try:\n        for stage in stages():",
        "a trial begins without asking the ledger",
        (_TRIAL,),
    ),
    Bug(
        "sweep-copies-rows",
        "sweep",
        "primorl/sweeps/folders.py",
        "        there.symlink_to(here.resolve(), target_is_directory=True)",
        "        shutil.copytree(here, there)",
        "private rows are copied into the trial's folder",
        (_TRIAL,),
    ),
    Bug(
        "sweep-leaves-links",
        "sweep",
        "primorl/sweeps/folders.py",
        "            if free:\n                _unlink(folder)",
        "            pass",
        "who copies the folder of a killed trial copies private rows",
        (_TRIAL,),
    ),
    Bug(
        "sweep-withdrawal-unnoticed",
        "sweep",
        "primorl/sweeps/sweeping.py",
        "        check_fresh(params)",
        "        pass",
        "a sweep trains on people who withdrew after the partition",
        ("tests/sweeps/test_freshness.py",),
    ),
    Bug(
        "sweep-equal-models-fail",
        "sweep",
        "primorl/sweeps/trial.py",
        ', WAIT: "1"}',
        "}",
        "of two trials of one model that begin together one fails",
        (_TRIAL, "tests/sweeps/test_paying.py"),
    ),
    Bug(
        "sweep-other-data-unnoticed",
        "sweep",
        "primorl/sweeps/folders.py",
        '"data": _digest_of_data(), ',
        "",
        "what was made of other partitions is taken for the trial's",
        (_TRIAL, _SWEEPING),
    ),
    Bug(
        "sweep-own-home",
        "sweep",
        "primorl/sweeps/trial.py",
        '{"DVC_ROOT": str(home()), RUN_TAGS',
        '{"DVC_ROOT": str(folder), RUN_TAGS',
        "each trial has a ledger and a secret of its own, so nothing adds up",
        (_TRIAL,),
    ),
    Bug(
        "sweep-model-alone-unasked",
        "sweep",
        "primorl/setup/next_charges.py",
        "            ledger.dry_run(request, accounts.budget(params, manifest.private_units))",
        "            pass",
        "a model that is charged alone is begun beyond the budget",
        (_NEXT,),
    ),
    Bug(
        "sweep-finished-again",
        "sweep",
        "primorl/sweeps/sweeping.py",
        "    return row if row is not None and row.finished else None\n\n\ndef _space",
        "    return None\n\n\ndef _space",
        "a sweep that goes on counts nothing as finished",
        (_SWEEPING,),
    ),
    Bug(
        "sweep-on-other-partitions",
        "sweep",
        "primorl/sweeps/sweeping.py",
        "    check_partition(sweep, trial_params(trials[0]))  # all trials share it\n",
        "",
        "a sweep for other partitions runs, and its rows are taken for results",
        (_SWEEPING,),
    ),
]
