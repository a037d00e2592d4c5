"""A bundle with the private units' answers: accounted again, bound to its charges, composed on the card."""

import re
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from primorl.commands import main as cli
from primorl.config import params
from primorl.evaluation.private.results import PrivateEvaluation
from primorl.privacy.accounting.epsilon import compose
from primorl.privacy.accounting.events import event_from_json
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.project.paths import PRIVATE_EVALUATION
from primorl.release import bundle, contents
from primorl.release.card import render
from primorl.release.contents import ANSWERS, FILES, LEDGER, MANIFEST, POLICY
from primorl.setup.accounts import project_ledger
from tests.release.bundles import made, relist
from tests.release.edits import accepted, another, leaves, refusal, renew_everything, setting
from tests.release.evaluated_project import evaluate_privately, rewrite
from tests.release.released_project import inside
from tests.trajectories.builders import snapshot

pytestmark = pytest.mark.usefixtures("accounted_once")
Content = dict[str, Any]


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


@pytest.fixture
def received(asked: Path, tmp_path: Path) -> Path:
    shutil.copytree(asked / "out", tmp_path / "received")
    return tmp_path / "received"


def test_it_holds_the_answers_and_states_what_all_of_it_costs(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The headline is that of model and answers together: who has the bundle has both."""
    out = asked / "out"
    assert set(snapshot(out)) == FILES | {MANIFEST, ANSWERS}
    assert contents.is_bundle(out)
    answers, statement = read_json(out / ANSWERS), read_json(out / POLICY[2])
    events = [event_from_json(each["event"]) for each in (statement, *answers["statements"].values())]
    together = compose(events, 1e-3).epsilon_pld
    assert statement["epsilon"] < together <= answers["total"]["epsilon"]
    card = (out / "card.md").read_text(encoding="utf-8")
    (headline,) = re.findall(r"\*\*ε = ([\d.]+), δ = 0.001 per trajectory, private evaluation included\*\*", card)
    assert together <= float(headline)
    assert f"it included: ε = {headline} at δ = 0.001 in 3 runs" in card
    assert (
        "| today's practice, by behaviour (ε 0.159) | \\-12.25; 95% interval -13.75 to -10.75, which covers sampling"
        in card
    )
    assert "| the policy, by model (free) | \\-9.5; no interval" in card
    assert "Check of the model: the model can be believed up to 5 steps ahead" in card
    capsys.readouterr()
    assert cli.main(["release", "--check", str(out)]) == 0
    assert f"sound; ε = {headline}, δ = 0.001 per trajectory, private evaluation included" in capsys.readouterr().out


@pytest.fixture
def same_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits that leave the tensors alone: they are not written again and compared for each."""
    monkeypatch.setattr(bundle, "_check_tensors", lambda *arguments: None)


@pytest.mark.usefixtures("same_tensors")
def test_every_edit_of_the_answers_is_refused(asked: Path, tmp_path: Path) -> None:
    """Any key changed, and the hashes listed anew; of the curves every tenth."""
    content = read_json(asked / "out" / ANSWERS)
    edits = [
        (str(path), setting(ANSWERS, path, another(value)))
        for path, value in leaves(content)
        if path[:2] != ("statements", "model_check")
        and (path[2:3] not in (("profile",), ("groups",), ("attacks",)) or path[3] % 10 == 0)
    ]
    assert len(edits) > 60
    assert accepted(asked / "out", tmp_path, edits, relist) == []


def in_all(**changes: Any) -> Callable[[Content], None]:
    """The same change of every statement."""

    def change(content: Content) -> None:
        for statement in content["statements"].values():
            statement.update(changes)

    return change


def cheap(content: Content) -> None:
    content["statements"]["behaviour"]["epsilon"] *= 0.9
    content["estimates"][0]["epsilon"] *= 0.9


def cheap_total(content: Content) -> None:
    content["total"]["epsilon"] *= 0.999
    in_all(spent_on_dataset=content["total"])(content)


def fewer_charges(content: Content) -> None:
    content["total"]["charges"] -= 1
    in_all(spent_on_dataset=content["total"])(content)


def one_total(content: Content) -> None:
    content["statements"]["behaviour"]["spent_on_dataset"]["epsilon"] *= 2


def one_charge_for_two(content: Content) -> None:
    content["statements"]["model_check"]["charge"] = content["statements"]["behaviour"]["charge"]


def unknown_charge(content: Content) -> None:
    content["statements"]["behaviour"]["charge"] = "feed"


def another_event(content: Content) -> None:
    content["statements"]["behaviour"]["event"] = {"type": "GaussianDpEvent", "noise_multiplier": 30.0}


def unasked(content: Content) -> None:
    content.update(statements={})


def no_answer(content: Content) -> None:
    content["estimates"] = [each for each in content["estimates"] if each["estimator"] != "model_check"]
    content["verdict"] = None


def in_answer(number: int, **changes: Any) -> Callable[[Content], None]:
    return lambda content: content["estimates"][number].update(changes)


def in_shares(**changes: Any) -> Callable[[Content], None]:
    return lambda content: content["histograms"][0].update(changes)


def question_of_wages(content: Content) -> None:
    query = {"what": "wages", "noise_multiplier": 9.0, "sensitivity": 1.0, "epsilon": 0.5}
    content["statements"]["behaviour"]["queries"] = [query]


def unpaid(content: Content) -> None:
    content["estimates"][0].update(estimator="model", epsilon=None, delta=None)


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (cheap, "statements.behaviour: epsilon: less than the accountant makes of the event"),
        (in_answer(0, epsilon=0.01), "estimates.0: epsilon, delta: not those of the statement"),
        (in_answer(2, epsilon=0.01, delta=1e-3), "estimates.2: epsilon, delta: not those"),
        (unpaid, "estimates.0: behaviour: found an answer of the private units without a statement"),
        (in_answer(0, ci95=[-10.0, -13.0]), "estimates.0: ci95: the value is not in its interval"),
        (in_answer(0, value=-20.0), "estimates.0: ci95: the value is not in its interval"),
        (in_answer(2, estimator="Model!"), "estimator: found another name"),
        (in_shares(shares=[0.75, 0.5]), "histograms.0: shares"),
        (in_shares(edges=[0.0, -10.0, -20.0]), "histograms.0: edges"),
        (in_shares(estimator="model"), "histograms.0: found shares of the private units without a statement"),
        (cheap_total, "spent_on_dataset: epsilon: less than the accountant makes"),
        (fewer_charges, "spent_on_dataset: charges: not a number of charges"),
        (one_total, "statements.behaviour: spent_on_dataset: differs from total"),
        (one_charge_for_two, "charge: found a charge that paid for something else"),
        (another_event, "statements.behaviour: event: not that of the mechanism"),
        (unasked, "statements: found none"),
        (no_answer, "statements.model_check: found a charge without an answer"),
        (question_of_wages, "statements.behaviour: not as declared: queries.0.what"),
        (in_all(private=False), "private-evaluation.json: void: nothing is guaranteed; do not rely on it"),
        (in_all(void=["noise is seeded"]), "void: noise is seeded; do not rely on it"),
        (in_all(units=13), "statements.behaviour: units: differs from dynamics/privacy.json"),
        (in_all(public_assumptions=["none"]), "public_assumptions: differs"),
        (unknown_charge, "found no committed charge with the id and event"),
        (lambda content: content.update(units=13), "units: differs from the other files"),
        (lambda content: content.update(dataset="another"), "dataset: differs from the other files"),
        (in_answer(0, bias="see data/partitions/private"), "holds a path"),
        (in_answer(0, bias="see https://example.org"), "holds markup that is not ours"),
    ],
)
@pytest.mark.usefixtures("same_tensors")
def test_a_forged_one_is_refused_with_every_digest_renewed(
    received: Path, forge: Callable[[Content], None], says: str
) -> None:
    content = read_json(received / ANSWERS)
    forge(content)
    write_json(received / ANSWERS, content)
    reason = refusal(received, renew_everything)
    assert reason is not None
    assert says in reason
    assert "\n" not in reason


