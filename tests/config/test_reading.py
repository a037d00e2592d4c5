"""YAML as DVC reads it, and what is refused."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import parse_yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from primorl.config.reading import read_yaml
from primorl.project.errors import PipelineError


def read(folder: Path, content: str | bytes) -> Any:
    path = folder / "params.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_yaml(path, "why")


def refusal(folder: Path, content: str | bytes) -> str:
    with pytest.raises(PipelineError) as refused:
        read(folder, content)
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 300
    return message.removeprefix(str(folder / "params.yaml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),  # 90 in YAML 1.1
        ("1e-5", 1e-5),  # text in YAML 1.1
        ("1e-05", 1e-5),
        ("1.0e-5", 1e-5),
        ("1E5", 1e5),
        ("1_000", 1000),
        ("010", 10),  # 8 in YAML 1.1
        ("0o10", 8),
        ("0x1F", 31),
        ("yes", "yes"),  # true in YAML 1.1
        ("off", "off"),
        ("true", True),
        ("null", None),
        ("", None),
        ("-.inf", -math.inf),
        ("2026-01-02", "2026-01-02"),
        ("'1'", "1"),
    ],
)
def test_scalars_are_read_as_in_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    found = read(tmp_path, f"a: {text}\n")["a"]
    assert found == value
    assert type(found) is type(value)


@given(st.text("0123456789eE.+-_:xob", min_size=1, max_size=7))
@example("1:30")
@example("1e-5")
@example("010")
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_number_is_read_as_dvc_reads_it(tmp_path: Path, text: str) -> None:
    try:
        found = read(tmp_path, f"a: {text}\n")
        theirs = parse_yaml(f"a: {text}\n", "params.yaml")
    except Exception:
        return
    if isinstance(found, dict) and isinstance(found["a"], int | float) and isinstance(theirs["a"], int | float):
        assert found["a"] == theirs["a"] or (math.isnan(found["a"]) and math.isnan(theirs["a"]))
    if isinstance(found, dict) and isinstance(found["a"], int | float):
        assert isinstance(theirs["a"], int | float)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed: [1", ", line 1: not valid YAML"),
        (b"seed: 1\n\tx: 2", ", line 2: not valid YAML"),
        (b"\xff\xff", ": not valid YAML"),
        ("[" * 5000, ": not valid YAML"),
        (b"a: !!binary aGVq", ", line 1: not valid YAML"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    assert refusal(tmp_path, content) == message


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "seed: 1\nseed: 7\n") == ", line 2: key 'seed' given twice; keep one"
    assert refusal(tmp_path, "a:\n  delta: 1\n  delta: 2\n") == ", line 3: key 'delta' given twice; keep one"
    assert refusal(tmp_path, f"{'x' * 9000}: 1\n{'x' * 9000}: 2\n").endswith("...: given twice; keep one") is False
    refusal(tmp_path, f"{'x' * 500}: 1\n{'x' * 500}: 2\n")


def test_loading_executes_nothing(tmp_path: Path) -> None:
    assert "not valid YAML" in refusal(tmp_path, f"seed: !!python/object/apply:os.mkdir ['{tmp_path}/made']")
    assert not (tmp_path / "made").exists()


def test_a_number_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, f"seed: {'1' * 5001}") == (
        ", line 1: found a number of 5001 digits; allowed are up to 400"
    )


def test_half_a_surrogate_is_refused(tmp_path: Path) -> None:
    assert "line 2: found half of a surrogate pair" in refusal(tmp_path, 'a: 1\nsalt: "\\ud800"')


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "a: " + "x" * 5_000_000).endswith("found 5000003 bytes; allowed are up to 1000000")


def test_alias_bombs_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    began = time.monotonic()
    assert "found more than 100000 values, aliases written out" in refusal(tmp_path, "\n".join(lines))
    assert "an alias that contains itself" in refusal(tmp_path, "a: &a [*a]")
    assert time.monotonic() - began < 1
