"""JSON files and records are read strictly, and everything wrong is one line that names the file
and the key.
"""

import json
import math
from pathlib import Path
from typing import Annotated, ClassVar

import pytest

from primorl.base.errors import PipelineError
from primorl.base.files import finite, read_json, write_json
from primorl.base.records import Hexadecimal, Line, Within, read_record, record, write_record


def test_what_is_not_a_json_object_is_one_clear_error_that_quotes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "value.json"
    with pytest.raises(PipelineError, match="not there; run `dvc repro`"):
        read_json(file)
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON"):
            write_json(file, {"deep": [{"number": number}]})
        assert finite(number) is None
    assert not file.exists()
    for raw in (b"{", b"\xff\xfe", b'{"epsilon": NaN}', b"[1]", b'{"secret": "PRIVATE-42"'):
        file.write_bytes(raw)
        with pytest.raises(PipelineError) as raised:
            read_json(file)
        assert str(raised.value).startswith(f"{file}: ")
        assert "PRIVATE" not in str(raised.value)


@record
class Part:
    name: Annotated[Line, "Its name."]


@record
class Whole:
    FORMAT: ClassVar[int] = 3

    count: Annotated[int, Within(ge=1), "How many."]
    share: Annotated[float | None, "A share."]
    parts: Annotated[tuple[Part, ...], "The parts."]
    digest: Annotated[Hexadecimal | None, "A digest."] = None


def test_a_record_comes_back_and_what_is_not_declared_is_refused_in_one_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "whole.json"
    whole = Whole(count=2, share=0.5, parts=(Part(name="a"), Part(name="b")))
    write_record(file, whole)
    assert read_record(file, Whole) == whole
    content = json.loads(file.read_text(encoding="utf-8"))
    assert list(content) == ["format", "count", "share", "parts"]
    for changes, key in (
        ({"format": 4}, r"whole.json: found format 4"),
        ({"count": 0}, "count"),
        ({"count": "2"}, "count"),
        ({"count": 2.5}, "count"),
        ({"parts": [{"name": "a", "age": 3}]}, r"parts\.0\.age \(unknown key\)"),
        ({"parts": [{"name": "two\nlines"}]}, r"parts\.0\.name"),
        ({"digest": "A" * 64}, "digest"),
        ({"\x1b[2Jok": 3}, r"\?\[2Jok \(unknown key\)"),
    ):
        refused(file, json.dumps(content | changes).encode(), key)
    refused(file, b'{"count": 2}', "found format 1, this version reads 3")
    refused(file, b'{"format": 3}', r"count \(missing\), parts \(missing\), share \(missing\)")
    refused(file, b"\xff\xfe", "not readable")
    file.unlink()
    with pytest.raises(PipelineError, match=r"whole.json: not there; run"):
        read_record(file, Whole)


def refused(file: Path, content: bytes, says: str) -> None:
    file.write_bytes(content)
    with pytest.raises(PipelineError, match=says) as refusal:
        read_record(file, Whole, "do this")
    assert "\n" not in str(refusal.value)
    assert str(file) in str(refusal.value)
