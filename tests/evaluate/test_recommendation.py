"""The recommendation: a gain that the model's known error explains is none, and what is unknown is
said.
"""

from dataclasses import replace
from typing import Any

import pytest

from primorl.evaluate import recommendation
from primorl.evaluate.private.results import (
    AS_DRAWN,
    AT_MOST,
    BEYOND,
    DOUBT,
    GAIN,
    MEAN_RETURN,
    Answer,
    Check,
    PrivateEvaluation,
    Verdict,
    Veto,
)
from primorl.evaluate.recommendation import recommend
from primorl.model.architecture import PublicLosses

BETTER = PublicLosses(initial=2.0, constant=1.0, final=0.5)
WORSE = PublicLosses(initial=2.0, constant=1.0, final=1.5)
ERROR = 0.5  # standard error of the least gain
INTERVAL = ERROR * 1.959963984540054


def answer(of: str, what: str, value: float, **more: Any) -> Answer:
    plain: dict[str, Any] = dict.fromkeys(("estimator", "covers", "bias"), "x")
    plain |= dict.fromkeys(("ci95", "epsilon", "delta"))
    return Answer(of=of, what=what, value=value, **plain | more)  # type: ignore[arg-type]


def found(
    *,
    today: tuple[float, float] | None = (-84.0, -76.0),
    drawn: tuple[float, ...] = (-81.0, -79.0, -82.0),
    released: tuple[float, ...] = (-76.0, -78.0, -77.0),
    policy: tuple[float, ...] = (-70.0, -69.0, -70.0),
    gains: tuple[float, ...] = (6.0, 9.0, 7.0),
    doubt: float = 0.0,
    random: float = -200.0,
    verdict: Verdict | None = None,
    beyond: float = 0.0,
    at_most: float | None = None,
) -> PrivateEvaluation:
    """Answers about people who get -80 today, a clone and a policy; no clone without ``drawn``."""
    least = min(gains)
    people = [] if today is None else [answer("behaviour", MEAN_RETURN, -80.0, ci95=today)]
    people += [] if at_most is None else [answer("behaviour", AT_MOST, at_most)]
    clone = [answer("clone", AS_DRAWN, drawn[0], members=drawn)] if drawn else []
    estimates = (
        *people,
        answer("clone", MEAN_RETURN, released[0], members=released),
        *clone,
        answer("policy", MEAN_RETURN, -75.0),
        answer("policy", MEAN_RETURN, policy[0], members=policy, estimator="model"),
        answer("policy", DOUBT, doubt),
        answer("policy", BEYOND, beyond),
        answer("policy", GAIN, least, ci95=(least - INTERVAL, least + INTERVAL), members=gains),
        answer("random", MEAN_RETURN, random),
    )
    asked: dict[str, Any] = {"dataset": "log", "unit": "person", "units": 1000}
    asked |= {"discount": 1.0, "horizon": 60}
    unknown = dict.fromkeys(("total", "model_sha256", "policy_sha256", "clone_sha256"))
    return PrivateEvaluation(
        **asked, **unknown, estimates=estimates, histograms=(), verdict=verdict, statements={}
    )


def judged(believe: Any, ratio: float | None = 0.4, *vetoes: Veto) -> Verdict:
    wrong = ("reward",) if believe == "no" else ()
    check = Check(believe=believe, ratio=ratio, wrong=wrong, horizons=(1, 5))
    return Verdict(check=check, vetoes=vetoes)


SIGNS = {
    "beyond_bounds": "the model says a mean return of 23.6, where nobody can have more than 10",
    "not_finite": "the model predicts something that is not a finite number",
    "random_as_good": "in the model random actions are worth as much as today's practice",
    "warned": "an outcome score in last rows may not be learned",
}


ANSWERS = found()
FAR = {"drawn": (-56.0,)}
"""The model's value of today's practice lies 20 above the people's interval."""
LOSING = {"gains": (0.5, 0.5), "released": (-90.0, -90.0)}


@pytest.mark.parametrize(
    ("changes", "loss", "expected", "says"),
    [
        ({}, BETTER, "trial", "gains 6 over a clone of today's practice, more than the 2.6"),
        ({"gains": (0.9, 40.0)}, BETTER, "keep", "gains 0.9 over a clone"),  # two errors are 1
        ({"gains": (-2.0, 40.0)}, BETTER, "keep", "loses 2 against a clone"),
        # A clone worse than the people would make any policy look good.
        ({"policy": (-75.5, -60.0)}, BETTER, "keep", "gains 0.5 over the upper end"),
        # Returns above the range that was found count as its end.
        ({"at_most": -78.0}, BETTER, "trial", "gains 6 over a clone"),
        ({"at_most": -69.0}, BETTER, "keep", "loses 1 against the upper end"),
        ({"beyond": 0.14}, BETTER, "trial", ""),
        ({"beyond": 0.25}, BETTER, "keep", "25% more of its steps than of the clone's"),
        ({"doubt": 2.0}, BETTER, "keep", "Only a gain above 8.6"),
        (FAR, BETTER, "keep", "Only a gain above 22.6"),
        ({"drawn": (-104.0,)}, BETTER, "keep", "Only a gain above 22.6"),
        # As it is released a clone may be worth less than the actions that it draws.
        (LOSING, BETTER, "more_data", "-90 for the clone as it would be"),
        ({"drawn": (-16.0,)}, BETTER, "more_data", "too far away"),
        (FAR, WORSE, "more_data", "no better than a constant"),
        ({"drawn": ()}, BETTER, "more_data", "No clone"),
        ({"today": None}, BETTER, "more_data", "Today's return was not asked"),
        ({"random": -60.0}, BETTER, "trial", "But in the model random actions are worth more"),
        # The public actions alone speak for the clone where the model is not to be believed.
        ({"verdict": judged("no", 2.0)}, BETTER, "keep", "rewards worse than a guess"),
        ({"verdict": judged("no", 2.0)}, WORSE, "more_data", "not to be believed"),
        ({"verdict": judged("no", None)}, None, "more_data", "No public action tells"),
        ({"verdict": judged("doubtful", 0.81)}, BETTER, "trial", ""),
        ({"verdict": judged("doubtful", 1.7)}, BETTER, "keep", "at least as good"),
        ({"verdict": judged("doubtful", None)}, BETTER, "keep", "at least as good"),
    ],
)
def test_a_gain_must_be_larger_than_what_is_known_to_be_wrong(
    changes: dict[str, Any], loss: PublicLosses | None, expected: str, says: str
) -> None:
    said = recommend(found(**changes), loss)
    folder = {"trial": "models/policy", "keep": "models/behaviour", "more_data": None}
    assert (said.answer, said.policy) == (expected, folder[expected])
    assert says in said.reason


