from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.commands import charging

Call: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def primorl(capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line: words in, exit status, stdout and stderr out."""
    return partial(charging.primorl, capsys)
