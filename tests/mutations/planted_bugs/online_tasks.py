"""Planted bugs of running counts, of UCB-VI and of clipping norms from trust regions."""

from tests.mutations.planted_bugs.bug import Bug

_COUNTERS = "tests/privacy/mechanism/test_counters.py"
_TRUST_REGION = "tests/online/test_trust_region.py"
_UCBVI = "tests/online/test_ucbvi.py"

ONLINE_TASKS = [
    Bug(
        "counter-one-level",
        "noise",
        "primorl/privacy/mechanism/counters.py",
        "math.ceil(self.levels * self.sensitivity / Fraction(self.epsilon))",
        "math.ceil(self.sensitivity / Fraction(self.epsilon))",
        "noise as if a person were in one node of the tree",
        (_COUNTERS,),
    ),
    Bug(
        "counter-reused-noise",
        "noise",
        "primorl/privacy/mechanism/counters.py",
        "self._noise = self._noise[1:]",
        "self._noise = self._noise[0:]",
        "all nodes have the same noise",
        (_COUNTERS,),
    ),
    Bug(
        "counter-no-bound",
        "clip",
        "primorl/privacy/mechanism/counters.py",
        "node = self._sums[:level].sum(0) + (vector if fits else 0)",
        "node = self._sums[:level].sum(0) + vector",
        "a vector above the sensitivity is counted",
        (_COUNTERS,),
    ),
    Bug(
        "counters-epsilon-each",
        "accounting",
        "primorl/online/ucbvi.py",
        "self.horizon * unit, self.epsilon / 3, self.entropy",
        "self.horizon * unit, self.epsilon, self.entropy",
        "each of the three counters has all of ε",
        (_UCBVI,),
    ),
    Bug(
        "trust-region-without-trace",
        "noise",
        "primorl/online/trust_region.py",
        "(largest + self.noise**2 * trace)",
        "(largest + self.noise**2 * largest)",
        "the norm forgets that noise has d directions",
        (_TRUST_REGION,),
    ),
    Bug(
        "trust-region-beyond-the-horizon",
        "data flow",
        "primorl/online/trust_region.py",
        "replace(met, terminated=met.ends)",
        "met",
        "returns go on after the horizon",
        (_TRUST_REGION,),
    ),
]
