"""Logs of linear systems: visits under strong feedback, forty observations, and a target that random actions chase."""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import Array, Box, Log, Number, Observed, State


def riccati(a: Array, b: Array, state_cost: Array, action_cost: Array) -> Array:
    """The gain ``K [A, S]`` of the best u = -K x for x' = a x + b u and the cost x'Qx + u'Ru of every step."""
    value = state_cost
    for _ in range(500):
        gain: Array = np.linalg.solve(action_cost + b.T @ value @ b, b.T @ value @ a)
        value = state_cost + a.T @ value @ (a - b @ gain)
    return gain


class Visits(Log):
    """Visits of patients whose care is close to the best."""

    name, kind = (
        "visits",
        "linear dynamics, quadratic cost, few visits a person, near-optimal care that explores little",
    )
    unit = "patient"
    observation = tuple(Number(f"x{i}", -4.0, 4.0) for i in range(4))
    action = Box(("drug", "fluid"), (-3.0, -3.0), (3.0, 3.0))
    reward = (-64.0, 0.0)
    trajectories = (1, 6)
    horizon = 60
    shortest = 5
    idle = (0.0, 0.0)

    A = np.array(
        [[1.02, 0.10, 0, 0], [-0.05, 0.95, 0.10, 0], [0, 0.05, 1.01, 0.10], [0.02, 0, -0.08, 0.96]]
    )
    B = np.array([[0.3, 0], [0.1, 0.05], [0, 0.3], [0.05, 0.1]])
    COST = 1.95
    GAIN = riccati(A, B, np.eye(4), 0.3 * np.eye(2))

    def people(self, rng: Generator, n: int) -> State:
        """Whoever treats a patient has a style."""
        return {"style": rng.normal(1.0, 0.15, (n, 2))}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Close to the middle."""
        state["x"] = np.clip(rng.normal(0, 0.7, (n, 4)), -4, 4)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """The whole state."""
        return list(state["x"].T)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Quadratic cost of where it was and of what was done."""
        x = state["x"]
        cost = self.COST * ((x**2).sum(1) + 0.3 * (action**2).sum(1))
        state["x"] = np.clip(x @ self.A.T + action @ self.B.T + rng.normal(0, 0.22, x.shape), -4, 4)
        return -cost

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """The best gain, a little different for each patient, and a little noise."""
        return self.best_known(observed) * state["style"] + rng.normal(0, 0.42, (len(observed), 2))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The linear-quadratic regulator."""
        return -observed @ self.GAIN.T


class Wide(Log):
    """Forty measurements of a machine, of which four matter."""

    name, kind = "wide", "40 observations of which four matter, mediocre linear control"
    unit = "machine"
    observation = tuple(Number(f"sensor{i}", -5.0, 5.0) for i in range(40))
    action = Box(("left", "right"), (-1.0, -1.0), (1.0, 1.0))
    reward = (-8.0, 0.0)
    trajectories = (1, 3)
    horizon = 40
    shortest = 20
    idle = (0.0, 0.0)

    A = np.array([[0.98, 0.15, 0, 0], [0, 0.9, 0, 0.05], [0, 0, 0.98, 0.15], [0.05, 0, 0, 0.9]])
    B = np.array([[0.05, 0], [0.4, 0.1], [0, 0.05], [0.1, 0.4]])
    PLACES = (3, 11, 24, 38)
    GAIN = riccati(A, B, np.diag([0.5, 0.05, 0.5, 0.05]), 0.1 * np.eye(2))

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Anywhere; the idle sensors move by themselves."""
        state["x"] = np.clip(rng.normal(0, 1.2, (n, 4)), -5, 5)
        state["idle"] = rng.normal(0, 1, (n, 36))

    def observe(self, state: State) -> list[NDArray[Any]]:
        """The four that matter in their places, the idle ones between them."""
        idle = iter(state["idle"].T)
        matter = dict(zip(self.PLACES, state["x"].T, strict=True))
        return [matter[i] if i in matter else next(idle) for i in range(40)]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Quadratic cost."""
        x, idle = state["x"], state["idle"]
        cost = x**2 @ np.array([0.5, 0.05, 0.5, 0.05]) + 0.1 * (action**2).sum(1)
        state["x"] = np.clip(x @ self.A.T + action @ self.B.T + rng.normal(0, 0.12, x.shape), -5, 5)
        mixed = 0.8 * idle + 0.1 * np.roll(idle, 1, axis=1)
        state["idle"] = np.clip(mixed + rng.normal(0, 0.5, idle.shape), -5, 5)
        return -cost

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A weak gain of the two positions alone, and noise."""
        return -0.35 * observed[:, [3, 24]] + rng.normal(0, 0.4, (len(observed), 2))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The linear-quadratic regulator."""
        return -observed[:, list(self.PLACES)] @ self.GAIN.T


class Tracking(Log):
    """A vehicle and a moving target; the log was made by random actions."""

    name, kind = "tracking", "a moving target in the plane, random behaviour"
    unit = "vehicle"
    observation = (
        *(Number(name, -3.0, 3.0) for name in ("east", "north")),
        *(Number(name, -2.0, 2.0) for name in ("speed_east", "speed_north")),
        *(Number(name, -3.0, 3.0) for name in ("target_east", "target_north")),
    )
    action = Box(("push_east", "push_north"), (-1.0, -1.0), (1.0, 1.0))
    reward = (-4.0, 0.0)
    trajectories = (1, 1)
    horizon = 50
    idle = (0.0, 0.0)

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Both anywhere."""
        state["place"], state["target"] = rng.uniform(-1.5, 1.5, (2, n, 2))
        state["speed"] = np.zeros((n, 2))
        state["drift"] = rng.normal(0, 0.04, (n, 2))

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Places and own speed; not where the target drifts."""
        return [*state["place"].T, *state["speed"].T, *state["target"].T]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """The distance to the target."""
        state["speed"] = np.clip(0.85 * state["speed"] + 0.2 * action, -2, 2)
        state["place"] = np.clip(state["place"] + 0.3 * state["speed"], -3, 3)
        moved = state["target"] + state["drift"] + rng.normal(0, 0.05, action.shape)
        state["target"] = np.clip(moved, -3, 3)
        distance = np.linalg.norm(state["place"] - state["target"], axis=1)
        return -np.minimum(distance, 4) - 0.02 * (action**2).sum(1)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """Random actions."""
        return self.action.uniform(rng, len(observed))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Proportional to the distance, damped by the speed."""
        return 4.4 * (observed[:, 4:] - observed[:, :2]) - 1.3 * observed[:, 2:4]
