"""Planted bugs of paid work across versions and losses: its identity, its scale, and the charges that files name."""

from tests.mutations.planted_bugs.bug import Bug

_ANSWERS = "tests/setup/test_paid_answers.py"
_LOSSES = "tests/commands/test_ledger_losses.py"

UPGRADES = [
    Bug(
        "answers-charged-for-a-new-key",
        "ledger",
        "primorl/setup/private_evaluation.py",
        '        "return_bounds": chosen.return_bounds,\n',
        '        "return_bounds": chosen.return_bounds,\n        "units": partitions.identity,\n',
        "an answer that was paid for under an earlier version is charged again",
        (_ANSWERS,),
    ),
    Bug(
        "choice-charged-for-a-new-key",
        "ledger",
        "primorl/setup/selection.py",
        '        **({"of_answers": draw} if draw else {}),\n',
        '        "of_answers": draw,\n',
        "a choice that was paid for under an earlier version is charged again",
        (_ANSWERS,),
    ),
    Bug(
        "answers-read-on-another-scale",
        "private evaluation",
        "primorl/setup/private_evaluation.py",
        "if state.about not in (about, about.partition(_BOUNDS)[0]):",
        "if state.about.partition(_BOUNDS)[0] != about.partition(_BOUNDS)[0]:",
        "an answer is scaled by bounds that it was not asked with",
        ("tests/pipeline/test_evaluate_private.py",),
    ),
    Bug(
        "losses-of-a-joint-statement-unnoticed",
        "ledger",
        "primorl/setup/losses.py",
        "for part in mechanisms if isinstance(mechanisms, list) else ():",
        "for part in ():",
        "a lost ledger goes unnoticed beside a policy that was made from model and clone",
        (_LOSSES,),
    ),
    Bug(
        "losses-recorded-as-both-together",
        "ledger",
        "primorl/setup/losses.py",
        "yield from _of({**whole, **part}, ",
        "yield from _of({**part, **statement, 'mechanisms': [], 'charge': part['charge']}, ",
        "a repair records model and clone each as both together",
        (_LOSSES,),
    ),
    Bug(
        "clones-charged-for-a-new-key",
        "ledger",
        "primorl/config/blocks.py",
        "return None if self.target_epsilon is None or network == FIRST_CLONE else [list(part) for part in network]",
        "return None if self.target_epsilon is None else [list(part) for part in network]",
        "a clone that was paid for before its network could be chosen is charged again",
        (_ANSWERS, "tests/pipeline/test_clone_behaviour.py"),
    ),
    Bug(
        "clones-of-any-network-one-work",
        "ledger",
        "primorl/config/blocks.py",
        "return None if self.target_epsilon is None or network == FIRST_CLONE else [list(part) for part in network]",
        "return None",
        "an answer about a policy near one clone is taken for one near another",
        (_ANSWERS, "tests/pipeline/test_clone_behaviour.py"),
    ),
]
