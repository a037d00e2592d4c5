"""What the next run charges is said beforehand; what it would be refused for is refused before
anything is charged.
"""

import re
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import clone_behaviour
from primorl.base.dvc import Status
from primorl.base.errors import PipelineError
from primorl.base.paths import PARTITIONS
from primorl.commands import plan_answer
from primorl.config import suggestions
from primorl.config.datasets import Bounds
from primorl.config.params import Params, from_plain, plain
from primorl.data.storage.schema import Spaces
from primorl.evaluate.private.question import noise_of
from primorl.paid import bill, clone
from primorl.paid.accounts import project_ledger
from primorl.paid.bill import beside_model, never, next_bill, preview
from primorl.paid.model import make_plan
from primorl.paid.partitions import Partitions
from primorl.paid.private_evaluation import BEHAVIOUR_RETURNS
from primorl.paid.questions import question_event, question_noise
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.ledger.history import Request
from tests.commands.charging import primorl
from tests.data.builders import INFO, episode
from tests.evaluate.private import tiny_mdp
from tests.pipeline.tiny_policy import RememberingRun
from tests.pipeline.training_project import charged, edited, trained, with_changes, write_partitions
from tests.projects import project_settings, write_settings

DELTA = 1e-3


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone, "ROUNDS", 5)
    monkeypatch.setattr(clone, "SAMPLING_PROBABILITY", 1.0)
    monkeypatch.setattr(clone, "noise_for", lambda epsilon, delta: 6 / epsilon)


@pytest.fixture
def here(small: Params) -> Params:
    write_partitions([episode(3 + i, i) for i in range(9)], [episode(6, 100 + i) for i in range(2)])
    return replace(small, dataset=INFO.dataset)


def limited(params: Params, budget: float | None, **privacy: Any) -> Params:
    return with_changes(params, privacy={"budget": {"epsilon": budget, "delta": DELTA}} | privacy)


def at(here: Params, budget: float | None, epsilon: float) -> Params:
    """Model, clone and questions that share ``epsilon``."""
    asked = limited(
        here, budget, target_epsilon=epsilon, noise_multiplier=None, sampling_probability=1.0
    )
    questions = plain(here.evaluation.private) | {"estimators": suggestions.estimators(epsilon)}
    return edited(
        asked,
        behaviour={"target_epsilon": suggestions.clone(epsilon)},
        evaluation={"private": questions},
    )


def check(params: Params) -> None:
    partitions = Partitions.open(PARTITIONS, params)
    next_bill(params, partitions, make_plan(params, partitions.manifest), never).refuse()


def test_a_model_that_would_leave_nothing_for_its_questions_is_refused_before_it_is_charged(
    here: Params,
) -> None:
    params = at(here, 1.02, 1.0)
    with pytest.raises(PipelineError, match=r"clone_behaviour .* and evaluate_private"):
        trained(params)
    assert charged(params) == []
    check(at(here, 1.6, 1.0))
    # Which does not fit alone either.
    with pytest.raises(PipelineError, match="with the model, clone_behaviour"):
        check(at(here, 0.9, 1.0))


def test_what_another_process_charges_during_a_fit_counts(here: Params) -> None:
    params = at(here, 1.5, 1.0)
    partitions = Partitions.open(PARTITIONS, params)
    plan = make_plan(params, partitions.manifest)
    next_bill(params, partitions, plan, never).refuse()
    with closing(project_ledger(params)) as ledger:
        event = Training(1.0, 2.9, 1).event
        ledger.reserve(
            Request(partitions.version, INFO.dataset, "train_model", "", event, DELTA, None, None),
            None,
        )
    with pytest.raises(PipelineError, match="with the model, clone_behaviour"):
        next_bill(params, partitions, plan, never).refuse()


