"""Logs of people who like, learn and train: recommendation, an exam after lessons, and training loads."""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import Array, Box, Choice, Levels, Log, Number, Observed, State

_GENRES = 8


class Recommendation(Log):
    """Eight genres for users of four segments, who tire of what they just saw."""

    name, kind = (
        "recommendation",
        "eight discrete items, tastes by segment, boredom, categories one-hot; mixed behaviour",
    )
    unit = "user"
    observation = (
        Choice("segment", ("child", "student", "adult", "senior")),
        Choice("last", ("none", *(f"genre{i}" for i in range(_GENRES)))),
        *(Number(f"seen{i}", 0.0, 1.0) for i in range(_GENRES)),
        Number("mood", -2.0, 2.0),
    )
    action = Levels("item", _GENRES)
    reward = (0.0, 1.0)
    trajectories = (2, 12)
    horizon = 25
    bias = "segment"

    TASTE = np.random.default_rng(5).normal(0, 1.3, (4, _GENRES))
    MOOD = np.random.default_rng(6).normal(0, 0.9, _GENRES)

    def people(self, rng: Generator, n: int) -> State:
        """A segment, and a taste of one's own that nobody sees."""
        return {"segment": rng.integers(4, size=n), "own": rng.normal(0, 0.4, (n, _GENRES))}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Nothing seen yet."""
        state["last"] = np.zeros(n, np.int64)
        state["seen"] = np.zeros((n, _GENRES))
        state["mood"] = rng.normal(0, 0.8, n)

    def lengths(self, rng: Generator, n: int) -> NDArray[np.int64]:
        """Sessions of 3 to 25."""
        return 3 + rng.binomial(22, rng.beta(1, 2, n))

    def observe(self, state: State) -> list[NDArray[Any]]:
        """The segment, the last item, what was seen lately, and the mood."""
        return [state["segment"], state["last"], *state["seen"].T, state["mood"]]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Clicked or not."""
        rows = np.arange(len(action))
        score = (
            self.TASTE[state["segment"], action]
            + state["own"][rows, action]
            + self.MOOD[action] * state["mood"]
        )
        score = score - 4.0 * state["seen"][rows, action] - 0.8
        state["seen"] = 0.8 * state["seen"]
        state["seen"][rows, action] += 0.2
        state["last"] = action + 1
        state["mood"] = np.clip(0.9 * state["mood"] + rng.normal(0, 0.3, len(action)), -2, 2)
        return (rng.random(len(action)) < 1 / (1 + np.exp(-score))).astype(float)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """The segment's favourites without a thought of boredom, half of the time; else anything."""
        noisy = self.TASTE[observed[:, :4].argmax(1)] + rng.gumbel(0, 1.0, (len(observed), _GENRES))
        return np.where(
            rng.random(len(observed)) < 0.3,
            rng.integers(_GENRES, size=len(observed)),
            noisy.argmax(1),
        )

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The item that is most likely clicked now, with a little patience for what was seen."""
        score = observed[:, :4] @ self.TASTE + observed[:, -1:] * self.MOOD
        return (score - 5.0 * observed[:, 13:21]).argmax(1)


class Lessons(Log):
    """Twenty lessons in three subjects that build on each other, and an exam after the last."""

    name, kind = (
        "lessons",
        "sparse and delayed: the only reward is an exam at the last of twenty steps; mediocre teachers",
    )
    unit = "student"
    observation = (
        *(Number(f"skill{i}", 0.0, 1.0) for i in range(3)),
        Number("tired", 0.0, 1.0),
        Number("left", 0.0, 1.0),
    )
    action = Box(("first", "second", "third"), (0.0,) * 3, (1.0,) * 3)
    reward = (0.0, 10.0)
    trajectories = (1, 2)
    horizon = 20
    idle = (0.0,) * 3

    def people(self, rng: Generator, n: int) -> State:
        """How fast one learns."""
        return {"talent": rng.uniform(0.7, 1.3, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Beginners."""
        state["skill"] = rng.uniform(0, 1, (n, 3)) * np.array([0.4, 0.2, 0.1])
        state["tired"] = rng.uniform(0, 0.3, n)
        state["done"] = np.zeros(n)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Skills, tiredness and the lessons that are left."""
        return [*state["skill"].T, state["tired"], 1 - state["done"] / 20]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """What is learnt needs the subject before it and a rested head."""
        skill, tired = state["skill"], state["tired"]
        ready = np.stack((np.ones(len(skill)), skill[:, 0], skill[:, 1]), 1)
        rate = 0.4 * state["talent"][:, None] * (1 - tired[:, None]) ** 2
        noise = rng.normal(0, 0.01, skill.shape)
        state["skill"] = np.clip(
            skill + rate * action * ready * (1 - skill) - 0.01 * skill + noise, 0, 1
        )
        state["tired"] = np.clip(0.75 * tired + 0.2 * action.sum(1), 0, 1)
        state["done"] = state["done"] + 1
        exam = 10 * state["skill"] @ np.array([0.2, 0.3, 0.5])
        return np.where(state["done"] >= 20, exam, 0.0)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A little of everything, more than heads can take."""
        return np.array([0.5, 0.5, 0.5]) * rng.uniform(0, 1.6, (len(observed), 3))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """One subject after the other, at the pace that a head can take."""
        first, second, third = (observed[:, i] for i in range(3))
        gain = np.stack(
            (0.87 * (1 - first), 1.0 * first * (1 - second), 1.24 * second * (1 - third)), 1
        )
        effort = np.maximum(0.67 - 0.53 * observed[:, 3], 0) + 0.64 * (observed[:, 4] < 0.08)
        return np.eye(3)[gain.argmax(1)] * effort[:, None]


