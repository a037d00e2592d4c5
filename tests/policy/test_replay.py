from collections import deque

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from primorl.model.numerics import SeedGenerators
from primorl.policy.replay import ReplayBuffer, Scaling

CPU = torch.device("cpu")


def numbered(start: int, count: int) -> Tensor:
    return torch.arange(start, start + count, dtype=torch.float32).view(1, count, 1)


@settings(deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda size: st.tuples(st.just(size), st.lists(st.integers(0, size), max_size=12))
    )
)
def test_the_ring_keeps_the_newest_rows_and_nothing_else(case: tuple[int, list[int]]) -> None:
    capacity, writes = case
    buffer, expected, written = ReplayBuffer(capacity, 1, CPU), deque[float](maxlen=capacity), 0
    for count in writes:
        rows = numbered(written + 1, count)
        buffer.extend(rows)
        expected.extend(rows.flatten().tolist())
        written += count
        assert sorted(buffer.rows.flatten().tolist()) == list(expected)
        assert len(buffer) == len(expected)


def test_each_seed_draws_from_all_of_its_own_rows_what_it_draws_alone() -> None:
    both, first = ReplayBuffer(600, 1, CPU, seeds=2), ReplayBuffer(600, 1, CPU)
    for begin, count in ((1, 400), (401, 400)):
        rows = numbered(begin, count)
        both.extend(torch.cat((rows, -rows)))
        first.extend(rows)
    together = torch.stack(list(both.batches(200, 32, SeedGenerators.of([3, 4], CPU))))
    alone = torch.stack(list(first.batches(200, 32, SeedGenerators.of([3], CPU))))
    assert torch.equal(together[:, :1], alone)
    assert set(together[:, 1].flatten().tolist()) == {float(-i) for i in range(201, 801)}
    assert not torch.equal(together[:, 1], -together[:, 0])


def test_a_row_holds_the_transition_on_sacs_scales() -> None:
    low, high = torch.tensor([0.0]), torch.tensor([10.0])
    scaling = Scaling(
        torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]), low, high, reward_scale=0.5
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
