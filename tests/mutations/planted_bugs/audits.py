"""Planted bugs that the audits and the hostile suite notice, and bugs in the audits themselves."""

from tests.mutations.planted_bugs.bug import Bug

_BOUNDS = "tests/privacy/audits/test_bounds.py"
_ONE_RUN = "tests/privacy/audits/test_one_run.py"
_ROUND = "tests/hostile/test_round.py"
_ACCOUNTANT = "tests/hostile/test_accountant.py"
_CHEATS = "tests/hostile/test_cheats.py"

AUDITS = [
    Bug(
        "hostile-noise-half",
        "hostile suite",
        "primorl/privacy/mechanism/plan.py",
        "scale = self.noise_multiplier * self.clip.sensitivity",
        "scale = self.noise_multiplier * self.clip.sensitivity / 2",
        "half of the noise is missing; the power is that of an audit at the shipped ε of 0.5",
        (_BOUNDS,),
    ),
    Bug(
        "hostile-swish-gradient",
        "hostile suite",
        "primorl/training/local_update.py",
        "spread = miss.mul_(scaled).sub_(1).mul_(precision)",
        "spread = miss.mul_(scaled).sub_(1.001).mul_(precision)",
        "a gradient that is off by a thousandth, which a loose comparison passes",
        (_ROUND,),
    ),
    Bug(
        "hostile-query-not-counted",
        "hostile suite",
        "primorl/privacy/mechanism/plan.py",
        "queries = tuple(query.noise_multiplier for query in self.queries)",
        "queries = tuple(query.noise_multiplier for query in self.queries[1:])",
        "the first query is free",
        (_ACCOUNTANT,),
    ),
    Bug(
        "audit-error-not-shared",
        "audits",
        "primorl/privacy/audits/bounds.py",
        "family, each = Family.of(plan), 1 - (1 - confidence) / len(ASSUMPTIONS)",
        "family, each = Family.of(plan), confidence",
        "every bound takes the whole error of the report",
        (_BOUNDS,),
    ),
    Bug(
        "audit-one-sided-twice",
        "audits",
        "primorl/privacy/audits/bounds.py",
        "1 - 2 * (1 - confidence))  # one end is used",
        "1 - 20 * (1 - confidence))  # one end is used",
        "the share of right guesses is bounded at ten times the error",
        (_BOUNDS,),
    ),
]
