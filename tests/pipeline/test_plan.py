"""``data/plan.json``: what is decided is what runs; what was edited or is of other data is refused,
or charged for what it says.
"""

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest

from pipeline import clone_behaviour, plan, train_model
from primorl.base import PipelineError
from primorl.base.files import PARTITIONS, PLAN
from primorl.base.reporting import StageLog
from primorl.config.params import RULED, Params, load, plain
from primorl.privacy.accounting.epsilon import Training, compute_spent
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.ledger.ledger import Ledger
from primorl.work import jobs, resolve
from primorl.work.data import Partitions
from primorl.work.desk import Desk
from primorl.work.jobs import AnyJob, QuestionJob, RunPlan, identity_of
from tests.data.builders import episode
from tests.mechanisms import watch
from tests.pipeline.training_project import (
    charged,
    edited,
    quick_clone,
    statement,
    unopened,
    with_changes,
    write_partitions,
)
from tests.projects import ROOT

DATA: dict[str, Any] = {"fingerprint": "f"}
QUESTION = QuestionJob(
    noise_multiplier=20.0, delta=1e-5, discount=1.0, return_bounds="reward", draw=0
)

OPEN_POLICY = {key.removeprefix("policy."): None for key in RULED if key.startswith("policy.")}


def test_words_for_a_column_that_is_not_there_are_refused_before_the_charge(data: Params) -> None:
    """By the check of the stage `evaluate`, which would find them after it. Twin: the unit's."""
    card = replace(data.chosen.card, labels={data.chosen.unit: "child"})
    plan.body(replace(with_changes(data), chosen=replace(data.chosen, card=card)), StageLog())
    card = replace(card, labels={"dose": "insulin"})
    with pytest.raises(PipelineError, match=r"card.labels: found 'dose', which is no column"):
        plan.body(replace(data, chosen=replace(data.chosen, card=card)), StageLog())


def test_other_numbers_are_other_work_and_delta_and_angles_are_not(data: Params) -> None:
    plan.body(with_changes(data), StageLog())
    model = RunPlan.read(PLAN).model
    mechanism = replace(model.mechanism, noise_multiplier=2.0)
    others: list[AnyJob] = [
        replace(model, seed=1),
        replace(model, draw=1),
        replace(model, mechanism=mechanism),
        QUESTION,
        replace(QUESTION, return_bounds=(-1.0, 2.0)),
    ]
    found = {identity_of(each, DATA) for each in (model, *others)}
    assert len(found) == len(others) + 1
    asked = identity_of(QUESTION, DATA)
    assert asked.startswith("b30a3be28a2db779"), "another version would charge again for it"
    of_delta = replace(model, mechanism=replace(model.mechanism, delta=1e-6))
    assert {identity_of(of_delta, DATA), identity_of(model, {"fingerprint": "g"})} - found != set()
    held = replace(model, bounds=replace(model.bounds, angles=((1, 2),)))
    ends = replace(model.bounds, reward=(0.0, 1.0), before_end=(0.0, 0.0))
    named = replace(model, bounds=replace(ends, outcomes=("lost", "won")))
    assert identity_of(named, DATA) == identity_of(replace(model, bounds=ends), DATA)
    assert {identity_of(each, DATA) for each in (of_delta, held)} == {identity_of(model, DATA)}


def test_a_default_project_keeps_the_digest_by_which_paid_plans_are_found() -> None:
    """With another one the same people would be charged anew after an upgrade. Whoever changes a
    default, or the entry of the default data set, writes the new digest here.
    """
    found = jobs.digest_of_settings(load(ROOT / "params.yaml"))
    assert found.startswith("a6aef1f7e1fc")


