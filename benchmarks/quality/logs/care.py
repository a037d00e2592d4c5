"""Logs of care: insulin, sepsis-like treatment with deaths, anticoagulants over heavy-tailed stays, triage."""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import Array, Box, Levels, Log, Number, Observed, State

_MINUTES, _SUBSTEPS = 15.0, 3


def glucose_start(rng: Generator, state: State, n: int) -> None:
    """Put first glucose (mg/dL), insulin (µU/mL), its remote action, carbohydrates in the gut (g) and reading."""
    state["glucose"] = rng.uniform(80, 240, n)
    state["insulin"] = rng.uniform(5, 20, n)
    state["remote"] = state["sensitivity"] * state["insulin"] / 0.025
    state["gut"] = np.where(rng.random(n) < 0.2, rng.uniform(10, 60, n), 0.0)
    state["read"] = state["before"] = state["glucose"]


def glucose_step(rng: Generator, state: State, rate: Array) -> Array:
    """Move the minimal model (Bergman et al. 1981) on by a quarter of an hour at a rate in U/h; give what was eaten.

    Volumes and rates are invented. Meals come at random, and the sensor is noisy.
    """
    minutes, rate = _MINUTES / _SUBSTEPS, rate * 1.39  # to µU/mL/min
    for _ in range(_SUBSTEPS):
        absorbed = state["gut"] * minutes / 50
        change = 0.01 * (180 - state["glucose"]) - state["remote"] * state["glucose"]
        lift = absorbed * 1000 / 220
        state["glucose"] = np.clip(state["glucose"] + minutes * change + lift, 40, 400)
        state["remote"] = state["remote"] + minutes * (
            state["sensitivity"] * state["insulin"] - 0.025 * state["remote"]
        )
        state["insulin"] = np.clip(
            state["insulin"] + minutes * (rate - 0.09 * state["insulin"]), 0, 200
        )
        state["gut"] = state["gut"] - absorbed
    meal = (rng.random(len(rate)) < 0.05) * rng.uniform(15, 80, len(rate))
    state["gut"] = np.clip(state["gut"] + meal, 0, 160)
    state["read"] = np.clip(state["glucose"] + rng.normal(0, 6, len(rate)), 40, 400)
    return meal


class Insulin(Log):
    """Bergman's minimal model (Bergman et al. 1981) with meals and an insulin pump; volumes and rates are invented."""

    name, kind = "insulin", "continuous insulin by the minimal model, with meals; a mediocre rule"
    unit = "patient"
    observation = (
        Number("glucose", 40.0, 400.0),
        Number("insulin", 0.0, 200.0),
        Number("gut", 0.0, 160.0),
        Number("trend", -60.0, 60.0),
    )
    action = Box(("rate",), (0.0,), (8.0,))
    reward = (-1.0, 0.0)
    trajectories = (1, 3)
    horizon = 96
    shortest = 32
    idle = (0.0,)

    def people(self, rng: Generator, n: int) -> State:
        """Sensitivity to insulin."""
        return {"sensitivity": 1.3e-5 * np.exp(rng.normal(0, 0.25, n))}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """See `glucose_start`."""
        glucose_start(rng, state, n)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """A noisy sensor; what was eaten is announced."""
        trend = np.clip(state["read"] - state["before"], -60, 60)
        return [state["read"], state["insulin"], state["gut"], trend]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """A quarter of an hour; the reward is minus Kovatchev's risk over 50, at most 1."""
        state["before"] = state["read"]
        glucose_step(rng, state, action[:, 0])
        risk = 10 * (1.509 * (np.log(state["glucose"]) ** 1.084 - 5.381)) ** 2
        return -np.minimum(risk / 50, 1)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A basal rate and a bolus that covers half of what was eaten."""
        rule = 0.5 + 0.04 * observed[:, 2] + 0.01 * (observed[:, 0] - 130)
        return (rule + rng.normal(0, 0.6, len(rule)))[:, None]

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Covers meals and corrects, with what is still active taken off."""
        glucose, insulin, gut, trend = observed.T
        return np.maximum(
            0.92 + 0.113 * gut + 0.057 * (glucose - 120) + 0.036 * trend - 0.059 * (insulin - 15), 0
        )[:, None]


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
    trajectories = (1, 2)
    horizon = 40
    terminates = True
    idle = 0
    bias = "age"

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
        """The second dose for nearly all, less where toxicity has grown much: short is better than gentle."""
        severity, toxicity = observed[:, 0], observed[:, 1]
        return np.clip(
            np.rint(1.73 + 0.013 * severity - 0.065 * np.maximum(toxicity - 4.45, 0)), 0, 3
        )


