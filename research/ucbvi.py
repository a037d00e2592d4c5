"""UCB-VI with joint differential privacy, for tabular tasks of a fixed horizon, and the counters
that it learns from.

The counters release running counts of a stream of people after every one of them, by the
binary-tree mechanism.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats, Whole = NDArray[np.float64], NDArray[np.int64]

REWARD_UNIT = 1000
"""Rewards within [0, 1] are counted in thousandths, rounded to the nearest."""
_RANDOM = np.random.default_rng()  # in floating point: a baseline for comparison only
_AHEAD = 1 << 16  # noise is drawn for many people at once: about so many numbers


@dataclass(frozen=True)
class TreeCounter:
    """Sums of n whole numbers over the people so far, after each of at most T people.

    Person t adds a vector x_t. Every node of a binary tree over the T people holds the sum over
    those below it plus noise of its own; the sum over the first t people is that of as many nodes
    as t has binary ones (Dwork et al. 2010, "Differential privacy under continual observation";
    Chan, Shi and Song 2011, "Private and continual release of statistics", Algorithm 2). Of the
    nodes only log T are kept.

    In real numbers all T releases together are ε-differentially private
    under zero-out adjacency of one person, at δ = 0. A person is below L = `levels` nodes, one a
    level. Replacing her vector by zero changes each of their sums by at most Δ in L1 norm, all of
    them together by L Δ, and each entry has discrete Laplace noise of scale b ≥ L Δ / ε: P(k) ∝
    exp(-|k| / b). The next people's vectors may depend on earlier releases: the bound holds node by
    node, given all that was released before. A vector of L1 norm above Δ counts as zeros.

    Attributes:
        people: T; public.
        sensitivity: Δ, a whole number; public.
        epsilon: of all releases together; infinite: no noise, the non-private twin.
    """

    people: int
    sensitivity: int
    epsilon: float

    @property
    def private(self) -> bool:
        """Tell whether there is noise."""
        return math.isfinite(self.epsilon)

    @property
    def levels(self) -> int:
        """Count the nodes that one person is below, L: as many as T has binary digits."""
        return self.people.bit_length()

    @property
    def scale(self) -> int:
        """Scale b of the noise: L Δ / ε, rounded up to a whole number; 0 without noise."""
        return (
            math.ceil(self.levels * self.sensitivity / Fraction(self.epsilon))
            if self.private
            else 0
        )

    def error(self, failure: float) -> float:
        """Bound |released - true| of one entry after one person, but for probability ``failure``.

        The noise is a sum of at most L independent variables with E[exp(sY)] ≤ 1 / (1 - s²b²), as
        for continuous Laplace noise, so Corollary 2.9 of Chan, Shi and Song holds: √8 ν √ln(2/β), ν
        = b max(√L, √(2 ln(2/β))).
        """
        logarithm = math.log(2 / failure)
        return (
            self.scale
            * math.sqrt(8 * logarithm)
            * max(math.sqrt(self.levels), math.sqrt(2 * logarithm))
        )


class Stream:
    """R streams side by side, each counted by a `TreeCounter`.

    Holds sensitive sums: discard it with the data.

    Args:
        counter: the mechanism of each stream.
        streams: R.
        size: n.
    """

    def __init__(self, counter: TreeCounter, streams: int, size: int):
        self.counter, self.arrived = counter, 0
        self.sums, self.noisy = np.zeros((2, counter.levels, streams, size), np.int64)
        self._noise = np.zeros((0, streams, size), np.int64)

    def add(self, vectors: Whole) -> Whole:
        """Count one person of each stream, int64 ``[R, n]``, sensitive, and release the sums over
        all so far.

        Raises:
            ValueError: T people have been counted.
        """
        counter = self.counter
        if self.arrived == counter.people:
            raise ValueError(f"{counter.people} people were counted, as many as are paid for")
        self.arrived += 1
        level = (self.arrived & -self.arrived).bit_length() - 1
        fits = np.abs(vectors.astype(np.float64)).sum(-1, keepdims=True) <= counter.sensitivity
        node = self.sums[:level].sum(0) + np.where(fits, vectors, 0)
        self.sums[:level] = self.noisy[:level] = 0
        self.sums[level] = node
        self.noisy[level] = node + self._fresh() if counter.private else node
        return self.noisy.sum(0)

    def _fresh(self) -> Whole:
        """Noise of one node of each stream, used once."""
        if not len(self._noise):
            each = self._noise.shape[1:]
            rows = min(_AHEAD // math.prod(each) + 1, self.counter.people)
            # two geometric variables differ by a discrete Laplace one
            chance = -math.expm1(-1 / self.counter.scale)
            first, second = _RANDOM.geometric(chance, (2, rows, *each))
            self._noise = first - second
        row, self._noise = self._noise[0], self._noise[1:]
        return row


@dataclass(frozen=True)
class UCBVI:
    """Private-UCB-VI: optimistic planning on private counts.

    Chowdhury and Zhou 2021, "Differentially private regret minimization in episodic Markov decision
    processes", with their central privatizer; noise and bounds of its errors are those of
    `TreeCounter`.

    Every user acts for one episode under the policy that is greedy for optimistic values. Visits
    N(h, s, a), rewards C(h, s, a) and transitions N(h, s, a, s') are counted by three tree counters
    of ε/3 each, whose errors are at most E1, E2 and E3. With n = max(N + E1, 1), backward induction
    is on r = C / n and P = N(·, s') / n, plus the bonus

        c ((1 + H) √(2 ln(4 S A T / β)) / √n + (3 E1 + E2 + H (S E3 + 2 E1)) / n)

    where T is the number of all steps and β the probability of failure. c = 1 is what the proof
    needs.

    Formal guarantee: a user adds H visits, H transitions and rewards of sum at most H, the
    counters' sensitivities. So all policies together are ε-differentially private at δ = 0 under
    zero-out adjacency of one user. A user also sees her own actions, which is the policy she met
    applied to her own states: what all others see, and every later policy, is ε-differentially
    private in her data, which is joint differential privacy (billboard lemma).

    Attributes:
        states: S.
        actions: A.
        horizon: H.
        users: K, at most; public.
        epsilon: of the run; infinite: the non-private twin, which counts without noise.
        failure: β.
        optimism: c.
        seed: of the draws between actions of equal value.
    """

    states: int
    actions: int
    horizon: int
    users: int
    epsilon: float
    failure: float
    optimism: float
    seed: int

    def counter(self, unit: int) -> TreeCounter:
        """Make one of the three counters; one step adds at most ``unit``."""
        return TreeCounter(self.users, self.horizon * unit, self.epsilon / 3)


class Learner:
    """R runs of `UCBVI` side by side. Holds sensitive sums; ``policy`` alone is released.

    Attributes:
        policy: the action in each state at each step, ``[R, H, S]``.

    Args:
        settings: of each run.
        runs: R.
    """

    def __init__(self, settings: UCBVI, runs: int):
        self._settings = settings
        self._random = np.random.default_rng(settings.seed)
        H, S, A = settings.horizon, settings.states, settings.actions
        self._table, cells = (runs, H, S, A), H * S * A
        visits, rewards = settings.counter(1), settings.counter(REWARD_UNIT)
        self.streams = (
            Stream(visits, runs, cells),
            Stream(rewards, runs, cells),
            Stream(visits, runs, cells * S),
        )
        each = settings.failure / (3 * S * A * settings.users * H)
        self._errors = visits.error(each), rewards.error(each) / REWARD_UNIT, visits.error(each / S)
        zeros = np.zeros(self._table)
        self.policy = self._planned(zeros, zeros, np.zeros((*self._table, S)))

    def learn(self, states: Whole, actions: Whole, rewards: Floats) -> None:
        """Count one user's episode in each run, which is sensitive, and plan the next policies.

        An episode with a state or action that does not exist counts as an empty one. NaN rewards
        count as 0.

        Args:
            states: visited, ``[R, H + 1]``.
            actions: ``[R, H]``.
            rewards: within [0, 1], ``[R, H]``.
        """
        R, H, S, A = self._table
        there = ((states >= 0) & (states < S)).all(1) & ((actions >= 0) & (actions < A)).all(1)
        run, step = np.nonzero(np.broadcast_to(there[:, None], (R, H)))
        at = np.ravel_multi_index((run, step, states[run, step], actions[run, step]), self._table)
        thousandths = np.rint(np.nan_to_num(rewards[run, step], nan=0.0).clip(0, 1) * REWARD_UNIT)
        cells = R * H * S * A
        counted = [np.bincount(at, minlength=cells), np.bincount(at, thousandths, cells)]
        counted.append(np.bincount(at * S + states[run, step + 1], minlength=cells * S))
        visits, sums, moves = (
            stream.add(own.astype(np.int64).reshape(R, -1))
            for stream, own in zip(self.streams, counted, strict=True)
        )
        self.policy = self._planned(
            visits.reshape(self._table),
            sums.reshape(self._table) / REWARD_UNIT,
            moves.reshape(*self._table, S),
        )

    def _planned(self, visits: Floats | Whole, rewards: Floats, moves: Floats | Whole) -> Whole:
        """Plan greedily for released counts."""
        settings, (first, second, third) = self._settings, self._errors
        _, H, S, A = self._table
        n = np.maximum(visits + first, 1)
        logarithm = math.log(4 * S * A * settings.users * H / settings.failure)
        bonus = (1 + H) * math.sqrt(2 * logarithm) / np.sqrt(n)
        bonus += (3 * first + second + H * (S * third + 2 * first)) / n
        optimistic = rewards / n + settings.optimism * bonus
        return backward_induction(optimistic, moves / n[..., None], self._random)[1]


def backward_induction(
    rewards: Floats, probabilities: Floats, random: np.random.Generator
) -> tuple[Floats, Whole]:
    """Find optimal values ``[R, H, S]`` and actions ``[R, H, S]`` of R tasks of a finite horizon,
    H.

    A step brings at most 1, so values are held within 0 and the number of steps that are left.
    Between actions of equal value one is drawn.

    Args:
        rewards: mean reward of each step, ``[R, H, S, A]``.
        probabilities: of the next states, ``[R, H, S, A, S]``; where noise made them, they need not
            be probabilities.
        random: of the draws.
    """
    runs, horizon, states, actions = rewards.shape
    values, policy = (
        np.zeros((runs, horizon + 1, states)),
        np.zeros((runs, horizon, states), np.int64),
    )
    for step in reversed(range(horizon)):
        after = (probabilities[:, step].reshape(runs, -1, states) @ values[:, step + 1, :, None])[
            ..., 0
        ]
        q = (rewards[:, step] + after.reshape(runs, states, actions)).clip(0, horizon - step)
        best = q.max(-1, keepdims=True)
        values[:, step] = best[..., 0]
        policy[:, step] = np.where(q == best, random.random(q.shape), -1).argmax(-1)
    return values[:, :-1], policy
