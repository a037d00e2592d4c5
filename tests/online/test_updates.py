"""Advantages and updates are those of the equations, and of one user's data."""

import pytest
import torch

from primorl.online.learning import PARAMETERS, Update
from primorl.online.updates import (
    DPPG,
    normalise,
    returns_to_go,
)
from research.paper_mode import AdamDPPG
from tests.online.cohorts import USERS, met, network, recorded, with_user
from tests.online.reference import Looped
from tests.online.test_sensitivity import UPDATES

SHAPE = network((5,))
ADAM = AdamDPPG(clipping_norm=0.2, local_learning_rate=0.02, epochs=2, minibatches=3)
ONE_BATCH = DPPG(clipping_norm=0.2, local_learning_rate=0.5, epochs=2, minibatches=1)


def test_where_nobody_fails_nothing_is_learned_from_rounding() -> None:
    """Returns are equal to the last digit; in float32 they are not, and advantages were made of the
    differences.
    """
    data = met(SHAPE)
    data.rewards[:] = data.valid.float()
    data.terminated[:] = False
    returns = returns_to_go(data, 0.99)
    torch.testing.assert_close(returns[data.valid], torch.full_like(returns[data.valid], 100.0))
    assert not normalise(returns, data.valid).any()
    noisy = normalise(returns + torch.randn(USERS, data.steps) * 1e-5, data.valid)
    assert noisy.abs().max() > 1, "the twin"
    update = DPPG(clipping_norm=0.05, local_learning_rate=0.02, epochs=2, minibatches=3)
    assert not recorded(update, SHAPE, data).rows[0].any()


@pytest.mark.parametrize("update", [*UPDATES, ONE_BATCH, ADAM], ids=lambda update: update.name)
@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize(("hidden", "fixed"), [((), 0), ((7, 6), 0), ((4,), 5)])
def test_contributions_are_those_of_the_loop_with_autograd(
    update: Update, discrete: bool, hidden: tuple[int, ...], fixed: int
) -> None:
    shape = network(hidden, discrete=discrete, actions=3, fixed=fixed)
    data = with_user(met(shape, users=19), None)
    found, loop = recorded(update, shape, data), recorded(Looped(update), shape, data)
    for rows, looped in zip(found.rows, loop.rows, strict=True):
        torch.testing.assert_close(rows, looped, atol=1e-4, rtol=1e-4)
        assert rows.abs().amax() > 0.01
    ours, expected = (each.values[PARAMETERS] for each in (found, loop))
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_an_empty_cohort_contributes_nothing() -> None:
    nobody = met(SHAPE, users=0)
    assert all(not len(recorded(each, SHAPE, nobody).rows[0]) for each in UPDATES)
