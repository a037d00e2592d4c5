"""Bundles with a clone, or with the private units' answers: accounted again, bound to their charges, counted."""

import re
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from primorl.commands import main as cli
from primorl.config import params
from primorl.evaluation.private.results import MEAN_RETURN, PrivateEvaluation
from primorl.evaluation.recommendation import Recommendation, of_answers
from primorl.privacy.accounting.epsilon import Training, compose
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import read_json
from primorl.project.paths import BEHAVIOUR, POLICY, PRIVATE_EVALUATION
from primorl.release import bundle
from primorl.release.build import chosen_policy
from primorl.release.bundle import CHOSEN, as_released
from primorl.release.card import promised, render, whole
from primorl.release.contents import ANSWERS, CLONE, FILES, LEDGER, MANIFEST, MODEL, is_bundle
from primorl.release.contents import POLICY as POLICY_FILES
from primorl.setup import clone_work
from primorl.setup.accounts import project_ledger
from tests.evaluation.test_recommendation import ANSWERS as RECOMMENDED
from tests.evaluation.test_recommendation import answer
from tests.projects import inside
from tests.release.bundles import (
    Change,
    accepted,
    changed_leaves,
    each_refused,
    edit,
    inside_of,
    keys,
    made,
    refusal,
    refused_at_home,
    relist,
    renew_cards,
    renew_everything,
)
from tests.release.evaluated_project import evaluate_privately, rewrite
from tests.release.released_project import EPISODES, run_stages, tiny_params
from tests.statements import OF_TRAINING, PRIVATE
from tests.trajectories.builders import snapshot

pytestmark = pytest.mark.usefixtures("accounted_once")
Content = dict[str, Any]
STATEMENT = POLICY_FILES[2]


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose policy was trained near a clone, with a bundle in ``out``; read only."""
    folder = tmp_path_factory.mktemp("near") / "project"
    raw = tiny_params()
    raw["behaviour"]["target_epsilon"] = 5.0
    with pytest.MonkeyPatch.context() as quick:  # accounted like the model: no sampling, no search for the noise
        quick.setattr(clone_work, "ROUNDS", 3)
        quick.setattr(clone_work, "SAMPLING_PROBABILITY", 1.0)
        quick.setattr(clone_work, "noise_for", lambda epsilon, delta: 4.0)
        run_stages(folder, raw, EPISODES)
    with inside(folder):
        made()
    return folder


def test_a_policy_near_a_clone_states_more_than_either_mechanism(near: Path) -> None:
    """The card, the summary and the bundle's promise say the same ε: that of both."""
    model, clone, policy = (Statement.read(near / "models" / name) for name in ("dynamics", "behaviour", "policy"))
    assert model.epsilon and clone.epsilon and policy.epsilon  # noqa: PT018
    assert max(model.epsilon, clone.epsilon) < policy.epsilon <= model.epsilon + clone.epsilon
    assert [part.charge for part in policy.mechanisms] == [model.charge, clone.charge]
    assert read_json(near / "metrics/summary.json")["epsilon"] == policy.epsilon
    assert bundle.check(near / "out", void_ok=False) == policy
    promise, card = promised(near / "out"), (near / "out/card.md").read_text(encoding="utf-8")
    assert f"{policy.epsilon:.4g}"[:3] in promise
    assert "clone of the behaviour included" in promise
    assert f"clone of the behaviour | ε {clone.epsilon!r}; " in card
    assert sum(each["chosen"] for each in read_json(near / "out" / POLICY_FILES[1])["candidates"]) == 1


def in_statement(change: Callable[[Content], object]) -> Change:
    return inside_of(STATEMENT, change)


def unpaid_clone(content: Content) -> None:
    next(each for each in content["records"] if each["stage"] == "clone_behaviour")["state"] = "reserved"


