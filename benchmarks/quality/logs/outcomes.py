"""Three logs whose outcome, from -10 to 10, stands in the last row, of a death or a discharge.

Invented. Rows before it have no reward, but for small costs in one log. Doctors act by habit.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import TERMINATED, Array, Box, Levels, Log, Number, Observed, State


class _Outcome(Log):
    """A patient who dies (-1), is discharged well (1), or is somewhere between at the horizon."""

    unit, kind = "patient", "the outcome stands in the last row alone"
    reward = (-10.0, 10.0)
    before_end = (0.0, 0.0)
    trajectories = (1, 1)
    terminates = outcome = True
    worth: ClassVar[float] = 10.0

    def _end(
        self, state: State, died: NDArray[np.bool_], well: NDArray[np.bool_], middling: Array
    ) -> Array:
        """Set who ends here, and return the outcomes ``[n]``; ``middling`` are those at the
        horizon.
        """
        state["left"] = state.get("left", np.full(len(died), self.horizon)) - 1
        last = state["left"] <= 0
        state[TERMINATED] = died | well | last
        outcome = np.where(died, -1.0, np.where(well, 1.0, np.where(last, middling, 0.0)))
        return self.worth * outcome


class Sepsis(_Outcome):
    """Four doses of a drug that cures and poisons; doctors look at severity alone."""

    name = "sepsis"
    observation = (
        Number("severity", 0.0, 10.0),
        Number("toxicity", 0.0, 10.0),
        Number("frailty", 0.0, 1.0),
        Number("lactate", 0.0, 12.0),
    )
    action = Levels("dose", 4)
    horizon = 24
    idle = 0

    def people(self, rng: Generator, n: int) -> State:
        """Frailty, and the doctor's habit."""
        return {"frailty": rng.beta(2, 2, n), "habit": rng.normal(0, 0.5, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Ill enough to be there."""
        state["severity"], state["toxicity"] = rng.uniform(3, 8, n), rng.uniform(0, 2, n)
        state["lactate"] = state["severity"] + rng.normal(0, 0.5, n)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """The dose works at once and poisons for long."""
        severity, toxicity, n = state["severity"], state["toxicity"], len(action)
        cure, poison = np.array([0, 0.4, 0.7, 0.85])[action], np.array([0, 0.4, 1.0, 2.2])[action]
        drift = 0.15 + 0.25 * state["frailty"] + 0.05 * np.maximum(toxicity - 3, 0)
        state["severity"] = np.clip(severity + drift - cure + rng.normal(0, 0.4, n), 0, 10)
        state["toxicity"] = np.clip(0.85 * toxicity + poison, 0, 10)
        state["lactate"] = state["severity"] + rng.normal(0, 0.5, n)
        burden = state["severity"] + 0.7 * state["toxicity"] + state["frailty"]
        died = rng.random(n) < 0.35 / (1 + np.exp(10 - burden))
        return self._end(
            state, died, ~died & (state["severity"] < 1), np.where(state["severity"] < 4, 0.5, -0.5)
        )

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """More for the sicker, whatever the poison."""
        return np.rint(0.32 * observed[:, 0] + state["habit"] + rng.normal(0, 0.7, len(observed)))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The middle doses for all, less where there is much poison."""
        return np.rint(np.clip(2.0 - 0.25 * np.maximum(observed[:, 1] - 4, 0), 0, 2))


class Lung(_Outcome):
    """A pressure that each patient needs otherwise, by weight and illness; all get the same."""

    name = "lung"
    observation = (
        Number("oxygen", 0.0, 10.0),
        Number("weight", -2.5, 2.5),
        Number("stiffness", -2.5, 2.5),
        Number("carbon", 0.0, 10.0),
    )
    action = Box(("pressure",), (0.0,), (2.0,))
    horizon = 30

    def people(self, rng: Generator, n: int) -> State:
        """Weight, and the doctor's habit."""
        return {"weight": np.clip(rng.normal(0, 1, n), -2.5, 2.5), "habit": rng.normal(0.8, 0.2, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Short of breath."""
        state["oxygen"], state["stiffness"] = rng.uniform(3, 7, n), rng.normal(0, 0.8, n)
        state["carbon"] = 8 - 0.6 * state["oxygen"] + rng.normal(0, 0.5, n)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Too much harms as too little does."""
        n, need = len(action), 1.0 + 0.25 * state["weight"] + 0.2 * state["stiffness"]
        miss = np.square(action[:, 0] - need)
        state["oxygen"] = np.clip(state["oxygen"] + 0.3 - 1.6 * miss + rng.normal(0, 0.4, n), 0, 10)
        state["stiffness"] = np.clip(0.9 * state["stiffness"] + rng.normal(0, 0.35, n), -2.5, 2.5)
        state["carbon"] = 8 - 0.6 * state["oxygen"] + rng.normal(0, 0.5, n)
        died = rng.random(n) < 0.5 / (1 + np.exp(2.5 * (state["oxygen"] - 1.5)))
        return self._end(state, died, ~died & (state["oxygen"] > 8.5), (state["oxygen"] - 5) / 5)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A habit, whoever comes."""
        return (state["habit"] + rng.normal(0, 0.35, len(observed)))[:, None]

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """What is needed."""
        return (1.0 + 0.25 * observed[:, 1] + 0.2 * observed[:, 2])[:, None]


class Ward(_Outcome):
    """Two drugs that cost a little; a marker says the better one, and doctors hardly look at it."""

    name = "ward"
    kind = "an outcome in the last row, and small costs before it"
    observation = (
        Number("health", 0.0, 10.0),
        Number("marker", -2.5, 2.5),
        Number("age", 0.0, 1.0),
    )
    action = Levels("drug", 3)
    horizon = 40
    idle = 0
    before_end = (-0.03, 0.0)
    worth = 8.0

    def people(self, rng: Generator, n: int) -> State:
        """A marker that stays, and age."""
        return {"trait": rng.normal(0, 0.9, n), "age": rng.beta(2, 2, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Unwell."""
        state["health"], state["marker"] = (
            rng.uniform(3, 7, n),
            state["trait"] + rng.normal(0, 0.5, n),
        )

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """The right drug helps and the wrong one harms."""
        n, side = len(action), np.clip(state["marker"], -2, 2)
        helped = np.where(action == 0, 0.0, np.where(action == 1, 0.4 * side, -0.4 * side) + 0.1)
        state["health"] = np.clip(
            state["health"] - 0.1 * state["age"] + helped + rng.normal(0, 0.5, n), 0, 10
        )
        state["marker"] = np.clip(
            0.7 * state["marker"] + 0.3 * state["trait"] + rng.normal(0, 0.4, n), -2.5, 2.5
        )
        died = rng.random(n) < 0.4 / (1 + np.exp(2.5 * (state["health"] - 1.5)))
        ended = self._end(state, died, ~died & (state["health"] > 9), (state["health"] - 5) / 5)
        return ended - 0.03 * (action > 0)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """The marker counts a little."""
        leaning = 0.4 * observed[:, 1] + rng.normal(0, 1.2, len(observed))
        return np.where(rng.random(len(observed)) < 0.2, 0, np.where(leaning > 0, 1, 2))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """By the marker."""
        return np.where(observed[:, 1] > 0, 1, 2)
