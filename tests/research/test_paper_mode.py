"""The papers' mode couples users: the twin that must fail the strict updates' tests."""

import pytest
import torch

from primorl.online.learning import Update
from research.paper_mode import AdamDPPG, loose, measure
from tests.online.cohorts import OTHERS, met, network, recorded, with_user
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
