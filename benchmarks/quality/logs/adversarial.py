"""Five logs made to refute a trial: practice is nearly the best there is, and what it goes by lies
beyond what a clone and a model of few people can express, or in no column.

Invented. People nearly never do what is wrong, so that no row says what it would do.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import Array, Box, Choice, Levels, Log, Number, Observed, State


class _Chronic(Log):
    """A chronic illness: each step costs what is missing of health, and a lab value wanders."""

    unit = "patient"
    action = Levels("drug", 3)
    reward = (-1.2, 0.2)
    trajectories = (1, 2)
    horizon = 24
    shortest = 12
    idle: ClassVar[tuple[float, ...] | int | None] = 0

    WRONG = 0.06
    """Share of steps with a drug at random."""

    def people(self, rng: Generator, n: int) -> State:
        """How old."""
        return {"age": rng.beta(2, 2, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """More or less ill."""
        state["health"] = rng.uniform(3, 8, n)
        state["lab"] = rng.normal(0, 1, n)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """What the drug does, and what comes by itself."""
        change = self.effect(state, action) - 0.2 - 0.1 * state["age"]
        health = state["health"] + change + rng.normal(0, 0.3, len(action))
        state["health"] = np.clip(health, 0, 10)
        lab = 0.6 * state["lab"] + rng.normal(0, 0.8, len(action))
        state["lab"] = np.clip(lab, -2.5, 2.5)
        return -0.1 * (10 - state["health"])

    @abstractmethod
    def effect(self, state: State, action: NDArray[Any]) -> Array:
        """How much health the drug brings, ``[n]``."""

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """The best, with rare errors."""
        best = self.best_known(observed)
        wrong = rng.random(len(best)) < self.WRONG
        return np.where(wrong, self.action.uniform(rng, len(best)), best)


class Window(_Chronic):
    """One drug helps within a window of the lab value and harms outside; another by a product of
    two.
    """

    name, kind = "window", "what helps depends on a window and on a product of two values"
    observation = (
        Number("health", 0.0, 10.0),
        Number("lab", -2.5, 2.5),
        Number("mark", -2.5, 2.5),
        Number("age", 0.0, 1.0),
    )

    def start(self, rng: Generator, state: State, n: int) -> None:
        """More or less ill, with a second value."""
        super().start(rng, state, n)
        state["mark"] = rng.normal(0, 1, n)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """The second value wanders too."""
        reward = super().step(rng, state, action)
        mark = 0.5 * state["mark"] + rng.normal(0, 0.87, len(action))
        state["mark"] = np.clip(mark, -2.5, 2.5)
        return reward

    def effect(self, state: State, action: NDArray[Any]) -> Array:
        """See `_Chronic.effect`."""
        first = np.where(np.abs(state["lab"]) < 0.9, 0.45, -0.6)
        second = np.where(state["lab"] * state["mark"] > 0, 0.3, -0.5)
        return np.choose(action, (np.zeros(len(action)), first, second))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """By the window, then by the product."""
        _, lab, mark, _ = observed.T
        return np.where(np.abs(lab) < 0.9, 1, np.where(lab * mark > 0, 2, 0))


class Genotypes(_Chronic):
    """A drug that helps one genotype at high lab values, and another at low ones; a mild one."""

    name, kind = "genotypes", "a drug for genotype and lab value together; a mild one for all"
    observation = (
        Number("health", 0.0, 10.0),
        Number("lab", -2.5, 2.5),
        Choice("genotype", ("a", "b", "c")),
        Number("age", 0.0, 1.0),
    )

    def people(self, rng: Generator, n: int) -> State:
        """How old, and the genotype."""
        return super().people(rng, n) | {"genotype": rng.choice(3, n, p=(0.45, 0.3, 0.25))}

    def effect(self, state: State, action: NDArray[Any]) -> Array:
        """See `_Chronic.effect`."""
        sign = np.array([1.0, -1.0, 0.0])[state["genotype"]]
        strong = np.abs(sign) * np.where(sign * state["lab"] > 0, 0.55, -0.66)
        return np.choose(action, (np.zeros(len(action)), 0.1 + strong, np.full(len(action), 0.1)))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The strong drug where it helps."""
        return np.where((observed[:, 2] - observed[:, 3]) * observed[:, 1] > 0, 1, 2)


