"""Logs of people who differ: effects that vary as much as their mean, subgroups of 5%, rare events, loud rewards.

In each log a percent of the people do not tell what all of them tell. `Log.bias` names a trait on which the best action
depends.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import Array, Box, Choice, Levels, Log, Number, Observed, State


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


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
    bias = "age"

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


class Messages(Log):
    """Five kinds of messages of a health app to ten segments; who gets too many complains, seldom and loudly."""

    name, kind = (
        "messages",
        "five discrete messages, ten segments, own tastes, rare complaints; mediocre behaviour",
    )
    unit = "user"
    observation = (
        Choice("segment", tuple(f"s{i}" for i in range(10))),
        Number("age", 0.0, 1.0),
        Number("fatigue", 0.0, 3.0),
        Number("mood", -2.0, 2.0),
    )
    action = Levels("message", 5)
    reward = (-16.0, 6.0)
    trajectories = (1, 3)
    horizon = 14
    shortest = 5
    idle = 0
    bias = "age"

    SHARE = (0.25, 0.15, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05)
    TASTE = np.random.default_rng(11).normal(0.1, 0.8, (10, 5)) * (np.arange(5) > 0)
    AGE = np.array([0.0, 1.0, -1.0, 0.6, -0.6])

    def people(self, rng: Generator, n: int) -> State:
        """Segment and age, which are seen, and a taste of one's own, which is not."""
        own = rng.normal(0, 0.8, (n, 5)) * (np.arange(5) > 0)
        return {"segment": rng.choice(10, n, p=self.SHARE), "age": rng.random(n), "own": own}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Not tired of messages yet."""
        state["fatigue"] = rng.uniform(0, 1, n)
        state["mood"] = np.clip(rng.normal(0, 0.8, n), -2, 2)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """How active one was after the message, and a complaint now and then."""
        sent, noise = action > 0, rng.normal(0, 1, (2, len(action)))
        effect = self.TASTE[state["segment"], action] + self.AGE[action] * (2 * state["age"] - 1)
        effect = effect + state["own"][np.arange(len(action)), action]
        active = effect * (1 - 0.2 * state["fatigue"]) + 0.3 * state["mood"] + noise[0]
        complaint = rng.random(len(action)) < sent * 0.004 * np.exp(state["fatigue"])
        state["fatigue"] = np.clip(0.6 * state["fatigue"] + 0.8 * sent, 0, 3)
        state["mood"] = np.clip(0.7 * state["mood"] + 0.4 * noise[1], -2, 2)
        return active - 12 * complaint

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """The segment's favourite or another one, and nothing to those who are tired of it."""
        noisy = observed[:, :10] @ self.TASTE + rng.gumbel(0, 1.0, (len(observed), 5))
        return np.where(rng.random(len(observed)) < observed[:, 11] / 4, 0, noisy.argmax(1))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The message that the segment and the age like best, if it is worth the risk of a complaint."""
        age, fatigue = observed[:, 10:11], observed[:, 11:12]
        effect = observed[:, :10] @ self.TASTE + self.AGE * (2 * age - 1)
        risk = (0.048 * np.exp(fatigue) + 0.15) * (np.arange(5) > 0)
        return (effect * (1 - 0.2 * fatigue) - risk).argmax(1)


class Relapse(Log):
    """Care after a clinic: contact prevents relapses but of the few whom it drives away, medicine those of the ill."""

    name, kind = (
        "relapse",
        "two continuous actions against a rare and costly event; 5% whom contact harms",
    )
    unit = "patient"
    observation = (
        Choice("kind", ("usual", "avoidant")),
        Number("severity", 0.0, 1.0),
        Number("risk", 0.0, 4.0),
        Number("sleep", -2.0, 2.0),
    )
    action = Box(("contact", "medicine"), (0.0, 0.0), (1.0, 1.0))
    reward = (-16.0, 2.0)
    trajectories = (1, 2)
    horizon = 20
    shortest = 8
    idle = (0.0, 0.0)
    bias = "severity"

    def people(self, rng: Generator, n: int) -> State:
        """How ill, of which kind, and how contact and medicine work for oneself."""
        return {
            "kind": (rng.random(n) < 0.05).astype(int),
            "severity": rng.beta(1.5, 1.5, n),
            "own": rng.normal(0, 1.5, (n, 2)),
            "habit": rng.uniform(0.1, 0.9, (n, 2)),
        }

    def start(self, rng: Generator, state: State, n: int) -> None:
        """At home again."""
        state["risk"] = np.clip(2 * state["severity"] + rng.normal(0, 0.5, n), 0, 4)
        state["sleep"] = np.clip(rng.normal(0, 0.8, n), -2, 2)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """A relapse costs as much as months of care."""
        contact = np.where(state["kind"] == 1, -1.5, 1.5) + state["own"][:, 0]
        medicine = 5 * state["severity"] - 1.5 + state["own"][:, 1]
        slope = (
            state["risk"] - 0.3 * state["sleep"] - contact * action[:, 0] - medicine * action[:, 1]
        )
        relapse = rng.random(len(action)) < _sigmoid(slope - 5.2)
        noise = rng.normal(0, 0.4, (3, len(action)))
        state["risk"] = np.clip(
            0.8 * state["risk"] + 0.5 * state["severity"] + 0.5 * relapse + noise[0], 0, 4
        )
        state["sleep"] = np.clip(0.7 * state["sleep"] - 0.3 * relapse + noise[1], -2, 2)
        return -12 * relapse - 0.1 * action.sum(1) + noise[2]

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """What the clinic is used to, with a little more medicine for the ill."""
        usual = state["habit"] * np.array([1.0, 0.5]) + np.outer(observed[:, 2], [0.0, 0.5])
        return usual + rng.normal(0, 0.2, usual.shape)

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Half the contact for all but the avoidant, medicine for the ill, both where the risk is worth the price."""
        avoidant, severity, risk = observed[:, 1], observed[:, 2], observed[:, 3]
        both = np.stack((0.5 * (1 - avoidant), (5 * severity - 1.5) / 3), 1)
        return both * (risk > 0.8)[:, None]