class Anticoagulant(Log):
    """Daily doses against clotting; some are followed for a few days, a few for more than a year."""

    name, kind = (
        "anticoagulant",
        "heavy-tailed lengths up to 500 steps, continuous dose, slow effect, good control",
    )
    unit = "patient"
    observation = (
        Number("inr", 0.5, 8.0),
        Number("drug", 0.0, 40.0),
        Number("factor", 0.0, 1.5),
        Number("genotype", 0.0, 1.0),
    )
    action = Box(("dose",), (0.0,), (10.0,))
    reward = (-1.0, 0.0)
    trajectories = (1, 2)
    horizon = 500
    idle = (0.0,)
    bias = "genotype"

    def people(self, rng: Generator, n: int) -> State:
        """Sensitivity, of which the genotype tells a part."""
        genotype = rng.random(n)
        return {"genotype": genotype, "half": 6 + 6 * genotype + rng.normal(0, 0.8, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Before the first dose, or transferred while on it."""
        state["drug"] = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(4, 20, n))
        state["factor"] = rng.uniform(0.3, 1.0, n)
        self._measured(rng, state)

    def lengths(self, rng: Generator, n: int) -> NDArray[np.int64]:
        """Pareto, from 5."""
        return (5 * (1 - rng.random(n)) ** (-1 / 1.1)).clip(5, 500).astype(np.int64)

    def _measured(self, rng: Generator, state: State) -> None:
        noise = rng.normal(0, 0.05, len(state["factor"]))
        state["inr"] = np.clip(np.maximum(state["factor"], 0.1) ** -0.9 * np.exp(noise), 0.5, 8)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """A day: the drug stops the synthesis of the factor; the reward is the distance of its ratio from 2.5."""
        state["drug"] = np.clip(0.7 * state["drug"] + action[:, 0], 0, 40)
        made = 0.35 / (1 + (state["drug"] / state["half"]) ** 1.5)
        noise = rng.normal(0, 0.015, len(made))
        state["factor"] = np.clip(0.65 * state["factor"] + made + noise, 0.05, 1.5)
        self._measured(rng, state)
        return -np.minimum((state["inr"] - 2.5) ** 2, 1)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """One dose for everybody, corrected by the last ratio."""
        dose = 4.6 - 1.3 * np.clip(observed[:, 0] - 2.5, -1.5, 2.5)
        return (dose + rng.normal(0, 0.9, len(dose)))[:, None]

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Holds the drug at the level that the genotype needs, and corrects."""
        inr, drug, factor, genotype = observed.T
        wanted = (6 + 6 * genotype) * 1.43 + 25.8 * (factor - 0.36)
        return np.maximum(wanted - 0.7 * drug - 1.16 * (inr - 2.5), 0)[:, None]


class Triage(Log):
    """One to four contacts with a clinic; each picks one of four measures."""

    name, kind = (
        "triage",
        "very short episodes of one to four steps, discrete measures, good behaviour",
    )
    unit = "patient"
    observation = (
        Number("pain", 0.0, 10.0),
        Number("fever", 0.0, 10.0),
        Number("anxiety", 0.0, 10.0),
        Number("frailty", 0.0, 1.0),
    )
    action = Levels("measure", 4)
    reward = (-3.0, 0.0)
    trajectories = (1, 4)
    horizon = 4
    shortest = 1
    idle = 0
    bias = "frailty"

    EFFECT = np.array([[0.0, 0.0, 0.0], [-3.0, -0.3, -0.5], [-0.5, -3.0, 0.3], [-0.8, 0.0, -3.0]])
    PRICE = np.array([0.0, 0.15, 0.2, 0.1])

    def people(self, rng: Generator, n: int) -> State:
        """The frail suffer more from medicines."""
        return {"frailty": rng.beta(2, 3, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Complaints."""
        state["complaints"] = rng.uniform(0, 8, (n, 3))

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Complaints and frailty."""
        return [*state["complaints"].T, state["frailty"]]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """What is left of the complaints, the worst counting most, and the price of the measure."""
        noise = rng.normal(0.3, 0.5, state["complaints"].shape)
        state["complaints"] = np.clip(state["complaints"] + self.EFFECT[action] + noise, 0, 10)
        harm = 1.2 * state["frailty"] * np.isin(action, (1, 2))
        return -0.1 * state["complaints"].sum(1) - self.PRICE[action] - 0.5 * harm

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """Treats the worst complaint, with exceptions."""
        worst = observed[:, :3].argmax(1) + 1
        return np.where(rng.random(len(worst)) < 0.12, rng.integers(4, size=len(worst)), worst)

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The measure with the most relief after price and harm."""
        after = np.maximum(observed[:, None, :3] + self.EFFECT + 0.3, 0)
        harm = 0.6 * observed[:, 3:] * np.array([0, 1, 1, 0])
        return (-0.2 * after.sum(2) - self.PRICE - harm).argmax(1)
