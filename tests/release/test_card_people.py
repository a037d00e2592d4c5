"""Who answers for a bundle, its columns, and today's practice beside the policy: said as far as it is known."""

from typing import Any

import pytest
from primorl.release.card_people import columns, practice, responsible

from primorl.release.card import Section, is_inert
from tests.release.test_card import EVIL, LEDGER, MODEL, POLICY, STATEMENT, SUMMARY, Tags, make_card

STATED = {"owner": "Ward 3", "purpose": "research", "contact": "x@hospital.example", "licence": "none"}
PUBLIC = {"public_return_mean": -700.5, "public_return_ci95": [-800.0, -601.0], "public_trajectories": 1053}
UNTRIED = {"env_id": None, "return_mean": None, "return_ci95": None, "episodes": None}
IN_MODEL = UNTRIED | {"model_value": 5.25, "model_value_range": [4.0, 6.5]}
TODAY: dict[str, Any] = {
    "estimator": "behaviour",
    "of": "behaviour",
    "what": "mean return",
    "value": -3.5,
    "ci95": [-4.0, -3.0],
    "epsilon": 0.2,
    "delta": 1e-5,
}


def text(section: Section) -> str:
    return "\n".join((*section.points, *(f"{name}: {value}" for name, value in section.rows)))


def test_what_people_declared_is_said_as_theirs() -> None:
    said = text(responsible(STATED, "visits"))
    for expected in ("owner: Ward 3", "purpose: research", "contact: x@hospital.example", "licence of the data: none"):
        assert expected in said
    assert "no program checks it" in said
    assert "not stated" not in said


@pytest.mark.parametrize("declared", [None, {}, {"owner": "Ward 3"}])
def test_what_nobody_declared_is_not_stated_and_the_card_says_how(declared: dict[str, str] | None) -> None:
    said = text(responsible(declared, "visits"))
    assert said.count(": not stated") == 4 - len(declared or {})
    assert "card.purpose, card.contact, card.licence in datasets/visits.yaml" in said
    assert ("card.owner" in said) == (not declared)


def test_columns_have_names_and_public_ranges() -> None:
    """Of actions, names alone; where the data name nothing there is no section."""
    policy = {"observation_low": [2.0, 0.0], "observation_high": [25.0, 1.0], "discrete_actions": False}
    (section,) = columns(policy | {"observation_names": ["glucose", "meal=snack"], "action_names": ["dose"]})
    assert section.rows == (
        ("glucose", "observed, 2 to 25"),
        ("meal=snack", "observed, 0 to 1"),
        ("dose", "set by the policy"),
    )
    assert columns(policy | {"observation_names": ["observation_0", "1"], "action_names": ["action_0"]}) == ()
    assert columns({"discrete_actions": True}) == ()
    (long,) = columns({"discrete_actions": True, "observation_names": [f"x{i}" for i in range(99)]})
    assert (len(long.rows), long.rows[-1][0]) == (61, "and 39 more")


@pytest.mark.parametrize(
    ("value", "interval", "verdict"),
    [
        (-143.5, [-161.6, -125.4], "The policy's interval lies above today's."),
        (-900.0, [-950.0, -850.0], "The policy's interval lies below today's."),
        (-610.0, [-650.0, -570.0], "The two intervals overlap: that one is better than the other is not shown."),
    ],
)
def test_a_measured_policy_stands_beside_the_public_log(value: float, interval: list[float], verdict: str) -> None:
    said = text(practice(SUMMARY | PUBLIC | {"return_mean": value, "return_ci95": interval}))
    assert "today's practice, in the 1,053 public trajectories: -700.5, 95% interval -800 to -601" in said
    assert f"the policy, in 100 simulated episodes: {value:.4g}, 95% interval" in said
    assert verdict in said
    assert "measured in a simulator, today's practice in records" in said
    assert "they do not show that it is better" not in said


def test_without_a_simulator_a_value_in_the_model_is_compared_with_nothing() -> None:
    """Whatever the private units say of today; the twin asked them about the policy, too."""
    said = text(practice(IN_MODEL, [TODAY]))
    assert "today's practice, by behaviour (ε 0.2): -3.5, 95% interval -4 to -3" in said
    assert (
        "the policy, in the released model (the range is that of its networks, no interval): 5.25, from 4 to 6.5"
        in said
    )
    assert "they do not show that it is better" in said
    assert "interval lies" not in said
    of_policy = TODAY | {"estimator": "lstd", "of": "policy", "value": -2.5, "ci95": [-3.0, -2.0]}
    asked = text(practice(IN_MODEL, [TODAY, of_policy], 0.95))
    assert "the policy, by lstd (ε 0.2), discounted by γ = 0.95: -2.5, 95% interval -3 to -2" in asked
    assert "discounted by γ = 0.95 a step" in asked
    assert "they do not show that it is better" not in asked


def test_a_discounted_interval_is_not_compared_with_one_that_is_not() -> None:
    """Nor is a figure left without its γ. Twins: the same answers undiscounted, and discounted ones on no side."""
    measured = SUMMARY | {"return_mean": 5.0, "return_ci95": [4.0, 6.0]}
    said = text(practice(measured, [TODAY], 0.95))
    assert "today's practice, by behaviour (ε 0.2), discounted by γ = 0.95: -3.5" in said
    assert "they do not compare" in said
    assert "interval lies" not in said
    for compared in (practice(measured, [TODAY]), practice(measured | PUBLIC, [], 0.95)):
        assert "The policy's interval lies above today's." in text(compared)
        assert "γ" not in text(compared)
        assert "do not compare" not in text(compared)


def test_of_a_clone_no_answer_about_the_other_policy_is_quoted() -> None:
    of_policy = TODAY | {"estimator": "lstd", "of": "policy", "value": -2.5}
    assert "lstd" not in text(practice(IN_MODEL, [TODAY, of_policy], cloned=True))
    assert "lstd" in text(practice(IN_MODEL, [TODAY, of_policy]))


def test_what_was_free_or_is_no_value_is_left_out() -> None:
    free = TODAY | {"estimator": "model", "of": "policy", "epsilon": None, "delta": None}
    other = TODAY | {"what": "share of units"}
    said = text(practice(IN_MODEL, [free, other]))
    assert said.startswith("Today's practice is not known")
    assert "by model" not in said


def test_an_unknown_practice_is_called_unknown() -> None:
    assert "Today's practice is not known" in text(practice(SUMMARY))
    assert "Today's practice is not known" not in text(practice(SUMMARY | PUBLIC))


def test_a_text_of_people_brings_no_markup_along() -> None:
    """The same tags as with harmless texts, in the page; in Markdown every text is a cell of its table."""
    hostile, plain = (
        make_card(STATEMENT, MODEL, POLICY, SUMMARY | PUBLIC, LEDGER, declared=dict.fromkeys(STATED, said))
        for said in (EVIL, "harmless")
    )
    found, expected = Tags(), Tags()
    found.feed(hostile.html())
    expected.feed(plain.html())
    assert found.tags == expected.tags
    assert "alert(1)" in found.text
    assert [line[:2] for line in hostile.markdown().splitlines()] == [
        line[:2] for line in plain.markdown().splitlines()
    ]
    for made in (hostile, plain):
        assert is_inert(made.html())
        assert is_inert(made.markdown())
