"""docs/benchmarks*.md say what the results say."""

import json
from pathlib import Path

from benchmarks.speed import tables


def test_the_document_agrees_with_the_results() -> None:
    """No figure there that no command made; `python -m benchmarks.speed.tables` writes them anew."""
    texts = [document.read_text(encoding="utf-8") for document in tables.DOCUMENTS]
    assert "".join(texts).count("<!-- table ") > 5
    assert [tables.written(text) for text in texts] == texts


def test_a_figure_that_was_typed_is_found_and_replaced(tmp_path: Path) -> None:
    """The twin that must fail: what stands between the marks comes from the file alone."""
    row = {"what": "a round", "ours": 0.2, "peer": 2.0, "peer_name": "loop", "ratio": 10.0, "unit": "s"}
    (tmp_path / "one.json").write_text(json.dumps([row | {"machine": "m", "command": "c"}]), encoding="utf-8")
    typed = "<!-- table one -->\n| a round | 0.1 s |\n<!-- end -->"
    text = f"before\n{typed}\nbetween\n<!-- table two -->\n<!-- end -->\nafter\n"
    made = tables.written(text, tmp_path)
    assert "0.1 s" not in made
    assert "| a round | 0.2 s | 2 s | 10 |" in made
    assert "`c` on m. Peer: loop." in made
    assert "Still to be made: `python -m benchmarks.speed.two`." in made
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert tables.written(made, tmp_path) == made
