from pathlib import Path

import pytest

from primorl.config.params import Params, from_plain
from tests.projects import project_settings


@pytest.fixture
def chosen() -> Params:
    return from_plain(project_settings())


@pytest.fixture
def project(folder_with_store: Path) -> Path:
    return folder_with_store
