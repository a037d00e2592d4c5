"""One user moves what enters the noise by at most S, and nothing of what the others contribute; a
cohort's noise, its divisor, and no release that was not paid for; advantages and updates are those
of the equations, and of one user's data.
"""

import math
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from primorl.online import learning, updates
from primorl.online.learning import (
    PARAMETERS,
    Cohort,
    OnlineState,
    Trajectories,
    Update,
    learn,
    online_mechanism,
)
from primorl.online.network import PolicyNetwork
from primorl.online.updates import DPPG, normalise, returns_to_go
from primorl.privacy.mechanism.mechanism import Mechanism
from research.paper_mode import AdamDPPG
from research.regression import NaturalGradientByDescent, PolicyGradient, Rebel
from tests.mechanisms import is_noise_of
from tests.online.cohorts import OTHERS, USERS, hostile, met, network, recorded, with_user
from tests.online.reference import Looped

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


@settings(max_examples=60)
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


SIZE, COHORT, NORM, Z = 4000, 10, 0.3, 2.0


def mechanism(z: float = Z, releases: int = 1) -> Mechanism:
    sizes: dict[str, Any] = {"users": 1000, "cohort": COHORT, "releases": releases}
    return online_mechanism(**sizes, noise_multiplier=z, delta=1e-5)


def test_noise_is_z_times_s_over_m() -> None:
    rows = torch.zeros(4, SIZE)  # fewer users than m
    rows[:, 0] = 0.1
    noise = Cohort(mechanism()).noisy_mean([rows], NORM)
    noise[0] -= 0.4 / COHORT
    assert is_noise_of(noise, Z * NORM / COHORT)
    for wrong in (2 / 3, 3 / 2, COHORT / len(rows)):
        assert not is_noise_of(noise, Z * NORM / COHORT * wrong)
    twin = Cohort(mechanism(0.0)).noisy_mean([torch.tensor([[9.0, 0.0]] * 4)], NORM)
    torch.testing.assert_close(twin, torch.tensor([4 * NORM / COHORT, 0.0]))


def test_no_release_is_made_that_was_not_paid_for() -> None:
    cohort = Cohort(mechanism(releases=2))
    for _ in range(2):
        cohort.noisy_mean([torch.ones(3, 2)], NORM)
    with pytest.raises(ValueError, match="used up"):
        cohort.noisy_mean([torch.ones(3, 2)], NORM)
    for rows, says in (
        ([torch.ones(COHORT + 1, 3)], "11 users"),
        ([torch.ones(6, 3), torch.ones(5, 3)], "11 users"),
        ([], "no contributions"),
    ):
        with pytest.raises(ValueError, match=says):
            Cohort(mechanism()).noisy_mean(rows, NORM)


def test_all_that_a_user_is_in_is_accounted() -> None:
    assert mechanism(releases=3).rounds == 3
    single, six = (
        mechanism().compute_spent(),
        mechanism(z=Z * math.sqrt(3), releases=3).compute_spent(),
    )
    assert single is not None
    assert six is not None
    assert six.epsilon_pld == pytest.approx(single.epsilon_pld, rel=0.03)  # sum to a Gaussian


@pytest.mark.parametrize(
    ("cohorts", "releases", "message"),
    [
        ([[0, 1], [1, 2]], 1, "two cohorts"),
        ([[0, 1]], 1, "found 1"),
        ([[0, 1], [2, 3]], 2, "takes 2 releases"),
    ],
)
def test_a_run_that_was_not_paid_for_meets_nobody(
    cohorts: list[list[int]], releases: int, message: str
) -> None:
    update = Rebel(temperature=1.0, step_size=0.5, steps=releases, clipping_norm=0.3)
    shape = network()
    state, nobody = OnlineState.begin({PARAMETERS: shape.initial(1.0)}, 2, 1), cast(Any, Nobody())
    with pytest.raises(ValueError, match=message):
        learn(update, shape, mechanism(), nobody, cohorts, state)


class Nobody:
    def meet(self, *_: object) -> Trajectories:
        raise AssertionError("somebody was met")


# What the updates are


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
