from pathlib import Path

import pytest

from primorl.config import params
from primorl.config.params import Params

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def chosen() -> Params:
    return params.load(REPOSITORY / "params.yaml")


@pytest.fixture
def project(folder_with_store: Path) -> Path:
    return folder_with_store
