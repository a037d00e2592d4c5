"""Logs of operations: stock of several products, a service desk, a machine that seldom breaks, prices by context."""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.quality.logs.log import Array, Box, Choice, Levels, Log, Number, Observed, State


class Inventory(Log):
    """A shop that orders three products a week ahead."""

    name, kind = (
        "inventory",
        "three products, three continuous orders, random demand with seasons; mediocre orders",
    )
    unit = "shop"
    observation = (
        *(Number(f"stock{i}", 0.0, 60.0) for i in range(3)),
        *(Number(f"coming{i}", 0.0, 25.0) for i in range(3)),
        Number("season_sine", -1.0, 1.0),
        Number("season_cosine", -1.0, 1.0),
    )
    action = Box(tuple(f"order{i}" for i in range(3)), (0.0,) * 3, (25.0,) * 3)
    reward = (-8.0, 8.0)
    trajectories = (1, 2)
    horizon = 52
    shortest = 13
    idle = (0.0,) * 3

    MEAN, SWING, PHASE = (
        np.array([8.0, 5.0, 10.0]),
        np.array([0.5, 0.3, 0.6]),
        np.array([0.0, 2.0, 4.0]),
    )

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Any week."""
        state["week"] = rng.integers(52, size=n).astype(float)
        state["stock"] = rng.uniform(0, 20, (n, 3))
        state["coming"] = rng.uniform(0, 10, (n, 3))

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Stock, orders on their way, and the season."""
        turn = 2 * np.pi * state["week"] / 52
        return [*state["stock"].T, *state["coming"].T, np.sin(turn), np.cos(turn)]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Margin of what is sold, less storage, waste, the order's cost and sales that were lost."""
        turn = 2 * np.pi * state["week"][:, None] / 52
        demand = rng.poisson(self.MEAN * (1 + self.SWING * np.sin(turn + self.PHASE)))
        stock = np.clip(state["stock"] + state["coming"], 0, 60)
        sold = np.minimum(stock, demand)
        gain = 3 * sold - 2 * action - 0.15 * (stock - sold) - 1.0 * (demand - sold)
        state["stock"], state["coming"] = stock - sold, np.asarray(action, dtype=float)
        state["week"] = (state["week"] + 1) % 52
        return gain.sum(1) / 8

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """Orders up to one level all year."""
        order = np.array([20.0, 18.0, 20.0]) - observed[:, :3] - observed[:, 3:6]
        return order + rng.normal(0, 3, order.shape)

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Orders up to the demand of two weeks of the season and a reserve."""
        sine, cosine = observed[:, 6:7], observed[:, 7:8]
        ahead = 0.06  # half a week
        wave = np.sin(self.PHASE + ahead) * cosine + np.cos(self.PHASE + ahead) * sine
        demand = self.MEAN * (1 + self.SWING * wave)
        return 2 * demand + 0.92 * np.sqrt(2 * demand) - 0.855 * observed[:, :3] - observed[:, 3:6]


class Desk(Log):
    """A service desk that may open up to four counters."""

    name, kind = "desk", "a queue with discrete service levels, rush hours, rather good behaviour"
    unit = "office"
    observation = (
        Number("waiting", 0.0, 60.0),
        Number("arrived", 0.0, 20.0),
        Number("open", 0.0, 4.0),
        Number("hour_sine", -1.0, 1.0),
        Number("hour_cosine", -1.0, 1.0),
    )
    action = Levels("counters", 5)
    reward = (-8.0, 0.0)
    trajectories = (3, 10)
    horizon = 48
    idle = 0

    def start(self, rng: Generator, state: State, n: int) -> None:
        """At opening time."""
        state["time"] = np.zeros(n)
        state["waiting"] = rng.integers(0, 12, n).astype(float)
        state["arrived"] = rng.poisson(3, n).astype(float)
        state["open"] = np.ones(n)

    def lengths(self, rng: Generator, n: int) -> NDArray[np.int64]:
        """Most days are recorded to the end."""
        return np.where(rng.random(n) < 0.7, 48, rng.integers(12, 48, n))

    def observe(self, state: State) -> list[NDArray[Any]]:
        """The queue, the last arrivals, counters and time."""
        turn = 2 * np.pi * state["time"] / 48
        return [
            state["waiting"],
            np.minimum(state["arrived"], 20),
            state["open"],
            np.sin(turn),
            np.cos(turn),
        ]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """A cost of waiting, of each counter, and of opening or closing one."""
        rush = 4 + 3 * np.sin(4 * np.pi * state["time"] / 48 - 1)
        state["arrived"] = rng.poisson(rush).astype(float)
        served = rng.poisson(2.6 * action)
        moved = np.abs(action - state["open"])
        state["waiting"] = np.clip(state["waiting"] + state["arrived"] - served, 0, 60)
        state["open"] = action.astype(float)
        state["time"] = state["time"] + 1
        return -0.1 * state["waiting"] - 0.35 * action - 0.1 * moved

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A counter for each eight who wait, and now and then anything."""
        level = np.rint(0.5 + observed[:, 0] / 8)
        return np.where(rng.random(len(level)) < 0.1, rng.integers(5, size=len(level)), level)

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Follows the rush ahead of it, and the queue."""
        sine, cosine = observed[:, 3], observed[:, 4]
        rush = 4 + 3 * (2 * sine * cosine * np.cos(0.94) - (cosine**2 - sine**2) * np.sin(0.94))
        return np.rint(0.34 * rush + 0.196 * observed[:, 0] + 0.175 * observed[:, 2] - 0.17)


class Machine(Log):
    """A machine that wears; running it worn seldom ends in a breakdown, which costs as much as a month earns."""

    name, kind = (
        "machine",
        "rare events: a breakdown of small probability and large cost, discrete modes",
    )
    unit = "machine"
    observation = (
        Number("wear", 0.0, 1.0),
        Number("vibration", 0.0, 4.0),
        Number("orders", 0.0, 2.0),
        Number("warm", 0.0, 1.0),
    )
    action = Levels("mode", 3)
    reward = (-40.0, 2.0)
    trajectories = (1, 5)
    horizon = 60
    shortest = 20
    idle = 0

    def start(self, rng: Generator, state: State, n: int) -> None:
        """More or less worn."""
        state["wear"] = rng.uniform(0, 0.5, n)
        state["orders"] = rng.uniform(0.5, 1.5, n)
        state["warm"] = rng.random(n)
        state["noise"] = rng.normal(0, 0.2, n)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Wear is estimated, vibration is noisy."""
        vibration = np.clip(2.5 * state["wear"] ** 2 + 0.5 + state["noise"], 0, 4)
        return [state["wear"], vibration, state["orders"], state["warm"]]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Mode 0 runs slowly, 1 runs fast, 2 repairs."""
        wear, earned = state["wear"], np.array([0.6, 1.0, -1.2])[action]
        chance = np.where(
            action == 2, 0, 0.001 + 0.08 * np.maximum(wear - 0.5, 0) ** 2 * (1 + 2 * (action == 1))
        )
        broken = rng.random(len(action)) < chance
        grown = wear + np.array([0.008, 0.025, 0])[action] * rng.exponential(1, len(action)) * (
            0.5 + state["warm"]
        )
        state["wear"] = np.where(
            broken, 0.1, np.clip(np.where(action == 2, 0.25 * wear, grown), 0, 1)
        )
        reward = np.where(action == 2, earned, earned * state["orders"]) - 30 * broken
        state["orders"] = np.clip(
            state["orders"] + 0.2 * (1 - state["orders"]) + rng.normal(0, 0.15, len(wear)), 0, 2
        )
        state["warm"] = np.clip(
            0.8 * state["warm"] + 0.2 * (action == 1) + rng.normal(0, 0.05, len(wear)), 0, 1
        )
        state["noise"] = rng.normal(0, 0.2, len(wear))
        return reward

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """Runs fast most of the time and repairs late."""
        draw, wear = rng.random(len(observed)), observed[:, 0]
        mode = np.where(draw < 0.7, 1, 0)
        return np.where(draw > 1 - 0.02 - 0.5 * np.maximum(wear - 0.6, 0), 2, mode)

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Repairs in time, when few orders wait."""
        late = 0.08 * (observed[:, 2] - 1)
        fast = observed[:, 0] < 0.8 + 1.5 * late
        return np.where(observed[:, 0] > 0.515 + late + 0.14 * observed[:, 3], 2, fast)