def test_a_plan_of_other_data_or_numbers_is_refused_before_the_ledger_is_asked(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = with_changes(data)
    unopened(monkeypatch)
    plan.body(params, StageLog())
    sound = PLAN.read_bytes()

    for block, change, says in (
        ("mechanism", {"delta": 0.1}, r"delta: found 0\.1, allowed is privacy\.delta"),
        ("mechanism", {"noise_multiplier": 0.5}, "jobs: not those of its numbers"),
        ("bounds", {"sensitivity": 0.0}, "sensitivity .unknown key"),
    ):
        content = json.loads(sound)
        content["model"][block] |= change
        PLAN.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(PipelineError, match=rf"data/plan.json: .*{says}"):
            train_model.body(params, StageLog())
    PLAN.write_bytes(sound)
    found, data_of = RunPlan.read(PLAN), Partitions.open(params).identity
    forgeries: dict[str, dict[str, Any]] = {
        "bogus": {"queries": {"bogus": 9.0}},
        "clipped": {"clipping_norm": None},
    }
    for says, wrong in forgeries.items():  # with the right identity, as a forger has it
        model = replace(found.model, mechanism=replace(found.model.mechanism, **wrong))
        jobs_ = (replace(found.jobs[0], identity=identity_of(model, data_of)),)
        replace(found, model=model, jobs=jobs_).write(PLAN)
        with pytest.raises(PipelineError, match=rf"data/plan.json: .*{says}"):
            train_model.body(params, StageLog())
    PLAN.write_bytes(sound)
    shutil.rmtree(PARTITIONS)
    write_partitions([episode(4, 50 + i) for i in range(9)], [episode(6, 100)])
    with pytest.raises(PipelineError, match="jobs: not those of its numbers"):
        train_model.body(params, StageLog())
    PLAN.unlink()
    with pytest.raises(PipelineError, match=r"data/plan\.json: .*dvc repro plan"):
        train_model.body(params, StageLog())
    assert charged(params) == []


def test_numbers_edited_with_their_identity_are_charged_for_what_they_are(data: Params) -> None:
    """And so they are quoted: the price that the file states is for readers."""
    params = with_changes(data)
    plan.body(params, StageLog())
    found = RunPlan.read(PLAN)
    quiet = replace(found.model.mechanism, noise_multiplier=0.5)
    model = replace(found.model, mechanism=quiet)
    data_of = Partitions.open(params).identity
    (price,) = found.jobs
    jobs_ = (replace(price, identity=identity_of(model, data_of), epsilon=1e-6),)
    replace(found, model=model, jobs=jobs_).write(PLAN)
    honest = compute_spent(Training(1.0, 0.5, 4).event, 1e-3).epsilon_pld
    desk = Desk.open(params)
    desk.read_plan(params)
    assert f"charges train_model ({at_most(honest)}): " in str(desk.bill)
    train_model.body(params, StageLog())
    (charge,) = charged(params)
    assert charge.epsilon == pytest.approx(honest, rel=1e-3)
    assert statement()["epsilon"] == pytest.approx(honest, rel=1e-3)


def test_a_plan_that_lost_a_job_before_it_was_paid_does_not_come_back(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_clone(monkeypatch, rounds=4, q=1.0, noise=lambda _: 1.0)
    params = with_changes(data, privacy={"shares": {"model": 0.4, "clone": 0.2}})
    plan.body(params, StageLog())
    whole = RunPlan.read(PLAN)
    replace(whole, clone=None, jobs=whole.jobs[:1]).write(PLAN)
    train_model.body(params, StageLog())
    plan.body(params, StageLog())
    assert RunPlan.read(PLAN) == whole


def test_a_run_is_decided_once(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stage after ``plan`` solves, fits or checks settings."""
    quick_clone(monkeypatch, rounds=4, q=1.0, noise=lambda _: 1.0)
    params = with_changes(data, privacy={"shares": {"model": 0.4, "clone": 0.2}})
    plan.body(params, StageLog())
    for name in ("fit_model", "model_job", "clone_job", "find_objections"):
        monkeypatch.setattr(resolve, name, lambda *_, name=name: pytest.fail(f"{name} again"))
    monkeypatch.setattr(jobs, "solve_noise", lambda *_: pytest.fail("solve_noise again"))
    quicker = edited(params, compute={"device": "cpu"})
    assert jobs.digest_of_settings(quicker) == RunPlan.read(PLAN).asked
    nobody = {"public_fraction": 0.0}
    told, asked = (
        jobs.digest_of_settings(edited(params, partition=nobody, policy={"starts": starts}))
        for starts in ("reset", "released")
    )
    assert told != asked, "people are asked for first states"
    with pytest.raises(PipelineError, match=r"plan\.json: asked: decided from other settings"):
        train_model.body(edited(params, privacy={"rounds": 99}), StageLog())
    opened: list[str] = []
    watch(monkeypatch, Ledger, "__init__", lambda _, url, **__: opened.append(url))
    for stage in (train_model, clone_behaviour):
        opened.clear()
        stage.body(params, StageLog())
        assert len(opened) == 1, "the ledger is opened once a stage"
    assert statement()["rounds"] == 4


def test_another_version_does_not_decide_anew_what_was_paid_for(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict and its warnings hold all the same; other settings are decided by it."""
    params, decide = with_changes(data), resolve.resolve
    plan.body(params, StageLog())
    train_model.body(params, StageLog())
    paid = RunPlan.read(PLAN)

    def otherwise(*given: Any) -> RunPlan:
        model = decide(*given).model
        return replace(decide(*given), model=replace(model, members=7), warnings=("new",))

    monkeypatch.setattr(resolve, "resolve", otherwise)
    plan.body(params, StageLog())
    manifest = Partitions.open(params).manifest
    assert RunPlan.read(PLAN) == resolve.add_figures(replace(paid, warnings=("new",)), manifest)
    train_model.body(params, StageLog())
    assert len(charged(params)) == 1
    for other in ({"draw": 1}, {"rounds": 3}):
        plan.body(with_changes(data, privacy=other), StageLog())
        assert RunPlan.read(PLAN).model.members == 7


def test_what_needs_the_released_model_is_left_to_the_policy(data: Params) -> None:
    """The rest is decided beforehand, and what is given holds."""
    left_open = edited(with_changes(data), policy=OPEN_POLICY | {"penalty": 0.7})
    plan.body(left_open, StageLog())
    policy = plain(RunPlan.read(PLAN).policy)
    unknown = {key for key, value in policy.items() if value is None} - {"seeds"}
    rollouts = {"horizon", "reset_fraction", "rollout_batch", "buffer_size"}
    assert unknown == {"reward_scale", "discount", "target_rate"} | rollouts
    assert (policy["starts"], policy["target_entropy"]) == ("public", -1.0)
    assert policy["penalty"] == 0.7
    assert 5000 <= policy["epochs"] * policy["updates_per_epoch"] <= 16_000
