"""What the next run charges is said beforehand; what it would be refused for is refused before
anything is charged.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import clone_behaviour
from primorl.base import PipelineError
from primorl.base.dvc import Status
from primorl.base.files import CHECKPOINTS, PLAN
from primorl.base.reporting import StageLog
from primorl.config.params import SHARES_OF_A_LOG, Params, plain
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.ledger.account import total_of
from primorl.privacy.ledger.history import Request
from primorl.work import bill
from primorl.work.bill import Bill
from primorl.work.data import Partitions, open_to_charge
from primorl.work.desk import Desk
from primorl.work.jobs import request_for
from primorl.work.resolve import preview, resolve
from tests.commands.charging import primorl
from tests.data.builders import INFO, episode
from tests.pipeline.training_project import (
    charged,
    edited,
    quick_clone,
    trained,
    with_changes,
    write_partitions,
)
from tests.projects import write_settings

DELTA = 1e-3


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_clone(monkeypatch, rounds=5, q=1.0, noise=lambda epsilon: 6 / epsilon)


@pytest.fixture
def here(small: Params) -> Params:
    write_partitions([episode(3 + i, i) for i in range(9)], [episode(6, 100 + i) for i in range(2)])
    return replace(small, dataset=INFO.dataset)


def limited(params: Params, budget: float | None, **privacy: Any) -> Params:
    own: dict[str, Any] = {"budget": {"epsilon": budget}, "delta": DELTA}
    return with_changes(params, privacy=own | privacy)


def at(here: Params, budget: float | None, epsilon: float) -> Params:
    """Model, clone and questions that share ``epsilon``."""
    shares = dict(SHARES_OF_A_LOG)
    return limited(here, budget, target_epsilon=epsilon, shares=shares)


def check(params: Params) -> None:
    partitions = Partitions.open(params)
    Bill.of(params, resolve(params, partitions), partitions).refuse_beyond_budget()


def test_a_model_that_would_leave_nothing_for_its_questions_is_refused_before_it_is_charged(
    here: Params,
) -> None:
    params = at(here, 0.9, 1.0)
    with pytest.raises(PipelineError, match=r"clone_behaviour .* and evaluate_private"):
        trained(params)
    assert charged(params) == []
    check(at(here, 1.0, 1.0))
    # Which does not fit alone either.
    with pytest.raises(PipelineError, match=r"with train_model .* clone_behaviour"):
        check(at(here, 0.5, 1.0))


def test_what_another_process_charges_after_the_plan_counts(here: Params) -> None:
    params = at(here, 1.1, 1.0)
    resolve(params, Partitions.open(params)).write(PLAN)
    desk = Desk.open(params)
    request = request_for(desk.read_plan(params).model, desk.partitions)
    assert desk.bill is not None
    desk.bill.refuse_beyond_budget()
    event = Training(1.0, 2.9, 1).event
    desk.ledger.reserve(Request(desk.version, INFO.dataset, "train_model", "", event, DELTA), None)
    nothing: Any = None
    with (
        pytest.raises(PipelineError, match=r"with train_model .* clone_behaviour"),
        desk.pay(request, nothing),
    ):
        pass


def test_what_another_clone_has_paid_for_is_looked_for_before_the_first_charge(
    here: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: with the other's checkpoint nothing is in the way."""
    params = at(here, None, 1.0)
    partitions = Partitions.open(params)
    plan = resolve(params, partitions)
    ledger = open_to_charge(params)
    assert plan.question is not None
    paid = ledger.reserve(request_for(plan.question, partitions), None)
    ledger.commit(paid.id)
    file = CHECKPOINTS / f"{paid.id}.safetensors"
    needed = rf"{file.name} \(evaluate_private: behaviour, .* evaluation\.private\.draw in params"
    with pytest.raises(PipelineError, match=rf"{needed}.*Nothing was charged"):
        trained(params)
    assert [each.id for each in charged(params)] == [paid.id], "and nothing beside it"
    assert re.search(f"refused before the first charge, .*{needed}", str(preview(params, set())))
    ledger = open_to_charge(params)
    for job in (plan.model, plan.clone):
        assert job is not None
        ledger.reserve(request_for(job, partitions), None)
    (all_paid,) = str(preview(params, set())).splitlines()
    assert "charges nothing: all of it is paid; but it needs what was paid for" in all_paid
    assert all_paid.count(".safetensors (") == 3
    found = preview(params, set())
    assert found is not None
    results = [(Path(), charge.id) for charge in found.account.charges]
    with monkeypatch.context() as pulled:  # as `dvc checkout` brings them
        pulled.setattr(bill, "find_charges", lambda _: results)
        assert replace(found, changed=frozenset()).lost == []
        assert [each.id for each in replace(found, changed={"plan"}).lost] == [paid.id]
        assert len(replace(found, changed={"clone_behaviour"}).lost) == 2
    told = str(found)
    with monkeypatch.context() as elsewhere:  # as a notebook prints it, outside the project
        elsewhere.chdir("/")
        assert str(found) == told
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert str(preview(params, set())).count(".safetensors (") == 2


