import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primorl.project.errors import PipelineError
from primorl.project.files import finite, read_json, write_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_json_comes_back_as_it_was(tmp_path: Path, value: dict[str, Any]) -> None:
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_file_is_written_for_a_number_json_does_not_have(tmp_path: Path, value: float) -> None:
    write_json(tmp_path / "value.json", {"good": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "value.json", {"deep": [{"number": value}]})
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]
    assert (tmp_path / "value.json").read_text() == '{\n  "good": 1\n}\n'
    assert finite(value) is None
    assert finite(1.5) == 1.5


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"epsilon": Infinity}', "not JSON"),
        (b'{"epsilon": NaN}', "not JSON"),
        (b"[1]", "found a JSON list, expected an object"),
        (b"null", "found a JSON NoneType, expected an object"),
    ],
)
def test_what_is_not_a_json_object_is_one_clear_error(tmp_path: Path, raw: bytes, reason: str) -> None:
    (tmp_path / "value.json").write_bytes(raw)
    with pytest.raises(PipelineError, match=reason) as raised:
        read_json(tmp_path / "value.json")
    assert str(raised.value).startswith(f"{tmp_path / 'value.json'}: ")


def test_a_missing_json_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="not there; run `dvc repro`"):
        read_json(tmp_path / "value.json")


def test_an_error_never_quotes_the_content(tmp_path: Path) -> None:
    (tmp_path / "value.json").write_text(json.dumps({"secret": "PRIVATE-42"})[:-1])
    with pytest.raises(PipelineError) as raised:
        read_json(tmp_path / "value.json")
    assert "PRIVATE" not in str(raised.value)
