from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from primorl.dynamics.seed_generators import SeedGenerators
from primorl.policy.replay import ReplayBuffer, Scaling
from primorl.project.errors import PipelineError
from tests.policy.pendulum import Pendulum

CPU = torch.device("cpu")


def numbered(start: int, count: int) -> Tensor:
    return torch.arange(start, start + count, dtype=torch.float32).view(1, count, 1)


@settings(deadline=None)
@given(st.integers(1, 12).flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(0, size), max_size=12))))
def test_the_ring_keeps_the_newest_rows_and_nothing_else(case: tuple[int, list[int]]) -> None:
    """A wrapped write keeps every new row; no row is zero, old or there twice."""
    capacity, writes = case
    buffer, expected, written = ReplayBuffer(capacity, 1, CPU), deque[float](maxlen=capacity), 0
    for count in writes:
        rows = numbered(written + 1, count)
        buffer.extend(rows)
        expected.extend(rows.flatten().tolist())
        written += count
        assert sorted(buffer.rows.flatten().tolist()) == list(expected)
        assert len(buffer) == len(expected)


def test_a_write_that_would_lose_new_rows_is_refused() -> None:
    buffer = ReplayBuffer(4, 1, CPU)
    with pytest.raises(ValueError, match="found 5 rows at once, the buffer holds 4"):
        buffer.extend(numbered(1, 5))


def test_batches_are_drawn_from_all_the_rows_held_and_from_no_others() -> None:
    """Rows that were never written (zeros) must not be sampled."""
    buffer = ReplayBuffer(1000, 1, CPU)
    buffer.extend(numbered(1, 20))
    batches = list(buffer.batches(50, 16, SeedGenerators.of([0], CPU)))
    assert [tuple(rows.shape) for rows in batches] == [(1, 16, 1)] * 50
    assert set(torch.cat(batches).flatten().tolist()) == {float(i) for i in range(1, 21)}


def test_each_seed_draws_from_its_own_rows_what_it_draws_alone() -> None:
    """Two rings side by side, wrapped: no row of one ends up in the other's batches."""
    both, first = ReplayBuffer(6, 1, CPU, seeds=2), ReplayBuffer(6, 1, CPU)
    for begin in (1, 5):
        rows = numbered(begin, 4)
        both.extend(torch.cat((rows, -rows)))
        first.extend(rows)
    together = torch.stack(list(both.batches(40, 8, SeedGenerators.of([3, 4], CPU))))
    alone = torch.stack(list(first.batches(40, 8, SeedGenerators.of([3], CPU))))
    assert torch.equal(together[:, :1], alone)
    assert set(together[:, 1].flatten().tolist()) == {float(-i) for i in range(3, 9)}
    assert not torch.equal(together[:, 1], -together[:, 0])


def test_one_ring_can_serve_several_seeds() -> None:
    """Each draws for itself."""
    buffer = ReplayBuffer(20, 1, CPU)
    buffer.extend(numbered(1, 20))
    (rows,) = buffer.batches(1, 64, SeedGenerators.of([0, 1], CPU))
    assert rows.shape == (2, 64, 1)
    assert not torch.equal(rows[0], rows[1])


def test_a_row_holds_the_transition_on_sacs_scales() -> None:
    """ReplayColumns in their places, standardised once; a termination is not bootstrapped, a truncation is."""
    scaling = Scaling(
        observation_mean=torch.tensor([1.0, 2.0]),
        observation_scale=torch.tensor([2.0, 4.0]),
        action_low=torch.tensor([0.0]),
        action_high=torch.tensor([10.0]),
        reward_scale=0.5,
    )
    columns = scaling.columns
    rows = scaling.rows(
        observation=torch.tensor([[3.0, 2.0], [1.0, 6.0]]),
        action=torch.tensor([[10.0], [2.5]]),
        reward=torch.tensor([8.0, -2.0]),
        next_observation=torch.tensor([[1.0, -2.0], [5.0, 2.0]]),
        terminated=torch.tensor([True, False]),
    )
    assert rows.shape == (2, columns.width)
    assert rows[:, columns.next_observation].tolist() == [[0.0, -1.0], [2.0, 0.0]]
    assert rows[:, columns.observation].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert rows[:, columns.observation_action].tolist() == [[1.0, 0.0, 1.0], [0.0, 1.0, -0.5]]
    assert rows[:, columns.reward].tolist() == [4.0, -1.0]
    assert rows[:, columns.continues].tolist() == [0.0, 1.0]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(-100, 100, width=32), st.floats(0.0625, 100, width=32)), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
def test_environment_actions_never_leave_the_bounds(boxes: list[tuple[float, float]], seed: int) -> None:
    low = torch.tensor([low for low, _ in boxes])
    high = low + torch.tensor([width for _, width in boxes])
    scaling = Scaling(torch.zeros(1), torch.ones(1), low, high, 1.0)
    uniform = torch.rand(64, len(boxes), generator=torch.Generator().manual_seed(seed))
    action = scaling.environment_action(
        torch.cat((2 * uniform - 1, torch.ones(1, len(boxes)), -torch.ones(1, len(boxes))))
    )
    assert bool(((action >= low) & (action <= high)).all())
    torch.testing.assert_close(action[-2:], torch.stack((high, low)))


def test_unbounded_actions_are_refused() -> None:
    with pytest.raises(PipelineError, match="actions without finite bounds"):
        Scaling.of(Pendulum(action_high=torch.tensor([torch.inf])), 1.0)
