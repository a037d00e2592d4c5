"""``primorl plan`` says what the accountant says, solves what it is asked, and says whether the run
can learn.
"""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from primorl.base.files import write_json
from primorl.base.paths import MANIFEST
from primorl.config.params import Params, load
from primorl.data.identity.membership import project_secret, secret_check
from primorl.data.storage.schema import Manifest
from primorl.paid import clone
from primorl.paid.accounts import project_ledger
from primorl.paid.model import make_plan
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.ledger.history import Version
from tests.commands.charging import edit
from tests.commands.conftest import Call
from tests.data.builders import INFO
from tests.paid.conftest import small
from tests.paid.fitted_project import automatic, fit, quick, write_data
from tests.pipeline.training_project import watch_private
from tests.privacy.ledger.ledgers import adaptive, request, version
from tests.projects import project_settings, write_settings

__all__ = ["small"]

PRIVACY = {"target_epsilon": None, "noise_multiplier": 20.0, "delta": 1e-5, "rounds": 5}
PRIVACY |= {
    "budget": {"epsilon": 2.0, "delta": 1e-5},
    "sampling_probability": 1.0,
}  # quick to account
Q, T, D, Z = "--sampling-probability 1 ", "--rounds 5 ", "--delta 1e-5 ", "--noise-multiplier 20 "
BARE = Q + T + D


def write_params(variant: str = "private", **privacy: object) -> None:
    raw = project_settings()
    raw["dynamics"]["variant"] = variant
    raw["privacy"] |= PRIVACY | privacy
    write_settings(raw)


def write_partitions() -> Version:
    """What the `partition` stage declares of a dataset of 40 units."""
    data = version([str(i) for i in range(80)], INFO.dataset_fingerprint)
    write_json(
        Path("data/partitions/manifest.json"),
        Manifest(
            INFO, private_units=40, public_units=2, secret_check=secret_check(project_secret())
        ).to_json(),
    )
    Path("data/partitions/units.bin").write_bytes(data.members)
    Path("data/partitions/public_units.bin").write_bytes(version(["p", "q", "r", "s"]).members)
    return data


def said(primorl: Call, words: str = "") -> str:
    status, out, err = primorl("plan", *words.split())
    assert status == 0, err
    return out


def answered(primorl: Call, words: str = "") -> Any:
    return json.loads(said(primorl, f"--json {words}"), parse_constant=pytest.fail)


def trained(z: float, rounds: int, *queries: float) -> float:
    return accounting.Training(1.0, z, rounds, queries).spent(1e-5).epsilon_pld


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
    assert "warning: δ is not below 1/50" in said(primorl, Q + T + Z + "--units 50 --delta 0.02")
    assert answered(primorl, BARE + "--noise-multiplier 0.01")["epsilon_replace_one"] is None, (
        "infinite"
    )


def test_what_is_not_given_comes_from_params(primorl: Call) -> None:
    """ε now; an option changes its own number only; a target in the file is solved for anew at
    other rounds.
    """
    write_params()
    assert answered(primorl)["epsilon_pld"] == trained(20.0, 5)
    assert answered(primorl, "--rounds 9")["epsilon_pld"] == trained(20.0, 9)
    assert answered(primorl, "--target-epsilon 1")["noise_multiplier"] == 8.342
    assert primorl("plan", "--solve", "rounds")[2].startswith(
        "error: --target-epsilon: not given, and privacy.target_"
    )
    write_params(target_epsilon=1.0, noise_multiplier=None)
    assert answered(primorl, "--rounds 20")["noise_multiplier"] == solve_noise_multiplier(
        1.0, 1e-5, 1.0, 20
    )
    assert answered(primorl, "--target-epsilon 2 --solve rounds")["noise_multiplier"] == 8.342
    assert answered(primorl, "--noise-multiplier 7")["epsilon_pld"] == trained(7.0, 5)
    write_params("no_clip")
    assert "dynamics.variant no_clip: a run of it has no guarantee at all" in said(primorl)
    answer, asked = answered(primorl), answered(primorl, Z)
    assert (answer["private"], answer["epsilon_pld"], answer["epsilon_rdp"]) == (False, None, None)
    assert (asked["private"], asked["epsilon_pld"]) == (True, trained(20.0, 5))


def test_errors_are_one_line_that_names_the_option(primorl: Call) -> None:
    for words, complaint in (
        (
            "",
            "--noise-multiplier, --target-epsilon: neither is given, and there is no params.yaml "
            "here; give one",
        ),
        ("--noise-multiplier 1e-200", "found '1e-200', allowed: a number from 1e-06 to 1e+06"),
        ("--target-epsilon nan", "found 'nan', allowed: a number above 0"),
        (
            "--queries=1,x",
            "found 'x', allowed: none, or numbers with commas between them, each a number from",
        ),
        ("--queries=1,1,1,1,1,1,1,1,1", "found 9, allowed: up to 8"),
        (
            BARE + "--target-epsilon 1 --solve rounds",
            "--rounds: found with --solve rounds, which looks for them",
        ),
        (
            BARE + Z + "--target-epsilon 1",
            "--noise-multiplier: found where the one for a target is looked for; leave",
        ),
        (
            Q + T + "--delta 1e-9 --target-epsilon 1e-6",
            "found 1e-06: no noise multiplier below 100000 reaches epsilon",
        ),
        (
            Q + D + "--noise-multiplier 0.5 --target-epsilon 1 --solve rounds",
            "found 1: no round fits: one alone costs",
        ),
    ):
        status, out, err = primorl("plan", *words.split())
        assert (status in (1, 2), out, err.count("\n"), err[:7]) == (True, "", 1, "error: ")
        assert complaint in err