def test_every_lie_about_model_and_clone_is_found(near: Path, tmp_path: Path) -> None:
    def of_part(number: int, **changes: Any) -> Change:
        return in_statement(lambda own: own["mechanisms"][number].update(changes))

    def without_clone(folder: Path) -> None:
        shutil.copyfile(folder / MODEL[2], folder / STATEMENT)

    table: list[tuple[Change, str]] = [
        (without_clone, "mechanisms: found none, yet policy/config.json names candidates"),
        (in_statement(lambda own: own.update(epsilon=own["mechanisms"][0]["epsilon"])), "less than the accountant"),
        (in_statement(lambda own: own["event"]["events"].pop()), "event: not that of the mechanisms"),
        (in_statement(lambda own: own["mechanisms"].reverse()), "mechanisms: allowed are those of models/dynamics and"),
        (of_part(0, noise_multiplier=9.0), "mechanisms.0: differs from"),
        (of_part(1, noise_multiplier=99.0), "mechanisms.1: event: not that"),
        (of_part(1, epsilon=0.1), "mechanisms.1: epsilon: less than"),
        (of_part(1, charge="f" * 16), "found no committed charge"),
        (in_statement(lambda own: own["spent_on_dataset"].update(epsilon=0.1)), "spent_on_dataset: epsilon: less than"),
        (in_statement(lambda own: own["public_assumptions"].pop()), "public_assumptions: leaves out"),
        (in_statement(lambda own: own["public_assumptions"].append(CHOSEN)), "needed last with a recommendation from"),
        (in_statement(lambda own: own.update(units=own["units"] + 1)), "units: differs from"),
        (in_statement(lambda own: own["groups"].pop()), "groups: not what the accountant"),
        (inside_of(LEDGER, unpaid_clone), "found no committed charge"),
        (keys(CLONE, public_units=1), "made"),
        (lambda folder: shutil.rmtree(folder / "behaviour"), "the bundle has no behaviour/privacy.json"),
    ]
    each_refused(near / "out", tmp_path, table, renew_cards)


@pytest.mark.parametrize("renamed", [False, True])
def test_a_bundle_that_hides_its_clone_promises_no_less(near: Path, tmp_path: Path, renamed: bool) -> None:
    """The twin: where the ledger's record is renamed too, nothing tells but the maker's signature (docs/privacy.md)."""
    received = shutil.copytree(near / "out", tmp_path / "received")
    honest = promised(received)
    shutil.copyfile(received / MODEL[2], received / STATEMENT)
    shutil.rmtree(received / "behaviour")

    def forget(content: Content) -> None:
        del content["candidates"], content["clone_error"]

    def rename(content: Content) -> None:
        record = next(each for each in content["records"] if each["stage"] == "clone_behaviour")
        del record["made"]
        record |= {"stage": "train_model"} if renamed else {}

    inside_of(POLICY_FILES[1], forget)(received)
    inside_of(LEDGER, rename)(received)
    assert refusal(received, renew_cards) is None
    assert (promised(received) == honest) == (not renamed)


