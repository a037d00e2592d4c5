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


def far(distance: float) -> Clone:
    """The model's value of today's practice lies so far above the people's own."""
    return replace(CLONE, as_drawn=(TODAY.high + distance,))


@pytest.mark.parametrize(
    ("clone", "answer", "says"),
    [
        (CLONE, "trial", "-80 [-84, -76]"),
        (replace(CLONE, gains=(0.9, 40.0)), "keep", "gains 0.9 over a clone of today's practice"),  # two errors are 1
        (replace(CLONE, gains=(-2.0, 40.0)), "keep", "the policy loses 2 against a clone of today's practice"),
        # A clone worse than the people would make any policy look good.
        (replace(CLONE, policy=(-75.5, -60.0)), "keep", "gains 0.5 over the upper end of what people get today"),
        (replace(CLONE, doubt=2.0), "keep", "asks for a gain above 7"),
        (far(20.0), "keep", "asks for a gain above 21"),
        (replace(CLONE, as_drawn=(TODAY.low - 20.0,)), "keep", "asks for a gain above 21"),
        # As it is released a clone may be worth less than the actions that it draws.
        (
            replace(CLONE, gains=(0.5, 0.5), released=(-90.0, -90.0)),
            "more_data",
            "-90 for the clone as it would be released",
        ),
        (far(60.0), "more_data", "too far away"),
        (replace(far(20.0), learned=False), "more_data", "no better than a constant"),
        (None, "more_data", "No clone"),
    ],
)
def test_a_gain_must_be_larger_than_what_is_known_to_be_wrong(clone: Clone | None, answer: str, says: str) -> None:
    found = recommend(TODAY, clone, believed=True)
    folder = {"trial": "models/policy", "keep": "models/behaviour", "more_data": None}
    assert (found.answer, found.policy) == (answer, folder[answer])
    assert says in found.reason
    assert recommend(None, clone, believed=True).answer == "more_data"


def test_the_rule_is_what_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twins do not look at where the policy goes, or at the misfit. A surer model earns nothing."""
    assert recommend(TODAY, CLONE, believed=True).gain == 6.0, "the least that a member says"
    assert recommend(TODAY, replace(CLONE, doubt=-9.0), believed=True).margin == pytest.approx(1.0)
    assert recommend(replace(TODAY, low=-110.0, high=-50.0), far(20.0), believed=True).misfit == 0.0
    for constant, clone in (("DOUBT_SHARE", replace(CLONE, doubt=2.0)), ("MISFIT_SHARE", far(20.0))):
        monkeypatch.setattr(recommendation, constant, 0.0)
        assert recommend(TODAY, clone, believed=True).answer == "trial"


def test_a_model_that_is_not_to_be_believed_recommends_no_policy() -> None:
    """The public actions alone speak for the clone then."""
    found = recommend(TODAY, CLONE, believed=False)
    assert (found.answer, found.policy) == ("keep", "models/behaviour")
    assert "not to believe the model" in found.reason
    for learned in (False, None):
        found = recommend(TODAY, replace(CLONE, learned=learned), believed=False)
        assert (found.answer, found.policy) == ("more_data", None)


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