class Pricing(Log):
    """A season of prices for a perishable stock, in a region and a channel."""

    name, kind = (
        "pricing",
        "categories as context, five discrete prices, demand that they shift; erratic behaviour",
    )
    unit = "seller"
    observation = (
        Choice("region", ("north", "south", "east", "west")),
        Choice("channel", ("shop", "web", "phone")),
        Choice("weekday", ("weekday", "weekend")),
        Number("stock", 0.0, 1.0),
        Number("left", 0.0, 1.0),
        Number("rival", 0.0, 1.0),
    )
    action = Levels("price", 5)
    reward = (0.0, 4.0)
    trajectories = (1, 8)
    horizon = 30
    bias = "region"

    PRICES = np.array([0.4, 0.6, 0.8, 1.0, 1.2])
    WORTH = np.array([[0.5, 0.75, 0.6], [0.7, 0.95, 0.8], [0.55, 0.6, 0.9], [0.9, 1.15, 0.75]])

    def people(self, rng: Generator, n: int) -> State:
        """A seller's region, and whether the seller likes high prices."""
        return {"region": rng.integers(4, size=n), "taste": rng.normal(2, 0.6, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """A full stock."""
        state["channel"] = rng.integers(3, size=n)
        state["day"] = np.zeros(n)
        state["stock"] = rng.uniform(0.6, 1.0, n)
        state["rival"] = rng.uniform(0.2, 0.8, n)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Context, stock, time left and the rival's price."""
        weekend = (state["day"] % 7 >= 5).astype(int)
        left = 1 - state["day"] / 30
        return [state["region"], state["channel"], weekend, state["stock"], left, state["rival"]]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Income of a day; what is left at the end is worth nothing."""
        price = self.PRICES[action]
        worth = self.WORTH[state["region"], state["channel"]] + 0.15 * (state["day"] % 7 >= 5)
        wish = 6 / (1 + np.exp((price - worth - 0.4 * (state["rival"] - 0.5)) / 0.09))
        sold = np.minimum(rng.poisson(wish), np.floor(state["stock"] * 80 + 1e-6))
        state["stock"] = np.clip(state["stock"] - sold / 80, 0, 1)
        state["rival"] = np.clip(
            0.9 * state["rival"] + 0.05 + rng.normal(0, 0.08, len(price)), 0, 1
        )
        state["day"] = state["day"] + 1
        return np.minimum(0.25 * price * sold, 4)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A favourite price, whatever the context."""
        return np.rint(state["taste"] + rng.normal(0, 1, len(observed)))

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """The best price of the context, higher where the stock will not last."""
        worth = np.einsum("nr,nc,rc->n", observed[:, :4], observed[:, 4:7], self.WORTH)
        worth = worth + 0.15 * observed[:, 8] + 0.4 * (observed[:, 11] - 0.5)
        wish = 6 / (1 + np.exp((self.PRICES - worth[:, None]) / 0.09))
        daily = observed[:, 9:10] * 80 / np.maximum(observed[:, 10:11] * 30, 1)
        return ((self.PRICES - 0.065) * np.minimum(wish, 0.63 * daily)).argmax(1)
