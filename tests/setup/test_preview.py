"""What the next run charges is said beforehand, and is what the ledger then records."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from primorl.commands import doctor
from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.setup import arrivals
from primorl.setup import next_charges as found_by
from primorl.setup.next_charges import Preview, preview
from tests.pipeline.training_project import trained, with_changes, write_partitions
from tests.trajectories.builders import INFO, episode

DELTA = 1e-3


@pytest.fixture
def small_data(small: Params) -> Params:
    write_partitions([episode(3 + i, i) for i in range(9)], [episode(6, 100 + i) for i in range(2)])
    params = replace(small, dataset=INFO.dataset)
    return with_changes(params, privacy={"budget": {"epsilon": None, "delta": DELTA}})


def asked(params: Params) -> Preview:
    found = preview(params)
    assert found is not None
    return found


@pytest.mark.parametrize(("budget", "near", "refused"), [(100.0, False, False), (5.0, True, False), (1.0, True, True)])
def test_a_budget_that_is_nearly_used_up_is_near(small_data: Params, budget: float, near: bool, refused: bool) -> None:
    found = asked(with_changes(small_data, privacy={"budget": {"epsilon": budget, "delta": DELTA}}))
    assert found.near is near
    assert f"of a budget of {budget:g}" in found.line
    assert ("what does not fit is refused" in found.line) is refused


def test_data_that_will_be_made_anew_have_no_preview(small_data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(small_data)
    monkeypatch.setattr(found_by, "changed_stages", lambda: {"partition"})
    assert preview(small_data) is None
    monkeypatch.setattr(found_by, "changed_stages", lambda: {"train_model"})
    assert "nothing: all of it is paid" in asked(small_data).line


def test_of_online_users_with_the_ids_of_the_log_it_says_that_they_share_its_budget_and_are_not_counted(
    small_data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving = replace(small_data, online=replace(small_data.online, users=5))
    monkeypatch.setattr(found_by, "changed_stages", lambda: {"online"})
    for shared in (True, False):
        monkeypatch.setattr(arrivals, "share_ids", lambda params, shared=shared: shared)
        line = asked(arriving).line
        assert (
            "they share the log's budget where ids are the same, and what they are charged is not counted" in line
        ) is (shared)
        assert ("they are counted apart from the log's units" in line) is not shared


def test_a_terminal_is_asked_only_where_a_budget_is_near(
    small_data: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(stdin=terminal, stdout=terminal))
    monkeypatch.setattr(doctor.typer, "confirm", lambda question: False)
    near = with_changes(small_data, privacy={"budget": {"epsilon": 5.0, "delta": DELTA}})
    with pytest.raises(PipelineError, match="stopped as asked"):
        doctor._say_charges(near)
    doctor._say_charges(small_data)
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: False), stdout=terminal))
    doctor._say_charges(near)
    assert capsys.readouterr().out.count("the next `dvc repro` charges") == 3