def test_untouched_or_with_words_alone_changed_it_is_sound_with_every_digest_renewed(received: Path) -> None:
    """The twin: what refuses above is the forgery. Hostile words of a stranger are text on the card."""
    assert refusal(received, renew_everything) is None
    content = read_json(received / ANSWERS)
    in_answer(0, bias="<script>alert(1)</script> | `x` [a](b)")(content)
    write_json(received / ANSWERS, content)
    assert refusal(received, renew_everything) is None
    assert "<script>" not in "".join(render(received).values())


def test_answers_are_bound_to_their_charges(received: Path) -> None:
    """A stranger who makes the cards again, and leaves the ledger's digests as they are."""
    content = read_json(received / ANSWERS)
    in_answer(0, value=-12.0)(content)
    write_json(received / ANSWERS, content)
    assert "behaviour: not the answers that charge" in str(refusal(received, renew_nothing_but_cards))
    (received / ANSWERS).unlink()
    assert "records: made: needed with charge" in str(refusal(received, renew_nothing_but_cards))


def test_other_charges_have_no_digest_beside_answers(received: Path) -> None:
    ledger = read_json(received / LEDGER)
    assert [set(record["made"]) for record in ledger["records"]][1:] == [
        {"private_evaluation: behaviour"},
        {"private_evaluation: model_check"},
    ]
    del ledger["records"][1]["made"]
    write_json(received / LEDGER, ledger)
    assert "behaviour: not the answers that charge" in str(refusal(received, renew_nothing_but_cards))


