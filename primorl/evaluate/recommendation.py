"""Whether to try the policy, to keep today's practice, or to get more data; from released numbers alone.

The rule compares the policy with the clone member by member, where errors that both share cancel, and with the people's
own return. It asks for a gain that is larger than the known error: how far the model is from the people's
returns when it acts as they do, and how much more uncertain it is where the policy goes. Its constants were fitted on
logs with a known truth (docs/results.md).
"""

import re
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from primorl.base.records import Line, record
from primorl.evaluate.private.results import (
    AS_DRAWN,
    BELIEVE,
    BEYOND,
    DOUBT,
    GAIN,
    MEAN_RETURN,
    Answer,
    PrivateEvaluation,
)
from primorl.evaluate.statistics import NORMAL_QUANTILE
from primorl.model.architecture import PublicLosses
from primorl.policy.behaviour import BehaviourConfig
from primorl.policy.member_values import DOUBT_SHARE

MISFIT_SHARE = 1.0
"""A gain counts if it is larger than this share of the misfit."""
ERRORS = 2.0
"""A gain counts if it is larger than so many standard errors of the simulated episodes."""
LEAST_GAIN = 0.02
"""A gain counts if it is larger than this share of the scale of returns, whatever else is known."""
DOWN, UP = {"yes": 0.75, "doubtful": 1.25}, 0.75
"""By verdict of the model check: how far the interval of the gain reaches down, and up, in units of its scale."""
MOST_BEYOND = 0.15
"""A gain counts if at most this share of the policy's steps, beyond the clone's own, lies where the clone hardly is."""
MOST_LOSS = 0.05
"""The clone is released if the model says that it loses at most this share of the scale of returns."""
MOST_MISFIT = 0.5
"""The clone is believed while the misfit is at most this share of the scale of returns."""
MOST_WIDTH = 0.5
"""The clone is believed while half the width of today's interval is at most this share of the scale of returns."""
MOST_MISFIT_OF_A_CONSTANT = 0.1
"""The same where the clone predicts public actions no better than a constant does."""

_DOUBTFUL = re.compile(re.escape(BELIEVE["doubtful"]) + ": .* at about ([0-9.e+inf]+) of a trivial guess's")
"""A doubtful verdict with its figure; from 1 on no policy is tried (`primorl.evaluate.private.model_check`)."""

Released = Literal["models/policy", "models/behaviour"]


@record
class Recommendation:
    """A recommendation about the policy, with its reason."""

    answer: Annotated[
        Literal["trial", "keep", "more_data"],
        "`trial`: try the policy; `keep`: keep today's practice, whose clone is released; `more_data`: neither.",
    ]
    policy: Annotated[Released | None, "Folder of the policy that is recommended; `null`: none is."]
    reason: Annotated[Line, "Why, in a sentence or two."]
    gain: Annotated[
        float | None,
        "The least that a member of the model says the policy gains, over the clone and over the upper end of the "
        "interval of the people's own return; `null`: no clone.",
    ]
    margin: Annotated[float | None, "What the gain must exceed; `null`: nothing tells."]
    misfit: Annotated[
        float | None,
        "How far the model's value of today's practice lies outside the interval of the people's own; `null`: unknown.",
    ]
    expected: Annotated[
        float | None, "Mean return of the policy less that of the released clone, in the model; `null`: unknown."
    ] = None
    interval: Annotated[
        tuple[float, float] | None,
        "Where the true gain over today lay in nine of ten runs on simulated logs (docs/results.md); "
        "`null`: the model is not to be believed, or nobody asked.",
    ] = None


def found_in(answers: PrivateEvaluation, clone: Path, environment: str | None) -> Recommendation | None:
    """Recommend by the answers and the folder of the clone; None: an environment measured the policy.

    Raises:
        PipelineError: the folder says nothing about a clone.
    """
    return None if environment is not None else of_answers(answers, BehaviourConfig.read(clone).public_loss)