def test_a_run_costs_at_most_what_it_may(here: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: a clone that costs more than its part is refused with all the rest."""
    params = at(here, None, 1.0)
    partitions = Partitions.open(params)
    plan = resolve(params, partitions)
    events = [job.build_mechanism(partitions.manifest).event for job in plan.paid_jobs]
    assert 0.9 < total_of(events, DELTA) <= 1.0
    quick_clone(monkeypatch, rounds=5, q=1.0, noise=lambda _: 2.0)  # at any ε
    with pytest.raises(PipelineError, match=r"target_epsilon: found 1, .* cost about \d"):
        resolve(params, partitions)


def test_what_is_paid_is_known_by_its_identity(
    here: Params, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def charges(params: Params) -> str:
        capsys.readouterr()
        write_settings(plain(params))
        (line,) = (
            line for line in primorl(capsys, "plan")[1].splitlines() if "next `dvc repro`" in line
        )
        return line.strip()

    def prices(line: str) -> list[str]:
        return re.split(", | and ", line.split(" charges ")[1].split("): ε ")[0] + ")")

    params, nothing = at(here, None, 1.0), "the next `dvc repro` charges nothing: all of it is paid"
    first = charges(params)
    model, clone, question = prices(first)
    assert model.startswith("train_model (0.8")
    assert clone.startswith("clone_behaviour (")
    assert question.startswith("evaluate_private: behaviour (")
    trained(params)
    assert prices(charges(params)) == [clone, question]
    clone_behaviour.body(params, StageLog())
    partitions = Partitions.read(None)
    plan = resolve(params, partitions)
    ledger = open_to_charge(params)
    for job, price in list(zip(plan.paid_jobs, plan.jobs, strict=True))[2:]:
        event = job.build_mechanism(partitions.manifest).event
        units = partitions.version, INFO.dataset
        asked = Request(*units, job.name, price.identity, event, DELTA)
        answer = ledger.reserve(asked, None)
        ledger.commit(answer.id)
        (CHECKPOINTS / f"{answer.id}.safetensors").touch()
    assert charges(params) == nothing
    assert charges(at(here, 0.1, 1.0)).startswith(f"{nothing}; privacy.budget is below the ε ")
    with pytest.raises(PipelineError, match="raise it above what is spent, or put"):
        check(at(here, 0.1, 0.9))
    again = charges(replace(params, seed=7))
    assert prices(again) == [model, clone], "the question is about no model"
    shares = {**params.privacy.shares, "clone": 0.05}
    (other,) = prices(charges(replace(params, privacy=replace(params.privacy, shares=shares))))
    assert other.startswith("clone_behaviour (")
    monkeypatch.setattr(Status, "changed_stages", lambda _: {"partition"})
    write_settings(plain(params))
    assert "known once the data are partitioned" in primorl(capsys, "plan")[1], (
        "other units may be made of them"
    )


def test_the_next_run_is_foretold(here: Params) -> None:
    trained(limited(here, 100.0))
    bills = [str(preview(limited(here, budget), set())) for budget in (100.0, None)]
    assert ["privacy.budget was" in bill for bill in bills] == [False, True]
    assert preview(limited(here, None), {"partition"}) is None, (
        "of data that will be made anew nothing is known"
    )
    arriving = preview(edited(limited(here, None), online={"users": 5}), {"online"})
    assert arriving is not None
    assert "an account of their own" in str(arriving)
