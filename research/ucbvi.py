"""UCB-VI with joint differential privacy, for tabular tasks of a fixed horizon."""

import math
from dataclasses import dataclass, field

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

from primorl.privacy.mechanism.entropy import Entropy, SystemEntropy
from research.tree_counter import Stream, TreeCounter, Whole

Floats = NDArray[np.float64]

REWARD_UNIT = 1000
"""Rewards within [0, 1] are counted in thousandths, rounded to the nearest."""


@dataclass(frozen=True)
class UCBVI:
    """Private-UCB-VI: optimistic planning on private counts.

    Chowdhury and Zhou 2021, "Differentially private regret minimization in episodic Markov decision processes", with
    their central privatizer; noise and bounds of its errors are those of `TreeCounter`.

    Every user acts for one episode under the policy that is greedy for optimistic values. Visits N(h, s, a), rewards
    C(h, s, a) and transitions N(h, s, a, s') are counted by three tree counters of ε/3 each, whose errors are at most
    E1, E2 and E3. With n = max(N + E1, 1), backward induction is on r = C / n and P = N(·, s') / n, plus the bonus

        c ((1 + H) √(2 ln(4 S A T / β)) / √n + (3 E1 + E2 + H (S E3 + 2 E1)) / n)

    where T is the number of all steps and β the probability of failure. c = 1 is what the proof needs.

    Formal guarantee: a user adds H visits, H transitions and rewards of sum at most H, the counters' sensitivities. So
    all policies together are ε-differentially private at δ = 0 under zero-out adjacency of one user. A user also
    sees her own actions, which is the policy she met applied to her own states: what all others see, and every later
    policy, is ε-differentially private in her data, which is joint differential privacy (billboard lemma).

    Attributes:
        states: S.
        actions: A.
        horizon: H.
        users: K, at most; public.
        epsilon: of the run; infinite: the non-private twin, which counts without noise.
        failure: β.
        optimism: c.
        seed: of the draws between actions of equal value.
        entropy: of the noise.
    """

    states: int
    actions: int
    horizon: int
    users: int
    epsilon: float
    failure: float
    optimism: float
    seed: int
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)

    def counter(self, unit: int) -> TreeCounter:
        """Make one of the three counters; one step adds at most ``unit``."""
        return TreeCounter(self.users, self.horizon * unit, self.epsilon / 3, self.entropy)

    @property
    def event(self) -> dp_event.DpEvent:
        """Event of the whole run, which the accountant composes; raises what `TreeCounter.event` raises."""
        return dp_event.ComposedDpEvent([self.counter(1).event, self.counter(REWARD_UNIT).event, self.counter(1).event])


class Learner:
    """One run of `UCBVI`. Holds sensitive sums; ``policy``, the action in each state at each step, alone is released.

    Args:
        settings: of the run.
    """

    def __init__(self, settings: UCBVI):
        self._settings = settings
        self._random = np.random.default_rng(settings.seed)
        H, S, A = settings.horizon, settings.states, settings.actions
        self._table, self._cells = (H, S, A), H * S * A
        visits, rewards = settings.counter(1), settings.counter(REWARD_UNIT)
        self.streams = Stream(visits, self._cells), Stream(rewards, self._cells), Stream(visits, self._cells * S)
        each = settings.failure / (3 * S * A * settings.users * H)
        self._errors = visits.error(each), rewards.error(each) / REWARD_UNIT, visits.error(each / S)
        zeros = np.zeros(self._table)
        self.policy = self._planned(zeros, zeros, np.zeros((*self._table, S)))

    def learn(self, states: Whole, actions: Whole, rewards: Floats) -> None:
        """Count one user's episode, which is sensitive, and plan the next policy.

        An episode with a state or action that does not exist counts as an empty one. NaN rewards count as 0.

        Args:
            states: visited, ``[H + 1]``.
            actions: ``[H]``.
            rewards: within [0, 1], ``[H]``.
        """
        (_, S, A), steps = self._table, np.arange(self._settings.horizon)
        there = bool(((states >= 0) & (states < S)).all() and ((actions >= 0) & (actions < A)).all())
        at = np.ravel_multi_index((steps, states[:-1], actions), self._table) if there else np.zeros(0, np.int64)
        after, paid = (states[1:], np.nan_to_num(rewards, nan=0.0)) if there else (at, at)
        thousandths = np.rint(paid.clip(0, 1) * REWARD_UNIT)
        counted = [np.bincount(at, minlength=self._cells), np.bincount(at, thousandths, self._cells)]
        counted.append(np.bincount(at * S + after, minlength=self._cells * S))
        visits, sums, moves = (
            stream.add(own.astype(np.int64)) for stream, own in zip(self.streams, counted, strict=True)
        )
        self.policy = self._planned(
            visits.reshape(self._table), sums.reshape(self._table) / REWARD_UNIT, moves.reshape(*self._table, S)
        )

    def _planned(self, visits: Floats | Whole, rewards: Floats, moves: Floats | Whole) -> Whole:
        """The greedy policy ``[H, S]`` of released counts."""
        settings, (first, second, third) = self._settings, self._errors
        H, S, A = self._table
        n = np.maximum(visits + first, 1)
        logarithm = math.log(4 * S * A * settings.users * H / settings.failure)
        bonus = (1 + H) * math.sqrt(2 * logarithm) / np.sqrt(n)
        bonus += (3 * first + second + H * (S * third + 2 * first)) / n
        optimistic = rewards / n + settings.optimism * bonus
        return backward_induction(optimistic, moves / n[..., None], self._random)[1]


def backward_induction(rewards: Floats, probabilities: Floats, random: np.random.Generator) -> tuple[Floats, Whole]:
    """Find optimal values ``[H, S]`` and actions ``[H, S]`` of a finite horizon, where a step brings at most 1.

    Values are held within 0 and the number of steps that are left, which only matters where rewards are optimistic.
    Between actions of equal value one is drawn.

    Args:
        rewards: mean reward of each step, ``[H, S, A]``.
        probabilities: of the next states, ``[H, S, A, S]``; where noise made them, they need not be probabilities.
        random: of the draws.
    """
    horizon, states, actions = rewards.shape
    values, policy = np.zeros((horizon + 1, states)), np.zeros((horizon, states), np.int64)
    for step in reversed(range(horizon)):
        q = (rewards[step] + probabilities[step] @ values[step + 1]).clip(0, horizon - step)
        values[step] = q.max(1)
        policy[step] = np.where(q == values[step][:, None], random.random((states, actions)), -1).argmax(1)
    return values[:-1], policy
