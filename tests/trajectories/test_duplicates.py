import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PipelineError
from pipeline.trajectories.duplicates import DuplicateCheck, digests
from pipeline.trajectories.schema import run_starts
from tests.trajectories.builders import episode, table


def of(rows: pa.Table) -> list[int]:
    return digests(rows, run_starts(rows["trajectory_id"])).tolist()


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=10))
def test_equal_digests_are_equal_rows(what: list[tuple[int, int]]) -> None:
    """Also in another batch and beside others; the episodes of two seeds or lengths differ in every number."""
    content = [episode(length, seed) for length, seed in what]
    together = of(table(content))
    alone = [of(table([item]))[0] for item in content]
    assert together == alone
    assert len(set(together)) == len(set(what))


def test_any_number_and_the_order_matter() -> None:
    base = episode(4, 1)
    changed = []
    for place in range(4):
        other = episode(4, 1)
        other.rewards[place] += 0.5
        changed.append(other)
    swapped = episode(4, 1)
    swapped.rewards[0], swapped.rewards[1] = swapped.rewards[1], swapped.rewards[0]
    ended = episode(4, 1, terminated=True)
    assert len(set(of(table([base, *changed, swapped, ended])))) == 7


def test_the_second_of_two_equal_ones_is_named_with_the_first() -> None:
    check = DuplicateCheck("log.csv")
    check(table([episode(3, 1), episode(3, 2)], names=["a", "b"]))
    with pytest.raises(PipelineError, match=r"log\.csv: trajectory 'c': found the very rows of trajectory 'a'"):
        check(table([episode(3, 1)], names=["c"]))
