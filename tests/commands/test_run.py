"""``primorl run`` runs what changed, says before what it charges, and does nothing where nothing
changed.
"""

from pathlib import Path

import pytest

from primorl.base import dvc
from primorl.base.dvc import Status
from primorl.base.errors import PipelineError
from primorl.config.params import plain
from tests.commands.conftest import Call
from tests.pipeline.conftest import small
from tests.pipeline.test_evaluate import chosen, project, run
from tests.projects import write_settings

__all__ = ["project", "small"]


class FakeBill:
    def __init__(self, done: int, refused: str = ""):
        self._done, self._refused = done, refused

    def __str__(self) -> str:
        return f"bill after {self._done}"

    def refuse_beyond_budget(self) -> None:
        if self._refused:
            raise PipelineError(self._refused)


def test_what_the_budget_does_not_allow_leaves_the_last_model(
    project: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """DVC deletes the outputs of a stage before it runs."""
    write_settings(plain(chosen()))
    run(chosen())
    done: list[tuple[str, ...]] = []
    monkeypatch.setattr(dvc, "show_dvc", lambda *words: done.append(words))
    monkeypatch.setattr(Status, "changed_stages", lambda _: {"train_model"})
    monkeypatch.setattr("primorl.work.bill.preview", lambda *_: FakeBill(1, "no budget"))
    assert primorl("run")[::2] == (1, "error: no budget\n")
    assert done == [("repro", "--quiet", "plan")]


@pytest.mark.parametrize("changed", [set(), {"train_model"}])
def test_it_runs_only_what_changed_and_says_before_what_it_charges(
    project: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call, changed: set[str]
) -> None:
    """Twins: nothing changed, and a stage did."""
    write_settings(plain(chosen()))
    run(chosen())
    done: list[tuple[str, ...]] = []
    monkeypatch.setattr(dvc, "show_dvc", lambda *words: done.append(words))
    monkeypatch.setattr(Status, "changed_stages", lambda _: changed)
    monkeypatch.setattr("primorl.work.bill.preview", lambda *_: FakeBill(len(done)))
    status, out, err = primorl("run")
    assert status == 0, err
    assert "dataset " in out
    if not changed:
        assert done == []
        assert "nothing is run or charged" in err
        return
    assert done == [("repro", "--quiet", "plan"), ("repro",)]
    assert "bill after 1" in out, "said once the plan is made and before anything is charged"
