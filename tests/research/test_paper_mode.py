"""The papers' mode couples users: the twin that must fail the strict updates' tests."""

import pytest
import torch

from primorl.online.learning import Cohort, Update, online_mechanism
from primorl.privacy.mechanism.mechanism import Mechanism
from research.paper_mode import AdamDPPG, NoiseAlone, loose, measure
from tests.mechanisms import SeededEntropy
from tests.online.cohorts import OTHERS, USERS, met, network, recorded, with_user
from tests.online.test_sensitivity import UPDATES

SHAPE = network((5,))
STRICT = AdamDPPG(clipping_norm=0.2, local_learning_rate=0.05, epochs=2, minibatches=3)


@pytest.mark.parametrize("update", [UPDATES[0], STRICT, *UPDATES[2:]])
def test_with_the_papers_normalisation_others_move(update: Update) -> None:
    data = met(SHAPE)
    for kind, same in ((update, True), (loose(update), False)):
        user = met(SHAPE, seed=2)
        found, without = (recorded(kind, SHAPE, with_user(data, one)) for one in (user, None))
        assert torch.equal(found.rows[0][OTHERS], without.rows[0][OTHERS]) == same


def test_the_papers_critic_carries_a_user_to_the_next_cohort() -> None:
    """With the same releases, a strict second cohort contributes the same; with the carried critic,
    it does not.
    """
    first, second = met(SHAPE), met(SHAPE, seed=9)
    for update, same in ((STRICT, True), (loose(STRICT), False)):
        rows = []
        for user in (met(SHAPE, users=1, seed=2), None):
            values = recorded(update, SHAPE, with_user(first, user)).values
            rows.append(recorded(update, SHAPE, second, values).rows[0])
        assert torch.equal(*rows) == same
        assert (measure(update, 2) == 0) == same, (
            "the attack reads the canary off the papers' mode alone"
        )


def test_noise_alone_is_the_release_of_nobody() -> None:
    sizes = {"users": 9, "cohort": USERS, "releases": 1}

    def mechanism() -> Mechanism:
        entropy = SeededEntropy(0)
        return online_mechanism(**sizes, noise_multiplier=1.0, delta=1e-5, entropy=entropy)

    rows = torch.randn(USERS, 5)
    nobody = Cohort(mechanism(), 1).noisy_mean(0 * rows, 2.0)
    for contributions in (rows, iter([rows])):
        assert torch.equal(NoiseAlone(mechanism(), 1).noisy_mean(contributions, 2.0), nobody)
