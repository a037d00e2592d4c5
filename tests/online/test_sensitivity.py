"""One user moves what enters the noise by at most S, and nothing of what the others contribute."""

import pytest
import torch

from primorl.online.learning import PARAMETERS, Update
from primorl.online.network import PolicyNetwork
from primorl.online.updates import DPPG
from research.regression import NaturalGradientByDescent, PolicyGradient, Rebel
from tests.online.cohorts import OTHERS, hostile, met, network, recorded, with_user

UPDATES: tuple[Update, ...] = (
    PolicyGradient(learning_rate=1.0, clipping_norm=0.7),
    DPPG(clipping_norm=0.2, local_learning_rate=0.5, epochs=2, minibatches=3),
    NaturalGradientByDescent(
        learning_rate=1.0, clipping_norm=0.3, steps=2, step_size=0.5, ball=1.0
    ),
    Rebel(temperature=1.0, step_size=0.5, steps=2, clipping_norm=0.3),
)
SHAPES = {"log-linear": network(), "network": network((5,)), "box": network((5,), discrete=False)}
ROUNDING = 1e-9


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.name)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_user_moves_the_sum_by_at_most_its_bound_and_nobody_else(
    update: Update, shape: PolicyNetwork
) -> None:
    data = met(shape)
    without = recorded(update, shape, with_user(data, None))
    assert len(without.rows) == update.releases
    assert not any(rows[1].any() for rows in without.rows), "an empty user contributes nothing"
    assert set(without.values) == {PARAMETERS}, "releases only are carried"
    users = (met(shape, users=1, seed=1), met(shape, users=1, seed=2), *hostile(shape))
    seen = [recorded(update, shape, with_user(data, user)) for user in users]
    for found in seen:
        for rows, rows_without in zip(found.rows, without.rows, strict=True):
            assert torch.equal(rows[OTHERS], rows_without[OTHERS])
        for total, other, replaced in zip(found.sums, without.sums, seen[1].sums, strict=True):
            assert torch.linalg.vector_norm(total - other) <= 1 + ROUNDING
            assert torch.linalg.vector_norm(total - replaced) <= 2 + ROUNDING
        assert torch.equal(found.values[PARAMETERS], without.values[PARAMETERS])
    assert torch.linalg.vector_norm(seen[0].sums[0] - without.sums[0]) > 0.01, (
        "somebody contributed"
    )
