import shutil
from pathlib import Path

import pytest

from primorl.config import params
from primorl.release.making import release
from tests.release.released_project import EPISODES, inside, run_stages, tiny_params


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a private model and policy; read only."""
    folder = tmp_path_factory.mktemp("trained") / "project"
    run_stages(folder, tiny_params(), EPISODES)
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working directory."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    shutil.copytree(trained, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture(scope="session")
def released(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound bundle; read only."""
    target = tmp_path_factory.mktemp("released") / "bundle"
    with inside(trained):
        release(target, params.load(Path("params.yaml")), void_ok=False)
    return target


@pytest.fixture
def received(released: Path, tmp_path: Path) -> Path:
    """A copy of the bundle, as somebody may have changed it on its way."""
    shutil.copytree(released, tmp_path / "received")
    return tmp_path / "received"
