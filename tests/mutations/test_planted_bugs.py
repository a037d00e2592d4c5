"""Every planted bug still fits the source, and docs/planted-bugs.md shows the last run of all of them."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.mutations.__main__ import DOCUMENT, FILE, document
from tests.mutations.planted_bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_its_place_is_in_the_source_once_and_its_tests_exist(bug: Bug) -> None:
    assert (ROOT / bug.file).read_text(encoding="utf-8").count(bug.old) == 1
    assert bug.old != bug.new
    assert all((ROOT / tests).exists() for tests in bug.tests)


def test_names_are_unique() -> None:
    assert Counter(bug.name for bug in BUGS).most_common(1)[0][1] == 1


def test_the_page_shows_every_bug_and_the_test_that_caught_it() -> None:
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    assert {row["name"] for row in rows} == {bug.name for bug in BUGS}
    assert all(row["ours"] > 0 for row in rows)
    assert DOCUMENT.read_text(encoding="utf-8") == document(rows)
