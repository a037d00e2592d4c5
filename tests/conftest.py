import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings
from mlflow.tracking import MlflowClient

from primorl.model.architecture import Architecture
from primorl.model.ensemble import Normaliser
from tests.model.models import plain_maps
from tests.projects import made_once

for name in ("DVC_ROOT", "DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"):  # of who runs the tests
    os.environ.pop(name, None)
settings.register_profile("busy", deadline=None)  # a machine may be busy
settings.load_profile("busy")
_LONGEST = ("replay", "work", "hostile", "release", "pipeline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the folders whose modules take longest, so that nobody waits for one at the end.

    `make test` has xdist keep this order.
    """
    longest = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: longest.get(item.path.parent.name, len(longest)))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that no test meets the real secret or real data."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables, which take seconds to make, and nothing in them."""

    def make(folder: Path) -> None:
        folder.mkdir()
        MlflowClient(f"sqlite:///{folder}/mlflow.db")

    return made_once(tmp_path_factory, "store", make) / "mlflow.db"


@pytest.fixture
def folder_with_store(project: Path, empty_store: Path) -> Path:
    """A working directory with an empty MLflow store."""
    shutil.copy(empty_store, project)
    return project


@pytest.fixture
def shape() -> Architecture:
    return Architecture(3, 1, 3, (16, 12), -10.0, 0.5)


@pytest.fixture
def identity(shape: Architecture) -> Normaliser:
    return plain_maps(shape.inputs, shape.targets)