@pytest.mark.parametrize("kind", SIGNS)
def test_a_sign_against_the_model_bars_a_trial_and_is_said(kind: Any) -> None:
    """The twin: the same answers without it are a trial, with an interval."""
    veto = Veto(kind=kind, reason=SIGNS[kind])
    without, barred = judged("yes"), judged("yes", 0.4, veto)
    assert recommend(found(verdict=without), BETTER).answer == "trial"
    assert recommend(found(verdict=without), BETTER).interval is not None
    for loss in (BETTER, WORSE, None):
        said = recommend(found(verdict=barred), loss)
        assert said.answer != "trial"
        assert said.interval is None
        assert (said.expected is None) is (kind != "warned")
        assert SIGNS[kind][1:] in said.reason
    assert barred.believed is (kind == "warned")


def test_practice_is_kept_where_broken_values_are_left_out() -> None:
    veto = Veto(kind="not_finite", reason=SIGNS["not_finite"])
    whole = found(verdict=judged("yes", 0.4, veto))
    people = tuple(each for each in whole.estimates if each.of == "behaviour")
    said = recommend(replace(whole, estimates=people), BETTER)
    assert (said.answer, said.gain) == ("keep", None)


def test_the_rule_is_what_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twins do not look at where the policy goes, or at the misfit.

    A surer model earns nothing.
    """
    assert recommend(ANSWERS, BETTER).gain == 6.0, "the least that a member says"
    assert recommend(found(doubt=-9.0), BETTER).margin == pytest.approx(1.0 + 0.02 * 80)
    assert recommend(found(today=(-110.0, -50.0), **FAR), BETTER).misfit == 0.0
    spread = (
        answer("behaviour", f"quantile {p:g} of the return", value)
        for p, value in ((0.1, -400.0), (0.9, 0.0))
    )
    wide = replace(found(drawn=(-16.0,)), estimates=(*found(drawn=(-16.0,)).estimates, *spread))
    assert recommend(wide, BETTER).answer == "keep", (
        "the scale is the spread of the people's returns"
    )
    for constant, changes in (("DOUBT_SHARE", {"doubt": 2.0}), ("MISFIT_SHARE", FAR)):
        monkeypatch.setattr(recommendation, constant, 0.0)
        assert recommend(found(**changes), BETTER).answer == "trial"  # type: ignore[arg-type]


def test_the_interval_of_the_gain_is_as_wide_as_what_is_not_known() -> None:
    """It reaches further down where the model is doubtful, and is none where it is not to be
    believed or unasked.
    """
    kinds = ("yes", "doubtful", "no")
    said = {kind: recommend(found(verdict=judged(kind)), BETTER) for kind in kinds}
    expected, scale = -209 / 3 + 77, (-209 / 3 + 77) + 4 + 3
    assert said["yes"].expected == pytest.approx(expected)
    assert said["yes"].interval == pytest.approx((expected - 0.75 * scale, expected + 0.75 * scale))
    assert said["doubtful"].interval == pytest.approx(
        (expected - 1.25 * scale, expected + 0.75 * scale)
    )
    assert (said["no"].interval, recommend(ANSWERS, BETTER).interval) == (None, None)
    for kind in ("yes", "doubtful"):
        assert (said[kind].answer, "do not adopt it yet" in said[kind].reason) == ("trial", True)
    sure = found(today=(-80.1, -79.9), drawn=(-80.0,), released=(-80.0,), verdict=judged("yes"))
    assert "do not adopt it yet" not in recommend(sure, BETTER).reason


def test_a_gain_that_is_next_to_nothing_is_none() -> None:
    """Practice near the best: the model is right and sees a gain of 1 of 80, which no error
    explains. Twin: 4 of 80.
    """
    near: dict[str, Any] = {
        "today": (-80.01, -79.99),
        "drawn": (-80.0,),
        "released": (-80.0,),
        "policy": (-79.0, -79.0),
    }
    wide = found(**near, gains=(1.0, 1.0))
    small = [
        replace(each, ci95=(0.99, 1.01)) if each.what == GAIN else each for each in wide.estimates
    ]
    assert recommend(replace(wide, estimates=tuple(small)), BETTER).answer == "keep"
    large = found(**near | {"policy": (-76.0, -76.0)}, gains=(4.0, 4.0))
    assert recommend(large, BETTER).answer == "trial"
