"""Fingerprints, keyed digests of people and duplicates: equal data are recognised, and only under
the secret.
"""

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.base import PipelineError
from primorl.data.identity.membership import (
    DIGEST_BYTES,
    DuplicateCheck,
    Fingerprint,
    Membership,
    project_secret,
)
from tests.data.builders import INFO, episode, episodes, exchanged, table

SECRET = bytes(range(32))


def keyed(*tables: pa.Table, secret: bytes = SECRET) -> str:
    fingerprint = Fingerprint(INFO.schema)
    for each in tables:
        fingerprint.update(each)
    return fingerprint.keyed_digest(secret)


def test_a_fingerprint_knows_neither_batches_nor_data_without_the_secret() -> None:
    rows = table([*episodes(5), episode(30, 9)], names=["a", "bé", "c", "d", "e", "f"])
    assert keyed(rows) == keyed(rows.slice(0, 5), rows.slice(5, 1), rows.slice(6))
    assert keyed(rows) == keyed(*(rows.slice(row, 1) for row in range(rows.num_rows)))
    assert keyed(rows) != keyed(rows, secret=bytes(32))
    assert keyed(table(episodes(2), names=["ab", "c"])) != keyed(
        table(episodes(2), names=["a", "bc"])
    )


@pytest.mark.parametrize("column", table(episodes(2)).column_names)
def test_any_changed_value_changes_the_fingerprint(column: str) -> None:
    rows = table(episodes(4))
    values: list[Any] = rows[column].to_pylist()

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [*value[:-1], changed(value[-1])]
        if isinstance(value, float):
            return float(np.nextafter(np.float32(value), np.float32(9)))
        if isinstance(value, bool):
            return not value
        return value + ("x" if isinstance(value, str) else 1)

    values[3] = changed(values[3])
    assert keyed(rows) != keyed(exchanged(rows, column, values))


def test_the_secret_is_made_once_and_kept_private(project: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        (made,) = set(pool.map(lambda _: project_secret(), range(16)))
    path = project / ".primorl" / "secret"
    assert (path.read_bytes(), len(made), stat.S_IMODE(path.stat().st_mode)) == (made, 32, 0o600)
    assert [item.name for item in path.parent.iterdir()] == ["secret"]
    path.write_bytes(b"short")
    with pytest.raises(PipelineError, match="secret: damaged") as wrong:
        project_secret()
    assert "short" not in str(wrong.value)


def digests(content: pa.Table, population: str = "d", secret: bytes = SECRET) -> set[bytes]:
    members = Membership(secret, population)
    members.update(content)
    raw = members.to_bytes()
    return {raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES)}


def units(names: list[str], seeds: list[int]) -> pa.Table:
    return table([episode(5, seed) for seed in seeds], units=names, names=names)


def test_a_unit_is_recognised_by_its_id_and_by_its_rows() -> None:
    base = digests(units(["a", "b"], [1, 2]))
    assert len(base) == 4
    assert len(base & digests(units(["a", "c"], [3, 4]))) == 1, "the same id with other rows"
    assert len(base & digests(units(["x", "y"], [2, 3]))) == 1, "the same rows under another id"
    assert len(base & digests(units(["a", "z"], [1, 9]))) == 2, "the same unit"
    assert not base & digests(units(["c", "d"], [3, 4]))
    assert not base & digests(units(["a", "b"], [1, 2]), secret=b"t" * 32)
    for change in ("rewards", "actions", "observations"):
        other = episode(5, 1)
        other = replace(other, **{change: getattr(other, change)[::-1]})
        assert len(base & digests(table([other], units=["a"], names=["a"]))) == 1, change


def test_ids_mean_the_same_within_one_population_and_rows_everywhere() -> None:
    ward = digests(units(["a", "b"], [1, 2]), population="ward")
    for names, population, same in (("ac", "ward", 1), ("ac", "other ward", 0)):
        assert len(ward & digests(units([*names], [3, 4]), population=population)) == same
    assert len(ward & digests(units(["a", "c"], [1, 4]), population="other ward")) == 1


def test_people_are_known_whatever_the_unit_is_said_to_be() -> None:
    content, names = [episode(3, 1), episode(4, 2), episode(5, 3)], ["t1", "t2", "t3"]
    persons = digests(table(content, units=["a", "a", "b"], names=names))
    assert len(persons) == 2 + 2 * 3
    assert digests(table(content, units=names, names=names)) < persons


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=10))
def test_equal_rows_are_found_and_no_others(what: list[tuple[int, int]]) -> None:
    check = DuplicateCheck("log.csv")
    for i, (length, seed) in enumerate(what):
        check(table([episode(length, seed)], names=[f"name {i}"]))
    if len(set(what)) == len(what):
        check.finish()
        return
    again = min(i for i, each in enumerate(what) if each in what[:i])
    first = what.index(what[again]) + 1
    message = (
        rf"log\.csv: trajectory number {again + 1}: found the same rows as in .* number {first}"
    )
    with pytest.raises(PipelineError, match=message) as wrong:
        check.finish()
    assert "name" not in str(wrong.value)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
@pytest.mark.parametrize("late", [False, True])
def test_a_file_system_without_links_has_the_secret_too(
    project: Path, monkeypatch: pytest.MonkeyPatch, number: int, late: bool
) -> None:
    """Twin: another process's secret, made meanwhile, is kept."""
    path = project / ".primorl" / "secret"

    def link(*_: object) -> None:
        if late:
            path.write_bytes(SECRET)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    made = project_secret()
    assert (path.read_bytes(), len(made), made == SECRET) == (made, 32, late)
    assert late or stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["secret"]
