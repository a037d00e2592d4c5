from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.privacy.ledger import postgresql


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[postgresql.Server]:
    with postgresql.server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'private' / 'ledger.db'}"
    return str(request.getfixturevalue("postgresql_server").new_url())
