"""What the next run charges is said beforehand, and is what the ledger then records."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from primorl.commands import check
from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.setup import next_charges as found_by
from primorl.setup.next_charges import Preview, preview
from tests.pipeline.training_project import trained, with_changes, write_partitions
from tests.trajectories.builders import INFO, episode

DELTA = 1e-3


@pytest.fixture
def small_data(small: Params) -> Params:
    """A project with nine private units and two public ones; a model of ε 4, and nothing beside it."""
    write_partitions([episode(3 + i, i) for i in range(9)], [episode(6, 100 + i) for i in range(2)])
    params = replace(small, dataset=INFO.dataset)
    return with_changes(params, privacy={"budget": {"epsilon": None, "delta": DELTA}})


def asked(params: Params) -> Preview:
    found = preview(params)
    assert found is not None
    return found


def test_what_is_said_is_what_is_charged_and_then_nothing(small_data: Params) -> None:
    """Twin: after the run the same settings charge nothing."""
    before = asked(small_data)
    said = re.fullmatch(
        r"the next `dvc repro` charges train_model \(([\d.]+)\): ε 0 is spent, ([\d.]+) afterwards, without a budget",
        before.line,
    )
    assert said is not None, before.line
    run = trained(small_data)
    assert float(run.logged["epsilon"]) == pytest.approx(float(said[1]), rel=0.01)
    assert float(said[2]) >= float(run.logged["epsilon"])
    assert asked(small_data) == Preview("the next `dvc repro` charges nothing: all of it is paid", near=False)
    again = asked(with_changes(small_data, privacy={"draw": 2}))
    assert "ε 0 is spent" not in again.line


@pytest.mark.parametrize(("budget", "near", "refused"), [(100.0, False, False), (5.0, True, False), (1.0, True, True)])
def test_a_budget_that_is_nearly_used_up_is_near(small_data: Params, budget: float, near: bool, refused: bool) -> None:
    found = asked(with_changes(small_data, privacy={"budget": {"epsilon": budget, "delta": DELTA}}))
    assert found.near is near
    assert f"of a budget of {budget:g}" in found.line
    assert ("what does not fit is refused" in found.line) is refused


@pytest.mark.parametrize("stage", ["collect", "ingest", "partition"])
def test_data_that_will_be_made_anew_have_no_preview(
    small_data: Params, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another horizon or public share makes other units. Twin: a stage after them that changed hides nothing."""
    trained(small_data)
    monkeypatch.setattr(found_by, "changed_stages", lambda: {stage})
    assert preview(small_data) is None
    monkeypatch.setattr(found_by, "changed_stages", lambda: {"train_model"})
    assert "nothing: all of it is paid" in asked(small_data).line


def test_of_online_users_with_the_ids_of_the_log_it_says_that_they_share_its_budget_and_are_not_counted(
    small_data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of `plan`. Twin: where ids are not the log's, they are counted apart."""
    arriving = replace(small_data, online=replace(small_data.online, users=5))
    monkeypatch.setattr(found_by, "changed_stages", lambda: {"online"})
    for shared in (True, False):
        monkeypatch.setattr(found_by, "share_ids", lambda params, shared=shared: shared)
        line = asked(arriving).line
        assert (
            "they share the log's budget where ids are the same, and what they are charged is not counted" in line
        ) is (shared)
        assert ("they are counted apart from the log's units" in line) is not shared


def test_a_terminal_is_asked_only_where_a_budget_is_near(
    small_data: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twins: far from the budget, and off a terminal, nobody is asked."""
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(check, "sys", SimpleNamespace(stdin=terminal, stdout=terminal))
    monkeypatch.setattr(check.typer, "confirm", lambda question: False)
    near = with_changes(small_data, privacy={"budget": {"epsilon": 5.0, "delta": DELTA}})
    with pytest.raises(PipelineError, match="stopped as asked"):
        check._say_charges(near)
    check._say_charges(small_data)
    monkeypatch.setattr(check, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: False), stdout=terminal))
    check._say_charges(near)
    assert capsys.readouterr().out.count("the next `dvc repro` charges") == 3
