"""The report says what its facts say, brings nothing along, and fetches and runs nothing; its
stage reads released and public files alone.
"""

import html
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline import report
from primorl.base import PipelineError
from primorl.base.files import read_json, write_json
from primorl.base.reporting import StageLog
from primorl.evaluate import wording
from primorl.evaluate.description import text as text_of
from primorl.evaluate.private.results import MEAN_RETURN, Conduct, Verdict, Veto
from primorl.evaluate.summary import Summary
from primorl.model.architecture import Explained
from primorl.privacy.accounting.epsilon import Training, event_to_json
from primorl.privacy.accounting.figures import right_guesses
from primorl.privacy.accounting.privacy_filter import UNBOUNDED, cost
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.composition import add_account, combine
from primorl.privacy.ledger.history import Budget
from primorl.privacy.statement import AttackPoint, ProfilePoint
from primorl.release.card import bound_success, trace_curve
from primorl.report.page import Facts, Spending, read_facts, write_page
from tests.data.builders import INFO
from tests.pipeline.test_evaluate import chosen, project, run
from tests.pipeline.training_project import write_model
from tests.statements import (
    OF_MODEL,
    OF_POLICY,
    OF_TRAINING,
    PRIVATE,
    WITHOUT_NOISE,
    record_of,
)

OF_EVENT = Training(0.1, 4.083, 150).event
PROFILE = (ProfilePoint(epsilon=0.0, delta=0.3), ProfilePoint(epsilon=1.19, delta=1e-5))
STATEMENT = replace(
    OF_TRAINING,
    profile=PROFILE,
    attacks=(AttackPoint(false_positive_rate=0.01, true_positive_rate=0.03),),
)
SPENT = {"epsilon": 2.5, "delta": 1e-5, "charges": 3}
SUMMARY: dict[str, Any] = {
    **{"dataset": "visits", "variant": "private", "private": True, "epsilon": 1.19, "delta": 1e-5},
    **{"unit": "trajectory", "units": 2970, "seed": 0, "void": [], "spent_on_dataset": SPENT},
    **{"return_mean": -143.96, "return_ci95": [-162.2, -125.7], "episodes": 100},
    **{"public_return_mean": -700.5, "public_return_ci95": [-800.0, -601.0]},
    **{"public_trajectories": 53, "seconds": {"train_model": 50.0}, "env_id": "Visits-v0"},
    **{"normalized_score": None, "policy_sha256": "a" * 64, "epsilon_rdp": 1.31},
}
FACTS = Facts(
    summary=record_of(Summary, SUMMARY),
    statement=STATEMENT,
    training=STATEMENT,
    released=STATEMENT,
    counted="this run's model and policy",
    policy=OF_POLICY,
    model=replace(
        OF_MODEL,
        observation_names=("pulse", "weight"),
        explained=(Explained(share=0.12, error=0.01), None, Explained(share=0.9, error=0.02)),
    ),
    spending=Spending(
        (("train_model", "2026-01-02", 1.2), ("train_model", "2026-01-03", 2.5)),
        Budget(4.0, 1e-5),
        ["raised from ε 3 to ε 4 on 2026-01-03"],
        1e-5,
        {},
    ),
)


def test_tables_and_the_figure_have_the_numbers_of_their_facts() -> None:
    """A charge without a guarantee has no number."""
    page = write_page(FACTS)
    for row in (
        ("reward", "90% ± 2%"),
        ("pulse", "12% ± 1%"),
        ("weight", "not known: it hardly varies, or the noise of this question is too large"),
        ("train_model", "2026-01-02", "1.2"),
        ("train_model", "2026-01-03", "2.5"),
    ):
        first, *others = row
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        assert f'<th scope="row">{first}</th>{cells}' in page
    charges = (("train_model", "2026-01-02", math.inf),)
    broken = replace(FACTS, spending=Spending(charges, Budget(4.0, 1e-5), [], 1e-5, {}))
    assert "<td>2026-01-02</td><td>no bound</td>" in write_page(broken)
    left = "The budget is ε 4; 1.5 is left; it was raised from ε 3 to ε 4 on 2026-01-03."
    assert left in page
    (drawn,) = re.findall('class="attack" points="([^"]+)', page)
    points = [tuple(map(float, point.split(","))) for point in drawn.split()]
    for (x, y), (rate, power) in zip(points, trace_curve(STATEMENT), strict=True):
        assert (x / 300, 1 - y / 200) == pytest.approx((rate, power), abs=1e-3)


