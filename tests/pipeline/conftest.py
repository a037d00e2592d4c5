from functools import cache
from pathlib import Path

import pytest

from primorl.config.params import Params
from primorl.model.architecture import PublicLosses
from primorl.privacy.accounting import figures
from tests.data.builders import episode
from tests.pipeline.training_project import noise_of_model, with_changes, write_partitions
from tests.projects import project_settings, write_settings


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(tmp_path)
    raw = project_settings()
    raw["chosen"]["options"] |= {"episodes": 6, "num_envs": 3, "hidden": [8]}
    raw["chosen"]["termination"] = "learned"  # half of the tests' episodes terminate
    raw["partition"] = {"public_fraction": 0.5, "public": None}
    return write_settings(raw)


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    noise_of_model(monkeypatch, 1.0)
    write_partitions(
        [episode(1 + 7 * i % 30, i) for i in range(9)], [episode(20, 100 + i) for i in range(4)]
    )
    return with_changes(small)


@pytest.fixture(autouse=True)
def no_verdict(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("verdict") is None:
        monkeypatch.setattr(PublicLosses, "diverged", False)


_figures = cache(figures.figures.__wrapped__)


@pytest.fixture(autouse=True)
def without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what groups of units are guaranteed, which takes seconds for every new mechanism.

    tests/privacy/accounting/test_epsilon.py checks these figures, tests/release whole statements.
    """
    monkeypatch.setattr(figures, "GROUP_SIZES", ())
    monkeypatch.setattr(figures, "figures", _figures)
