"""Planted bugs of what a new user's log may get wrong: rewards, bounds, budgets, and advice that is of another run."""

from tests.mutations.planted_bugs.bug import Bug

_CHECKS, _CHECKED = "primorl/setup/public_checks.py", "tests/setup/test_public_checks.py"

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
]
