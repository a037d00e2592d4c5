"""Rows of the online tables: the nulls are what they say, and a row is made from its settings."""

from dataclasses import replace

import pytest
import torch

from primorl.online.learning import SimulatedUsers
from research.classic_control import batch
from research.online import TASKS, Run, cases, multiplier
from research.paper_mode import CarriedUsers
from research.regression import PolicyGradient

UPDATE = PolicyGradient(learning_rate=2.0, clipping_norm=1.0)
SMALL = Run("CartPole", "DP-PG", "strict", "ε 1", UPDATE, multiplier("ε 1"), 4, 2, 20)


@pytest.mark.parametrize("carried", [False, True])
def test_carried_environments_go_on_where_the_users_before_left_them(carried: bool) -> None:
    network = TASKS["CartPole"].network(())
    users = (CarriedUsers if carried else SimulatedUsers)(batch("CartPole-v1"), 5, None, 0)
    first, second = (users.meet(range(at, at + 4), network, network.initial(0)) for at in (0, 4))
    assert not first.ends[:, :-1].any(), "nobody fell"
    assert torch.equal(first.next_observations[:, -1], second.observations[:, 0]) == carried


def test_rows_have_the_epsilon_of_their_budget_and_their_users() -> None:
    strict, noiseless = SMALL.made(0), replace(SMALL, row="no noise", noise_multiplier=0.0).made(0)
    assert (strict["users"], strict["parameters"]) == (8, 10)
    assert strict["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert noiseless["epsilon"] is None
    assert replace(SMALL, row="paper").made(0)["epsilon"] is None
    keys = [str(one.key) for one in cases()]
    assert len(set(keys)) == len(keys), "no two lines share a row"
