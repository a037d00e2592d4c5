"""Planted bugs of settings that are fitted to public facts, and of the verdict before the charge."""

from tests.mutations.planted_bugs.bug import Bug

_DRY_RUN, _FITTING, _PAID = "primorl/training/dry_run.py", "primorl/setup/fitting.py", "primorl/setup/paid_training.py"
_REHEARSED, _FITTED = "tests/training/test_dry_run.py", "tests/setup/test_fitting.py"

FITTING = [
    Bug(
        "fitting-dry-run-noise",
        "data flow",
        _DRY_RUN,
        "noise * plan.noise_multiplier * self._second.units / plan.expected_cohort",
        "noise * plan.noise_multiplier / plan.expected_cohort",
        "a dry run adds less noise than the private training will have",
        (_REHEARSED,),
    ),
    Bug(
        "fitting-judged-by-its-start",
        "data flow",
        _DRY_RUN,
        "Units(public, chosen[::2]), Units(public, chosen[1::2])",
        "Units(public, chosen), Units(public, chosen[1::2])",
        "a dry run is judged by units that its start was made of",
        (_REHEARSED,),
    ),
    Bug(
        "fitting-verdict-unasked",
        "ledger",
        "pipeline/train_model.py",
        "    check_verdict(params, fit)\n",
        "",
        "people are charged for a training that cannot learn",
        (_FITTED,),
    ),
    Bug(
        "fitting-charged-again",
        "ledger",
        "primorl/setup/model_training.py",
        "    if params.unfitted & TRAINING_KEYS:\n        return _fitted_identity(params, partitions)\n",
        "",
        "another version of the fit charges the same people again",
        (_FITTED,),
    ),
    Bug(
        "fitting-resumed-otherwise",
        "ledger",
        _PAID,
        'if facts.get("settings") not in (None, setup.digest):',
        'if "settings" not in facts:',
        "rounds that were paid for under one plan go on under another",
        (_FITTED,),
    ),
    Bug(
        "fitting-processes-disagree",
        "processes",
        _PAID,
        'hashlib.sha256(f"{identity} {setup.digest}".encode())',
        "hashlib.sha256(identity.encode())",
        "a process samples and clips by another fit than the first",
        (_FITTED,),
    ),
    Bug(
        "fitting-for-other-people",
        "data flow",
        _FITTING,
        '"units": [manifest.private_units, manifest.public_units],',
        '"units": [manifest.public_units],',
        "a fit for many people is taken for few",
        (_FITTED,),
    ),
    Bug(
        "fitting-delta-is-other-work",
        "ledger",
        "primorl/setup/model_training.py",
        'of_noise = ("noise_multiplier",) if privacy.target_epsilon is None else ("target_epsilon", "delta")',
        'of_noise = ("noise_multiplier", "target_epsilon", "delta")',
        "the same mechanism is charged again, since its ε is read at another δ",
        (_FITTED,),
    ),
]
