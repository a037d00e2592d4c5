"""The barrier pulls to uniform actions without data, and a user moves the episodes' regression by
her clip alone.
"""

import torch

from primorl.online.learning import Cohort, online_plan
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import SeededEntropy
from research.paper_mode import NoiseAlone
from tests.online.cohorts import USERS, network

SHAPE = network()


def test_noise_alone_is_the_release_of_nobody() -> None:
    sizes = {"users": 9, "cohort": USERS, "releases": 1, "appearances": 1}

    def plan() -> Plan:
        entropy = SeededEntropy(0)
        return online_plan(**sizes, noise_multiplier=1.0, delta=1e-5, entropy=entropy)

    rows = torch.randn(USERS, 5)
    nobody = Cohort(plan(), 1).noisy_mean(0 * rows, 2.0)
    for contributions in (rows, iter([rows])):
        assert torch.equal(NoiseAlone(plan(), 1).noisy_mean(contributions, 2.0), nobody)
