"""One user moves what enters the noise by at most S, and nothing of what the others contribute."""

import pytest
import torch

from primorl.online.dppg import DPPG
from primorl.online.learning import PARAMETERS, Update
from primorl.online.network import PolicyNetwork
from primorl.online.policy_optimisation import (
    NaturalGradientByDescent,
    PolicyGradient,
    Rebel,
)
from tests.online.cohorts import hostile, met, network, recorded, with_user

UPDATES: tuple[Update, ...] = (
    PolicyGradient(1.0, 0.7),
    DPPG(0.2, 0.05, 2, 3, 0.1, moments="released"),
    NaturalGradientByDescent(1.0, 0.3, 2, 0.5, 1.0),
    Rebel(1.0, 0.5, 2, 0.3),
)
SHAPES = {"log-linear": network(), "network": network((5,)), "box": network((5,), discrete=False)}
OTHERS = [0, 2, 3]
ROUNDING = 1e-9

updates = pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.name)
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


@updates
@shapes
def test_an_empty_user_contributes_nothing(update: Update, shape: PolicyNetwork) -> None:
    seen = recorded(update, shape, with_user(met(shape), 1, None))

    assert len(seen.rows) == update.releases
    assert all(torch.equal(rows[1], torch.zeros_like(rows[1])) for rows in seen.rows)


@updates
@shapes
def test_a_user_moves_the_sum_by_at_most_its_bound_and_nobody_else(update: Update, shape: PolicyNetwork) -> None:
    data = met(shape)
    without = recorded(update, shape, with_user(data, 1, None))
    kinds = {"herself": met(shape, users=1, seed=1), "another": met(shape, users=1, seed=2), **hostile(shape)}

    seen = {what: recorded(update, shape, with_user(data, 1, user)) for what, user in kinds.items()}

    for found in seen.values():
        for rows, rows_without in zip(found.rows, without.rows, strict=True):
            assert torch.equal(rows[OTHERS], rows_without[OTHERS])
        for total, total_without in zip(found.sums, without.sums, strict=True):
            assert torch.linalg.vector_norm(total - total_without) <= 1 + ROUNDING
        for total, replaced in zip(found.sums, seen["another"].sums, strict=True):
            assert torch.linalg.vector_norm(total - replaced) <= 2 + ROUNDING
        assert all(torch.equal(value, found.values[name]) for name, value in without.values.items())
    assert torch.linalg.vector_norm(seen["herself"].sums[0] - without.sums[0]) > 0.01, "somebody contributed"


@updates
def test_updates_carry_releases_only(update: Update) -> None:
    values = update.begin(SHAPES["network"], SHAPES["network"].initial(0))

    assert set(values) <= {PARAMETERS, "released_mean"}
