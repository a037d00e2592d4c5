"""Recommend to try the policy, to keep today's practice, or to get more data; from released numbers
alone.

The gain over today is the policy's value in the model less that of a clone that acts as people do:
errors that both share cancel. Its interval is as wide as what is known to be wrong, and a trial is
recommended where it lies above 0 and nothing bars one. The constants were chosen on one draw of
each log with a known truth and checked on others (benchmarks/results.md).
"""

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from primorl.base.records import Line, record
from primorl.evaluate.private.results import (
    AS_DRAWN,
    BEYOND,
    MEAN_RETURN,
    PrivateEvaluation,
)
from primorl.evaluate.wording import sentences, value

OF_ERROR = 0.9
"""How far the interval reaches up, in what is known to be wrong where people act as today, and down
in half the width of today's interval.
"""
DOWN, UP = 0.5, 1.0
"""And as a share of the gain: a policy finds a model's errors, and most gained more, up to twice,
than a model said that knows little.
"""
MOST_BEYOND = 0.3
"""Share of the policy's steps, beyond the clone's own, that may lie where the clone hardly is:
nobody's rows say how far the model errs there.
"""
LEAST_GAIN = 0.04
"""Of the spread of people's returns, or the size of their mean if unknown: what made people act as
they did, and no column has, can make a gain as small as that. Where it does not last, neither the
interval nor the clone's persistence tells.
"""
MOST_UNSURE = 0.5
"""What is known to be wrong, as a share of the scale of returns, up to which anything can be
compared.
"""


@record
class Recommendation:
    """A recommendation about the policy, with its reason."""

    answer: Literal["trial", "keep", "more_data"]
    """`trial`: try the policy where people watch it; `keep`: keep today's practice, and change
    nothing; `more_data`: the answers do not tell.
    """
    policy: Literal["models/policy"] | None
    """Folder of the policy that is recommended; `null`: none is."""
    reason: Line
    """Why, in a sentence or two."""
    gain: float | None = None
    """Mean return of the policy over today's, as the model says; `null`: the model is not to be
    believed, or was warned of, or nobody asked.
    """
    interval: tuple[float, float] | None = None
    """Where the true gain should lie in nine of ten runs; `null` with it."""


