"""Planted bugs of the stage `online`: who is met, what is charged, and what is stated."""

from tests.mutations.planted_bugs.bug import Bug

_ARRIVALS = "tests/setup/test_arrivals.py"
_STAGE = "tests/pipeline/test_online.py"
_BUNDLE = "tests/release/test_online_bundle.py"

ONLINE_STAGE = [
    Bug(
        "arrivals-beyond-the-cap",
        "online stage",
        "primorl/setup/arrivals.py",
        "if met[one] < appearances and one not in filling and",
        "if met[one] <= appearances and one not in filling and",
        "somebody is met once more than is paid for",
        (_ARRIVALS,),
    ),
    Bug(
        "arrivals-twice-in-a-cohort",
        "online stage",
        "primorl/setup/arrivals.py",
        "if met[one] < appearances and one not in filling and",
        "if met[one] < appearances and",
        "somebody contributes to one sum in another one's place",
        (_ARRIVALS,),
    ),
    Bug(
        "arrivals-of-nobody-in-the-log",
        "online stage",
        "primorl/setup/arrivals.py",
        "    return own, params.chosen.unit\n",
        '    return f"{own}, online", ONE_USER\n',
        "people of the log who come online are taken for others, and their charges do not add up",
        (_ARRIVALS,),
    ),
    Bug(
        "online-cohort-again",
        "online stage",
        "primorl/online/learning.py",
        "        now = replace(now, started=number + 1)\n        save_checkpoint(now)\n",
        "        now = replace(now, started=number + 1)\n",
        "a killed run meets the users of its last cohort a second time",
        (_STAGE,),
    ),
    Bug(
        "online-paper-charged-as-private",
        "online stage",
        "primorl/setup/online.py",
        "return self.plan.is_private and not self.void",
        "return self.plan.is_private",
        "the ledger takes a run without guarantee for a private one",
        (_STAGE,),
    ),
    Bug(
        "online-paper-not-void",
        "online stage",
        "primorl/setup/online_files.py",
        "void=(*statement.void, *run.void), online=protocol",
        "online=protocol",
        "the statement of a run without guarantee may be relied on",
        (_STAGE,),
    ),
    Bug(
        "online-forgets-the-offline-part",
        "online stage",
        "primorl/privacy/together.py",
        '{"models/policy": offline, "models/online": online}, both)',
        '{"models/online": online}, both)',
        "the statement leaves out what the offline policy cost somebody who is in the log",
        (_STAGE,),
    ),
    Bug(
        "online-bundle-believes-mechanisms",
        "online stage",
        "primorl/release/online_bundle.py",
        "    check_together(path, statement)\n",
        "",
        "a bundle that hides a mechanism passes the check",
        (_BUNDLE,),
    ),
]