class Lending(Log):
    """Credit limits of a bank, one of whose branches has careful customers; a default ends it and costs much."""

    name, kind = (
        "lending",
        "four discrete limits, eight occupations, rare defaults terminate; cautious behaviour",
    )
    unit = "customer"
    observation = (
        Choice("occupation", tuple(f"o{i}" for i in range(8))),
        Choice("branch", ("old", "harbour", "market")),
        Number("strain", 0.0, 4.0),
        Number("income", 0.0, 1.0),
    )
    action = Levels("limit", 4)
    reward = (-14.0, 6.0)
    trajectories = (1, 1)
    horizon = 18
    terminates = True
    idle = 0
    bias = "branch"

    SHARE = (0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05)
    PROFIT = np.array([0.25, 0.05, 0.4, 0.15, -0.2, 0.6, 0.3, -0.3])
    RISK = np.array([0.0, 0.5, -0.3, 0.8, -0.5, 1.5, -1.0, 1.0])
    LIMIT = np.arange(4.0)

    def people(self, rng: Generator, n: int) -> State:
        """Occupation, branch, income, and how one uses a limit."""
        return {
            "occupation": rng.choice(8, n, p=self.SHARE),
            "branch": rng.choice(3, n, p=(0.1, 0.45, 0.45)),
            "income": rng.beta(2, 2, n),
            "own": rng.normal(0, 0.3, n),
        }

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Some owe already."""
        state["strain"] = rng.uniform(0, 2, n)

    def _chance(self, risk: Array, branch: NDArray[Any], strain: Array, limit: Array) -> Array:
        return _sigmoid(risk + 0.9 * strain + 0.5 * limit - 3.0 * (branch == 0) - 6.5)

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """What a customer brings in a month, or a default."""
        noise = rng.normal(0, 1, (2, len(action)))
        chance = self._chance(
            self.RISK[state["occupation"]], state["branch"], state["strain"], action
        )
        state["terminated"] = rng.random(len(action)) < chance
        profit = (self.PROFIT[state["occupation"]] + state["own"]) * action
        drift = (
            0.8 * state["strain"] + 0.25 * action - 0.5 * state["income"] + 0.25 + 0.3 * noise[0]
        )
        state["strain"] = np.clip(drift, 0, 4)
        return 0.2 + profit + 0.5 * noise[1] - 12 * state["terminated"]

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A low limit by income, and now and then anything."""
        level = np.rint(0.5 + 2 * state["income"])
        return np.where(rng.random(len(level)) < 0.3, rng.integers(4, size=len(level)), level)

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The limit whose profit exceeds the risk, now and by the strain that it leaves."""
        strain, income = observed[:, 11:12], observed[:, 12:13]
        branch = observed[:, 8:11].argmax(1)[:, None]
        profit, risk = observed[:, :8] @ self.PROFIT, (observed[:, :8] @ self.RISK)[:, None]
        later = np.clip(0.8 * strain + 0.25 * self.LIMIT - 0.5 * income + 0.25, 0, 4)
        cost = self._chance(risk, branch, strain, self.LIMIT) + 1.5 * self._chance(
            risk, branch, later, self.LIMIT
        )
        return (profit[:, None] * self.LIMIT - 12 * cost).argmax(1)
