"""Pages show what the results hold, and another method reads the same attack rates off the same losses."""

import json
from pathlib import Path

import pytest

from benchmarks.machine import RESULTS
from benchmarks.privacy import meaning
from benchmarks.speed import tables
from primorl.privacy.accounting.rounding import at_most


def test_the_pages_agree_with_the_results(tmp_path: Path) -> None:
    """The twin: a figure that was typed is replaced."""
    page = tables.DOCUMENT.read_text(encoding="utf-8")
    assert page.count("<!-- table ") == 6
    assert tables.written(page) == page
    row = {"what": "a round", "ours": 0.2, "peer": 2.0, "peer_name": "loop", "ratio": 10.0, "unit": "s"}
    (tmp_path / "one.json").write_text(json.dumps([row | {"machine": "m", "command": "c"}]), encoding="utf-8")
    made = tables.written(
        "<!-- table one -->\n| a round | 0.1 s |\n<!-- end -->\n<!-- table two -->\n<!-- end -->", tmp_path
    )
    assert "0.1 s" not in made
    assert "| a round | 0.2 s | 2 s | 10 |" in made
    assert "Still to be made: `python -m benchmarks.speed.two`." in made


def test_attack_rates_on_the_page_are_those_that_riskcal_finds() -> None:
    """Kulynych et al. 2024, in the place of lines under the privacy profile."""
    page = meaning.PAGE.read_text(encoding="utf-8")
    rows = json.loads((RESULTS / "meaning.json").read_text(encoding="utf-8"))
    assert len(rows) == 4 * len(meaning.EPSILONS)
    for row in rows:
        assert row["ratio"] == pytest.approx(1, abs=1e-3), "ours beside riskcal's"
        if row["what"].endswith("at 0.1% false positives"):
            epsilon = row["what"].removeprefix("ε ").partition(":")[0]
            assert f"| {epsilon} | {at_most(1000 * row['ours'])} |" in page
    pytest.importorskip("riskcal")
    assert [each["ours"] for each in rows[4:8]] == pytest.approx(
        [each["ours"] for each in meaning.rows(0.5, meaning.run(0.5))]
    )
