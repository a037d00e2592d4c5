"""Pages show what the results hold, and another method reads the same attack rates off the same
losses.
"""

import json
from pathlib import Path

from benchmarks.speed import tables


def test_the_pages_agree_with_the_results(tmp_path: Path) -> None:
    """The twin: a figure that was typed is replaced."""
    page = tables.DOCUMENT.read_text(encoding="utf-8")
    assert page.count("<!-- table ") == 6
    assert tables.written(page) == page
    row = {"what": "a round", "ours": 0.2, "peer": 2.0, "peer_name": "loop", "ratio": 10.0}
    one = [row | {"unit": "s", "machine": "m", "command": "c"}]
    (tmp_path / "one.json").write_text(json.dumps(one), encoding="utf-8")
    typed = "<!-- table one -->\n| a round | 0.1 s |\n<!-- end -->"
    made = tables.written(f"{typed}\n<!-- table two -->\n<!-- end -->", tmp_path)
    assert "0.1 s" not in made
    assert "| a round | 0.2 s | 2 s | 10 |" in made
    assert "Still to be made: `python -m benchmarks.speed.two`." in made