def test_a_total_bounds_model_clone_and_questions(
    here: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins: a model that takes all of the total; and a total that nobody set for this run or
    dataset.
    """
    model = suggestions.model_of(1.0, DELTA)

    def of_total(model: float, origin: str = "params.yaml") -> Params:
        asked = at(here, None, model)
        privacy = replace(asked.privacy, total_epsilon=1.0)
        return replace(asked, privacy=privacy, origins={suggestions.TOTAL: origin})

    check(of_total(model))
    with pytest.raises(ValueError, match=r"found 1\.0, and with behaviour.* comes to 1\.1"):
        of_total(1.0)
    # As for a mechanism of rounds, which costs more.
    monkeypatch.setattr(Params, "_check_total", lambda _: None)
    with pytest.raises(PipelineError, match=r"privacy.total_epsilon: found 1, .* costs about 1\.1"):
        check(of_total(1.0))
    check(of_total(1.0, "datasets/defaults.yaml"))


def test_plan_says_what_an_edit_charges(
    here: Params, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(params: Params) -> str:
        capsys.readouterr()
        write_settings(plain(params))
        (line,) = (
            line for line in primorl(capsys, "plan")[1].splitlines() if "next `dvc repro`" in line
        )
        return line.strip()

    def after(*stages: str) -> None:
        monkeypatch.setattr(Status, "changed_stages", lambda _: set(stages))

    params, nothing = at(here, None, 1.0), "next `dvc repro`: all of it is paid, nothing is charged"
    questions = "evaluate_private: behaviour 0.2, evaluate_private: model_check 0.2"
    assert planned(params).endswith(
        f"charges ε: train_model 0.9999, clone_behaviour 0.35, {questions}"
    )
    trained(params)
    assert planned(params).endswith(
        f"charges ε: train_model 0 (paid), clone_behaviour 0.35, {questions}"
    )
    clone_behaviour.body(params, RememberingRun())
    partitions = Partitions.open(PARTITIONS, None)
    with closing(project_ledger(params)) as ledger:
        for each in beside_model(params, None, partitions.manifest)[1:]:
            asked = Request(
                partitions.version,
                INFO.dataset,
                each.stage,
                each.stage,
                each.event,
                DELTA,
                None,
                None,
            )
            ledger.commit(ledger.reserve(asked, None).id)
    assert planned(params) == nothing
    for stage in ("train_model", "clone_behaviour", "optimize_policy", "evaluate_private"):
        after(stage)
        found = planned(params)
        assert found.endswith(f"train_model 0 (paid), clone_behaviour 0 (paid), {questions}"), (
            "others may be asked"
        )
    after("evaluate")
    again = planned(replace(params, seed=7))
    assert "train_model 0.9999, clone_behaviour 0.35, evaluate_private: behaviour 0 (paid)" in again
    assert again.endswith("model_check 0.2"), "it asks about another model"
    other = replace(params, behaviour=replace(params.behaviour, target_epsilon=0.3))
    assert planned(other).endswith("clone_behaviour 0.3, " + questions.replace(" 0.2", " 0 (paid)"))
    after("partition")
    write_settings(plain(params))
    assert "known once the data are partitioned" in primorl(capsys, "plan")[1], (
        "other units may be made of them"
    )


def test_the_next_run_is_foretold(here: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(limited(here, None))
    monkeypatch.setattr(bill, "changed_stages", lambda: {"partition"})
    assert preview(limited(here, None)) is None, "of data that will be made anew nothing is known"
    monkeypatch.setattr(bill, "changed_stages", lambda: {"train_model"})
    paid = preview(limited(here, None))
    assert paid is not None
    assert "nothing: all of it is paid" in str(paid)
    monkeypatch.setattr(bill, "changed_stages", lambda: {"online"})
    arriving = preview(edited(limited(here, None), online={"users": 5}))
    assert arriving is not None
    assert "they are counted apart from the log's units" in str(arriving)


def test_the_bill_says_what_does_not_fit_the_budget(here: Params) -> None:
    for budget, refused in ((5.0, False), (1.0, True)):
        found = preview(limited(here, budget))
        assert found is not None
        assert f"of a budget of {budget:g}" in str(found)
        assert ("what does not fit is refused" in str(found)) is refused


def manifest(*, discrete: bool) -> Any:
    spaces = Spaces((0.0,) * 3, (1.0,) * 3, (0.0,) * 2, (1.0,) * 2, discrete)
    return SimpleNamespace(
        info=replace(INFO, spaces=spaces, horizon=5, unit="person"), private_units=40
    )


def test_plan_foretells_the_noise_in_todays_mean_return() -> None:
    real, info = tiny_mdp.problem(40), manifest(discrete=True).info
    declared = replace(from_plain(project_settings()).evaluation.private, return_bounds=(-3.0, 7.0))
    params = SimpleNamespace(
        evaluation=SimpleNamespace(private=declared),
        chosen=SimpleNamespace(bounds=Bounds(observation="space", reward=(-1.0, 2.0))),
    )
    plan = BEHAVIOUR_RETURNS.plan(real, question_noise("behaviour", 0.2, 1e-5))
    asked = SimpleNamespace(question="behaviour", event=question_event("behaviour", 0.2, 1e-5))
    known = SimpleNamespace(info=info, private_units=40, public_units=0)
    bill: Any = SimpleNamespace(manifest=known, params=params, charges=[asked])
    deviation = noise_of(plan) / BEHAVIOUR_RETURNS.mean_share**0.5 * 5
    said = r"± ([\d.]+) at best, as its bounds are "
    told = re.search(said + "-3 to 7:", str(plan_answer._today_line(bill)))
    assert told is not None
    assert float(told[1]) == pytest.approx(1.96 * deviation, rel=0.01)
    params.evaluation.private = replace(declared, return_bounds="public")
    told = re.search(said + "-5 to 10, those of the reward", str(plan_answer._today_line(bill)))
    assert told is not None, "nobody is public"
    assert float(told[1]) == pytest.approx(1.96 * deviation * 1.5, rel=0.01)
    known.public_units = 1
    assert plan_answer._today_line(bill) is None
