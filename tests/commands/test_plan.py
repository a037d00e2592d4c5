"""``primorl plan`` says what the accountant says, solves what it is asked, and says whether the run
can learn.
"""

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest

from pipeline import plan
from primorl.base.files import PLAN
from primorl.base.reporting import StageLog
from primorl.commands import plan_answer
from primorl.config.params import Params, load
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.figures import right_guesses
from primorl.privacy.accounting.rounding import at_most
from primorl.work import resolve
from primorl.work.data import Partitions, open_to_charge
from primorl.work.jobs import RunPlan, identity_of
from tests.commands.charging import edit
from tests.commands.conftest import Call
from tests.mechanisms import watch
from tests.pipeline.training_project import noise_of_model, watch_private
from tests.privacy.ledger.ledgers import request
from tests.work.conftest import small
from tests.work.test_fitting import automatic, fit, quick, write_data

__all__ = ["small"]

Q, T, D, Z = "--sampling-probability 1 ", "--rounds 5 ", "--delta 1e-5 ", "--noise-multiplier 20 "
BARE = Q + T + D


def said(primorl: Call, words: str = "") -> str:
    status, out, err = primorl("plan", *words.split())
    assert status == 0, err
    return out


def answered(primorl: Call, words: str = "") -> Any:
    return json.loads(said(primorl, f"--json {words}"), parse_constant=pytest.fail)


def trained(z: float, rounds: int, *queries: float, delta: float = 1e-5) -> float:
    return accounting.Training(1.0, z, rounds, queries).compute_spent(delta).epsilon_pld


def test_a_target_is_solved_for_noise_or_rounds(primorl: Call) -> None:
    """Each answer keeps the target; a little less noise, or one round more, would not.

    The contract's keys.
    """
    noise = answered(primorl, BARE + "--target-epsilon 1.5")
    assert noise["epsilon_pld"] <= 1.5 < trained(0.999 * noise["noise_multiplier"], 5)
    assert noise["epsilon_pld"] < min(noise["epsilon_rdp"], noise["epsilon_replace_one"])
    keys = ("delta", "sampling_probability", "rounds", "queries", "neighboring_relation", "private")
    assert [noise[key] for key in keys] == [1e-5, 1.0, 5, [], "zero_out_one", True]
    rounds = answered(primorl, Q + Z + D + "--target-epsilon 1.5 --solve rounds")
    assert rounds["epsilon_pld"] <= 1.5 < trained(20.0, rounds["rounds"] + 1)


def test_errors_are_one_line_that_names_the_option(primorl: Call) -> None:
    for words, complaint in (
        ("", "--sampling-probability: not given, and there is no params.yaml"),
        ("--target-epsilon nan", "allowed is at most"),
        ("--rounds 0", "allowed is at least 1"),
        (BARE + "--target-epsilon 1 --solve rounds", "--rounds: found where the one for a target"),
        (BARE + Z + "--target-epsilon 1", "--noise-multiplier: found where the one for a target"),
        (Q + T + "--delta 1e-9 --target-epsilon 1e-6", "found 1e-06: no noise below"),
        (
            Q + D + "--noise-multiplier 0.5 --target-epsilon 1 --solve rounds",
            "found 1: no round fits: one alone costs",
        ),
    ):
        status, out, err = primorl("plan", *words.split())
        assert (status in (1, 2), out, err.count("\n"), err[:7]) == (True, "", 1, "error: ")
        assert complaint in err


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    """Nine private units and ten public ones; quick to fit and to account."""
    write_data()
    quick(monkeypatch)
    watch_private(monkeypatch, lambda: pytest.fail("private rows were opened"))
    noise_of_model(monkeypatch, 20.0)
    return automatic(small, privacy__sampling_probability=1.0, privacy__rounds=5)


def test_what_is_not_given_comes_from_the_run(data: Params, primorl: Call) -> None:
    """An option changes its own number only."""
    delta = data.privacy.delta
    assert answered(primorl)["epsilon_pld"] == trained(20.0, 5, 14.0, delta=delta)
    assert answered(primorl, "--rounds 9")["epsilon_pld"] == trained(20.0, 9, 14.0, delta=delta)
    solved = answered(primorl, "--target-epsilon 1")["noise_multiplier"]
    assert trained(solved, 5, 14.0, delta=delta) <= 1.0
    assert trained(0.99 * solved, 5, 14.0, delta=delta) > 1.0
    edit("params.yaml", dynamics={"variant": "no_clip"})
    assert "dynamics.variant is no_clip: a run of it has no guarantee at all" in said(primorl)
    answer = answered(primorl)
    assert (answer["private"], answer["epsilon_pld"], answer["epsilon_rdp"]) == (False, None, None)


