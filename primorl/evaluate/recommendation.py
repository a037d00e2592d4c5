"""Recommend to try the policy, to keep today's practice, or to get more data; from released numbers
alone.

The rule compares the policy with the clone member by member, where errors that both share cancel,
and with the people's own return. It asks for a gain that is larger than the known error: how far
the model is from the people's returns when it acts as they do, and how much more uncertain it is
where the policy goes. Its constants were fitted on logs with a known truth (benchmarks/results.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from primorl.base.records import Line, record
from primorl.evaluate.private.results import (
    AS_DRAWN,
    AT_MOST,
    BEYOND,
    DOUBT,
    GAIN,
    MEAN_RETURN,
    Answer,
    PrivateEvaluation,
    Verdict,
)
from primorl.evaluate.statistics import NORMAL_QUANTILE
from primorl.model.architecture import PublicLosses
from primorl.policy.config import DOUBT_SHARE, BehaviourConfig

MISFIT_SHARE = 1.0
"""A gain counts if it is larger than this share of the misfit."""
ERRORS = 2.0
"""A gain counts if it is larger than so many standard errors of the simulated episodes."""
LEAST_GAIN = 0.02
"""A gain counts if it is larger than this share of the scale of returns, whatever else is known."""
DOWN, UP = {"yes": 0.75, "doubtful": 1.25}, 0.75
"""By verdict of the model check: how far the interval of the gain reaches down, and up, in units of
its scale.
"""
MOST_BEYOND = 0.15
"""A gain counts if at most this share of the policy's steps, beyond the clone's own, lies where the
clone hardly is.
"""
MOST_LOSS = 0.05
"""The clone is released if the model says that it loses at most this share of the scale of
returns.
"""
MOST_MISFIT = 0.5
"""The clone is believed while the misfit is at most this share of the scale of returns."""
MOST_WIDTH = 0.5
"""The clone is believed while half the width of today's interval is at most this share of the scale
of returns.
"""
MOST_MISFIT_OF_A_CONSTANT = 0.1
"""The same where the clone predicts public actions no better than a constant does."""

_UNKNOWN: dict[str, Any] = {"gain": None, "margin": None, "misfit": None}
"""Figures where nothing tells: what cannot be trusted is no number."""

Released = Literal["models/policy", "models/behaviour"]


@record
class Recommendation:
    """A recommendation about the policy, with its reason."""

    answer: Literal["trial", "keep", "more_data"]
    """`trial`: try the policy; `keep`: keep today's practice, whose clone is released; `more_data`:
    neither.
    """
    policy: Released | None
    """Folder of the policy that is recommended; `null`: none is."""
    reason: Line
    """Why, in a sentence or two."""
    gain: float | None
    """The least that a member of the model says the policy gains, over the clone and over the upper
    end of the interval of the people's own return; `null`: no clone, or the model is not to be
    believed.
    """
    margin: float | None
    """What the gain must exceed; `null`: nothing tells."""
    misfit: float | None
    """How far the model's value of today's practice lies outside the interval of the people's own;
    `null`: unknown.
    """
    expected: float | None = None
    """Mean return of the policy less that of the released clone, in the model; `null`: unknown."""
    interval: tuple[float, float] | None = None
    """Where the true gain over today should lie in nine of ten runs, as fitted on simulated logs;
    `null`: the model is not to be believed, or was warned of, or nobody asked.
    """


def recommend_for(
    answers: PrivateEvaluation, clone: Path, environment: str | None
) -> Recommendation | None:
    """Recommend by the answers and the folder of the clone; None: an environment measured the
    policy.

    Raises:
        PipelineError: the folder says nothing about a clone.
    """
    if environment is not None:
        return None
    return recommend(answers, BehaviourConfig.read(clone).public_loss)


def recommend(answers: PrivateEvaluation, clone_loss: PublicLosses | None) -> Recommendation:
    """Recommend by the answers of private evaluation.

    The rule has three steps:

    1. The model is not to be believed, by the people or by a free sign (`Veto`): keep today's
       practice if the clone learned, else more data.
    2. The policy gains more than the margin, no guess was measured as good as the model, nothing
       was warned of before the charge, and the policy stays where people were: a trial.
    3. Else: keep today's practice if the clone can be trusted, else more data.

    Args:
        answers: of the private units, about the model, the policy and the clone.
        clone_loss: of the clone on the public split; None: there is no public split, or no clone.
    """
    clone_learned = None if clone_loss is None else clone_loss.final < clone_loss.constant
    verdict = answers.verdict
    if not answers.believed:
        assert verdict is not None
        why = _explain_disbelief(verdict)
        if not clone_learned:
            why.append("no public action tells whether the clone acts as people do")
            return _more_data(why)
        return _keep([*why, "the clone predicts public actions better than a constant"])
    compared = _compare(answers)
    if isinstance(compared, str):
        return _more_data([compared])

    check = None if verdict is None else verdict.check
    guess_is_better = check is not None and check.guess_is_better
    warned = [] if verdict is None else [veto.reason for veto in verdict.vetoes]
    beyond = answers.answer("policy", BEYOND)
    too_far = beyond is not None and beyond.value > MOST_BEYOND
    barred = guess_is_better or too_far or bool(warned)
    if compared.gain > compared.margin and not barred:
        return _trial(answers, compared)

    why = [compared.statement]
    if compared.gain <= compared.margin:
        why.append(f"only a gain above {compared.margin:.3g} is beyond the model's known error")
    if guess_is_better and compared.gain > compared.margin:
        why.append(
            "no trial: the model check measured a guess without a model as at least as good as "
            "the model"
        )
    if beyond is not None and too_far:
        far = (
            f"{beyond.value:.0%} more of its steps than of the clone's lie where people hardly "
            "ever were"
        )
        why.append(f"{far}; a trial allows {MOST_BEYOND:.0%}")
    why += [f"no trial, as was warned before the charge: {reason}" for reason in warned]
    distrust = _distrust(compared, clone_learned)
    return _keep(why, compared) if distrust is None else _more_data([*why, distrust], compared)


@dataclass(frozen=True)
class _Comparison:
    """The policy beside the clone and the people, in units of the return.

    Attributes:
        people: mean return of the people in the data.
        low: lower end of its 95% interval.
        high: upper end of its 95% interval.
        scale: spread of the people's returns, 10% to 90%, and at least the size of their mean.
        sampled_clone: the model's value of the clone that draws actions, as people do.
        released_clone: the model's value of the clone as it would be released.
        policy: the model's value of the policy.
        gain_over_clone: by the most pessimistic member of the model.
        gain_over_people: over ``high``, by the most pessimistic member.
        misfit: the distance of ``sampled_clone`` from ``people``, beyond half the interval's width.
        margin: the gain must exceed it.
        interval: of the true gain over today; see `interval_of_gain`.
    """

    people: float
    low: float
    high: float
    scale: float
    sampled_clone: float
    released_clone: float
    policy: float
    gain_over_clone: float
    gain_over_people: float
    misfit: float
    margin: float
    interval: tuple[float, float] | None

    @property
    def half_width(self) -> float:
        """Half the width of the interval of the people's return."""
        return (self.high - self.low) / 2

    @property
    def gain(self) -> float:
        """The smaller gain by the most pessimistic member."""
        return min(self.gain_over_clone, self.gain_over_people)

    @property
    def today(self) -> str:
        """State today's return, and the model's value of the clone."""
        return (
            f"people get {self.people:.4g} today, and the model says {self.sampled_clone:.4g} for "
            "a clone of them"
        )

    @property
    def statement(self) -> str:
        """State the gain."""
        moved = (
            f"gains {self.gain:.3g} over" if self.gain >= 0 else f"loses {-self.gain:.3g} against"
        )
        other = "the upper end of today's interval"
        if self.gain_over_clone <= self.gain_over_people:
            other = "a clone of today's practice"
        return f"by the least favourable member of the model, the policy {moved} {other}"

    @property
    def figures(self) -> dict[str, Any]:
        """Return the figures of `Recommendation`."""
        return {
            "gain": self.gain,
            "margin": self.margin,
            "misfit": self.misfit,
            "expected": self.policy - self.released_clone,
            "interval": self.interval,
        }


