"""YAML as DVC reads it, and what is refused."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import parse_yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from primorl.base.errors import PipelineError
from primorl.config.reading import read_yaml

REFUSED: tuple[tuple[str | bytes, str], ...] = (
    ("seed: [1", ", line 1: not valid YAML"),
    ("seed: 1\n\tx: 2", ", line 2: not valid YAML"),
    (b"\xff\xff", ": not readable"),
    ("[" * 1000, ": not valid YAML"),
    ("seed: !!python/object/apply:os.mkdir ['made']", ", line 1: not valid YAML"),
    ("seed: 1\nseed: hush\n", ", line 2: a key is given twice; keep one"),
    ("seed: !!binary aGk=", ", line 1: not valid YAML"),
)


def read(folder: Path, content: str | bytes) -> Any:
    path = folder / "params.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_yaml(path, "why")


def test_words_and_dates_stay_text(tmp_path: Path) -> None:
    for text in ("yes", "2026-01-01", "1:30"):
        assert read(tmp_path, f"a: {text}\n") == {"a": text}


@given(st.text("0123456789eE.+-_:xob", min_size=1, max_size=7))
@example("1:30")
@example("1e-5")
@example("010")
@settings(
    max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_a_number_is_read_as_dvc_reads_it(tmp_path: Path, text: str) -> None:
    try:
        found = read(tmp_path, f"a: {text}\n")
        theirs = parse_yaml(f"a: {text}\n", "params.yaml")
    except Exception:
        return
    if isinstance(found, dict) and isinstance(found["a"], int | float):
        assert isinstance(theirs["a"], int | float)
        assert found["a"] == theirs["a"] or (math.isnan(found["a"]) and math.isnan(theirs["a"]))


def test_what_would_hang_or_execute_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    for content, says in REFUSED:
        with pytest.raises(PipelineError) as refused:
            read(tmp_path, content)
        message = str(refused.value)
        assert says in message
        assert "\n" not in message
        assert "hush" not in message
    assert time.monotonic() - began < 5
    assert not Path("made").exists()