def test_text_says_what_was_spent_and_what_is_left(primorl: Call) -> None:
    write_params()
    data, earlier = write_partitions(), accounting.training_event(1.0, 20.0, 40)
    assert "nothing was charged to this dataset yet" in said(primorl)
    with closing(project_ledger(load())) as ledger:
        ledger.reserve(request(data, earlier, dataset="small"), None)
    text = said(primorl)
    assert "small: ε 1.2 spent at δ 1e-05, in 1 charge(s)" in text
    assert "this run fits" in text
    assert "does not fit" in said(primorl, "--rounds 200")
    write_params(budget={"epsilon": None, "delta": 1e-5})
    assert said(primorl).endswith("budget: none (privacy.budget.epsilon is null)\n")
    other = Manifest(INFO, private_units=40, public_units=2, secret_check="ab" * 16)
    write_json(Path("data/partitions/manifest.json"), other.to_json())
    status, _, err = primorl("plan")
    assert (status, "made under another secret" in err) == (1, True), (
        "the ledger would recognise nobody"
    )


def test_queries_that_params_ask_for_are_part_of_what_it_costs(primorl: Call) -> None:
    write_params(statistics={"normaliser": "private", "starts": True})
    asked = answered(primorl)["queries"]
    assert answered(primorl)["epsilon_pld"] == trained(20.0, 5, *asked) > trained(20.0, 5) * 1.02
    assert answered(primorl, "--queries 9,11")["epsilon_pld"] == trained(20.0, 5, 9.0, 11.0)
    z = answered(primorl, "--target-epsilon 1")["noise_multiplier"]
    assert trained(z, 5, *asked) <= 1.0 < trained(z * 0.99, 5, *asked)


def test_the_clone_and_the_private_evaluation_are_counted_with_the_model(
    monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """All of them are paid by the same people; the twin: without them nothing is said."""
    for name, value in (
        ("ROUNDS", 5),
        ("SAMPLING_PROBABILITY", 1.0),
        ("noise_for", lambda epsilon, delta: 20.0),
    ):
        monkeypatch.setattr(clone, name, value)
    write_params()
    assert "in all" not in said(primorl)
    edit("params.yaml", behaviour={"target_epsilon": 0.5})
    both = float(adaptive(*[accounting.training_event(1.0, 20.0, 5)] * 2, delta=1e-5))
    told = said(primorl).partition("with a clone of the behaviour (0.5): about ε ")[2]
    assert float(told.split()[0]) == pytest.approx(both, rel=1e-3)
    private = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))["evaluation"][
        "private"
    ]
    edit("params.yaml", evaluation={"private": private | {"estimators": {"behaviour": 0.1}}})
    assert "(0.5) and the private evaluation of its policy (behaviour 0.1)" in said(primorl)


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    """Nine private units and ten public ones; quick to fit and to account."""
    write_data()
    quick(monkeypatch)
    watch_private(monkeypatch, lambda: pytest.fail("private rows were opened"))
    noisy = {"privacy__sampling_probability": 1.0, "privacy__noise_multiplier": 20.0}
    return automatic(small, **noisy)


def test_text_and_json_say_what_is_fitted_and_whether_it_can_learn(
    data: Params, primorl: Call
) -> None:
    """What training would take, to the last digit, although its verdict is no: to ask costs
    nothing.
    """
    lines, answer = said(primorl).splitlines(), answered(primorl)
    chosen, found = fit(data)
    assert (answer["can_learn"], answer["why"], answer["fitted"]) == (
        found.answer,
        found.reason,
        found.values,
    )
    assert (
        answer["rounds"]
        == chosen.privacy.rounds
        == make_plan(chosen, Manifest.load(MANIFEST)).rounds
    )
    assert f"  can it learn? no: {found.reason}" in lines
    edit("datasets/small.yaml", bounds={"reward": [-16.5, -4.0]})
    assert "  can it learn? no: datasets/small.yaml: bounds.reward: " in said(primorl)


def test_a_target_is_fitted_to_and_the_files_noise_is_in_use_where_rounds_are_looked_for(
    data: Params, primorl: Call
) -> None:
    """Without partitions, or with those of another dataset, a key that is to be fitted is one
    error.
    """
    chosen, _ = fit(data)
    solved = answered(primorl, "--target-epsilon 2")
    assert solved["rounds"] == chosen.privacy.rounds
    assert "can_learn" not in solved, "it is not the run that params.yaml describes"
    assert answered(primorl, "--target-epsilon 30 --solve rounds")["noise_multiplier"] == 20.0
    shutil.copy("datasets/small.yaml", "datasets/other.yaml")
    edit("params.yaml", dataset="other")
    refused = "error: params.yaml: dataset: found other, to which settings are to be fitted"
    assert primorl("plan")[2].startswith(refused)
    shutil.rmtree("data/partitions")
    assert primorl("plan")[2].startswith(
        "error: data/partitions: not there yet; run `dvc repro partition`"
    )
    assert "can_learn" not in answered(primorl, "--rounds 4")