def of_answers(
    answers: PrivateEvaluation, clone_loss: PublicLosses | None, least_gain: float = LEAST_GAIN
) -> Recommendation:
    """Recommend by the answers of private evaluation.

    The scale of returns is the spread of the people's own, 10% to 90%, and at least the size of their mean.

    Args:
        answers: of the private units, about the model, the policy and the clone.
        clone_loss: of the clone on the public split; None: there is no public split, or no clone.
        least_gain: the share of the scale that a gain must exceed in any case.
    """
    people = answers.answer("behaviour", MEAN_RETURN)
    if people is None:
        return _more("today's return was not asked of the people in the data (evaluation.private.estimators)")
    policy = answers.answer("policy", MEAN_RETURN, "model")
    gain, doubt = answers.answer("policy", GAIN), answers.answer("policy", DOUBT)
    drawn = _members(answers.answer("clone", AS_DRAWN))
    released = _members(answers.answer("clone", MEAN_RETURN))
    of_policy, gains = _members(policy), _members(gain)
    if not (drawn and released and of_policy and gains and gain and gain.ci95 and doubt):
        return _more("no clone of today's practice was made (behaviour.target_epsilon), so there is nothing to compare")
    # Today's return with its interval, and the scale of returns, which margins are shares of.
    low, high = people.ci95 or (people.value, people.value)
    half = (high - low) / 2
    lowest, highest = (answers.answer("behaviour", f"quantile {p:g} of the return") for p in (0.1, 0.9))
    spread = highest.value - lowest.value if lowest and highest else 0.0
    scale = max(spread, abs(people.value))
    # The model's error for a clone that acts as people do, as far as today's interval does not explain it.
    today = fmean(drawn)
    misfit = max(0.0, abs(today - people.value) - half)
    # The gain by the most pessimistic member, over the clone and over today's upper end, and the margin it must exceed.
    over_clone, over_people = min(gains), min(of_policy) - high
    least = min(over_clone, over_people)
    error = (gain.ci95[1] - gain.ci95[0]) / 2 / NORMAL_QUANTILE
    margin = MISFIT_SHARE * misfit + ERRORS * error + DOUBT_SHARE * max(0.0, doubt.value) + least_gain * scale
    expected = fmean(of_policy) - fmean(released)
    interval = interval_of_gain(expected, half, fmean(released) - people.value, answers.verdict)
    figures: dict[str, Any] = {
        "gain": least,
        "margin": margin,
        "misfit": misfit,
        "expected": expected,
        "interval": interval,
    }
    learned = None if clone_loss is None else clone_loss.final < clone_loss.constant
    told = (
        f"people get {people.value:.4g} [{low:.4g}, {high:.4g}] today, and the model says {today:.4g} for a clone that "
        "acts as they do"
    )
    if answers.verdict is not None and answers.verdict.startswith(BELIEVE["no"]):
        why = "the model check says not to believe the model, so it can judge no policy"
        if not learned:
            return _more(f"{why}, and no public action tells whether the clone acts as people do; {told}", **figures)
        reason = f"{why}; the clone predicts public actions better than a constant; {told}"
        return Recommendation(answer="keep", policy="models/behaviour", reason=_sentence(reason), **figures)
    moved = f"gains {least:.3g} over" if least >= 0 else f"loses {-least:.3g} against"
    other = "a clone of today's practice" if over_clone <= over_people else "the upper end of what people get today"
    compared = f"in the member of the model that likes it least the policy {moved} {other}"
    doubtful = _DOUBTFUL.search(answers.verdict or "")
    outdone = doubtful is not None and float(doubtful[1]) >= 1
    beyond = answers.answer("policy", BEYOND)
    far = beyond is not None and beyond.value > MOST_BEYOND
    if least > margin and not outdone and not far:
        reason = _sentence(f"{compared}, more than the {margin:.3g} that the model's known error asks for; {told}")
        chance = answers.answer("random", MEAN_RETURN)
        if policy is not None and chance is not None and chance.value > policy.value:
            reason += (
                f" But in the model random actions are worth more, {chance.value:.4g} against {policy.value:.4g}: the "
                "policy is far from the best one there, or the model is wrong where nobody acted."
            )
        if interval is not None and interval[0] <= 0:
            reason += (
                " The gain is not certain: its interval reaches below 0. So test the policy where people watch it, and "
                "do not adopt it yet."
            )
        return Recommendation(answer="trial", policy="models/policy", reason=reason, **figures)
    why = f"{compared}, and the model's known error asks for a gain above {margin:.3g}"
    why += "; the model check measured a trivial guess as better than the model" if outdone and least > margin else ""
    if beyond is not None and far:
        why += f"; {beyond.value:.0%} more of its steps than of the clone's lie where people hardly ever were"
    if learned is False and misfit > MOST_MISFIT_OF_A_CONSTANT * scale:
        return _more(f"{why}; the clone is no better than a constant; {told}", **figures)
    if fmean(released) < people.value - half - MOST_LOSS * scale:
        return _more(f"{why}; {told}, but {fmean(released):.4g} for the clone as it would be released", **figures)
    if misfit > MOST_MISFIT * scale:
        return _more(f"{why}; {told}, too far away to believe the clone", **figures)
    if half > MOST_WIDTH * scale:
        return _more(f"{why}; {told}, too uncertain to tell whether the clone acts as people do", **figures)
    return Recommendation(answer="keep", policy="models/behaviour", reason=_sentence(f"{why}; {told}"), **figures)


def interval_of_gain(expected: float, half: float, miss: float, verdict: str | None) -> tuple[float, float] | None:
    """Compute the interval that held the true gain over today in nine of ten runs on logs with a known truth.

    Its scale is the size of the expected gain, half the width of today's interval, and the distance of the clone's
    value in the model from today's return.
    """
    kind = next((kind for kind in DOWN if verdict is not None and verdict.startswith(BELIEVE[kind])), None)
    if kind is None:
        return None
    scale = abs(expected) + half + abs(miss)
    return expected - DOWN[kind] * scale, expected + UP * scale


def _members(answer: Answer | None) -> tuple[float, ...]:
    """Return the values of an answer in the members of the model; empty where it has none."""
    return () if answer is None or answer.members is None else tuple(answer.members)


def _more(reason: str, **figures: Any) -> Recommendation:
    known = {"gain": None, "margin": None, "misfit": None} | figures
    return Recommendation(answer="more_data", policy=None, reason=_sentence(reason), **known)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
