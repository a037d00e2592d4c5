"""Bundles with a clone, or with the private units' answers: accounted again, bound to their
charges, counted.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from primorl.base import PipelineError
from primorl.base.files import POLICY, PRIVATE_EVALUATION, SUMMARY, read_json
from primorl.commands import main as cli
from primorl.config import params
from primorl.evaluate.private.results import MEAN_RETURN, PrivateEvaluation, Verdict, Veto
from primorl.evaluate.recommendation import Recommendation
from primorl.evaluate.summary import Summary, repeat
from primorl.privacy.accounting.epsilon import Training, compose, event_from_json
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.composition import compose_statement
from primorl.privacy.statement import Statement
from primorl.release import build
from primorl.release.bundle import CHOSEN, add_choice
from primorl.release.card import render
from primorl.release.contents import (
    ANSWERS,
    CLONE,
    LEDGER,
    MANIFEST,
    MODEL,
    NEEDED,
    STARTS,
    Bundle,
)
from tests.data.builders import episode, snapshot
from tests.evaluate.test_recommendation import answer, found
from tests.pipeline.training_project import quick_clone
from tests.projects import inside
from tests.release.bundles import (
    Change,
    at,
    each_refused,
    edit,
    made,
    refusal,
    refused_at_home,
    renew_card,
    say_who,
)
from tests.release.released_project import run_stages, tiny_params
from tests.statements import OF_TRAINING

pytestmark = pytest.mark.usefixtures("accounted_once")
STATEMENT = "policy/privacy.json"
INCLUDED = "clone of the behaviour and private evaluation included"


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A project of linear heads with nobody public, whose policy was trained near a clone, and
    whose private units were asked, with a bundle in ``out``; read only.
    """
    folder = tmp_path_factory.mktemp("near") / "project"
    raw = tiny_params()
    raw["partition"] = {"public_fraction": 0, "public": None}
    raw["dynamics"] |= {"model": "linear", "degree": 2, "hidden": [], "start": "random"}
    raw["dynamics"]["ensemble_size"] = 3
    raw["policy"]["starts"] = "released"
    raw["privacy"]["shares"] = {"model": 0.3, "clone": 0.3, "behaviour": 0.4}
    # accounted like the model: no sampling, no search for the noise
    with pytest.MonkeyPatch.context() as quick:
        quick_clone(quick, rounds=3, q=1.0, noise=lambda _: 4.0)
        run_stages(folder, raw, [episode(8, seed=i) for i in range(80)], empty_store)
    with inside(folder):
        made()
    return folder


def count_the_model_alone(folder: Path) -> None:
    """Write the statement of a policy that only the model was used for."""
    model = Statement.read((folder / MODEL[2]).parent)
    compose_statement({"models/dynamics": model}).write((folder / STATEMENT).parent)


LIES: list[tuple[Change, str]] = [
    (
        lambda folder: shutil.copyfile(folder / MODEL[2], folder / STATEMENT),
        ": not that of models/dynamics/privacy.json and models/behaviour/",
    ),
    (count_the_model_alone, ": not that of models/dynamics/privacy.json and models/behaviour/"),
    (at(STATEMENT, "mechanisms", lambda parts: parts[::-1]), "mechanisms: "),
    (
        at(LEDGER, "records", lambda records: [each | {"state": "reserved"} for each in records]),
        "found no committed charge",
    ),
    (lambda folder: shutil.rmtree(folder / "behaviour"), "found models/dynamics;"),
]


LESS = "the accountant finds"
OF_QUERIES: list[tuple[Change, str]] = [
    (
        at(MODEL[2], "queries", lambda asked: [q for q in asked if q["what"] == "first_states"]),
        "event: not that of the mechanism",
    ),
    (at(MODEL[2], "epsilon", 0.5), LESS),
    (at(MODEL[2], "queries.1.epsilon", 0.1), LESS),
    (at(MODEL[2], "queries.0.noise_multiplier", 0.0), "a query without noise"),
    (lambda folder: (folder / STARTS).unlink(), "starts.safetensors: missing"),
    (lambda folder: say_who(folder / STARTS), "holds more than we read"),
]


def test_queries_are_accounted_again(near: Path, tmp_path: Path) -> None:
    statement = Statement.read((near / "out" / MODEL[2]).parent)
    asked = tuple(query.noise_multiplier for query in statement.queries)
    mechanism = Training(1.0, statement.noise_multiplier or 0.0, 3, asked)
    assert statement.epsilon == mechanism.compute_spent(1e-3).epsilon_pld
    each_refused(near / "out", tmp_path, OF_QUERIES)


def test_every_lie_about_model_and_clone_is_found(near: Path, tmp_path: Path) -> None:
    """With the card made again. Twin: so made, the bundle itself is sound."""
    out = near / "out"
    each_refused(out, tmp_path, LIES, renew_card)
    assert refusal(shutil.copytree(out, tmp_path / "copy"), renew_card) is None


def rewrite(record: PrivateEvaluation) -> None:
    """Write the answers, and what the summary repeats of them."""
    record.write(PRIVATE_EVALUATION)
    repeated = repeat(Statement.read(POLICY), record)
    replace(Summary.read(SUMMARY), **repeated).write(SUMMARY)


