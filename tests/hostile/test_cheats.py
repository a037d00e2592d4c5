"""Cheats on the ledger, ids and partitions, through raw files and the command line: each
is noticed.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import project
from tests.hostile.project import (
    changed,
    prepare,
    primorl,
    refused,
    shown,
)
from tests.projects import inside

IDS = [f"p{i}" for i in range(6)]


@pytest.fixture(scope="module")
def charged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("charged") / "project"
    with inside(folder):
        prepare(IDS)
        assert project.train() is None
    return folder


@pytest.fixture
def cheated(charged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shutil.copytree(charged, tmp_path / "project"))


@pytest.mark.usefixtures("cheated")
def test_every_value_row_and_order_of_the_ledger_is_guarded() -> None:
    unnoticed = []
    assert primorl("ledger", "verify")[0] == 0
    for name, (columns, rows) in project.tables().items():
        cheats: dict[str, list[tuple[Any, ...]]] = {}
        for at, row in enumerate(rows):
            cheats[f"{name}: row {at} removed"] = [*rows[:at], *rows[at + 1 :]]
            for column, value in enumerate(row):
                if value is None or (isinstance(value, str) and not re.search(r"\d", value)):
                    continue
                edited = (*row[:column], changed(value), *row[column + 1 :])
                others = [*rows[:at], edited, *rows[at + 1 :]]
                cheats[f"{name}: {columns[column]} of row {at}"] = others
            if at and len(row) > 1:  # contents exchanged, keys kept
                both = [(rows[at - 1][0], *row[1:]), (row[0], *rows[at - 1][1:])]
                swapped = [*rows[: at - 1], *both, *rows[at + 1 :]]
                cheats[f"{name}: rows {at - 1} and {at} exchanged"] = swapped
        for cheat, content in cheats.items():
            try:
                project.rewrite_table(name, content)
            except Exception:  # the database refuses it itself: two rows of one key
                continue
            if not refused("ledger", "verify"):
                unnoticed.append(cheat)
        project.rewrite_table(name, rows)
        assert primorl("ledger", "verify")[0] == 0
    assert unnoticed == []


# A combining accent, a Cyrillic letter that looks the same, spaces; and other people.
@pytest.mark.parametrize(
    ("ids", "seed"), [("0P{}", 0), ("p{}\u0301", 0), ("\u0440{}", 0), (" p{} ", 0), ("q{}", 1)]
)
@pytest.mark.usefixtures("cheated")
def test_renamed_people_with_the_same_rows_go_on_paying(ids: str, seed: int) -> None:
    """What was spent on them counts; the twin: other people's rows under other ids begin anew."""
    (once,) = shown()
    shutil.rmtree("data")
    prepare([ids.format(person) for person in range(6)], seed)
    assert project.train() is None
    twice = shown()[-1]
    assert twice["epsilon"] == pytest.approx(once["epsilon"])
    assert (twice["epsilon_total"] > 1.3 * once["epsilon"]) is (seed == 0)
