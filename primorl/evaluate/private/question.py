"""Questions to the private units: noisy releases of bounded numbers of every unit, and what is made
of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from scipy.special import stdtrit
from torch import Tensor

from primorl.evaluate.private.problem import Episodes, EpisodeSource, Problem, portions
from primorl.evaluate.private.results import Answer, Of
from primorl.privacy.ledger.checkpoint import DataclassState
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.privacy.mechanism.sampling import PoissonSampler

Interval = tuple[float, float]

_NORM = 1 + 2.0**-13
"""C of a question.

Contributions have norm 1 at most, which the clip then leaves exactly as they are.
"""


def estimate(
    name: str,
    of: Of,
    what: str,
    value: float,
    ci95: Interval | None,
    covers: str,
    bias: str,
    members: tuple[float, ...] | None = None,
) -> Answer:
    """Make an answer; its cost is not known yet."""
    said: Any = {"covers": covers, "bias": bias, "epsilon": None, "delta": None, "members": members}
    return Answer(estimator=name, of=of, what=what, value=value, ci95=ci95, **said)


@dataclass(frozen=True)
class Asked(DataclassState):
    """State of a question, as a checkpoint holds it.

    Attributes:
        released: the releases, one behind the other; empty before the first is made.
        about: what the question is about, so that it is not answered about something else after a
            kill.
        started: releases whose noise may have been drawn. They are then spent.
        made: releases in ``released``.
        finished: whether all are there.
    """

    released: Tensor
    about: str = ""
    started: int = 0
    made: int = 0
    finished: bool = False


class Question(ABC):
    """One question, answered by one release, or by several of which each sees those before. Its
    settings are its fields.

    The privacy argument is the mechanism's alone: `contributions` is a function of one unit's own
    rows and of released values, the mechanism's clip bounds its result as one vector, and nothing
    else of it is released.
    """

    name: ClassVar[str]
    about_model: ClassVar[bool]
    """Whether the answer depends on the released model: with another one, the question is charged
    again.
    """

    def build_mechanism(
        self, problem: Problem, noise_multiplier: float, releases: int
    ) -> Mechanism:
        """Return the mechanism of so many releases, each over all units."""
        return Mechanism(
            units=problem.units,
            unit=problem.unit,
            sampler=PoissonSampler(1.0),
            clip=L2Clip(_NORM),
            noise_multiplier=noise_multiplier,
            rounds=releases,
            delta=problem.delta,
        )

    @abstractmethod
    def contributions(
        self, problem: Problem, episodes: Episodes, noise: float, released: Tensor
    ) -> Tensor:
        """Compute each unit's contribution to the release that follows those in ``released``, whose
        noise has this standard deviation: float64 ``[U, n]`` of norm 1 at most; sensitive.

        The caller clips it.
        """

    @abstractmethod
    def estimates(self, problem: Problem, noise: float, released: Tensor) -> tuple[Answer, ...]:
        """Compute the estimates from all releases, whose noise has this standard deviation:
        post-processing.
        """


def noise_of(mechanism: Mechanism) -> float:
    """Compute the standard deviation of the noise on every number of a release: public."""
    return mechanism.noise_multiplier * mechanism.clip.sensitivity / mechanism.expected_cohort


def ask(
    question: Question,
    problem: Problem,
    mechanism: Mechanism,
    source: EpisodeSource,
    begin: Asked,
    *,
    save_checkpoint: Callable[[Asked], None] = lambda state: None,
    device: torch.device | None = None,
) -> Asked:
    """Ask a question, or what is left of it.

    A kill while rows are read costs nothing, as there is nothing to draw again but the noise.

    Args:
        question: to be asked.
        problem: its subject.
        mechanism: of the question; draws the noise.
        source: the private units.
        begin: the state before the next release.
        save_checkpoint: must have stored the state durably when it returns. Each release is
            announced to it when the sum is known, before the noise is drawn.
        device: where contributions are computed; None: the CPU.

    Returns:
        The finished state.

    Raises:
        ValueError: the source does not hold the number of units that the mechanism declares.
    """
    if source.units != mechanism.units:
        raise ValueError("the number of private units differs from the one the mechanism declares")
    clip = mechanism.clip
    assert isinstance(clip, L2Clip)
    everybody = torch.arange(source.units)
    width = problem.observation_size + problem.action_size + 2
    state = begin
    for number in range(begin.made, mechanism.rounds):
        total: Tensor | None = None
        for episodes in portions(source, everybody, width, device):
            found = question.contributions(problem, episodes, noise_of(mechanism), state.released)
            part = clip.finish(found).sum(0)
            total = part if total is None else total + part
        assert total is not None, "there is at least one unit"
        save_checkpoint(replace(state, started=number + 1))
        released = mechanism.release(total)
        state = Asked(
            torch.cat((state.released, released.cpu().double())),
            begin.about,
            started=number + 1,
            made=number + 1,
            finished=number + 1 == mechanism.rounds,
        )
        save_checkpoint(state)
    return state


@dataclass(frozen=True)
class NoisyMean:
    """A mean of numbers in [-1, 1] and its 95% interval.

    Attributes:
        value: the mean.
        low: lower end of the interval.
        high: upper end.
        noise: standard deviation of the noise that this mean has alone.
        shared: of the parts it may share with other means of the same release: sampling, and the
            noise of the share.
    """

    value: float
    low: float
    high: float
    noise: float
    shared: float


def noisy_mean(
    units: int, mean: float, rest: float, noise: float, share: float = 1.0, share_noise: float = 0.0
) -> NoisyMean:
    """Estimate the mean of x in [-1, 1] over the units that have such a number, from a release of
    each as a `pair`.

    The interval holds sampling and privacy noise. It is Fieller's of a ratio: all r at which mean -
    r·share is within t standard deviations of 0. Its variance is noise² + r² share_noise² + E[has
    (x - r)²] / K. The last term is estimated from the release itself, to which one standard
    deviation of the estimate's own noise is added: noise can make it tiny or negative, and then the
    interval would be too short (it would hold as few as 89% of narrow means at μ = 3, where this
    one holds 97%). The addition is at most √5 μ of noise², μ being the Gaussian mean of the
    release, so little at small ε. Where the share cannot be told from 0, the interval is all of
    [-1, 1].

    Args:
        units: K.
        mean: of x, zero where a unit has none.
        rest: of 1 - x², zero where a unit has none.
        noise: standard deviation of the noise in both.
        share: of the units that have the number.
        share_noise: standard deviation of the noise in ``share``; 0 where it is known.
    """
    share = min(share, 1.0)
    ratio = min(max(mean / max(share, share_noise, 1e-12), -1.0), 1.0)
    square = share - rest  # E[has x²]
    own = square - 2 * ratio * mean + ratio**2 * share
    doubt = math.hypot(noise * math.hypot(1, 2 * ratio), share_noise * (1 + ratio**2))
    variance = min(max(own + doubt, 0.0), (1 + abs(ratio)) ** 2)
    square += variance - own
    factor = t_quantile(units) ** 2
    a = share**2 - factor * (share_noise**2 + share / units)
    b = (share - factor / units) * mean
    c = mean**2 - factor * (noise**2 + square / units)
    if a <= 0:
        return NoisyMean(ratio, -1.0, 1.0, math.inf, math.inf)
    root = math.sqrt(max(b**2 - a * c, 0.0))
    low, high = (min(max(end / a, -1.0), 1.0) for end in (b - root, b + root))
    shared = math.sqrt((ratio * share_noise) ** 2 + variance / units)
    return NoisyMean(min(max(ratio, low), high), low, high, noise / share, shared / share)


def t_quantile(units: int) -> float:
    """Compute how many standard deviations a 95% interval reaches to each side."""
    return float(stdtrit(max(units - 1, 1), 0.975))


def pair(x: Tensor) -> Tensor:
    """Stack (x, 1 - x²) for x in [-1, 1]: its L2 norm is at most 1, so the second moment costs
    nothing more.
    """
    return torch.stack((x, 1 - x.square()), -1)
