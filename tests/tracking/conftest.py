from pathlib import Path

import pytest

from primorl.config.params import Params
from tests.projects import from_plain, project_settings


@pytest.fixture
def chosen() -> Params:
    return from_plain(project_settings())


@pytest.fixture
def project(folder_with_store: Path) -> Path:
    return folder_with_store
