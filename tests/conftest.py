import shutil
from pathlib import Path

import pytest
import torch
from mlflow.tracking import MlflowClient

from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables, which take seconds to make, and nothing in them."""
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}")
    return file


@pytest.fixture
def folder_with_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Path:
    """A working directory with an empty MLflow store, outside DVC's experiments."""
    for name in ("DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path)
    return tmp_path


@pytest.fixture
def shape() -> Architecture:
    return Architecture(
        observation_size=3,
        action_size=1,
        members=3,
        hidden=(16, 12),
        log_variance_low=-10.0,
        log_variance_high=0.5,
    )


@pytest.fixture
def identity(shape: Architecture) -> Normaliser:
    return Normaliser(
        torch.zeros(shape.inputs),
        torch.ones(shape.inputs),
        torch.zeros(shape.targets),
        torch.ones(shape.targets),
    )
