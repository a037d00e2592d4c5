"""Whether to try the policy, to keep today's practice, or to get more data; from released numbers alone.

The rule compares the policy with the clone member by member, where errors that both share cancel, and with the people's
own return. It asks for a gain that is larger than what is known to be wrong: how far the model is from the people's
returns when it acts as they do, and how much more uncertain it is where the policy goes. Its constants were fitted on
logs with a known truth (docs/evaluation-results.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

from primorl.dynamics.config import PublicLosses
from primorl.evaluation.private.results import AS_DRAWN, DOUBT, GAIN, MEAN_RETURN, Answer, PrivateEvaluation
from primorl.evaluation.statistics import NORMAL_QUANTILE
from primorl.policy.behaviour import BehaviourConfig
from primorl.policy.member_values import DOUBT_SHARE
from primorl.project.records import Line, record

MISFIT_SHARE = 1.0
"""A gain counts if it is larger than this share of the misfit."""
ERRORS = 2.0
"""A gain counts if it is larger than so many standard errors of the simulated episodes."""
MOST_LOSS = 0.05
"""The clone is released if the model says that it loses at most this share of the scale of returns."""
MOST_MISFIT = 0.5
"""The clone is believed while the misfit is at most this share of the scale of returns."""
MOST_MISFIT_OF_A_CONSTANT = 0.1
"""The same where the clone predicts public actions no better than a constant does."""

Released = Literal["models/policy", "models/behaviour"]


@record
class Recommendation:
    """What to do with the policy, and why."""

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


@dataclass(frozen=True)
class Behaviour:
    """The people's own mean return: the value, its 95% interval, and the scale of returns (docs/evaluation.md)."""

    value: float
    low: float
    high: float
    scale: float


@dataclass(frozen=True)
class Clone:
    """The clone in the model.

    Attributes:
        as_drawn: value by each member, actions being drawn as the people's are.
        released: value by each member of the clone as it is released, see `primorl.policy.behaviour.released`.
        policy: the policy's value by each member.
        gains: what the policy gains over the clone as it is released, by each member.
        doubt: how much more uncertain the model is where the policy goes, in units of the return.
        error: standard error of the least gain, from the luck of simulated episodes.
        learned: whether it predicts public actions better than a constant; None: nothing public tells.
    """

    as_drawn: Sequence[float]
    released: Sequence[float]
    policy: Sequence[float]
    gains: Sequence[float]
    doubt: float
    error: float
    learned: bool | None


def recommend(behaviour: Behaviour | None, clone: Clone | None, *, believed: bool) -> Recommendation:
    """Apply the rule.

    Args:
        behaviour: by private evaluation; None: it was not asked.
        clone: None: none was made.
        believed: whether the model check does not say no.
    """
    if behaviour is None:
        return _more("today's return was not asked of the people in the data (evaluation.private.estimators)")
    if clone is None:
        return _more("no clone of today's practice was made (behaviour.target_epsilon), so there is nothing to compare")
    today, over_clone, over_people = fmean(clone.as_drawn), min(clone.gains), min(clone.policy) - behaviour.high
    gain = min(over_clone, over_people)
    half = (behaviour.high - behaviour.low) / 2
    misfit = max(0.0, abs(today - behaviour.value) - half)
    margin = MISFIT_SHARE * misfit + ERRORS * clone.error + DOUBT_SHARE * max(0.0, clone.doubt)
    figures = {"gain": gain, "margin": margin, "misfit": misfit}
    told = (
        f"people get {behaviour.value:.4g} [{behaviour.low:.4g}, {behaviour.high:.4g}] today, and the model says "
        f"{today:.4g} for a clone that acts as they do"
    )
    if not believed:
        why = "the model check says not to believe the model, so it can judge no policy"
        if not clone.learned:
            return _more(f"{why}, and no public action tells whether the clone acts as people do; {told}", **figures)
        reason = f"{why}; the clone predicts public actions better than a constant; {told}"
        return Recommendation(answer="keep", policy="models/behaviour", reason=_sentence(reason), **figures)
    moved = f"gains {gain:.3g} over" if gain >= 0 else f"loses {-gain:.3g} against"
    least = "a clone of today's practice" if over_clone <= over_people else "the upper end of what people get today"
    compared = f"in the member of the model that likes it least the policy {moved} {least}"
    if gain > margin:
        reason = f"{compared}, more than the {margin:.3g} that the model's known error asks for; {told}"
        return Recommendation(answer="trial", policy="models/policy", reason=_sentence(reason), **figures)
    why = f"{compared}, and the model's known error asks for a gain above {margin:.3g}"
    if clone.learned is False and misfit > MOST_MISFIT_OF_A_CONSTANT * behaviour.scale:
        return _more(f"{why}; the clone is no better than a constant; {told}", **figures)
    if fmean(clone.released) < behaviour.value - half - MOST_LOSS * behaviour.scale:
        return _more(f"{why}; {told}, but {fmean(clone.released):.4g} for the clone as it would be released", **figures)
    if misfit > MOST_MISFIT * behaviour.scale:
        return _more(f"{why}; {told}, too far away to believe the clone", **figures)
    return Recommendation(answer="keep", policy="models/behaviour", reason=_sentence(f"{why}; {told}"), **figures)


