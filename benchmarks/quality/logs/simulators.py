"""Logs with a known truth: near-optimal visits, a pendulum, doses with deaths, and people who
respond differently.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import Array, Box, Choice, Levels, Log, Number, Observed, State


def riccati(a: Array, b: Array, state_cost: Array, action_cost: Array) -> Array:
    """The gain ``K [A, S]`` of the best u = -K x for x' = a x + b u and the cost x'Qx + u'Ru of
    every step.
    """
    value = state_cost
    for _ in range(500):
        gain = np.linalg.solve(action_cost + b.T @ value @ b, b.T @ value @ a).astype(np.float64)
        value = state_cost + a.T @ value @ (a - b @ gain)
    return gain


class Visits(Log):
    """Visits of patients whose care is close to the best."""

    name, kind = (
        "visits",
        "linear dynamics, quadratic cost, few visits a person, near-optimal care that explores "
        "little",
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


class Treatment(Log):
    """Infected patients; more of the drug cures faster and poisons."""

    name, kind = (
        "treatment",
        "discrete doses, death is a true termination, discharge ends the recording; mediocre care",
    )
    unit = "patient"
    observation = (
        Number("severity", 0.0, 10.0),
        Number("toxicity", 0.0, 10.0),
        Number("pressure", 30.0, 130.0),
        Number("age", 0.0, 1.0),
        Number("lactate", 0.0, 12.0),
    )
    action = Levels("dose", 4)
    reward = (-12.0, 0.0)
    before_end = (-0.5, 0.0)
    trajectories = (1, 2)
    horizon = 40
    terminates = True
    idle = 0

    def people(self, rng: Generator, n: int) -> State:
        """Age, and a habit of the ward."""
        return {"age": rng.beta(3, 2, n), "habit": rng.normal(0, 0.6, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Ill enough to be there."""
        state["severity"] = rng.uniform(3, 8, n)
        state["toxicity"] = rng.uniform(0, 2, n)
        self._signs(rng, state)

    def _signs(self, rng: Generator, state: State) -> None:
        noise = rng.normal(0, 1, (2, len(state["severity"])))
        state["pressure"] = np.clip(95 - 5 * state["severity"] + 4 * noise[0], 30, 130)
        state["lactate"] = np.clip(
            0.8 * state["severity"] + 0.3 * state["toxicity"] + 0.5 * noise[1], 0, 12
        )

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Each hour of illness costs a little and a death much; who is well is discharged."""
        severity, toxicity = state["severity"], state["toxicity"]
        noise = rng.normal(0, 0.35, len(action))
        change = (
            0.12
            + 0.1 * state["age"]
            - np.array([0, 0.35, 0.6, 0.75])[action]
            + 0.04 * np.maximum(toxicity - 3, 0)
        )
        state["toxicity"] = np.clip(0.85 * toxicity + np.array([0, 0.35, 1.0, 2.1])[action], 0, 10)
        state["severity"] = np.clip(severity + change + noise, 0, 10)
        badness = state["severity"] + 0.8 * state["toxicity"] + state["age"]
        state["terminated"] = rng.random(len(action)) < 0.3 / (1 + np.exp(-(badness - 12.5) * 0.9))
        state["discharged"] = ~state["terminated"] & (state["severity"] < 1)
        self._signs(rng, state)
        return -0.03 * severity - 0.02 * toxicity - 10.0 * state["terminated"]

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """More for the sicker, whatever the toxicity; habits differ."""
        return np.rint(
            np.clip(
                0.35 * observed[:, 0]
                - 0.1 * observed[:, 1]
                + state["habit"]
                + rng.normal(0, 0.6, len(observed)),
                0,
                3,
            )
        )

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The second dose for nearly all, less where toxicity has grown much: short is better than
        gentle.
        """
        severity, toxicity = observed[:, 0], observed[:, 1]
        return np.clip(
            np.rint(1.73 + 0.013 * severity - 0.065 * np.maximum(toxicity - 4.45, 0)), 0, 3
        )