@pytest.fixture
def home(near: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrivateEvaluation:
    """A copy as the working directory, without the bundle; what its answers say."""
    shutil.copytree(near, tmp_path / "home", ignore=shutil.ignore_patterns("out"))
    monkeypatch.chdir(tmp_path / "home")
    return PrivateEvaluation.read(PRIVATE_EVALUATION)


def test_a_bundle_with_answers_states_what_all_of_it_costs(
    near: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The headline is that of model and answers together: who has the bundle has both."""
    out = near / "out"
    assert set(snapshot(out)) == NEEDED | {MANIFEST, ANSWERS, CLONE, STARTS}
    answers, statement = read_json(out / ANSWERS), read_json(out / STATEMENT)
    events = [
        event_from_json(each["event"]) for each in (statement, *answers["statements"].values())
    ]
    together = compose(events, 1e-3).epsilon_pld
    assert statement["epsilon"] < together <= answers["total"]["epsilon"]
    assert cli.main(["release", "--check", str(out)]) == 0
    said = capsys.readouterr().out
    (headline,) = re.findall(rf"sound; ε = ([\d.]+), δ = 0.001 per trajectory, {INCLUDED}", said)
    assert together <= float(headline)
    card = (out / "card.md").read_text(encoding="utf-8")
    assert f"**ε = {headline}, δ = 0.001 per trajectory, {INCLUDED}**" in card
    assert f"{answers['estimates'][0]['value']:.4g}; 95% interval" in card
    own = read_json(near / "models/behaviour/privacy.json")["mechanisms"][1]
    assert f"clone of the behaviour | ε {at_most(own['epsilon'])}; " in card


def same_charge(statements: dict[str, Any]) -> dict[str, Any]:
    statements["another"] = statements["behaviour"]
    return statements


FORGED: list[tuple[Change, str]] = [
    (at(ANSWERS, "statements", same_charge), "found a charge that paid for something else"),
    (at(ANSWERS, "estimates.0.bias", "see data/partitions/private"), "holds a path"),
]


def test_forged_answers_are_refused(near: Path, tmp_path: Path) -> None:
    """Twin: with hostile words alone the bundle is sound, and the card shows them as words."""
    each_refused(near / "out", tmp_path, FORGED, renew_card)
    received = shutil.copytree(near / "out", tmp_path / "received")
    at(ANSWERS, "estimates.0.bias", "<script>alert(1)</script> | `x` [a](b)")(received)
    assert refusal(received, renew_card) is None
    assert "<script>" not in render(Bundle.read(received))


def test_at_home_answers_that_no_charge_made_or_about_others_do_not_leave(
    home: PrivateEvaluation,
) -> None:
    """Nor a summary that does not repeat them. Twin: as they were given they leave."""
    for changes, says in (
        (
            {"verdict": Verdict(vetoes=(Veto(kind="warned", reason="late"),))},
            ", by the ledger: damaged",
        ),
        ({"horizon": 7}, "private_evaluation.json: horizon: found 7, allowed is 200"),
        ({"policy_sha256": "0" * 64}, "not about models/policy/policy.saf"),
        ({"model_sha256": "0" * 64}, "not about models/dynamics/model.saf"),
    ):
        rewrite(replace(home, **changes))
        refused_at_home(says)
    rewrite(home)
    before = read_json(SUMMARY)
    for key in ("spent_on_dataset", "private_evaluation", "model_verdict"):
        edit(SUMMARY, **{key: None})
        refused_at_home(
            f"summary.json: {key}: not what models/policy/privacy.json or metrics/private"
        )
        edit(SUMMARY, **before)
    made()


RECOMMENDED = replace(
    found(), estimates=(*found().estimates, answer("clone", MEAN_RETURN, -77.0, estimator="model"))
)


def advised(said: str | None, policy: str | None) -> Any:
    advice: Any = {"answer": said, "policy": policy, "reason": "So."}
    if said is None:
        return SimpleNamespace(recommendation=None, env_id="Pendulum-v1")
    return SimpleNamespace(recommendation=Recommendation(**advice), env_id=None)


def test_a_policy_that_is_not_recommended_leaves_against_advice_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advise(*_: object, **__: object) -> None:
        raise PipelineError("advised against")

    monkeypatch.setattr(build, "refuse_against_advice", advise)
    with pytest.raises(PipelineError, match="advised against"):
        made()
    chosen = params.load(Path("params.yaml"))
    assert not Path("out").exists()
    build.release(Path("out"), chosen, against_advice=True)


def test_the_statement_says_that_answers_chose() -> None:
    """The twins: without answers or advice nothing is said of a choice."""
    keep, measured = advised("keep", None), advised(None, None)
    told = add_choice(OF_TRAINING, keep, RECOMMENDED)
    assert told.public_assumptions == (*OF_TRAINING.public_assumptions, CHOSEN)
    for given in ((keep, None), (measured, RECOMMENDED)):
        assert add_choice(OF_TRAINING, *given) == OF_TRAINING
