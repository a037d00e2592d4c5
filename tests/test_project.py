"""A project in Python runs the stages that `dvc repro` runs, from any folder, and hands out what a
run left.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import primorl
from primorl.base import PipelineError
from primorl.base.dvc import Status
from primorl.base.files import PARAMS
from primorl.config.params import Params, load, plain
from primorl.project import Project, _collect
from primorl.work.bill import Bill
from tests.pipeline.test_evaluate import chosen, project
from tests.projects import write_settings
from tests.report.test_page import evaluated

__all__ = ["project"]


@pytest.fixture
def words(project: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """Arguments of DVC, which runs nothing here; the working directory is beside the project."""
    evaluated()
    content = plain(chosen())
    content["privacy"]["target_epsilon"] = 2.0
    write_settings(content)
    Path("dvc.yaml").touch()
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr("primorl.project.show_dvc", lambda *given: found.append(given))
    monkeypatch.setattr("primorl.project.git_commit", lambda: "0123")
    monkeypatch.setattr("primorl.project.preview", lambda *_: None)
    monkeypatch.chdir(tmp_path.parent)
    return found


def test_settings_reach_dvc_and_the_results_stay(
    words: list[tuple[str, ...]], tmp_path: Path
) -> None:
    here = Project(tmp_path)
    run = here.run()
    here.run(epsilon=1.0, seed=3, policy={"epochs": 2, "seeds": [0, 1]})
    assert words == [("repro",), ("exp", "run")]
    changed = load(tmp_path / PARAMS)
    assert (changed.seed, changed.policy.epochs, changed.policy.seeds) == (3, 2, (0, 1))
    assert changed.privacy.target_epsilon == 1.0
    assert run.summary.return_mean == pytest.approx(float(run.curve["return_mean"].iloc[-1]))
    assert np.shape(run.policy.act([1.0, 0.0, 0.0])) == (1,)
    assert run.statement.private
    assert repr(run).startswith("dataset ")
    assert run.report("page.html") == tmp_path.parent / "page.html"
    assert "page.html" not in {file.name for file in tmp_path.iterdir()}
    assert isinstance(here.runs(), pd.DataFrame)
    summary = tmp_path / "metrics/summary.json"
    summary.write_text(summary.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(PipelineError, match="found the results of another run"):
        run.report()


def test_a_value_that_is_a_mapping_is_replaced_and_comments_stay(
    words: list[tuple[str, ...]], tmp_path: Path
) -> None:
    """To ask nothing any more charges nothing; blocks keep their other keys."""
    file = tmp_path / PARAMS
    file.write_text(f"# ours\n{file.read_text()}")
    for asked in ({"model": 0.5, "clone": 0.5}, {"model": 0.9, "behaviour": 0.1}, {"model": 1.0}):
        Project(tmp_path).run(privacy={"shares": asked}, tracking={"experiment": "ä\\b"})
        assert load(file).privacy.shares == asked
    assert load(file).tracking.experiment == "ä\\b"
    assert file.read_text().startswith("# ours\n")


def refuse(*_: str) -> None:
    raise PipelineError("beyond the budget")


def test_a_bill_of_other_settings_writes_nothing(
    words: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, int, set[str]]] = []

    def previewed(params: Params, changed: set[str]) -> Any:
        seen.append((params.privacy.target_epsilon, params.seed, changed))
        return "bill"

    monkeypatch.setattr("primorl.project.preview", previewed)
    monkeypatch.setattr(Status, "changed_stages", lambda _: {"evaluate"})
    before = (tmp_path / PARAMS).read_bytes()
    found: Any = Project(tmp_path).bill(epsilon=1.5, seed=7)
    assert found == "bill"
    assert seen == [(1.5, 7, {"evaluate", "plan"})]
    assert (tmp_path / PARAMS).read_bytes() == before
    with pytest.raises(PipelineError, match=r"params\.yaml: sed: unknown key"):
        Project(tmp_path).bill(sed=7)


def test_settings_of_a_notebook_are_written_as_plain_ones() -> None:
    given = {"a": (np.int64(7), np.float32(0.5)), "b": pd.Series([3, 4]), "c": Path("x/y")}
    assert _collect(None, None, given) == {"a": [7, 0.5], "b": [3, 4], "c": "x/y"}
    with pytest.raises(PipelineError, match="settings: found set; allowed are numbers"):
        _collect(None, None, {"key": {1}})


def test_what_cannot_run_is_one_line_before_dvc_begins(
    words: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = primorl.Project(tmp_path / "models")
    for given, says in (
        ({"policy": {"epoch": 2}}, "params.yaml: policy.epoch: unknown key"),
        ({"sed": 1}, "params.yaml: sed: unknown key"),
        ({"epsilon": "much"}, "params.yaml: privacy.target_epsilon: found 'much'"),
        ({"dataset": "gone"}, "params.yaml: dataset: found 'gone'"),
    ):
        with pytest.raises(PipelineError, match=says):
            here.run(**given)
    before, bill = (tmp_path / PARAMS).read_bytes(), Bill.__new__(Bill)
    object.__setattr__(bill, "refuse_beyond_budget", refuse)
    for place, refusing in (("preview", lambda *_: bill), ("show_dvc", refuse)):
        with monkeypatch.context() as patch:
            patch.setattr(f"primorl.project.{place}", refusing)
            with pytest.raises(PipelineError, match="beyond the budget"):
                here.run(epsilon=5.0)
        assert (tmp_path / PARAMS).read_bytes() == before
    monkeypatch.setattr("primorl.project.git_commit", lambda: None)
    with pytest.raises(PipelineError, match="git gives no commit"):
        here.run(seed=1)
    with pytest.raises(PipelineError, match="no project; allowed is a folder with params"):
        Project(tmp_path.parent)
    assert words == []