class Titration(Log):
    """A drug that helps most genotypes, harms two, and poisons the old."""

    name, kind = (
        "titration",
        "one continuous dose, eight genotypes of 5% to 30%, own responses; one dose for all",
    )
    unit = "patient"
    observation = (
        Choice("genotype", ("aa", "ab", "ac", "bb", "bc", "cc", "dd", "ee")),
        Number("burden", 0.0, 10.0),
        Number("age", 0.0, 1.0),
    )
    action = Box(("dose",), (0.0,), (2.0,))
    reward = (-6.0, 2.0)
    trajectories = (1, 2)
    horizon = 12
    shortest = 6
    idle = (0.0,)

    SHARE = (0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05)
    RESPONSE = np.array([0.9, 0.4, 1.2, 0.1, 0.7, -1.0, 1.6, -0.6])

    def people(self, rng: Generator, n: int) -> State:
        """Genotype, age, how one responds beside the genotype's mean, and the doctor's habit."""
        return {
            "genotype": rng.choice(8, n, p=self.SHARE),
            "age": rng.beta(2, 2, n),
            "own": rng.normal(0, 0.8, n),
            "habit": rng.normal(0.7, 0.3, n),
        }

    def start(self, rng: Generator, state: State, n: int) -> None:
        """More or less ill."""
        state["burden"] = rng.uniform(2, 8, n)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """The burden that is left, and what the dose does to the old."""
        dose, noise = action[:, 0], rng.normal(0, 0.8, (2, len(action)))
        response = self.RESPONSE[state["genotype"]] + state["own"]
        state["burden"] = np.clip(
            0.9 * state["burden"] + 0.6 - 0.8 * response * dose + noise[0], 0, 10
        )
        return -0.2 * state["burden"] - 0.8 * state["age"] ** 2 * dose**2 + noise[1]

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A habit, whoever comes."""
        return (state["habit"] + rng.normal(0, 0.3, len(observed)))[:, None]

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """What the genotype's mean response asks for, less for the old."""
        return np.maximum(0.4 * observed[:, :8] @ self.RESPONSE / (observed[:, 9] ** 2 + 0.1), 0)[
            :, None
        ]


class Clinic(Log):
    """Doses against clotting, set at visits some days apart; the drug acts slowly."""

    name, kind = (
        "clinic",
        "continuous doses at irregular visits, slow effect, genotypes; good control",
    )
    unit = "patient"
    observation = (
        Number("inr", 0.5, 8.0),
        Number("drug", 0.0, 40.0),
        Number("genotype", 0.0, 1.0),
        Number("days", 0.0, 14.0),
    )
    action = Box(("dose",), (0.0,), (10.0,))
    reward = (-14.0, 0.0)
    trajectories = (1, 2)
    horizon = 30
    shortest = 8
    idle = (0.0,)

    def people(self, rng: Generator, n: int) -> State:
        """Sensitivity, of which the genotype tells a part."""
        genotype = rng.random(n)
        return {"genotype": genotype, "half": 6 + 6 * genotype + rng.normal(0, 0.8, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Before the first dose, or transferred while on it."""
        state["drug"] = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(4, 20, n))
        state["factor"] = rng.uniform(0.3, 1.0, n)
        state["days"] = np.full(n, 3.0)
        self._measured(rng, state)

    def _measured(self, rng: Generator, state: State) -> None:
        noise = rng.normal(0, 0.05, len(state["factor"]))
        state["inr"] = np.clip(np.maximum(state["factor"], 0.1) ** -0.9 * np.exp(noise), 0.5, 8)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """The days to the next visit on one dose; a day costs the square of the ratio's distance
        from 2.5, at most 1.
        """
        n = len(action)
        state["days"] = np.clip(rng.geometric(0.25, n), 1, 14).astype(float)
        cost = np.zeros(n)
        for day in range(14):
            now = day < state["days"]
            drug = np.clip(0.7 * state["drug"] + action[:, 0], 0, 40)
            made = 0.35 / (1 + (drug / state["half"]) ** 1.5)
            factor = np.clip(0.65 * state["factor"] + made + rng.normal(0, 0.015, n), 0.05, 1.5)
            state["drug"] = np.where(now, drug, state["drug"])
            state["factor"] = np.where(now, factor, state["factor"])
            ratio = np.maximum(state["factor"], 0.1) ** -0.9
            cost += now * np.minimum((ratio - 2.5) ** 2, 1)
        self._measured(rng, state)
        return -cost

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """One dose for everybody, corrected by the last ratio."""
        dose = 4.6 - 1.3 * np.clip(observed[:, 0] - 2.5, -1.5, 2.5)
        return (dose + rng.normal(0, 0.9, len(dose)))[:, None]

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The dose that the genotype needs, corrected a little by the last ratio."""
        inr, _, genotype, _ = observed.T
        return (2.6 + 2.4 * genotype - 0.4 * np.clip(inr - 2.5, -1.5, 2.5))[:, None]
