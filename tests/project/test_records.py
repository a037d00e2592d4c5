"""Records are read strictly, and everything wrong is one line that names the file and the key."""

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from primorl.project.errors import PipelineError
from primorl.project.records import Hexadecimal, Line, keys_table, read_record, record, write_record
from primorl.project.values import Within


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


WHOLE = Whole(count=2, share=0.5, parts=(Part(name="a"), Part(name="b")))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_record(tmp_path / "whole.json", WHOLE)
    return tmp_path / "whole.json"


def test_it_comes_back_as_it_was_with_its_format_first(file: Path) -> None:
    assert read_record(file, Whole) == WHOLE
    assert list(json.loads(file.read_text(encoding="utf-8"))) == ["format", "count", "share", "parts"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 4}, r"whole.json: found format 4, this version reads 3; do this"),
        ({"count": 0}, r"not as declared: count \(input should be greater than or equal to 1\); do this"),
        ({"count": "2"}, r"not as declared: count"),
        ({"count": 2.5}, r"not as declared: count"),
        ({"parts": [{"name": "a", "age": 3}]}, r"parts\.0\.age \(unknown key\)"),
        ({"parts": [{"name": "two\nlines"}]}, r"parts\.0\.name"),
        ({"digest": "A" * 64}, r"not as declared: digest"),
        ({"cohort": 3}, r"not as declared: cohort \(unknown key\)"),
        ({"\x1b[2Jok": 3}, r"not as declared: \?\[2Jok"),
    ],
)
def test_what_is_not_declared_is_refused_in_one_line(file: Path, changes: dict[str, Any], says: str) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(PipelineError, match=says) as refused:
        read_record(file, Whole, "do this")
    assert "\n" not in str(refused.value)
    assert str(file) in str(refused.value)


def test_missing_keys_files_and_bytes_are_named(file: Path) -> None:
    file.write_text('{"count": 2}', encoding="utf-8")
    with pytest.raises(PipelineError, match="found format 1, this version reads 3"):
        read_record(file, Whole)
    file.write_text('{"format": 3}', encoding="utf-8")
    with pytest.raises(PipelineError, match=r"count \(missing\), parts \(missing\), share \(missing\)"):
        read_record(file, Whole)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(PipelineError, match="not readable"):
        read_record(file, Whole)
    file.unlink()
    with pytest.raises(PipelineError, match=r"whole.json: not there; run"):
        read_record(file, Whole)


def test_the_class_documents_its_keys() -> None:
    assert keys_table(Whole).splitlines()[2:] == [
        "| `format` | Version of this format: 3. |",
        "| `count` | How many. |",
        "| `share` | A share. |",
        "| `parts` | The parts. |",
        "| `parts[].name` | Its name. |",
        "| `digest` | A digest. Optional. |",
    ]
