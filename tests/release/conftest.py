import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from dp_accounting import dp_event

from primorl.config import params
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.ledger.history import Budget, Request, Version
from primorl.release.build import release
from primorl.work.data import open_to_charge
from tests.projects import inside, made_once
from tests.release.bundles import made
from tests.release.released_project import EPISODES, run_stages, tiny_params

SECRETS = {"identity": "7" * 64}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A project with a private model and policy; read only."""

    def make(folder: Path) -> None:
        run_stages(folder, tiny_params(), EPISODES, empty_store)

    return made_once(tmp_path_factory, "trained", make)


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working directory."""
    shutil.copytree(trained, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture(scope="session")
def released(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound bundle; read only."""

    def make(target: Path) -> None:
        with inside(trained):
            release(target, params.load(Path("params.yaml")))

    return made_once(tmp_path_factory, "released", make)


@pytest.fixture(scope="session")
def original(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle ``out`` of a project; a run died on other data that share a unit, and one on
    data that share none; read only.
    """
    folder = tmp_path_factory.mktemp("edited") / "project"
    shutil.copytree(trained, folder)
    rounds = dp_event.PoissonSampledDpEvent(1.0, dp_event.GaussianDpEvent(9.0))
    event = dp_event.SelfComposedDpEvent(rounds, 2)
    with inside(folder):
        member = Path("data/partitions/units.bin").read_bytes()[:32]
        ledger = open_to_charge(params.load(Path("params.yaml")))
        for stage, digit, unit in (("audit", "5", member), ("elsewhere", "6", bytes(32))):
            version = Version(digit * 64, "trajectory", 1, unit)
            request = Request(version, "other-data", stage, event=event, delta=1e-3, **SECRETS)
            ledger.reserve(request, Budget(90.0, 1e-3))
        return made().absolute()


@pytest.fixture(scope="module")
def accounted_once() -> Iterator[None]:
    """Hundreds of edits leave the mechanism as it is: its ε is computed for one of them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Training, "compute_spent", functools.cache(Training.compute_spent))
        yield
