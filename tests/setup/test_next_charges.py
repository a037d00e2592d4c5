"""Model, clone and questions are paid by the same people, so a budget must be enough for all before the first."""

import re
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from pipeline import clone_behaviour
from primorl.config import shares
from primorl.config.params import Params, plain
from primorl.privacy.ledger.history import Request
from primorl.project.dvc import Status
from primorl.project.errors import PipelineError
from primorl.project.paths import PARTITIONS
from primorl.setup import clone_work
from primorl.setup.accounts import project_ledger
from primorl.setup.next_charges import beside_model, check_all_fits
from primorl.setup.partitions import Partitions
from primorl.setup.planning import make_plan
from tests.commands.test_plan import said
from tests.pipeline.tiny_policy import RememberingRun
from tests.pipeline.training_project import charged, trained, with_changes, write_partitions
from tests.projects import write_settings
from tests.trajectories.builders import INFO, episode

DELTA = 1e-3


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone_work, "ROUNDS", 5)
    monkeypatch.setattr(clone_work, "SAMPLING_PROBABILITY", 1.0)
    monkeypatch.setattr(clone_work, "noise_for", lambda epsilon, delta: 6 / epsilon)


@pytest.fixture
def asking(small: Params) -> Params:
    write_partitions([episode(3 + i, i) for i in range(9)], [episode(6, 100 + i) for i in range(2)])
    return replace(small, dataset=INFO.dataset)


def at(asking: Params, budget: float | None, epsilon: float, **privacy: Any) -> Params:
    given = {"target_epsilon": epsilon, "noise_multiplier": None, "sampling_probability": 1.0}
    return with_changes(
        asking,
        privacy=given | {"budget": {"epsilon": budget, "delta": DELTA}} | privacy,
        behaviour={"target_epsilon": shares.clone(epsilon)},
        evaluation={"private": plain(asking.evaluation.private) | {"estimators": shares.estimators(epsilon)}},
    )


def check(params: Params) -> None:
    partitions = Partitions.open(PARTITIONS)
    check_all_fits(params, make_plan(params, partitions.manifest), partitions)


def test_a_model_that_would_leave_nothing_for_its_questions_is_refused_before_it_is_charged(asking: Params) -> None:
    params = at(asking, 1.02, 1.0)
    with pytest.raises(PipelineError, match=r"with the model, clone_behaviour .* and evaluate_private") as no:
        trained(params)
    assert charged(params) == []
    assert "\n" not in str(no.value)
    (found,) = re.findall(r"`dvc exp run -S privacy.target_epsilon=([0-9.]+)`", str(no.value))
    check(at(asking, 1.02, float(found)))
    assert float(found) > 0.8
    check(at(asking, 1.6, 1.0))
    with pytest.raises(PipelineError, match="with the model, clone_behaviour"):  # which does not fit alone either
        check(at(asking, 0.9, 1.0))


def planned_all(params: Params, capsys: pytest.CaptureFixture[str]) -> str:
    write_settings(plain(params))
    return said(capsys)


def planned(params: Params, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    (line,) = (line for line in planned_all(params, capsys).splitlines() if "next `dvc repro`" in line)
    return line.strip()


def test_plan_says_what_is_paid_already_and_what_an_edit_charges_again(
    asking: Params, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = at(asking, None, 1.0)
    questions = "evaluate_private: behaviour 0.2, evaluate_private: model_check 0.2"
    assert planned(params, capsys).endswith(f"charges ε: train_model 0.9999, clone_behaviour 0.35, {questions}")
    trained(params)
    assert planned(params, capsys).endswith(f"charges ε: train_model 0 (paid), clone_behaviour 0.35, {questions}")
    clone_behaviour.body(params, RememberingRun())  # type: ignore[arg-type]
    partitions = Partitions.open(PARTITIONS)
    with closing(project_ledger(params)) as ledger:
        for each in beside_model(params, None, partitions.manifest)[1:]:
            asked = Request(partitions.version, INFO.dataset, each.stage, each.stage, each.event, DELTA, None, None)
            ledger.commit(ledger.reserve(asked, None).id)
    assert planned(params, capsys) == "next `dvc repro`: all of it is paid, nothing is charged"
    for stage in ("train_model", "clone_behaviour", "optimize_policy", "evaluate_private"):
        monkeypatch.setattr(Status, "changed_stages", lambda _, stage=stage: {stage})
        found = planned(params, capsys)
        assert found.endswith(f"train_model 0 (paid), clone_behaviour 0 (paid), {questions}"), "others may be asked"
    monkeypatch.setattr(Status, "changed_stages", lambda _: {"evaluate"})
    again = planned(replace(params, seed=7), capsys)
    assert "charges ε: train_model 0.9999, clone_behaviour 0.35, evaluate_private: behaviour 0 (paid)" in again
    assert again.endswith("model_check 0.2"), "it asks about another model"
    monkeypatch.setattr(Status, "changed_stages", lambda _: {"partition"})
    assert "known once the data are partitioned" in planned_all(params, capsys), "other units may be made of them"
    monkeypatch.setattr(Status, "changed_stages", lambda _: {"evaluate"})
    other = replace(params, behaviour=replace(params.behaviour, target_epsilon=0.3))
    assert planned(other, capsys).endswith("clone_behaviour 0.3, " + questions.replace(" 0.2", " 0 (paid)"))
    wide = replace(params, behaviour=replace(params.behaviour, hidden=(8,)))
    with monkeypatch.context() as patched:
        patched.setattr("primorl.setup.questions.about", lambda *_, **__: ("model", "policy"))
        assert planned(params, capsys) == "next `dvc repro`: all of it is paid, nothing is charged"
        assert planned(wide, capsys).endswith(f"clone_behaviour 0.35, {questions}"), "its policy is near another clone"
    monkeypatch.setattr("primorl.setup.questions.about", lambda *_, **__: ("model", "clone"))
    assert planned(params, capsys) == "next `dvc repro`: all of it is paid, nothing is charged"
    assert planned(other, capsys).endswith(f"clone_behaviour 0.3, {questions}"), "it asks with another clone's weights"
