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
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_json_comes_back_as_it_was(tmp_path: Path, value: dict[str, Any]) -> None:
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value


def test_no_file_is_written_for_a_number_json_does_not_have(tmp_path: Path) -> None:
    write_json(tmp_path / "value.json", {"good": 1})
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON"):
            write_json(tmp_path / "value.json", {"deep": [{"number": value}]})
        assert finite(value) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]
    assert (tmp_path / "value.json").read_text() == '{\n  "good": 1\n}\n'
    assert finite(1.5) == 1.5


def test_what_is_not_a_json_object_is_one_clear_error_that_quotes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "value.json"
    with pytest.raises(PipelineError, match="not there; run `dvc repro`"):
        read_json(file)
    for raw, reason in (
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"epsilon": NaN}', "not JSON"),
        (b"[1]", "found a JSON list, expected an object"),
        (json.dumps({"secret": "PRIVATE-42"})[:-1].encode(), "not JSON"),
    ):
        file.write_bytes(raw)
        with pytest.raises(PipelineError, match=reason) as raised:
            read_json(file)
        assert str(raised.value).startswith(f"{file}: ")
        assert "PRIVATE" not in str(raised.value)