@dataclass(frozen=True)
class Comparison:
    """The policy beside today's practice, in units of the return.

    Attributes:
        people: mean return of the people in the data.
        ends: its 95% interval.
        scale: spread of the people's returns, 10% to 90%, or the size of their mean if unknown.
        clone: the model's value of a clone that draws actions as people do.
        gains: what each member of the model says that the policy adds to that.
        highest: the upper bound of returns.
    """

    people: float
    ends: tuple[float, float]
    scale: float
    clone: float
    gains: tuple[float, ...]
    highest: float = math.inf

    @property
    def half(self) -> float:
        """Half the width of the people's interval."""
        return (self.ends[1] - self.ends[0]) / 2

    @property
    def gain(self) -> float:
        """What the model says that the policy adds."""
        return fmean(self.gains)

    @property
    def least_gain(self) -> float:
        """The lesser gain: over the clone, or over what people get."""
        return min(self.gain, self.gain + self.clone - self.people)

    @property
    def error(self) -> float:
        """How far the model may be from people who act as today."""
        return abs(self.clone - self.people) + self.half

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the true gain over today; it holds what every member says, as far as
        returns can be so high.

        What the model is known to be wrong by, of a clone beside what people were counted to get,
        may be in the gain as well: where the clone is worse, it makes the gain too large, and a
        model that overvalues practice overvalues the policy too.
        """
        size, wrong = abs(self.gain), abs(self.clone - self.people)
        low = self.gain - wrong - DOWN * size - OF_ERROR * self.half
        high = self.gain + UP * size + OF_ERROR * self.error
        most = self.highest - (self.people - self.half)
        return min(low, *self.gains), min(max(high, *self.gains), max(most, self.gain))


def recommend(answers: PrivateEvaluation) -> Recommendation:
    """Recommend by the answers of private evaluation.

    1. A free sign speaks against the model (`Veto`), or what is known to be wrong is too much to
       compare anything: more data.
    2. The interval of the gain lies above 0, the gain is no small one, nothing was warned of before
       the charge, and the policy stays where people were: a trial.
    3. Else: keep today's practice.
    """
    compared = compare(answers)
    if isinstance(compared, str):
        return Recommendation(answer="more_data", policy=None, reason=sentences(compared))
    bars = find_bars(answers)
    if compared.error > MOST_UNSURE * compared.scale:
        unsure = (
            f"people get {value(compared.people, compared.ends)} today, and the model says "
            f"{compared.clone:.4g} for people who act as they do: too uncertain or too far away to "
            "compare anything"
        )
        reason = sentences(unsure, *bars)
        return Recommendation(answer="more_data", policy=None, reason=reason)
    low, high = compared.interval
    small = low > 0 and compared.least_gain < LEAST_GAIN * compared.scale
    if small:
        bars.append(
            f"a gain of {compared.least_gain:.4g} is below {LEAST_GAIN:.0%} of how far people's "
            f"returns are apart ({compared.scale:.4g}): what the log does not record can make it"
        )
    barred = [f"no trial: {'; '.join(bars)}"] if bars else []
    if small or (answers.verdict is not None and answers.verdict.vetoes):
        unknown = "what people would gain by the policy is not known"
        return Recommendation(answer="keep", policy=None, reason=sentences(unknown, *barred))
    said = "by the model the policy gains nothing"
    if compared.gain > 0:
        said = "there may be no gain: the interval of the gain reaches 0 or below"
    if low > 0:
        said = "all of the gain's interval lies above 0"
    tries = low > 0 and not bars
    return Recommendation(
        answer="trial" if tries else "keep",
        policy="models/policy" if tries else None,
        reason=sentences(said, *barred),
        gain=compared.gain,
        interval=(low, high),
    )


def find_bars(answers: PrivateEvaluation) -> list[str]:
    """List what bars a trial of a policy in a model that is believed, in clauses."""
    verdict, beyond = answers.verdict, answers.answer("policy", BEYOND)
    found = [] if verdict is None else [each.reason for each in verdict.vetoes]
    if beyond is not None and beyond.value > MOST_BEYOND:
        found.append(
            f"in {beyond.value:.0%} more of its steps than people do, the policy goes where people "
            f"hardly ever were (allowed {MOST_BEYOND:.0%})"
        )
    return found


def compare(answers: PrivateEvaluation) -> Comparison | str:
    """Compare the policy with today's practice; return the reason if that is not possible."""
    people, verdict = answers.answer("behaviour", MEAN_RETURN), answers.verdict
    if people is None or verdict is None:
        return "today's return was not asked (privacy.shares)"
    if not verdict.believed:
        why = [veto.reason for veto in verdict.vetoes if veto.disbelieves]
        return f"the model is not to be believed: {'; '.join(why)}"
    clone = answers.answer("clone", AS_DRAWN)
    policy = answers.answer("policy", MEAN_RETURN)
    if clone is None or policy is None:
        return "no clone of today's practice was made, so there is nothing to compare with"
    ends, known = people.ci95, (people, clone, policy)
    if ends is None or not all(each.finite for each in known):
        return "today's return, the clone's or the policy's is not known"
    lowest = answers.answer("behaviour", "quantile 0.1 of the return")
    highest = answers.answer("behaviour", "quantile 0.9 of the return")
    scale = abs(people.value)
    if lowest is not None and highest is not None:
        scale = highest.value - lowest.value
    of_clone, of_policy = (each.members or (each.value,) for each in (clone, policy))
    return Comparison(
        people=people.value,
        ends=ends,
        scale=scale,
        clone=fmean(of_clone),
        gains=tuple(own - today for own, today in zip(of_policy, of_clone, strict=True)),
        highest=math.inf if answers.return_bounds is None else answers.return_bounds[1],
    )
