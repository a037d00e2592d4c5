import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from primorl.project.errors import PipelineError
from primorl.trajectories.identity.membership import DuplicateCheck
from primorl.trajectories.sources.minari.writing import Episode
from tests.trajectories.builders import episode, table


def told_apart(content: list[Episode]) -> bool:
    """Whether no two of them are taken for the same."""
    check = DuplicateCheck("log.csv")
    try:
        for i, item in enumerate(content):
            check(table([item], names=[f"{i:05d}"]))
        check.finish()
    except PipelineError:
        return False
    return True


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=10))
def test_equal_rows_are_found_and_no_others(what: list[tuple[int, int]]) -> None:
    content = [episode(length, seed) for length, seed in what]
    assert told_apart(content) == (len(set(what)) == len(what))


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
    assert told_apart([base, *changed, swapped, ended])


def test_the_second_of_two_equal_ones_is_named_with_the_first_by_number_and_never_by_id() -> None:
    check = DuplicateCheck("log.csv")
    both: pa.Table = table([episode(3, 1), episode(3, 2)], names=["ann", "bob"])
    check(both)
    check(table([episode(3, 4), episode(3, 2)], names=["cid", "dan"]))
    with pytest.raises(
        PipelineError, match=r"log\.csv: trajectory number 4: found the same rows as in .* number 2"
    ) as wrong:
        check.finish()
    assert not any(name in str(wrong.value) for name in ("ann", "bob", "cid", "dan"))
