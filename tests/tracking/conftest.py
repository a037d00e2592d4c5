import shutil
from pathlib import Path

import pytest

from primorl.config import params
from primorl.config.params import Params

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def chosen() -> Params:
    return params.load(REPOSITORY / "params.yaml")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Path:
    """A folder with an empty store."""
    for name in ("DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path)
    return tmp_path