def renew_nothing_but_cards(folder: Path) -> None:
    for name, text in render(folder).items():
        (folder / name).write_text(text, encoding="utf-8")
    relist(folder)


def edited(record: PrivateEvaluation) -> PrivateEvaluation:
    return replace(record, estimates=(replace(record.estimates[0], value=-12.0), *record.estimates[1:]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (edited, "metrics/private_evaluation.json: behaviour: the ledger has no charge"),
        (lambda record: replace(record, verdict="perfect"), "the ledger has no charge"),
        (lambda record: replace(record, horizon=7), "horizon: not that of data/partitions/manifest.json"),
        (lambda record: replace(record, policy_sha256="0" * 64), "the answers are not about models/policy/policy.saf"),
        (lambda record: replace(record, model_sha256="0" * 64), "the answers are not about models/dynamics/model.saf"),
    ],
)
def test_at_home_answers_that_no_charge_made_or_about_others_do_not_leave(
    home: PrivateEvaluation, change: Callable[[PrivateEvaluation], PrivateEvaluation], says: str
) -> None:
    rewrite(change(home))
    with pytest.raises(PipelineError, match=re.escape(says)) as refused:
        made()
    assert "\n" not in str(refused.value)
    assert not Path("out").exists()


def test_a_summary_without_the_evaluation_s_part_is_refused(home: PrivateEvaluation) -> None:
    """Neither answers that the summary does not repeat, nor a total without them."""
    home.write(PRIVATE_EVALUATION)
    for key, value in (("spent_on_dataset", None), ("private_evaluation", None), ("model_verdict", "perfect")):
        summary = read_json(Path("metrics/summary.json"))
        write_json(Path("metrics/summary.json"), summary | {key: value})
        with pytest.raises(PipelineError, match=rf"summary.json: {key}: not what metrics/private_evaluation.json says"):
            made()
        write_json(Path("metrics/summary.json"), summary)
    made()


def forget_ledger() -> None:
    for file in Path(".primorl").glob("ledger*"):
        file.unlink()


@pytest.mark.usefixtures("home")
def test_answers_that_dvc_has_deleted_name_their_charges_too() -> None:
    """To run the stage again: DVC's cache has them."""
    outs = [{"path": str(PRIVATE_EVALUATION), "hash": "md5", "md5": "ab" + "0" * 30}]
    Path("dvc.lock").write_text(yaml.safe_dump({"stages": {"evaluate_private": {"cmd": "x", "outs": outs}}}))
    cached = Path(".dvc/cache/files/md5/ab") / ("0" * 30)
    cached.parent.mkdir(parents=True)
    PRIVATE_EVALUATION.rename(cached)
    chosen = params.load(Path("params.yaml"))
    project_ledger(chosen).close()  # the twin: the ledger has them
    forget_ledger()
    with pytest.raises(PipelineError, match=r"dvc\.lock \(metrics/private_evaluation\.json\) \(model_check\): charge"):
        project_ledger(chosen)


@pytest.mark.usefixtures("home")
def test_a_lost_charge_of_an_answer_is_noticed_and_recorded_again(capsys: pytest.CaptureFixture[str]) -> None:
    """What it answered is not known to the new record, so it does not leave."""
    chosen = params.load(Path("params.yaml"))
    forget_ledger()
    with pytest.raises(PipelineError, match=r"private_evaluation\.json \(behaviour\): charge \w+ is not in the ledger"):
        project_ledger(chosen)
    capsys.readouterr()
    assert cli.main(["ledger", "repair"]) == 0
    assert capsys.readouterr().out.count("recorded again: charge") == 3
    with closing(project_ledger(chosen)) as ledger:
        assert len(ledger.charges()) == 3
    with pytest.raises(PipelineError, match="a repair of the ledger recorded it again"):
        made()