def _compare(answers: PrivateEvaluation) -> _Comparison | str:
    """Compare the policy with the clone and the people; return the reason if an answer is
    missing.
    """
    people = answers.answer("behaviour", MEAN_RETURN)
    if people is None:
        return "today's return was not asked of the people in the data (privacy.shares)"
    gain, doubt = answers.answer("policy", GAIN), answers.answer("policy", DOUBT)
    policy_members = _members(answers.answer("policy", MEAN_RETURN, "model"))
    gain_members = _members(gain)
    sampled_members = _members(answers.answer("clone", AS_DRAWN))
    released_members = _members(answers.answer("clone", MEAN_RETURN))
    members = sampled_members and released_members and policy_members and gain_members
    if not (members and gain and gain.ci95 and doubt):
        return (
            "no clone of today's practice was made (privacy.shares), so there is nothing to compare"
        )

    low, high = people.ci95 or (people.value, people.value)
    half_width = (high - low) / 2
    at_most = answers.answer("behaviour", AT_MOST)
    high = high if at_most is None else max(high, at_most.value)
    lowest = answers.answer("behaviour", "quantile 0.1 of the return")
    highest = answers.answer("behaviour", "quantile 0.9 of the return")
    spread = highest.value - lowest.value if lowest and highest else 0.0
    scale = max(spread, abs(people.value))

    # The model's error for a clone that acts as people do, as far as the interval does not explain
    # it.
    sampled_clone = fmean(sampled_members)
    released_clone = fmean(released_members)
    policy = fmean(policy_members)
    misfit = max(0.0, abs(sampled_clone - people.value) - half_width)
    standard_error = (gain.ci95[1] - gain.ci95[0]) / 2 / NORMAL_QUANTILE
    margin = (
        MISFIT_SHARE * misfit
        + ERRORS * standard_error
        + DOUBT_SHARE * max(0.0, doubt.value)
        + LEAST_GAIN * scale
    )
    return _Comparison(
        people=people.value,
        low=low,
        high=high,
        scale=scale,
        sampled_clone=sampled_clone,
        released_clone=released_clone,
        policy=policy,
        gain_over_clone=min(gain_members),
        gain_over_people=min(policy_members) - high,
        misfit=misfit,
        margin=margin,
        interval=interval_of_gain(
            policy - released_clone, half_width, released_clone - people.value, answers.verdict
        ),
    )


