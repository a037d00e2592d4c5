"""The recommendation: a gain that known errors explain is none, and what is unknown is said."""

import math
from dataclasses import replace
from typing import Any

import pytest

from primorl.evaluate import recommendation
from primorl.evaluate.private.results import (
    AS_DRAWN,
    BEYOND,
    MEAN_RETURN,
    Answer,
    PrivateEvaluation,
    Verdict,
    Veto,
)
from primorl.evaluate.recommendation import recommend


def answer(of: Any, what: str, value: float, **more: Any) -> Answer:
    plain: dict[str, Any] = dict.fromkeys(("estimator", "covers", "bias"), "x")
    plain |= dict.fromkeys(("ci95", "epsilon", "delta"))
    return Answer(of=of, what=what, value=value, **plain | more)


NOTHING_AGAINST = Verdict()


def found(
    *,
    today: tuple[float, float] | None = (-82.0, -78.0),
    drawn: tuple[float, ...] = (-81.0, -79.0),
    policy: tuple[float, ...] = (-70.0, -66.0),
    verdict: Verdict | None = NOTHING_AGAINST,
    beyond: float = 0.0,
    spread: float | None = None,
) -> PrivateEvaluation:
    """Answers about people who get -80 today, a clone and a policy; no clone without ``drawn``."""
    people = [] if today is None else [answer("behaviour", MEAN_RETURN, -80.0, ci95=today)]
    for p, value in ((0.1, 0.0), (0.9, spread)) if spread is not None else ():
        people.append(answer("behaviour", f"quantile {p:g} of the return", value or 0.0))
    clone = [answer("clone", AS_DRAWN, drawn[0], members=drawn)] if drawn else []
    estimates = (
        *people,
        *clone,
        answer("policy", MEAN_RETURN, policy[0], members=policy, estimator="model"),
        answer("policy", BEYOND, beyond),
    )
    asked: dict[str, Any] = {"dataset": "log", "unit": "person", "units": 1000}
    return PrivateEvaluation(
        **asked, discount=1.0, horizon=60, estimates=estimates, verdict=verdict
    )


SIGNS = {
    "beyond_bounds": "of the policy the model says a mean return above 10, which nobody can have",
    "not_finite": "the model predicts something that is not a finite number",
    "random_as_good": "in the model random actions are worth as much as today's practice",
    "warned": "an outcome score in last rows may not be learned",
}


@pytest.mark.parametrize(
    ("changes", "expected", "says"),
    [
        ({}, "trial", "above 0"),
        ({"policy": (-78.5, -78.5)}, "keep", "There may be no gain"),
        ({"policy": (-90.0, -90.0)}, "keep", "gains nothing"),
        # As wide as today's return is unsure, and as the model is wrong about today's people.
        ({"today": (-90.0, -70.0)}, "keep", "There may be no gain"),
        ({"drawn": (-74.0, -74.0), "policy": (-57.0, -57.0)}, "trial", "above 0"),
        ({"drawn": (-62.0, -62.0), "policy": (-52.0, -52.0)}, "keep", "There may be no gain"),
        # Rare gains above the range that was found: the model has them, today's mean has not.
        ({"drawn": (-40.0,), "policy": (-20.0,)}, "more_data", "-40 for people"),
        # A gain of 12 beside returns that are spread over 290 and over 310.
        ({"spread": 290.0}, "trial", ""),
        (
            {"spread": 310.0},
            "keep",
            "a gain of 12 is below 4% of how far people's returns are apart (310)",
        ),
        ({"drawn": (-85.0,), "policy": (-69.0,), "spread": 290.0}, "keep", "is below 4%"),
        ({"beyond": 0.29}, "trial", ""),
        ({"beyond": 0.35}, "keep", "35% more of its steps"),
        ({"today": (-130.0, -30.0)}, "more_data", "(-130 to -30) today, and the"),
        ({"today": (-130.0, -30.0), "spread": 400.0}, "keep", "There may be no gain"),
        ({"drawn": ()}, "more_data", "No clone"),
        # A member of the model says that it loses.
        ({"drawn": (-81.0, -79.0), "policy": (-50.0, -79.5)}, "keep", "reaches 0 or below"),
        ({"policy": (math.nan, -66.0)}, "more_data", "not known"),
        ({"today": None}, "more_data", "return was not asked"),
    ],
)
def test_a_gain_must_be_larger_than_what_is_known_to_be_wrong(
    changes: dict[str, Any], expected: str, says: str
) -> None:
    said = recommend(found(**changes))
    assert said.answer == expected
    assert said.policy == ("models/policy" if expected == "trial" else None)
    assert says in said.reason
    unknown = expected == "more_data" or "is below 4%" in says
    assert ((said.gain is None), (said.interval is None)) == (unknown, unknown)


@pytest.mark.parametrize("kind", SIGNS)
def test_a_sign_against_the_model_bars_a_trial_and_is_said(kind: Any) -> None:
    """No figure is printed beside it. The twin: the same answers without it are a trial."""
    veto = Veto(kind=kind, reason=SIGNS[kind])
    assert recommend(found()).answer == "trial"
    barred = Verdict(vetoes=(veto,))
    said = recommend(found(verdict=barred))
    assert said.answer == ("keep" if kind == "warned" else "more_data")
    assert (said.gain, said.interval) == (None, None)
    assert SIGNS[kind][1:] in said.reason
    assert barred.believed is (kind == "warned")


def test_the_interval_is_as_wide_as_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins: without its parts, what it barred is a trial."""
    said = recommend(found())  # people are sure to 2, and the clone is where they are
    assert said.gain == pytest.approx(12.0)
    assert said.interval == pytest.approx((4.2, 25.8))
    wide = recommend(found(policy=(-80.5, -50.0)))
    assert wide.interval == pytest.approx((0.5, 31.3)), "it holds what every member says"
    ended = recommend(replace(found(), return_bounds=(-100.0, -65.0)))
    assert ended.interval == pytest.approx((4.2, 17.0)), "no return is above -65"
    unsure: dict[str, Any] = {"policy": (-78.5, -78.5), "spread": 30.0}
    small: dict[str, Any] = {"spread": 310.0}
    parts = {"OF_ERROR": unsure, "LEAST_GAIN": small}
    for name, changes in parts.items():
        assert recommend(found(**changes)).answer == "keep"
        with monkeypatch.context() as patch:
            patch.setattr(recommendation, name, 0.0)
            assert recommend(found(**changes)).answer == "trial"
    overvalued = recommend(found(drawn=(-62.0,), policy=(-52.0,)))
    assert overvalued.interval == pytest.approx((-14.8, 38.0)), "the model errs by 18"
    # Over a clone that is worse than people are, a gain of 10 is one of 2.
    assert recommend(found(drawn=(-80.0,), policy=(-70.0,))).interval == pytest.approx((3.2, 21.8))
    worse = recommend(found(drawn=(-88.0,), policy=(-78.0,)))
    assert worse.interval == pytest.approx((-4.8, 29.0))
