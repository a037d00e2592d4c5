"""Rows of the online tables are made from their settings, and the papers' mode couples users: the
twin that must fail the strict updates' tests.
"""

from dataclasses import replace

import pytest
import torch

from primorl.online.learning import PARAMETERS, SimulatedUsers, Update
from research.classic_control import batch
from research.online import TASKS, Run, cases, multiplier
from research.paper_mode import AdamDPPG, CarriedUsers, ReleasedMoments, loose, measure
from research.regression import PolicyGradient
from tests.online.cohorts import OTHERS, met, network, recorded, with_user
from tests.online.test_sensitivity import UPDATES

UPDATE = PolicyGradient(learning_rate=2.0, clipping_norm=1.0)
SMALL = Run("CartPole", "DP-PG", "strict", "ε 1", UPDATE, multiplier("ε 1"), 4, 2, 20)


@pytest.mark.parametrize("carried", [False, True])
def test_carried_environments_go_on_where_the_users_before_left_them(carried: bool) -> None:
    network = TASKS["CartPole"].network(())
    users = (CarriedUsers if carried else SimulatedUsers)(batch("CartPole-v1"), 5, None, 0)
    first, second = (users.meet(range(at, at + 4), network, network.initial(1.0)) for at in (0, 4))
    assert not first.ends[:, :-1].any(), "nobody fell"
    assert torch.equal(first.next_observations[:, -1], second.observations[:, 0]) == carried


def test_rows_have_the_epsilon_of_their_budget_and_their_users() -> None:
    strict, noiseless = (
        SMALL.make_row(0),
        replace(SMALL, row="no noise", noise_multiplier=0.0).make_row(0),
    )
    assert (strict["users"], strict["parameters"]) == (8, 10)
    assert strict["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert noiseless["epsilon"] is None
    assert replace(SMALL, row="paper").make_row(0)["epsilon"] is None
    keys = [str(one.key) for one in cases()]
    assert len(set(keys)) == len(keys), "no two lines share a row"


SHAPE = network((5,))
STRICT = AdamDPPG(clipping_norm=0.2, local_learning_rate=0.05, epochs=2, minibatches=3)
RELEASED = ReleasedMoments(**vars(STRICT))


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
    for update, same in ((STRICT, True), (RELEASED, True), (loose(STRICT), False)):
        rows = []
        for user in (met(SHAPE, users=1, seed=2), None):
            values = recorded(update, SHAPE, with_user(first, user)).values
            rows.append(recorded(update, SHAPE, second, values).rows[0])
        assert torch.equal(*rows) == same
    for update, same in ((STRICT, True), (loose(STRICT), False)):
        assert (measure(update, 2) == 0) == same, (
            "the attack reads the canary off the papers' mode alone"
        )


def test_released_moments_turn_the_first_step() -> None:
    data, values = met(SHAPE), recorded(RELEASED, SHAPE, met(SHAPE, seed=9)).values
    fresh = {PARAMETERS: values[PARAMETERS]}
    turned, plain = (recorded(RELEASED, SHAPE, data, each).rows[0] for each in (values, fresh))
    assert torch.equal(plain, recorded(STRICT, SHAPE, data, fresh).rows[0])
    assert not torch.allclose(turned, plain)