def _distrust(compared: _Comparison, clone_learned: bool | None) -> str | None:
    """Find a reason not to keep today's practice by its clone; None: there is none."""
    today, scale = compared.today, compared.scale
    if clone_learned is False and compared.misfit > MOST_MISFIT_OF_A_CONSTANT * scale:
        return f"the clone is no better than a constant: {today}"
    if compared.misfit > MOST_MISFIT * scale:
        return f"{today}, too far away to believe the clone"
    if compared.released_clone < compared.people - compared.half_width - MOST_LOSS * scale:
        return f"{today}, but {compared.released_clone:.4g} for the clone as it would be released"
    if compared.half_width > MOST_WIDTH * scale:
        unsure = f"{today}, too uncertain to tell whether the clone acts as people do"
        return f"{unsure}; more people, or a larger share of ε for it, make it more certain"
    return None


def _explain_disbelief(verdict: Verdict) -> list[str]:
    """List why the model is not to be believed."""
    why = [veto.reason for veto in verdict.vetoes if veto.disbelieves]
    if verdict.check is not None and verdict.check.believe == "no":
        why.append(
            f"the model predicts {' and '.join(verdict.check.wrong)}s worse than a guess without "
            "a model"
        )
    why.append("the model is not to be believed, so it can judge no policy")
    return why


def interval_of_gain(
    expected: float, half: float, miss: float, verdict: Verdict | None
) -> tuple[float, float] | None:
    """Compute the interval meant to hold the true gain over today in nine of ten runs.

    Its constants were fitted on simulated logs with a known truth. Its scale is the size of the
    expected gain, half the width of today's interval, and the distance of the clone's value in the
    model from today's return. None: the model is not to be believed, was warned of, or nobody was
    asked.
    """
    if verdict is None or verdict.check is None or verdict.vetoes or not verdict.believed:
        return None
    scale = abs(expected) + half + abs(miss)
    return expected - DOWN[verdict.check.believe] * scale, expected + UP * scale


def _members(answer: Answer | None) -> tuple[float, ...]:
    """Return the values of an answer in the members of the model; empty where it has none."""
    return () if answer is None or answer.members is None else tuple(answer.members)


def _trial(answers: PrivateEvaluation, compared: _Comparison) -> Recommendation:
    """Recommend a trial of the policy, with warnings that its value is not the best or not
    certain.
    """
    why = [
        f"{compared.statement}, more than the {compared.margin:.3g} that the model's known error "
        "asks for"
    ]
    policy = answers.answer("policy", MEAN_RETURN, "model")
    chance = answers.answer("random", MEAN_RETURN)
    if policy is not None and chance is not None and chance.value > policy.value:
        why.append(
            "but in the model random actions are worth more: the policy is far from the best one, "
            "or the model is wrong where nobody acted"
        )
    if compared.interval is not None and compared.interval[0] <= 0:
        why.append(
            "the gain is not certain, as its interval reaches below 0: test the policy where "
            "people watch it, and do not adopt it yet"
        )
    return Recommendation(
        answer="trial", policy="models/policy", reason=_sentences(why), **compared.figures
    )


def _keep(why: Sequence[str], compared: _Comparison | None = None) -> Recommendation:
    figures = _UNKNOWN if compared is None else compared.figures
    return Recommendation(
        answer="keep", policy="models/behaviour", reason=_sentences(why), **figures
    )


def _more_data(why: Sequence[str], compared: _Comparison | None = None) -> Recommendation:
    figures = _UNKNOWN if compared is None else compared.figures
    return Recommendation(answer="more_data", policy=None, reason=_sentences(why), **figures)


def _sentences(statements: Sequence[str]) -> str:
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in statements)
