"""Planted bugs of accounts: the filter, kinds of units, populations, and units that were public."""

from tests.mutations.planted_bugs.bug import Bug

_FILTER = "tests/privacy/accounting/test_privacy_filter.py"
_ACCOUNT = "tests/privacy/ledger/test_account.py"
_CHAIN = "tests/privacy/ledger/test_chain.py"
_LEDGER = "tests/privacy/ledger/test_ledger.py"
_MEMBERSHIP = "tests/trajectories/identity/test_membership.py"

ACCOUNTS = [
    Bug(
        "filter-by-pld",
        "accounts",
        "primorl/privacy/ledger/account.py",
        "return by_filter if self.entries else min(by_filter, fixed_epsilon(event, delta))",
        "return composed([*self.events, event], delta)",
        "budgets are kept by PLD, which is no filter",
        (_LEDGER, _FILTER),
    ),
    Bug(
        "filter-one-order",
        "accounts",
        "primorl/privacy/accounting/privacy_filter.py",
        "for pmf in (accountant._pld._pmf_remove, accountant._pld._pmf_add)]",
        "for pmf in (accountant._pld._pmf_add,)]",
        "the filter's Gaussian covers one order of the dominating pair only",
        (_FILTER,),
    ),
    Bug(
        "filter-whole-delta-twice",
        "accounts",
        "primorl/privacy/accounting/privacy_filter.py",
        'if self.escaped > _SHARES["escaped"] * delta or',
        "if",
        "the masses that the Gaussians do not cover are not counted",
        (_FILTER,),
    ),
    Bug(
        "units-at-face-value",
        "accounts",
        "primorl/privacy/ledger/account.py",
        "    if unit in (charge.unit, TRAJECTORY):\n        return 1\n    return max(",
        "    return 1\n    return max(",
        "charges on different kinds of units compose at face value",
        (_ACCOUNT,),
    ),
    Bug(
        "units-smaller-bound",
        "accounts",
        "primorl/privacy/ledger/account.py",
        "return max((each for each in (bound",
        "return min((each for each in (bound",
        "of two declared bounds the smaller one counts",
        (_ACCOUNT,),
    ),
    Bug(
        "units-unbounded-granted",
        "accounts",
        "primorl/privacy/ledger/ledger.py",
        "            refuse_unbounded(request, account)\n",
        "",
        "a charge on a coarser unit is granted without a declared bound",
        (_ACCOUNT,),
    ),
    Bug(
        "population-ignored",
        "accounts",
        "primorl/trajectories/identity/membership.py",
        "dict.fromkeys((population or dataset, dataset))",
        "dict.fromkeys((dataset,))",
        "ids are digested within the entry, whatever population it names",
        (_MEMBERSHIP,),
    ),
    Bug(
        "population-forgets-old-charges",
        "accounts",
        "primorl/trajectories/identity/membership.py",
        "dict.fromkeys((population or dataset, dataset))",
        "dict.fromkeys((population or dataset,))",
        "naming a population makes strangers of people who were charged before",
        (_MEMBERSHIP,),
    ),
    Bug(
        "public-then-private",
        "accounts",
        "primorl/privacy/ledger/refusals.py",
        'if roster.shares("private", earlier, "public"):',
        "if False:",
        "units that an earlier run used as public are accepted as private",
        (_ACCOUNT,),
    ),
    Bug(
        "roster-edits-unnoticed",
        "accounts",
        "primorl/privacy/ledger/directory.py",
        "if history.chain.members_digest(one(bits)) != known.bits_digest:",
        "if False:",
        "edited bits of who is in a version are believed",
        (_CHAIN,),
    ),
    Bug(
        "groups-k-times",
        "accounts",
        "primorl/privacy/ledger/account.py",
        "return grouped(event_from_json(self.charge.event), self.units)",
        "return event_from_json(self.charge.event)",
        "a charge counts once for whoever has several of its units",
        (_ACCOUNT,),
    ),
]
