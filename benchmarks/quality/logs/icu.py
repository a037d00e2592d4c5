"""Intensive care whose outcome comes at the end: nine doses, ten observations, a response that
nobody sees.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import TERMINATED, Array, Levels, Log, Number, Observed, State


class Icu(Log):
    """Patients in shock, who are discharged alive (10) or die (0); no row before the last has a
    reward.

    Invented. A dose holds the pressure up, and poisons; how much of it a patient needs is hidden.
    """

    name, kind = "icu", "nine doses, the outcome in the last row alone, a hidden response"
    unit = "patient"
    observation = (
        Number("pressure", 20.0, 140.0),
        Number("lactate", 0.0, 20.0),
        Number("heart_rate", 30.0, 200.0),
        Number("organ_failure", 0.0, 24.0),
        Number("urine", 0.0, 4.0),
        Number("creatinine", 0.0, 12.0),
        Number("temperature", 32.0, 42.0),
        Number("age", 18.0, 100.0),
        Number("dose_before", 0.0, 8.0),
        Number("hours", 0.0, 80.0),
    )
    action = Levels("dose", 9)
    reward = (0.0, 10.0)
    before_end = (0.0, 0.0)
    ends = ("died", "discharged alive")
    trajectories = (1, 1)
    horizon = 20
    terminates = True
    idle = 0

    def people(self, rng: Generator, n: int) -> State:
        """Age, and how strongly the pressure answers a dose."""
        return {"age": rng.uniform(30, 90, n), "response": np.exp(rng.normal(0, 0.35, n))}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Infection and poisoning, hidden; the first readings."""
        state["infection"] = rng.uniform(2, 7, n) + 0.01 * (state["age"] - 60)
        state["poison"] = np.zeros(n)
        state["before"], state["hours"] = np.zeros(n), np.zeros(n)
        self._read(rng, state)

    def _read(self, rng: Generator, state: State) -> None:
        ill, poison = state["infection"], state["poison"]
        held = 3.2 * state["response"] * state["before"]
        noise = rng.normal(0, 1, (6, len(ill)))
        state["pressure"] = 92 - 8.5 * ill + held + 4 * noise[0]
        state["lactate"] = np.clip(0.9 * ill + 0.5 * poison - 0.5 + 0.6 * noise[1], 0, 20)
        state["heart_rate"] = 80 + 8 * ill + 4 * poison + 6 * noise[2]
        state["organ_failure"] = np.clip(1.6 * ill + 1.2 * poison + noise[3], 0, 24)
        state["urine"] = np.clip(2 - 0.2 * ill - 0.15 * poison + 0.2 * noise[4], 0, 4)
        state["creatinine"] = np.clip(0.8 + 0.4 * poison + 0.1 * ill, 0, 12)
        state["temperature"] = 36.8 + 0.3 * ill + 0.3 * noise[5]

    def observe(self, state: State) -> list[NDArray[Any]]:
        """The readings, the dose before and the time."""
        names = [column.column for column in self.observation[:8]]
        return [*(state[name] for name in names), state["before"], state["hours"]]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Some hours on: shock feeds the illness, and a dose beyond what the pressure needs
        poisons.
        """
        ill, poison = state["infection"], state["poison"]
        pressure = 92 - 8.5 * ill + 3.2 * state["response"] * action
        shock, excess = np.maximum(65 - pressure, 0) / 10, np.maximum(pressure - 76, 0) / 10
        n = len(ill)
        state["infection"] = np.clip(ill - 0.42 + 0.55 * shock + rng.normal(0, 0.35, n), 0, 12)
        poisoned = 0.75 * poison + 0.9 * excess + 0.06 * action
        state["poison"] = np.clip(poisoned + 0.1 * np.abs(rng.normal(0, 1, n)), 0, 15)
        state["before"] = action.astype(float)
        state["hours"] = state["hours"] + rng.uniform(1, 4, n)
        self._read(rng, state)
        burden = state["infection"] + 0.8 * state["poison"] + 0.02 * (state["age"] - 60)
        died = rng.random(n) < 0.5 / (1 + np.exp(-(burden - 8.2) / 0.7))
        well = (state["infection"] < 0.6) & ~died
        state["left"] = state.get("left", np.full(n, self.horizon)) - 1
        state[TERMINATED] = died | well | (state["left"] <= 0)
        return np.where(state[TERMINATED] & ~died, 10.0, 0.0)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """By pressure alone, late, and with a hand of one's own."""
        need = (72 - observed[:, 0]) / 9 + 0.75 * observed[:, 8]
        return np.rint(need + rng.normal(0, 1.3, len(need)))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Hold the pressure near 72, early."""
        need = (74 - observed[:, 0]) / 4 + observed[:, 8]
        return np.rint(np.clip(need, 0, 8))


class Unseen(Log):
    """Patients whom doctors judge by a sign that no column has: they treat those who need it.

    Invented. In the rows the treated die more often, as they were more ill: no estimate from these
    columns can tell that the treatment helps them.
    """

    name, kind = "unseen", "doctors act on a sign that no column has; nothing in the log tells"
    unit = "patient"
    observation = (
        Number("severity", 0.0, 10.0),
        Number("pressure", 20.0, 140.0),
        Number("age", 0.0, 1.0),
    )
    action = Levels("drug", 2)
    reward = (-10.0, 10.0)
    before_end = (0.0, 0.0)
    trajectories = (1, 1)
    horizon = 16
    terminates = outcome = True
    idle = 0

    def people(self, rng: Generator, n: int) -> State:
        """Age, and the sign."""
        return {"age": rng.beta(2, 2, n), "sign": (rng.random(n) < 0.5).astype(float)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Ill."""
        state["severity"] = rng.uniform(3, 6, n)
        state["pressure"] = 95 - 5 * state["severity"] + rng.normal(0, 4, n)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """The drug saves those with the sign, who die without it, and poisons the others."""
        n, sign = len(action), state["sign"]
        drift = np.where(sign > 0, 0.45 - 0.6 * action, -0.3 + 0.5 * action)
        state["severity"] = np.clip(state["severity"] + drift + rng.normal(0, 0.4, n), 0, 10)
        state["pressure"] = 95 - 5 * state["severity"] + rng.normal(0, 4, n)
        died = rng.random(n) < 0.4 / (1 + np.exp(7.5 - state["severity"]))
        well = ~died & (state["severity"] < 1)
        state["left"] = state.get("left", np.full(n, self.horizon)) - 1
        state[TERMINATED] = died | well | (state["left"] <= 0)
        middling = np.where(state["severity"] < 4, 5.0, -5.0)
        outcome = np.where(died, -10.0, np.where(well, 10.0, middling))
        return np.where(state[TERMINATED], outcome, 0.0)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """The drug for those with the sign, nearly always."""
        right = rng.random(len(observed)) < 0.85
        return np.where(right, state["sign"], 1 - state["sign"])

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Of the policies that see the columns alone: the drug for the severe."""
        return (observed[:, 0] > 5.5).astype(int)
