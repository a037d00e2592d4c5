"""The charge is there before a private row is read, once; a killed choice resumes, a finished one is restored."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from primorl.base.errors import PipelineError
from primorl.base.files import write_json
from primorl.base.paths import SELECTION
from primorl.config.params import Params
from primorl.evaluate.private.problem import BLOCK
from primorl.paid import selection
from primorl.policy import exported
from primorl.privacy.ledger.history import BudgetExceeded
from primorl.privacy.mechanism.selection import Selection
from tests.data.builders import episode
from tests.evaluate.conftest import random_policy
from tests.pipeline.tiny_policy import RememberingRun, write_model
from tests.pipeline.training_project import (
    charged,
    edited,
    killed,
    states,
    unopened,
    with_changes,
    write_partitions,
)
from tests.statements import PRIVATE

STATEMENT = {
    key: value for key, value in PRIVATE.items() if key not in ("charge", "spent_on_dataset")
}
FOLDERS = [Path("out/a"), Path("out/b"), Path("out/c")]


@pytest.fixture
def project(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    write_partitions(
        [episode(1 + 7 * i % 30, i) for i in range(9)], [episode(20, 100 + i) for i in range(4)]
    )
    write_model(STATEMENT)
    for seed, folder in enumerate(FOLDERS):
        place(folder, [random_policy(1, 3, 2.0, seed=10 * seed + number) for number in range(2)])
    quick = replace(selection.ESTIMATORS["corrected"], features=4, rollouts=2)
    monkeypatch.setitem(selection.ESTIMATORS, "corrected", quick)
    return with_changes(small)


def place(folder: Path, epochs: list[Any], **stated: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    exported.save(folder, epochs, variant="private", environment="Pendulum-v1")
    write_json(folder / "privacy.json", STATEMENT | stated)


def chosen(params: Params, folders: list[Path] = FOLDERS) -> selection.SelectionRecord:
    candidates = selection.of_folders(folders)
    return selection.select(
        params, candidates, run=RememberingRun(), epsilon=0.2, estimator="corrected"
    )


def test_one_charge_pays_and_only_the_winner_is_written(project: Params) -> None:
    found = chosen(project)
    (charge,) = charged(project)
    assert (charge.stage, charge.state) == ("select", "committed")
    assert charge.event == {"type": "PureDpEvent", "epsilon": 0.2}
    assert charge.epsilon == pytest.approx(0.2, rel=0.02)
    assert selection.read() == found
    assert found.chosen in map(str, FOLDERS)
    assert found.privacy.charge == charge.id
    assert found.privacy.sound
    content = json.loads(SELECTION.read_text(encoding="utf-8"))
    assert content.keys() == {
        "format",
        "chosen",
        "candidates",
        "estimator",
        "settings",
        "bias",
        "privacy",
    }
    assert all(candidate.keys() == {"name", "sha256"} for candidate in content["candidates"])


def test_what_was_killed_resumes_and_a_lost_choice_is_spent(project: Params) -> None:
    for where, method in ((selection, "sum_scores"), (Selection, "choose")):
        with killed(1, method, where):
            chosen(project)
        assert states(project) == ["reserved"]
        assert not SELECTION.exists()
    (open_charge,) = charged(project)
    assert chosen(project).privacy.charge != open_charge.id
    assert states(project) == ["aborted", "committed"]


def test_policies_without_a_guarantee_make_a_choice_without_one(project: Params) -> None:
    write_json(FOLDERS[0] / "privacy.json", STATEMENT | {"void": ["noise is seeded"]})
    found = selection.select(
        project,
        selection.of_folders(FOLDERS),
        epsilon=1.0,
        estimator="corrected",
        run=RememberingRun(),
    )
    assert not found.privacy.sound


def test_what_cannot_be_compared_or_paid_reads_nothing(
    project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    unopened(monkeypatch)
    other = Path("out/other")
    place(other, [random_policy(1, 5, 2.0)])
    for folders, says in (
        (FOLDERS[:1], "found 1 candidate"),
        ([*FOLDERS, FOLDERS[0]], "the same policy"),
        ([*FOLDERS, other], "out/other: found a policy for 5 observations"),
    ):
        with pytest.raises(PipelineError, match=says):
            chosen(project, folders)
    with pytest.raises(BudgetExceeded):
        chosen(edited(project, privacy={"budget": {"epsilon": 0.1, "delta": 1e-5}}))
    factors = torch.linspace(1, 1 + 1e-12, BLOCK, dtype=torch.float64)[:, None]
    monkeypatch.setattr(selection, "act_of", lambda policy: lambda rows: rows * factors)
    with pytest.raises(PipelineError, match="differ with its place among other rows"):
        chosen(project)
    assert not charged(project)