def test_what_is_not_known_is_left_out() -> None:
    """Without a public split, a ledger and a guarantee there are no figures of them."""
    unknown = dict.fromkeys(("epsilon", "delta"))
    spent = unknown | {"charges": 1, "delta": 1e-5}
    own = SUMMARY | unknown | {"private": False, "spent_on_dataset": spent}
    summary, nothing = record_of(Summary, own), WITHOUT_NOISE
    counted = FACTS.counted, OF_POLICY, OF_MODEL
    page = write_page(Facts(summary, nothing, nothing, nothing, *counted))
    assert "<svg" not in page
    assert "the last charges" not in page
    assert "No bound holds" in page


def log_of(**advice: Any) -> Summary:
    """A summary without a simulator, whose values in the model are 5.625 and 5.719."""
    asked: dict[str, Any] = dict.fromkeys(("ci95", "epsilon", "delta")) | {"what": MEAN_RETURN}
    asked |= {"covers": "nothing", "bias": "all"}
    asked |= {"of": "clone", "estimator": "model", "value": 5.625, "members": [5.5, 5.75]}
    today = dict.fromkeys(("of", "estimator"), "behaviour") | {"ci95": [3.0, 3.75], "epsilon": 0.5}
    today |= {"covers": "chance", "bias": "Some lie beyond."}
    log = SUMMARY | dict.fromkeys(("return_mean", "return_ci95", "normalized_score", "env_id"))
    advised = {"policy": None} | advice
    log |= {"model_value": 5.875, "model_value_range": [5.0, 6.0], "recommendation": advised}
    learned = asked | {"of": "policy", "value": 5.71875}
    answers = [asked | today | {"value": 3.375}, asked, learned]
    return record_of(Summary, log | {"private_evaluation": answers})


@pytest.mark.parametrize(
    ("answer", "interval", "gain"),
    [("trial", [0.5, 4.25], "+2.5 (+0.5 to +4.25)"), ("keep", None, "not known")],
)
def test_what_is_recommended_leads_then_one_gain_and_no_other_value_of_the_model(
    answer: str, interval: list[float] | None, gain: str
) -> None:
    """In page and summary alike; then today's return, in people's words."""
    reason = "So. No trial: the first; 2.5 is small."
    said = log_of(answer=answer, reason=reason, gain=2.5, interval=interval)
    words = {"reward_meaning": "10 points are a death avoided"}
    facts = replace(FACTS, summary=said, declared=words)
    page, text = html.unescape(plain(write_page(facts))), text_of(said)
    places = [
        page.index(f"<b>{wording.ADVICE[answer]}.</b> So.<br> No trial: the first;<br> 2.5 is"),
        page.index(f"today's practice</h3><b>{gain}</b>"),
        page.index("today</h3><b>3.375 (3 to 3.75)</b>"),
        page.index("10 points are a death avoided"),
        page.index("<h2>What could be wrong"),
        page.index('<header class="sound">'),
    ]
    assert places == sorted(places)
    assert f"{gain} over today" in text
    lines = (f"advice   {wording.ADVICE[answer]}.", "So.", "No trial: the first;", "2.5 is small.")
    assert f"\n{' ' * 9}".join(lines) in text
    stop = "below 3, the lower end of the interval of today's mean return"
    assert (stop in page) == (answer == "trial")
    # 2 (2.8016 σ / gain)², where σ / √K is 0.375 / 1.96
    deviation = 0.375 / 1.96 * SUMMARY["units"] ** 0.5
    sizes = [2 * (2.8016 * deviation / each) ** 2 for each in (2.5, 0.5)]
    needed = " and ".join(f"{float(f'{max(30, n):.2g}'):,.0f} for a gain of" for n in sizes)
    assert (needed.partition(" and ")[0] in page) == (answer == "trial")
    assert (needed.rpartition(" and ")[2] in page) == (answer == "trial")
    for number in ("5.71875", "5.719", "5.625", "5.875"):
        assert number not in page
        assert number not in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("meal=snack, a, b", "last meal=snack, a, b"),
        ("meal=dinner, dose=low, dose, new=0 to 4", "last meal=dinner, insulin=low, bolus=0 to 4"),
        ("ratio=a=b", "a to b=b"),
        ("action 3", "units of insulin"),
        ("pulse", "pulse"),
    ],
)
def test_columns_and_actions_are_called_as_declared(name: str, said: str) -> None:
    labels = {"meal": "last meal", "3": "units of insulin", "a, b": "both", "b": "another"}
    labels |= {"dose": "insulin", "dose, new": "bolus", "ratio=a": "a to b"}
    assert wording.label(name, labels) == said


@pytest.mark.parametrize(
    ("unit", "one", "several"),
    [
        ("patient_id", "patient", "patients"),
        ("PatientID", "patient", "patients"),
        ("hospitalStay.no", "hospital stay", "hospital stays"),
        ("pid", "person", "people"),
        ("study_nr", "child", "children"),
        ("trajectory", "trajectory", "trajectories"),
    ],
)
def test_people_are_named_in_plain_words_and_as_declared(unit: str, one: str, several: str) -> None:
    labels = {"study_nr": "child", "trajectory": "a column of this name"}
    assert wording.singular(unit, labels) == one
    assert wording.plural(one) == several