class Responders(_Chronic):
    """Two kinds of people respond to two drugs in opposite ways, and no column tells the kind."""

    name, kind = (
        "responders",
        "a hidden kind; doctors stay with what helped and change what did not",
    )
    observation = (
        Number("health", 0.0, 10.0),
        Number("change", -2.0, 2.0),
        Choice("before", ("a", "b")),
    )
    action = Levels("drug", 2)
    idle = None

    def people(self, rng: Generator, n: int) -> State:
        """The kind, and how old."""
        return super().people(rng, n) | {"kind": rng.choice((-1.0, 1.0), n, p=(0.35, 0.65))}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """After a first drug."""
        super().start(rng, state, n)
        state["before"] = rng.integers(2, size=n)
        state["change"] = self.effect(state, state["before"]) + rng.normal(0, 0.4, n)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """What changed, and by which drug, can be seen."""
        health = state["health"]
        reward = super().step(rng, state, action)
        state["change"] = np.clip(state["health"] - health + 0.2, -2, 2)
        state["before"] = action
        return reward

    def effect(self, state: State, action: NDArray[Any]) -> Array:
        """See `_Chronic.effect`."""
        return 0.4 * np.where(action == 1, state["kind"], -state["kind"])

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Stay with what helped."""
        before = observed[:, 3].round().astype(int)
        return np.where(observed[:, 1] > 0, before, 1 - before)


class Ahead(_Chronic):
    """Doctors see a sign that the column shows a step later; a third drug is bad for all."""

    name, kind = "ahead", "doctors see a sign a step before its column"
    observation = (Number("health", 0.0, 10.0), Number("sign", -2.5, 2.5), Number("age", 0.0, 1.0))

    def observe(self, state: State) -> list[NDArray[Any]]:
        """The sign of the step before."""
        return [state["health"], state.get("seen", state["lab"]), state["age"]]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """What doctors saw gets into the column."""
        state["seen"] = state["lab"]
        return super().step(rng, state, action)

    def effect(self, state: State, action: NDArray[Any]) -> Array:
        """See `_Chronic.effect`."""
        sign = np.clip(state["lab"], -2, 2)
        return np.choose(action, (-0.35 * sign + 0.1, 0.45 * sign + 0.1, np.full(len(sign), -0.8)))

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """By the sign of today."""
        best = (state["lab"] + rng.normal(0, 0.3, len(observed)) > 0).astype(int)
        wrong = rng.random(len(best)) < self.WRONG
        return np.where(wrong, 2, best)

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """By the sign of yesterday."""
        return (observed[:, 1] > 0).astype(int)


class Edge(Log):
    """More is better up to an edge that no polynomial has; doctors stay just below it."""

    name, kind = "edge", "a cliff just beyond what people do, at another dose for each state"
    unit = "patient"
    observation = (Number("x", -2.5, 2.5), Number("y", -2.5, 2.5), Number("load", 0.0, 10.0))
    action = Box(("dose",), (0.0,), (2.0,))
    reward = (-6.0, 2.0)
    trajectories = (1, 2)
    horizon = 20
    shortest = 10
    idle = (0.0,)

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Anywhere."""
        state["x"], state["y"] = rng.normal(0, 1, (2, n))
        state["load"] = rng.uniform(0, 6, n)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """A dose beyond the edge harms now and later."""
        dose, noise = action[:, 0], rng.normal(0, 1, (4, len(action)))
        over = dose > _edge(state["x"], state["y"])
        reward: Array = 0.9 * dose - 0.1 * state["load"] - 3.0 * over + 0.2 * noise[0]
        load = 0.9 * state["load"] + 0.8 - 0.6 * dose + 2.0 * over + 0.3 * noise[1]
        state["load"] = np.clip(load, 0, 10)
        state["x"] = np.clip(0.7 * state["x"] + 0.7 * noise[2], -2.5, 2.5)
        state["y"] = np.clip(0.7 * state["y"] + 0.7 * noise[3], -2.5, 2.5)
        return reward

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """Just below the edge."""
        below = 0.12 + 0.1 * np.abs(rng.normal(0, 1, len(observed)))
        dose: Array = _edge(observed[:, 0], observed[:, 1]) - below
        return dose[:, None]

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """At the edge."""
        dose: Array = _edge(observed[:, 0], observed[:, 1]) - 0.02
        return dose[:, None]


def _edge(x: NDArray[Any], y: NDArray[Any]) -> Array:
    """Return the largest dose that does no harm."""
    edge: Array = 1.0 + 0.3 * np.sign(np.sin(2.5 * x)) + 0.2 * np.clip(y, -2, 2)
    return edge
