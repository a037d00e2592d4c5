"""Logs of nonlinear control: a pendulum with a weak motor, and a building's heating and ventilation."""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import Array, Box, Levels, Log, Number, Observed, State


class Swing(Log):
    """A pendulum that a weak motor must swing up."""

    name, kind = "swing", "nonlinear control: a pendulum with a weak motor, mediocre behaviour"
    unit = "operator"
    observation = (
        Number("cosine", -1.0, 1.0),
        Number("sine", -1.0, 1.0),
        Number("speed", -8.0, 8.0),
    )
    action = Box(("torque",), (-2.0,), (2.0,))
    reward = (-2.0, 0.0)
    trajectories = (1, 3)
    horizon = 100
    shortest = 60
    idle = (0.0,)

    def people(self, rng: Generator, n: int) -> State:
        """Some push harder."""
        return {"skill": rng.uniform(0.3, 1.0, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Most hang down; angle 0 is upright."""
        state["angle"] = np.pi + rng.normal(0, 0.8, n)
        state["speed"] = rng.normal(0, 0.5, n)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """The angle by cosine and sine, and its speed."""
        return [np.cos(state["angle"]), np.sin(state["angle"]), state["speed"]]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Semi-implicit Euler of angle'' = 6 sin(angle) - 0.1 angle' + 2 torque."""
        angle = (state["angle"] + np.pi) % (2 * np.pi) - np.pi
        torque = action[:, 0]
        cost = (angle / np.pi) ** 2 + 0.01 * state["speed"] ** 2 + 0.01 * torque**2
        force = (
            6 * np.sin(angle) - 0.1 * state["speed"] + 2 * torque + rng.normal(0, 0.3, len(angle))
        )
        state["speed"] = np.clip(state["speed"] + 0.08 * force, -8, 8)
        state["angle"] = angle + 0.08 * state["speed"]
        return -cost

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """The best policy at the operator's skill, and much noise."""
        return state["skill"][:, None] * self.best_known(observed) + rng.normal(
            0, 0.7, (len(observed), 1)
        )

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Energy is pumped in; near the top a linear controller holds it."""
        cosine, sine, speed = observed.T
        energy = 0.5 * speed**2 + 6 * cosine  # 6 at rest upright
        pump = np.clip(7.0 - energy, -2, 2) * np.where(speed >= 0, 1.0, -1.0)
        hold = -5.6 * np.arctan2(sine, cosine) - 2.0 * speed
        return np.where((cosine > 0.73) & (np.abs(speed) < 3.2), hold, pump)[:, None]


class Boat(Log):
    """A boat that steers through a current which is strongest in the middle of the river."""

    name, kind = (
        "boat",
        "nonlinear, discrete rudder positions, good behaviour, an end of the world at the harbour",
    )
    unit = "boat"
    observation = (
        Number("across", 0.0, 10.0),
        Number("along", -8.0, 8.0),
        Number("heading_sine", -1.0, 1.0),
        Number("heading_cosine", -1.0, 1.0),
    )
    action = Levels("rudder", 5)
    reward = (-0.25, 4.0)
    trajectories = (2, 5)
    horizon = 80
    terminates = True
    idle = 2

    def start(self, rng: Generator, state: State, n: int) -> None:
        """At the near bank, heading anywhere towards the far one."""
        state["across"] = rng.uniform(0, 1, n)
        state["along"] = rng.uniform(-4, 4, n)
        state["heading"] = rng.uniform(-1, 1, n)

    def lengths(self, rng: Generator, n: int) -> NDArray[np.int64]:
        """Until the far bank; some recordings are cut before."""
        return np.where(rng.random(n) < 0.1, rng.integers(5, 40, n), 80)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Place and heading."""
        return [state["across"], state["along"], np.sin(state["heading"]), np.cos(state["heading"])]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """A little cost of time; at the far bank the trip ends, and near the harbour it pays."""
        state["heading"] = np.clip(state["heading"] + 0.15 * (action - 2), -1.5, 1.5)
        current = 0.25 * (1 - ((state["across"] - 5) / 5) ** 2)
        state["across"] = np.clip(state["across"] + 0.35 * np.cos(state["heading"]), 0, 10)
        drift = 0.35 * np.sin(state["heading"]) + current + rng.normal(0, 0.05, len(action))
        state["along"] = np.clip(state["along"] + drift, -8, 8)
        state["terminated"] = state["across"] >= 10
        return np.where(state["terminated"], 4 * np.exp(-((state["along"] / 2) ** 2)), -0.02)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """Aims a little too low, and sometimes anywhere."""
        rudder = self._towards(observed, 0.04)
        return np.where(rng.random(len(rudder)) < 0.3, rng.integers(5, size=len(rudder)), rudder)

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Aims above the harbour by what the current will take."""
        return self._towards(observed, 0.11)

    def _towards(self, observed: Observed, allowed: float) -> NDArray[Any]:
        across, along = observed[:, 0], observed[:, 1]
        left = np.maximum(10 - across, 0.35)
        wanted = np.arctan2(-0.85 * along - allowed * left / 0.35, left)
        return (
            np.rint(np.clip((wanted - np.arctan2(observed[:, 2], observed[:, 3])) / 0.15, -2, 2))
            + 2
        )


class Building(Log):
    """A building's heating and ventilation over one or several days."""

    name, kind = (
        "building",
        "energy: heating and ventilation against weather, price and occupants; a good thermostat",
    )
    unit = "building"
    observation = (
        Number("indoor", 5.0, 35.0),
        Number("wall", 5.0, 35.0),
        Number("outdoor", -20.0, 40.0),
        Number("price", 0.0, 1.0),
        Number("occupied", 0.0, 1.0),
        Number("hour_sine", -1.0, 1.0),
        Number("hour_cosine", -1.0, 1.0),
    )
    action = Box(("heat", "vent"), (0.0, 0.0), (1.0, 1.0))
    reward = (-2.0, 0.0)
    trajectories = (1, 4)
    horizon = 72
    idle = (0.0, 0.0)

    def people(self, rng: Generator, n: int) -> State:
        """Insulation, and the thermostat's set point."""
        return {"loss": rng.uniform(0.02, 0.05, n), "set": rng.normal(21.5, 0.8, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Any season, any hour."""
        state["season"] = rng.uniform(-5, 22, n)
        state["hour"] = rng.integers(24, size=n).astype(float)
        state["wall"] = rng.uniform(16, 24, n)
        state["indoor"] = state["wall"] + rng.normal(0, 1, n)
        state["noise"] = rng.normal(0, 2, n)
        self._weather(state)

    def lengths(self, rng: Generator, n: int) -> NDArray[np.int64]:
        """One to three days."""
        return 24 * rng.integers(1, 4, n)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Not the season, nor the insulation."""
        turn = 2 * np.pi * state["hour"] / 24
        names = ("indoor", "wall", "outdoor", "price", "occupied")
        return [*(state[name] for name in names), np.sin(turn), np.cos(turn)]

    def _weather(self, state: State) -> None:
        hour = state["hour"]
        state["outdoor"] = np.clip(
            state["season"] + 6 * np.sin(2 * np.pi * (hour - 9) / 24) + state["noise"], -20, 40
        )
        state["occupied"] = ((hour >= 7) & (hour < 19)).astype(float)
        state["price"] = np.where((hour >= 8) & (hour < 20), 0.8, 0.3)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Energy at the hour's price, and discomfort while somebody is there."""
        heat, vent = action.T
        indoor, wall, outdoor = state["indoor"], state["wall"], state["outdoor"]
        comfort = state["occupied"] * np.minimum(0.08 * (indoor - 21.5) ** 2, 1.5)
        cost = state["price"] * (0.5 * heat + 0.1 * vent) + comfort
        change = (
            0.3 * (wall - indoor) + (state["loss"] + 0.15 * vent) * (outdoor - indoor) + 4 * heat
        )
        gains = 0.8 * state["occupied"] + rng.normal(0, 0.2, len(heat))
        state["wall"] = np.clip(wall + 0.1 * (indoor - wall) + 0.02 * (outdoor - wall), 5, 35)
        state["indoor"] = np.clip(indoor + change + gains, 5, 35)
        state["hour"] = (state["hour"] + 1) % 24
        state["noise"] = 0.8 * state["noise"] + rng.normal(0, 1.2, len(heat))
        self._weather(state)
        return -cost

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A thermostat that knows no price and no hours."""
        error = state["set"] - observed[:, 0]
        noise = rng.normal(0, 0.12, (len(error), 2))
        return np.stack((0.25 * error + 0.3, -0.4 * error - 0.1), 1) + noise

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """A thermostat that anticipates: lower at night, warm before people come while power is cheap."""
        indoor, wall, outdoor = observed.T[:3]
        hour = (np.arctan2(observed[:, 5], observed[:, 6]) / (2 * np.pi) * 24) % 24
        wanted = np.where((hour > 4.5) & (hour < 17.5), 21.3, 15.0)
        rest = 0.3 * (wall - indoor) + 0.035 * (outdoor - indoor) + 0.8 * observed[:, 4]
        need = wanted - indoor - rest
        warm = (indoor + rest - 21.7) / np.maximum(0.15 * (indoor - outdoor), 0.3)
        return np.stack((need / 4, np.where(observed[:, 4] > 0, warm, 0.0)), 1)