def test_what_the_policy_does_is_told_where_it_differs_most() -> None:
    """Twin: of a model that is not believed no outcome is shown."""
    use = {"name": "dose 3", "today": 0.05, "clone": 0.04, "policy": 0.31}
    where = {"action": "dose 3", "column": "pressure", "above": False, "threshold": 60.0}
    conduct = {"discrete": True, "actions": [use], "today_error": 0.01}
    conduct |= {"contrast": where | {"clone": 0.03, "policy": 0.49}}
    conduct |= {"clone_ended": 0.65, "policy_ended": 0.96}
    words = {"labels": {"pressure": "arterial pressure, mmHg"}}
    said = log_of(answer="keep", reason="So.", interval=None)
    unsure = log_of(answer="more_data", reason="So.", interval=None)
    impossible = Veto(kind="beyond_bounds", reason="a mean return above 5")
    against = Verdict(vetoes=(impossible,))
    doubted = replace(said, model_verdict=against)
    for own, shown in ((said, True), (doubted, False), (unsure, False)):
        shows: Any = {"conduct": record_of(Conduct, conduct), "declared": words}
        page = plain(write_page(replace(FACTS, summary=own, **shows)))
        change = "more of “dose 3” where arterial pressure, mmHg is at most 60: 49% of the steps"
        assert (change in page) == shown
        assert "<td>5%</td>" in page
        assert ("<td>4%</td><td>31%</td>" in page) == shown
        assert ("96% under the policy" in page) == shown
        assert "The clone misses practice" not in page
    named = {"clone": 0.3, "policy": 0.2}
    ends = [{"name": "died", "reward": 0.0} | named, {"name": "went home", "reward": 5.0} | named]
    far: dict[str, Any] = {"actions": [use | {"name": "dose 4", "today": 0.2, "clone": 0.4}]}
    far |= {"contrast": where | {"column": "ward=icu", "clone": 0.3, "policy": 0.1}}
    other = record_of(Conduct, conduct | far | {"outcomes": ends, "always_ends": False})
    page = plain(write_page(replace(FACTS, summary=said, conduct=other)))
    assert "died: 20 under the policy and 30 if all goes on as today" in page
    assert "went home: 60 to 75 today" in page, "3 to 3.75 of 5 points"
    assert "no such end by the last step: 60 under the policy and 40 if" in page
    assert page.count("The model has not learned how often that is today.</li>") == 1
    assert "less of “dose 3” where not ward=icu: 10% of" in page
    assert "The clone misses practice in its share of dose 4" in page


def test_what_is_void_or_unbounded_in_any_part_is_not_hidden() -> None:
    """The policy, its clone, or an answer. Twin: with sound parts the page is sound."""
    void = replace(STATEMENT, void=("noise is seeded",))
    changed = replace(FACTS, statement=void, training=void, released=void)
    hidden = replace(FACTS, released=replace(STATEMENT, void=("the clone has no secret",)))
    for facts, said in ((changed, "noise is seeded"), (hidden, "the clone has no secret")):
        text = write_page(facts)
        assert f"VOID: {said}" in text
        assert 'class="void"' in text
    unbounded = add_account(STATEMENT, [STATEMENT], {"0ther": UNBOUNDED}, 1e-5)
    for released, bounded in ((unbounded, False), (STATEMENT, True)):
        text = plain(write_page(replace(FACTS, released=released)))
        assert ('class="sound"' in text) == ("<svg" in text) == bounded
        assert ("No bound holds for" in text) != bounded


def test_it_leads_with_the_epsilon_of_all_that_it_rests_on() -> None:
    """Not with the policy's, which is less; nor with what holds only for settings that were fixed
    beforehand.
    """
    alone = bound_success(STATEMENT)
    event = event_to_json(Training(0.5, 2.0, 150).event)
    together = combine([STATEMENT, replace(OF_TRAINING, event=event)], 1e-5)
    assert (together.epsilon or 0.0) > SUMMARY["epsilon"]
    text = write_page(replace(FACTS, released=together))
    header = text.partition("<header")[2]
    assert f"<p>ε = {at_most(together.epsilon)}, δ = 1e-05 per trajectory" in header
    assert "<td>1.19</td>" not in text
    assert "fixed beforehand" not in text
    guess = bound_success(together)
    assert alone is not None
    assert guess is not None
    assert guess > alone
    assert f"{guess:.4g}%" in text
    assert f"{alone:.4g}%" not in text


