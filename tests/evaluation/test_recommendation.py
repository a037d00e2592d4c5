"""The recommendation: a gain that the model's known error explains is none, and what is unknown is said."""

from dataclasses import replace
from typing import Any

import pytest

from primorl.dynamics.config import PublicLosses
from primorl.evaluation import recommendation
from primorl.evaluation.private.results import AS_DRAWN, BELIEVE, DOUBT, GAIN, MEAN_RETURN, Answer, PrivateEvaluation
from primorl.evaluation.recommendation import Behaviour, Clone, of_answers, recommend

TODAY = Behaviour(value=-80.0, low=-84.0, high=-76.0, scale=80.0)
CLONE = Clone(
    as_drawn=(-81.0, -79.0, -82.0),
    released=(-76.0, -78.0, -77.0),
    policy=(-70.0, -69.0, -70.0),
    gains=(6.0, 9.0, 7.0),
    doubt=0.0,
    error=0.5,
    learned=True,
)


def answer(of: str, what: str, value: float, **more: Any) -> Answer:
    plain = {"estimator": "x", "ci95": None, "covers": "x", "bias": "x", "epsilon": None, "delta": None}
    return Answer(of=of, what=what, value=value, **plain | more)  # type: ignore[arg-type]


ANSWERS = PrivateEvaluation(
    dataset="log",
    unit="person",
    units=1000,
    discount=1.0,
    horizon=60,
    estimates=(
        answer("behaviour", MEAN_RETURN, -80.0, ci95=(-84.0, -76.0)),
        answer("clone", MEAN_RETURN, -75.0, members=(-75.0, -75.0)),
        answer("clone", AS_DRAWN, -80.5, members=(-81.0, -80.0)),
        answer("policy", MEAN_RETURN, -75.0),
        answer("policy", MEAN_RETURN, -70.0, members=(-70.0, -70.0), estimator="model"),
        answer("policy", DOUBT, -1.0),
        answer("policy", GAIN, 5.0, ci95=(4.0, 6.0), members=(6.0, 5.0)),
    ),
    histograms=(),
    verdict=None,
    statements={},
    total=None,
    model_sha256=None,
    policy_sha256=None,
    clone_sha256=None,
)


def test_a_gain_beyond_the_error_is_worth_a_trial() -> None:
    """The least that a member says, not the mean of what they say."""
    found = recommend(TODAY, CLONE, believed=True)
    assert (found.answer, found.policy, found.gain, found.misfit) == ("trial", "models/policy", 6.0, 0.0)
    assert "-80 [-84, -76]" in found.reason
    assert recommend(TODAY, replace(CLONE, gains=(0.9, 40.0)), believed=True).answer == "keep", "two errors are 1"
    loses = recommend(TODAY, replace(CLONE, gains=(-2.0, 40.0)), believed=True)
    assert "the policy loses 2 against a clone of today's practice" in loses.reason


def test_a_gain_must_beat_the_people_s_own_return_too() -> None:
    """A clone worse than the people would make any policy look good."""
    found = recommend(TODAY, replace(CLONE, policy=(-75.5, -60.0)), believed=True)
    assert (found.answer, found.gain) == ("keep", 0.5)
    assert "over the upper end of what people get today" in found.reason


def test_a_gain_where_the_model_is_less_sure_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin is the rule that does not look at where the policy goes; a surer model earns nothing."""
    doubted = replace(CLONE, doubt=2.0)
    assert recommend(TODAY, doubted, believed=True).margin == pytest.approx(7.0)
    assert recommend(TODAY, doubted, believed=True).answer == "keep"
    assert recommend(TODAY, replace(CLONE, doubt=-9.0), believed=True).margin == pytest.approx(1.0)
    monkeypatch.setattr(recommendation, "DOUBT_SHARE", 0.0)
    assert recommend(TODAY, doubted, believed=True).answer == "trial"


def test_a_clone_that_loses_is_not_released() -> None:
    """As it is released it may be worth less than the actions that it draws."""
    poor = replace(CLONE, gains=(0.5, 0.5), released=(-90.0, -90.0))
    found = recommend(TODAY, poor, believed=True)
    assert found.answer == "more_data"
    assert "-90 for the clone as it would be released" in found.reason


def far(distance: float) -> Clone:
    return replace(CLONE, as_drawn=(TODAY.high + distance,))


def test_a_gain_that_the_model_s_misfit_explains_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The misfit counts against it, on either side; the twin is the rule that ignores it."""
    for clone in (far(20.0), replace(CLONE, as_drawn=(TODAY.low - 20.0,))):
        found = recommend(TODAY, clone, believed=True)
        assert (found.answer, found.policy) == ("keep", "models/behaviour")
        assert found.misfit == pytest.approx(20.0)
        assert found.margin == pytest.approx(21.0)
    assert recommend(replace(TODAY, low=-110.0, high=-50.0), far(20.0), believed=True).misfit == 0.0, "a wide interval"
    monkeypatch.setattr(recommendation, "MISFIT_SHARE", 0.0)
    assert recommend(TODAY, far(20.0), believed=True).answer == "trial"


def test_a_model_that_is_not_to_be_believed_recommends_no_policy() -> None:
    """What speaks for the clone is then the public actions alone."""
    found = recommend(TODAY, CLONE, believed=False)
    assert (found.answer, found.policy) == ("keep", "models/behaviour")
    assert "not to believe the model" in found.reason
    for learned in (False, None):
        found = recommend(TODAY, replace(CLONE, learned=learned), believed=False)
        assert (found.answer, found.policy) == ("more_data", None)


@pytest.mark.parametrize(
    ("clone", "says"),
    [(far(60.0), "too far away"), (replace(far(20.0), learned=False), "no better than a constant"), (None, "No clone")],
)
def test_what_cannot_be_believed_needs_more_data(clone: Clone | None, says: str) -> None:
    found = recommend(TODAY, clone, believed=True)
    assert (found.answer, found.policy) == ("more_data", None)
    assert says in found.reason
    assert recommend(None, CLONE, believed=True).answer == "more_data"


def test_the_answers_are_read_as_they_are() -> None:
    found = of_answers(ANSWERS, None)
    assert (found.answer, found.gain) == ("trial", 5.0)
    assert found.margin == pytest.approx(2 * 1.0 / 1.96, rel=1e-3)
    assert of_answers(replace(ANSWERS, verdict=f"{BELIEVE['no']}: x"), None).answer == "more_data"
    assert of_answers(replace(ANSWERS, verdict=f"{BELIEVE['doubtful']}: x"), None).answer == "trial"
    worse = PublicLosses(initial=2.0, constant=1.0, final=1.5)
    assert of_answers(ANSWERS, worse).answer == "trial", "the model makes of it what people get"
    assert of_answers(replace(ANSWERS, estimates=ANSWERS.estimates[1:]), None).answer == "more_data"


def test_a_trial_says_where_random_actions_are_worth_more_in_the_model() -> None:
    """Twin: where they are worth less, nothing is said of them."""

    def reason(value: float) -> str:
        random = answer("random", MEAN_RETURN, value, estimator="model")
        return of_answers(replace(ANSWERS, estimates=(*ANSWERS.estimates, random)), None).reason

    assert "random actions are worth more, -60 against -70" in reason(-60.0)
    assert "random" not in reason(-90.0)
