"""Logs of shops, a fleet and an app: stock, prices by context, worn vehicles, messages."""

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
        """Margin of what is sold, less storage, the order's cost and sales that were lost."""
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


class Fleet(Log):
    """Vehicles that wear between services at irregular times; a worn one seldom breaks down, which
    costs as much as a month earns.
    """

    name, kind = (
        "fleet",
        "rare breakdowns of large cost, discrete modes, irregular times between decisions",
    )
    unit = "vehicle"
    observation = (
        Number("wear", 0.0, 1.0),
        Number("vibration", 0.0, 4.0),
        Number("orders", 0.0, 2.0),
        Number("days", 0.0, 6.0),
    )
    action = Levels("mode", 3)
    reward = (-40.0, 4.0)
    trajectories = (1, 3)
    horizon = 40
    shortest = 15
    idle = 0

    def people(self, rng: Generator, n: int) -> State:
        """How roughly a vehicle is driven."""
        return {"rough": np.exp(rng.normal(0, 0.2, n))}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """More or less worn."""
        state["wear"] = rng.uniform(0, 0.5, n)
        state["orders"] = rng.uniform(0.5, 1.5, n)
        state["noise"] = rng.normal(0, 0.2, n)
        state["days"] = np.full(n, 2.0)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Wear is estimated, vibration is noisy; the days are those since the last decision."""
        vibration = np.clip(2.5 * state["wear"] ** 2 + 0.5 + state["noise"], 0, 4)
        return [state["wear"], vibration, state["orders"], state["days"]]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Mode 0 is spared, 1 drives hard, 2 repairs; each lasts some days."""
        wear, n = state["wear"], len(action)
        state["days"] = np.clip(rng.exponential(2.0, n), 0.5, 6)
        drive = state["days"] / 2 * state["rough"]
        chance = (0.002 + 0.12 * np.maximum(wear - 0.5, 0) ** 2 * (1 + 2 * (action == 1))) * drive
        broken = (action != 2) & (rng.random(n) < chance)
        grown = wear + np.array([0.012, 0.035, 0])[action] * drive
        repaired = np.where(action == 2, 0.25 * wear, grown)
        state["wear"] = np.where(broken, 0.1, np.clip(repaired, 0, 1))
        earned = np.array([0.5, 0.9, 0.0])[action] * state["orders"] * state["days"] / 2
        state["orders"] = np.clip(
            state["orders"] + 0.2 * (1 - state["orders"]) + rng.normal(0, 0.15, n), 0, 2
        )
        state["noise"] = rng.normal(0, 0.2, n)
        return earned - 1.2 * (action == 2) - 30 * broken

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """Drives hard most of the time and repairs late."""
        draw, wear = rng.random(len(observed)), observed[:, 0]
        mode = np.where(draw < 0.7, 1, 0)
        return np.where(draw > 1 - 0.02 - 0.5 * np.maximum(wear - 0.6, 0), 2, mode)

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Repairs in time, when few orders wait."""
        late = 0.08 * (observed[:, 2] - 1)
        return np.where(observed[:, 0] > 0.55 + late, 2, 1)


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


class Messages(Log):
    """Five kinds of messages of a health app; too many bring rare, loud complaints."""

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
        """The message that segment and age like best, if it is worth the risk of a complaint."""
        age, fatigue = observed[:, 10:11], observed[:, 11:12]
        effect = observed[:, :10] @ self.TASTE + self.AGE * (2 * age - 1)
        risk = (0.048 * np.exp(fatigue) + 0.15) * (np.arange(5) > 0)
        return (effect * (1 - 0.2 * fatigue) - risk).argmax(1)