@pytest.fixture(scope="module")
def asked(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose private units were asked, with a bundle in ``out``; read only."""
    folder = tmp_path_factory.mktemp("asked") / "project"
    shutil.copytree(trained, folder)
    with inside(folder):
        evaluate_privately()
        made()
    return folder


@pytest.fixture
def home(asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrivateEvaluation:
    """A copy as the working directory, without the bundle; what its answers say."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    shutil.copytree(asked, tmp_path / "home", ignore=shutil.ignore_patterns("out"))
    monkeypatch.chdir(tmp_path / "home")
    return PrivateEvaluation.read(PRIVATE_EVALUATION)


def test_a_bundle_with_answers_states_what_all_of_it_costs(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The headline is that of model and answers together: who has the bundle has both."""
    out = asked / "out"
    assert set(snapshot(out)) == FILES | {MANIFEST, ANSWERS}
    assert is_bundle(out)
    answers, statement = read_json(out / ANSWERS), read_json(out / STATEMENT)
    events = [event_from_json(each["event"]) for each in (statement, *answers["statements"].values())]
    together = compose(events, 1e-3).epsilon_pld
    assert statement["epsilon"] < together <= answers["total"]["epsilon"]
    card = (out / "card.md").read_text(encoding="utf-8")
    (headline,) = re.findall(r"\*\*ε = ([\d.]+), δ = 0.001 per trajectory, private evaluation included\*\*", card)
    assert together <= float(headline)
    assert f"it included: ε = {headline} at δ = 0.001 in 3 runs" in card
    assert "by behaviour (ε 0.159) | \\-12.25; 95% interval -13.75 to -10.75, which covers sampling" in card
    assert "| the policy, by model (free) | \\-9.5; no interval" in card
    assert "Check of the model: the model can be believed up to 5 steps ahead" in card
    assert [set(record["made"]) for record in read_json(out / LEDGER)["records"]][1:] == [
        {"private_evaluation: behaviour"},
        {"private_evaluation: model_check"},
    ]
    capsys.readouterr()
    assert cli.main(["release", "--check", str(out)]) == 0
    assert f"sound; ε = {headline}, δ = 0.001 per trajectory, private evaluation included" in capsys.readouterr().out


def in_answers(change: Callable[[Content], object]) -> Change:
    return inside_of(ANSWERS, change)


def in_answer(number: int, **changes: Any) -> Change:
    return in_answers(lambda content: content["estimates"][number].update(changes))


def in_shares(**changes: Any) -> Change:
    return in_answers(lambda content: content["histograms"][0].update(changes))


def of_behaviour(**changes: Any) -> Change:
    return in_answers(lambda content: content["statements"]["behaviour"].update(changes))


def in_all(**changes: Any) -> Change:
    """The same change of every statement."""
    return in_answers(lambda content: [each.update(changes) for each in content["statements"].values()])


def cheap(content: Content) -> None:
    for each in (content["statements"]["behaviour"], content["estimates"][0]):
        each["epsilon"] *= 0.9


def in_total(**changes: Any) -> Change:
    def forge(content: Content) -> None:
        content["total"] |= changes
        for statement in content["statements"].values():
            statement["spent_on_dataset"] = content["total"]

    return in_answers(forge)


def one_total(content: Content) -> None:
    content["statements"]["behaviour"]["spent_on_dataset"]["epsilon"] *= 2


def one_charge_for_two(content: Content) -> None:
    content["statements"]["model_check"]["charge"] = content["statements"]["behaviour"]["charge"]


def no_answer(content: Content) -> None:
    content["estimates"] = [each for each in content["estimates"] if each["estimator"] != "model_check"]
    content["verdict"] = None


WAGES = {"what": "wages", "noise_multiplier": 9.0, "sensitivity": 1.0, "epsilon": 0.5}
ANOTHER_EVENT = {"type": "GaussianDpEvent", "noise_multiplier": 30.0}
FORGED: list[tuple[Change, str]] = [
    (in_answers(cheap), "statements.behaviour: epsilon: less than the accountant makes of the event"),
    (in_answer(0, epsilon=0.01), "estimates.0: epsilon, delta: not those of the statement"),
    (in_answer(0, estimator="model", epsilon=None, delta=None), "found an answer of the private units without a state"),
    (in_answer(0, ci95=[-10.0, -13.0]), "estimates.0: ci95: the value is not in its interval"),
    (in_answer(2, estimator="Model!"), "estimator: found another name"),
    (in_shares(shares=[0.75, 0.5]), "histograms.0: shares"),
    (in_shares(edges=[0.0, -10.0, -20.0]), "histograms.0: edges"),
    (in_shares(estimator="model"), "histograms.0: found shares of the private units without a statement"),
    (in_total(epsilon=0.2), "epsilon: less than the accountant makes"),
    (in_total(charges=1), "spent_on_dataset: charges: not a number of charges"),
    (in_answers(one_total), "statements.behaviour: spent_on_dataset: differs from total"),
    (in_answers(one_charge_for_two), "charge: found a charge that paid for something else"),
    (of_behaviour(event=ANOTHER_EVENT), "statements.behaviour: event: not that of the mechanism"),
    (in_answers(lambda content: content.update(statements={})), "statements: found none"),
    (in_answers(no_answer), "statements.model_check: found a charge without an answer"),
    (of_behaviour(queries=[WAGES]), "statements.behaviour: not as declared: queries.0.what"),
    (in_all(void=["noise is seeded"]), "void: noise is seeded; do not rely on it"),
    (in_all(units=13), "statements.behaviour: units: differs from dynamics/privacy.json"),
    (of_behaviour(charge="feed"), "found no committed charge with the id and event"),
    (in_answers(lambda content: content.update(dataset="another")), "dataset: differs from the other files"),
    (in_answer(0, bias="see data/partitions/private"), "holds a path"),
    (in_answer(0, bias="see https://example.org"), "holds markup that is not ours"),
]


def test_forged_answers_are_refused(asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every digest renewed; any key changed and the hashes listed anew; cards made again over the ledger's digests.

    Twin: untouched, or with hostile words alone changed, it is sound with every digest renewed.
    """
    monkeypatch.setattr(bundle, "_check_tensors", lambda bundle: None)  # no edit touches the tensors
    out = asked / "out"
    each_refused(out, tmp_path, FORGED, renew_everything)
    edits = [
        (name, change) for name, change in changed_leaves(out, [ANSWERS]) if not re.search("model_check|profile", name)
    ]
    assert len(edits) > 60
    assert accepted(out, tmp_path, edits, relist) == []
    unbound = "behaviour: not the answers that charge"
    forged: list[tuple[Change, str]] = [
        (in_answer(0, value=-12.0), unbound),
        (inside_of(LEDGER, lambda content: content["records"][1].pop("made")), unbound),
        (lambda folder: (folder / ANSWERS).unlink(), "records: made: needed with charge"),
    ]
    each_refused(out, tmp_path, forged, renew_cards)
    received = shutil.copytree(out, tmp_path / "received")
    assert refusal(received, renew_everything) is None
    in_answer(0, bias="<script>alert(1)</script> | `x` [a](b)")(received)
    assert refusal(received, renew_everything) is None
    assert "<script>" not in "".join(render(received).values())


def test_at_home_answers_that_no_charge_made_or_about_others_do_not_leave(home: PrivateEvaluation) -> None:
    """Nor a summary that does not repeat them. Twin: as they were given they leave."""
    edited = replace(home, estimates=(replace(home.estimates[0], value=-12.0), *home.estimates[1:]))
    for changed, says in (
        (edited, "metrics/private_evaluation.json: behaviour: the ledger has no charge"),
        (replace(home, verdict="perfect"), "the ledger has no charge"),
        (replace(home, horizon=7), "metrics/private_evaluation.json: horizon: found 7, allowed is 200"),
        (replace(home, policy_sha256="0" * 64), "the answers are not about models/policy/policy.saf"),
        (replace(home, model_sha256="0" * 64), "the answers are not about models/dynamics/model.saf"),
    ):
        rewrite(changed)
        refused_at_home(says)
    rewrite(home)
    summary = Path("metrics/summary.json")
    for key, value in (("spent_on_dataset", None), ("private_evaluation", None), ("model_verdict", "perfect")):
        before = read_json(summary)
        edit(summary, **{key: value})
        refused_at_home(f"summary.json: {key}: not what metrics/private_evaluation.json says")
        edit(summary, **before)
    made()


def forget_ledger() -> None:
    for file in Path(".primorl").glob("ledger*"):
        file.unlink()


@pytest.mark.usefixtures("home")
def test_a_lost_charge_of_an_answer_is_noticed_and_recorded_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where DVC's cache alone has the answers. The new record does not know its answer, which does not leave."""
    chosen = params.load(Path("params.yaml"))
    project_ledger(chosen).close()  # the twin: the ledger has them
    forget_ledger()
    with pytest.raises(PipelineError, match=r"private_evaluation\.json \(behaviour\): charge \w+ is not in the ledger"):
        project_ledger(chosen)
    outs = [{"path": str(PRIVATE_EVALUATION), "hash": "md5", "md5": "ab" + "0" * 30}]
    Path("dvc.lock").write_text(yaml.safe_dump({"stages": {"evaluate_private": {"cmd": "x", "outs": outs}}}))
    cached = Path(".dvc/cache/files/md5/ab") / ("0" * 30)
    cached.parent.mkdir(parents=True)
    PRIVATE_EVALUATION.rename(cached)
    with pytest.raises(PipelineError, match=r"dvc\.lock \(metrics/private_evaluation\.json\) \(model_check\): charge"):
        project_ledger(chosen)
    cached.rename(PRIVATE_EVALUATION)
    Path("dvc.lock").unlink()
    capsys.readouterr()
    assert cli.main(["ledger", "repair"]) == 0
    assert capsys.readouterr().out.count("recorded again: charge") == 3
    with closing(project_ledger(chosen)) as ledger:
        assert len(ledger.charges()) == 3
    refused_at_home("a repair of the ledger recorded it again")


def advised(said: str | None, policy: str | None) -> Any:
    if said is None:
        return SimpleNamespace(recommendation=None, env_id="Pendulum-v1")
    advice = Recommendation(
        answer=cast(Any, said), policy=cast(Any, policy), reason="So.", gain=1.0, margin=2.0, misfit=3.0
    )
    return SimpleNamespace(recommendation=advice, env_id=None)


def test_the_recommended_policy_leaves_or_the_one_that_is_named() -> None:
    """Twin: a clone whose worth nobody knows does not leave."""
    for advice, named, leaves in (
        (advised(None, None), None, POLICY),
        (advised("trial", "models/policy"), None, POLICY),
        (advised("keep", "models/behaviour"), None, BEHAVIOUR),
        (advised("more_data", None), "models/policy", POLICY),
        (advised("more_data", None), "models/behaviour", BEHAVIOUR),
    ):
        assert chosen_policy(advice, RECOMMENDED, cast(Any, named)) == leaves
    with pytest.raises(PipelineError, match=r"more data needed: So; .*--policy models/policy"):
        chosen_policy(advised("more_data", None), RECOMMENDED, None)
    unknown = replace(RECOMMENDED, estimates=(answer("behaviour", MEAN_RETURN, -80.0),))
    for found, answers in ((advised("trial", "models/policy"), unknown), (advised(None, None), RECOMMENDED)):
        with pytest.raises(PipelineError, match=r"--policy: found models/behaviour"):
            chosen_policy(found, answers, "models/behaviour")


def test_the_guarantee_covers_the_clone_and_the_statement_says_that_answers_chose() -> None:
    """The twins: the model's own ε is less than that of both; without answers or advice nothing is said of a choice."""
    assert whole(PRIVATE, None, None, 1e-5) == PRIVATE
    both = whole(PRIVATE, PRIVATE, None, 1e-5)
    alone = Training(0.1, 4.083, 150).spent(1e-5).epsilon_pld
    assert alone < both["epsilon"] < 2 * alone
    keep, measured = advised("keep", "models/behaviour"), advised(None, None)
    told = as_released(OF_TRAINING, keep, RECOMMENDED)
    assert told.public_assumptions == (*OF_TRAINING.public_assumptions, CHOSEN)
    assert as_released(OF_TRAINING, keep, None) == as_released(OF_TRAINING, measured, RECOMMENDED) == OF_TRAINING


def test_a_recommendation_that_its_answers_do_not_allow_is_refused() -> None:
    """Twin: what the answers come to passes."""
    found = of_answers(RECOMMENDED, None)
    assert found is not None

    def checked(advice: Recommendation) -> None:
        evaluation = SimpleNamespace(recommendation=advice)
        received = SimpleNamespace(folder=Path(), evaluation=evaluation, answers=RECOMMENDED)
        bundle._check_recommendation(cast(Any, received))

    checked(found)
    other: Any = "models/behaviour" if found.policy == "models/policy" else "models/policy"
    for wrong, says in (
        (replace(found, policy=other), "policy: not the one that"),
        (replace(found, gain=(found.gain or 0.0) + 1), "gain: not what the answers"),
    ):
        with pytest.raises(PipelineError, match=says):
            checked(wrong)