class Training(Log):
    """Athletes whose load makes them fit and tired (the two-component model of Banister et al. 1975)."""

    name, kind = (
        "training",
        "many short trajectories a person, one continuous action, mediocre behaviour",
    )
    unit = "athlete"
    observation = (
        Number("fitness", 0.0, 8.0),
        Number("fatigue", 0.0, 8.0),
        Number("sleep", 0.0, 1.0),
        Number("soreness", 0.0, 4.0),
    )
    action = Box(("load",), (0.0,), (1.0,))
    reward = (-4.0, 4.0)
    trajectories = (15, 40)
    horizon = 14
    idle = (0.0,)

    def people(self, rng: Generator, n: int) -> State:
        """How fast one recovers, and how hard one trains."""
        return {"recovery": rng.uniform(0.65, 0.8, n), "zeal": rng.uniform(0.1, 0.65, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Somewhere in a season."""
        state["fitness"] = rng.uniform(0.5, 4, n)
        state["fatigue"] = rng.uniform(0, 3, n)
        state["soreness"] = rng.uniform(0, 1, n)
        state["sleep"] = rng.beta(4, 2, n)

    def lengths(self, rng: Generator, n: int) -> NDArray[np.int64]:
        """One or two weeks."""
        return np.where(rng.random(n) < 0.5, 7, 14)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Performance of the day: fitness less fatigue less soreness."""
        load = action[:, 0]
        performance = 0.6 * state["fitness"] - 0.7 * state["fatigue"] - 0.3 * state["soreness"]
        state["fitness"] = np.clip(0.95 * state["fitness"] + 0.6 * load * state["sleep"], 0, 8)
        state["fatigue"] = np.clip(state["recovery"] * state["fatigue"] + 0.9 * load**2, 0, 8)
        noise = rng.normal(0, 0.1, len(load))
        state["soreness"] = np.clip(0.5 * state["soreness"] + load * (load > 0.7) + noise, 0, 4)
        state["sleep"] = np.clip(0.6 * state["sleep"] + 0.4 * rng.beta(4, 2, len(load)), 0, 1)
        return performance + rng.normal(0, 0.1, len(load))

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """Everybody trains by zeal, whatever the day."""
        return (state["zeal"] + rng.normal(0, 0.25, len(observed)))[:, None]

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Loads after good sleep, and never so hard that it hurts."""
        fitness, fatigue, sleep, soreness = observed.T
        load = 0.33 + 0.56 * (sleep - 0.66) + 0.025 * fatigue - 0.01 * fitness + 0.1 * soreness
        return np.clip(load, 0.0, 0.63)[:, None]
