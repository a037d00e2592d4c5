"""Planted bugs of what a new user's log may get wrong: rewards, bounds, budgets, and advice that is of another run."""

from tests.mutations.planted_bugs.bug import Bug

_CHECKS, _CHECKED = "primorl/setup/public_checks.py", "tests/setup/test_public_checks.py"
_NEXT = "tests/setup/test_next_charges.py"

PUBLIC_CHECKS = [
    Bug(
        "public-checks-unasked",
        "ledger",
        "pipeline/train_model.py",
        "    check_public(params, partitions.manifest, partitions.public)\n",
        "",
        "people are charged for a training whose every reward is 0",
        (_CHECKED,),
    ),
    Bug(
        "public-checks-one-side",
        "words",
        _CHECKS,
        "((values < low) | (values > high))",
        "(values < low)",
        "values above a declared bound are not counted",
        (_CHECKED,),
    ),
    Bug(
        "public-checks-constant-reward",
        "words",
        _CHECKS,
        "if reward[0] != 0 and may_end:",
        "if may_end:",
        "a log without any reward passes because its episodes end",
        (_CHECKED,),
    ),
    Bug(
        "next-charges-model-alone",
        "ledger",
        "primorl/setup/next_charges.py",
        "    if together > budget.epsilon:\n",
        "    if account.with_event(model.event, budget.delta) > budget.epsilon:\n",
        "a model is paid for although nothing is left for the questions about it",
        (_NEXT,),
    ),
    Bug(
        "next-charges-paid-is-forever",
        "words",
        "primorl/setup/next_charges.py",
        "replace(wanted[0], paid=model is not None)",
        "replace(wanted[0], paid=bool(charges))",
        "plan calls a model paid that an edit made another one",
        (_NEXT,),
    ),
    Bug(
        "next-charges-of-another-clone",
        "words",
        "primorl/setup/next_charges.py",
        'for part in ("model", "clone") if part in about',
        'for part in ("model",) if part in about',
        "plan calls an answer paid whose weights are of another clone",
        (_NEXT,),
    ),
    Bug(
        "summary-of-another-run",
        "words",
        "primorl/evaluation/summary.py",
        "if file.exists() and file_sha256(file) != digest]",
        "if not file.exists()]",
        "an earlier run's advice is shown beside another model",
        ("tests/commands/test_summary.py",),
    ),
    Bug(
        "no-public-keys-one-by-one",
        "words",
        "primorl/config/params.py",
        "alone and not statistics.starts,\n",
        "False,\n",
        "without public units a key that is needed shows only after the others are set",
        ("tests/config/test_starts.py",),
    ),
    Bug(
        "log-first-line-quoted",
        "data flow",
        "primorl/trajectories/sources/tabular/files.py",
        "if 2 * len(needed & set(names)) < len(needed):",
        "if not needed:",
        "an error quotes the first line of a log without a header, which is somebody's row",
        ("tests/trajectories/sources/test_tabular_refusals.py",),
    ),
]