def test_an_attack_on_a_page_with_an_account_has_all_charges_of_the_ledger() -> None:
    """Twin: where the ledger has the run's own charge alone, the run's own bound stays."""
    own, alone = OF_TRAINING, bound_success(OF_TRAINING)
    assert alone is not None
    mine, other = {"5f0c1d2e": cost(OF_EVENT)}, {"0ther": cost(Training(0.5, 2.0, 150).event)}
    assert add_account(own, [own], mine, 1e-5) == own
    account = add_account(own, [own], mine | other, 1e-5)
    assert account.epsilon == pytest.approx((mine["5f0c1d2e"] + other["0ther"]).epsilon(1e-5))
    assert (bound_success(account) or 0.0) > alone
    both = right_guesses([OF_EVENT, Training(0.5, 2.0, 150).event])
    assert bound_success(account) == float(at_most(both)), "as `plan` says"
    assert add_account(own, [own], other, 1e-5) == account  # the run's charge is in another ledger


def test_a_name_brings_no_markup_along() -> None:
    """Twin: the same name without markup is shown."""
    name = '</script><img src=x onerror="alert(1)">'
    hostile = replace(FACTS, summary=replace(FACTS.summary, dataset=name), declared={"owner": name})
    own = write_page(hostile)
    assert "<img" not in own
    assert "<script" not in own
    seeds = replace(FACTS.summary, seeds=(3, 4))
    text = write_page(replace(FACTS, summary=seeds, day=date(2026, 2, 1)))
    assert "<title>A learned policy for visits, 1 February 2026</title>" in text
    assert "default-src 'none'" in text.partition("<title>")[0]
    assert not re.findall(r"(?:src|href)=|https?://|@import|url\(", text)


def plain(page: str) -> str:
    return " ".join(page.split())


__all__ = ["project"]

HERE = PRIVATE | {"dataset_fingerprint": INFO.dataset_fingerprint, "units": 9}
MANIFEST, CURVES = Path("data/partitions/manifest.json"), Path("plots/curves.csv")


def evaluated() -> None:
    """A run of the data that are here, as far as `evaluate`."""
    write_model(HERE)
    write_json(Path("models/policy/privacy.json"), HERE)
    run(chosen())


def facts_here() -> Facts:
    return read_facts(chosen())


@pytest.mark.usefixtures("project")
def test_the_page_says_what_the_summary_says_and_reads_nothing_private() -> None:
    """Twin: without the private partition all is read the same."""
    evaluated()
    report.body(chosen(), StageLog())
    text = Path("reports/report.html").read_text(encoding="utf-8")
    summary = read_json(Path("metrics/summary.json"))
    for number in ("return_mean", "public_return_mean"):
        assert f"{summary[number]:.4g}" in text
    facts = facts_here()
    for private in ("private", "units.bin"):
        for file in Path("data/partitions").glob(f"{private}*"):
            file.rename(f"gone-{private}")
    assert facts_here() == facts


def keys(file: str | Path, **changes: Any) -> Callable[[], None]:
    return lambda: write_json(Path(file), read_json(Path(file)) | changes)


def another_split() -> None:
    for name in ("dynamics", "policy"):
        keys(f"models/{name}/privacy.json", public_units=2)()


REFUSED: list[tuple[Callable[[], object], str]] = [
    (keys(MANIFEST, public_units=4), r"public_units\.bin: missing, or not of 4 units"),
    (another_split, r"privacy\.json: public_units: found 2, allowed is 3"),
    (lambda: CURVES.write_text("epoch\n1\n", encoding="utf-8"), r"curves\.csv: not that of"),
]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("change", "says"), REFUSED)
def test_files_of_another_run_are_refused(change: Callable[[], object], says: str) -> None:
    """What is laid side by side on a page must be about the same data and policy.

    Twin: as written it is read.
    """
    evaluated()
    for name in ("dynamics", "policy"):
        keys(f"models/{name}/privacy.json", public_units=3)()
    facts_here()
    change()
    with pytest.raises(PipelineError, match=says):
        facts_here()


@pytest.mark.usefixtures("project")
def test_a_report_of_an_earlier_run_says_that_people_came_or_left() -> None:
    """With a full budget there is no other run. Twin: two runs' files are refused all the same."""
    evaluated()
    before = facts_here()
    Path("data/partitions/units.bin").unlink()
    keys(MANIFEST, dataset_fingerprint="f" * 64, private_units=8)()
    with pytest.raises(PipelineError, match="joined, left or withdrew"):
        facts_here()
    facts = read_facts(chosen(), allow_newer_data=True)
    assert facts == before
    for found in (before, replace(facts, newer_data=True)):
        assert ("who withdrew" in write_page(found)) == found.newer_data
    keys("models/policy/privacy.json", dataset_fingerprint="1" * 64)()
    with pytest.raises(PipelineError, match="fingerprint"):
        read_facts(chosen(), allow_newer_data=True)