def test_it_says_what_it_costs_what_was_spent_and_what_is_left(data: Params, primorl: Call) -> None:
    partitions = Partitions.open(data)
    assert "charges nothing: its stage plan refuses it" in said(primorl)
    edit("params.yaml", dynamics={"train_anyway": True})
    assert "): ε 0 is spent, " in said(primorl)
    edit("params.yaml", privacy={"budget": {"epsilon": 2.0}})
    earlier = accounting.Training(1.0, 20.0, 40).event
    ledger = open_to_charge(load())
    ledger.reserve(request(partitions.version, earlier, dataset=data.dataset), None)
    lines = said(primorl).splitlines()
    event = accounting.Training(1.0, 20.0, 5, (14.0,)).event
    assert lines[0].startswith("this run costs ε "), "the cost comes first"
    assert f"rightly at most {at_most(right_guesses([event]))} times in 100" in lines[1]
    spent = accounting.compute_spent(earlier, data.privacy.delta).epsilon_pld
    (line,) = (each for each in lines if "charges train_model" in each)
    assert float(line.split("): ε ")[1].split()[0]) == pytest.approx(spent, rel=1e-3)
    assert line.endswith(", of a budget of 2")
    edit("params.yaml", privacy={"budget": {"epsilon": 1e-3}})
    low = said(primorl)
    assert "does not fit" in low
    assert "; privacy.budget is below the ε " in low
    edit("params.yaml", privacy={"budget": {"epsilon": None}})
    assert "then, without a budget" in said(primorl)


def test_what_was_decided_is_printed_and_nothing_stale(
    data: Params, primorl: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins: a file that somebody edited, and one of another version, are priced anew, or decided
    anew where the desk would refuse them.
    """
    edit("params.yaml", dynamics={"train_anyway": True})
    decided: list[Params] = []
    watch(monkeypatch, resolve, "resolve", lambda params, _: decided.append(params))
    first = said(primorl)
    plan.body(load(), StageLog())
    assert (said(primorl), len(decided)) == (first, 2)
    sound = PLAN.read_text("utf-8")
    for part, other in (("epsilon", 1e-6), ("identity", "0" * 64)):
        content = json.loads(sound)
        content["jobs"][0][part] = other
        PLAN.write_text(json.dumps(content), encoding="utf-8")
        assert said(primorl) == first
    PLAN.write_text(sound, encoding="utf-8")
    monkeypatch.setattr("primorl.__version__", "another")
    assert (said(primorl), len(decided)) == (first, 3)
    found = RunPlan.read(PLAN)
    model = replace(found.model, mechanism=replace(found.model.mechanism, noise_multiplier=0.5))
    identity = identity_of(model, Partitions.open(load()).identity)
    replace(found, model=model, jobs=(replace(found.jobs[0], identity=identity),)).write(PLAN)
    dear = at_most(
        accounting.compute_spent(model.mechanism.training.event, data.privacy.delta).epsilon_pld
    )
    assert f": train_model {dear}\n" in said(primorl), "as the desk would charge it"


def test_columns_are_told_in_their_own_units_and_a_changed_source_beside_the_cost(
    data: Params, primorl: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins: scales that public people tell, and a source as it was collected."""
    edit("params.yaml", dynamics={"train_anyway": True})
    told = said(primorl)
    for where, place, part in (
        (resolve, "least_spread", "columns that deviate"),
        (plan_answer, "describe_edits", "as the log was"),
    ):
        assert part not in told
        monkeypatch.setattr(where, place, lambda *_: 0.5)
    told = said(primorl)
    assert "\n  as the log was collected, the next `dvc repro` charges" in told
    assert "\n  it may hide columns that deviate by less than: observation_0 0.5, " in told


def test_text_and_json_say_what_is_decided_and_whether_it_can_learn(
    data: Params, primorl: Call
) -> None:
    """What training would take, although its verdict is no: to ask costs nothing."""
    lines, answer = said(primorl).splitlines(), answered(primorl)
    chosen, found = fit(data)
    assert (answer["can_learn"], answer["why"]) == (found.answer, found.reason)
    told = answer["settings"]["dynamics.hidden"]
    assert tuple(told["value"]) == chosen.dynamics.hidden
    assert answer["rounds"] == chosen.privacy.rounds
    assert f"can it learn? no: {found.reason}" in lines
    own = f"datasets/{data.dataset}.yaml"
    edit(own, bounds={"reward": [-16.5, -4.0]})
    assert f"can it learn? no: {own}: bounds.reward: " in said(primorl)
    shutil.rmtree("data/partitions")
    assert primorl("plan")[2].startswith("error: data/partitions: not there yet for dataset")