def found_in(answers: PrivateEvaluation, clone: Path, environment: str | None) -> Recommendation | None:
    """The recommendation for what is here; None: an environment measured the policy.

    Args:
        answers: of the private units.
        clone: its folder.
        environment: as the dataset names it.

    Raises:
        PipelineError: the folder says nothing about a clone.
    """
    return None if environment is not None else of_answers(answers, BehaviourConfig.read(clone).public_loss)


def of_answers(answers: PrivateEvaluation, clone_loss: PublicLosses | None) -> Recommendation:
    """The recommendation from what private evaluation found.

    Args:
        answers: of the private units, about the model, the policy and the clone.
        clone_loss: of the clone on the public split; None: there is no public split, or no clone.
    """
    said = answers.answer("behaviour", MEAN_RETURN)
    drawn, released = answers.answer("clone", AS_DRAWN), answers.answer("clone", MEAN_RETURN)
    gain, doubt = answers.answer("policy", GAIN), answers.answer("policy", DOUBT)
    policy, clone = answers.answer("policy", MEAN_RETURN, "model"), None
    members = [answer.members if answer is not None else None for answer in (drawn, released, policy, gain)]
    if all(members) and gain is not None and gain.ci95 is not None and doubt is not None:
        error = (gain.ci95[1] - gain.ci95[0]) / 2 / NORMAL_QUANTILE
        better = None if clone_loss is None else clone_loss.final < clone_loss.constant
        of_drawn, of_released, of_policy, gains = (each or () for each in members)
        clone = Clone(of_drawn, of_released, of_policy, gains, doubt.value, error, better)
    today = None if said is None else _behaviour(answers, said)
    found, chance = recommend(today, clone, believed=not answers.disbelieved), answers.answer("random", MEAN_RETURN)
    if found.answer == "trial" and policy is not None and chance is not None and chance.value > policy.value:
        warning = (
            f"{found.reason} But in the model random actions are worth more, {chance.value:.4g} against "
            f"{policy.value:.4g}: the policy is far from the best one there, or the model is wrong where nobody acted."
        )
        return replace(found, reason=warning)
    return found


def _behaviour(answers: PrivateEvaluation, said: Answer) -> Behaviour:
    """The scale is the spread of the people's returns, 10% to 90%, and at least the size of their mean."""
    low, high = said.ci95 or (said.value, said.value)
    ends = [answers.answer("behaviour", f"quantile {p:g} of the return") for p in (0.1, 0.9)]
    spread = ends[1].value - ends[0].value if ends[0] is not None and ends[1] is not None else 0.0
    return Behaviour(said.value, low, high, max(spread, abs(said.value)))


def _more(reason: str, **figures: float) -> Recommendation:
    known = {"gain": None, "margin": None, "misfit": None} | figures
    return Recommendation(answer="more_data", policy=None, reason=_sentence(reason), **known)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
