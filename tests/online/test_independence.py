"""What a user contributes is the same to the last bit, whoever is in her cohort, and wherever she
stands in it.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from primorl.online import learning, updates
from primorl.online.learning import Trajectories
from tests.online.cohorts import met, network, recorded
from tests.online.test_sensitivity import UPDATES


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_company_place_and_threads_do_not_matter(data: st.DataObject) -> None:
    draw = data.draw
    widths = st.sampled_from([1, 3, 5, 8, 16, 17, 31, 37, 64])
    shape = network(
        tuple(draw(st.lists(widths, max_size=2))),
        discrete=draw(st.booleans()),
        size=draw(st.integers(1, 6)),
        actions=draw(st.sampled_from([1, 2, 3, 7, 8, 17])),
        fixed=draw(st.sampled_from([0, 0, 1, 5, 64])),
    )
    update, users = draw(st.sampled_from(UPDATES)), draw(st.integers(2, 40))
    everybody = met(
        shape,
        users=users,
        seed=draw(st.integers(0, 99)),
        steps=draw(st.sampled_from([1, 2, 7, 12, 33])),
    )
    one = draw(st.integers(0, users - 1))
    others = draw(st.permutations([user for user in range(users) if user != one]))
    present = others[: draw(st.integers(0, len(others)))]
    place = draw(st.integers(0, len(present)))
    chosen = torch.tensor([*present[:place], one, *present[place:]])
    moved = Trajectories(**{name: value[chosen] for name, value in vars(everybody).items()})
    before = torch.get_num_threads()
    torch.set_num_threads(draw(st.integers(1, 2)))
    try:
        threaded = recorded(update, shape, moved).rows
    finally:
        torch.set_num_threads(before)
    whole, alone = (
        recorded(update, shape, each).rows
        for each in (everybody, everybody.of(slice(one, one + 1)))
    )
    for found, among, by_itself in zip(threaded, whole, alone, strict=True):
        assert same(found[place], by_itself[0])
        assert same(among[one], by_itself[0])


def same(found: torch.Tensor, by_itself: torch.Tensor) -> bool:
    """Whether two rows are equal, NaN, which the clip sets to zero, included."""
    return bool(((found == by_itself) | (found.isnan() & by_itself.isnan())).all())


def test_empty_users_keep_a_products_rounding_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a product that rounds by the number of users.

    The twin: pieces of several sizes.
    """
    product = torch.baddbmm

    def rounded_by_company(*factors: Tensor, **options: Any) -> Tensor:
        found = product(*factors, **options)
        return found.mul_(1 + 2.0**-20 * len(found))

    monkeypatch.setattr(torch, "baddbmm", rounded_by_company)
    shape = network((37,), discrete=False, size=1, actions=1)
    everybody = met(shape, users=16)

    def alike() -> bool:
        cohorts = [everybody.of(slice(users)) for users in range(1, 17)]
        rows = [recorded(UPDATES[0], shape, cohort).rows[0] for cohort in cohorts]
        return all(torch.equal(own, rows[-1][: len(own)]) for own in rows)

    assert alike()
    for module in (learning, updates):
        monkeypatch.setattr(module, "fill", lambda values, users: values)
    assert not alike()
