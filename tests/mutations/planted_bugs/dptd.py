"""Planted bugs of DPTD and of transitions as privacy units."""

from tests.mutations.planted_bugs.bug import Bug

_DPTD = "primorl/evaluation/private/dptd.py"
_TRANSITIONS = "primorl/evaluation/private/transitions.py"
_TEST_DPTD = "tests/evaluation/private/test_dptd.py"
_TEST_TRANSITIONS = "tests/evaluation/private/test_transitions.py"

DPTD = [
    Bug(
        "dptd-weight-over-units",
        "clip",
        _DPTD,
        "own / own.sum(1, keepdim=True).clamp(min=1),",
        "own / own.sum().clamp(min=1),",
        "a unit's transitions are weighted by how many rows the other units have",
        (_TEST_DPTD,),
    ),
    Bug(
        "dptd-unbounded-policy-inputs",
        "clip",
        _DPTD,
        "parts = [problem.standardised(observation)]",
        "parts = [observation.double() - observation.double().mean()]",
        "observations are centred over the units of a batch",
        (_TEST_DPTD,),
    ),
    Bug(
        "dptd-query-not-held",
        "noise",
        "primorl/evaluation/private/rows.py",
        "first.own.sum(1).clamp(min=1)",
        "first.own.sum().clamp(min=1)",
        "what a unit adds to the query depends on the other units' trajectories",
        (_TEST_DPTD,),
    ),
    Bug(
        "dptd-noise-of-all-rounds-for-one",
        "noise",
        _DPTD,
        "noise_multiplier=noise_multiplier(rounds_mean, self.sampling_probability, self.rounds),",
        "noise_multiplier=noise_multiplier(rounds_mean, self.sampling_probability),",
        "the rounds get the noise of a single one",
        (_TEST_DPTD,),
    ),
    Bug(
        "dptd-query-for-free",
        "accounting",
        _DPTD,
        "rounds_mean = gaussian_mean * math.sqrt(1 - self.query_share)",
        "rounds_mean = 2 * gaussian_mean",
        "the rounds are given twice the share that they were to have",
        (_TEST_DPTD,),
    ),
    Bug(
        "transitions-counted",
        "denominator",
        _TRANSITIONS,
        "return self.source.units * self.places",
        "return int(self.source.lengths(torch.arange(self.source.units)).sum())",
        "the number of units is counted in the data",
        (_TEST_TRANSITIONS,),
    ),
]
