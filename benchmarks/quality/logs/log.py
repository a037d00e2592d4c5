"""What every log is: declared columns, a hidden simulator, and the policy of those who were
logged.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float64]
Observed = NDArray[np.float32]
"""Observations ``[n, S]``: the columns in the entry's order, each category one dimension."""
State = dict[str, NDArray[Any]]
"""What the simulator knows of n trajectories: arrays of n rows. Traits of people are part of it."""
Act = Callable[[Observed], NDArray[Any]]
"""A policy: observations ``[n, S]`` to continuous actions ``[n, A]`` or numbers of discrete actions
``[n]``.
"""
Acting = Callable[[Generator, Observed, State], NDArray[Any]]

_USUAL = 5000  # people whose actions are drawn from
_STEPS_AT_ONCE = 2_000_000
TERMINATED, DISCHARGED = "terminated", "discharged"


@dataclass(frozen=True)
class Number:
    """A column of numbers and its public bounds."""

    column: str
    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """A column with one of the declared categories in each row."""

    column: str
    categories: tuple[str, ...]


@dataclass(frozen=True)
class Box:
    """Continuous actions and their bounds."""

    columns: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def kept(self, action: NDArray[Any]) -> NDArray[Any]:
        """Actions ``[n, A]`` within the bounds."""
        return np.clip(action, self.low, self.high).astype(np.float32)

    def uniform(self, rng: Generator, n: int) -> NDArray[Any]:
        """Random actions ``[n, A]``."""
        return rng.uniform(self.low, self.high, (n, len(self.low)))

    def entry(self) -> dict[str, object]:
        """``options.columns.action`` of the entry."""
        return {"columns": list(self.columns), "low": list(self.low), "high": list(self.high)}


@dataclass(frozen=True)
class Levels:
    """Discrete actions 0 … count - 1."""

    column: str
    count: int

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column, as a box has several."""
        return (self.column,)

    def kept(self, action: NDArray[Any]) -> NDArray[Any]:
        """Numbers ``[n]`` of actions."""
        return np.clip(action, 0, self.count - 1).astype(np.int64)

    def uniform(self, rng: Generator, n: int) -> NDArray[Any]:
        """Random actions ``[n]``."""
        return rng.integers(self.count, size=n)

    def entry(self) -> dict[str, object]:
        """``options.columns.action`` of the entry."""
        return {"column": self.column, "count": self.count}


@dataclass(frozen=True)
class Step:
    """Rows of one step; of last rows, which only tell what was observed, ``action`` and ``reward``
    are None.
    """

    trajectory: NDArray[np.int64]
    number: int
    observed: Observed
    action: NDArray[Any] | None
    reward: Array | None
    terminated: NDArray[np.bool_]


class Log(ABC):
    """A log with a known truth.

    A subclass declares the columns and says how people, first states, steps and lengths come about.
    All methods take n trajectories side by side. `step` may set ``terminated`` (an end of the
    world, such as death) and ``discharged`` (an end of the recording) in the state.

    Attributes:
        name: of the entry.
        kind: what is special, one sentence.
        unit: column that names the person.
        observation: columns of an observation.
        action: columns and bounds of an action.
        reward: public bounds.
        trajectories: the least and the most of one person, uniform.
        horizon: the most steps of a trajectory.
        shortest: the fewest steps of a recording; None: all have as many as the horizon.
        terminates: whether the log has true terminations and a column for them.
        before_end: bounds of rewards of rows that end no trajectory; None: those of all.
        outcome: whether instead every trajectory terminates at its last row.
        ends: names of the ends that earn the least and the largest reward; None: there are others.
        idle: the action of doing nothing; None: there is no such thing.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    unit: ClassVar[str]
    observation: ClassVar[tuple[Number | Choice, ...]]
    action: ClassVar[Box | Levels]
    reward: ClassVar[tuple[float, float]]
    trajectories: ClassVar[tuple[int, int]]
    horizon: ClassVar[int]
    shortest: ClassVar[int | None] = None
    terminates: ClassVar[bool] = False
    before_end: ClassVar[tuple[float, float] | None] = None
    outcome: ClassVar[bool] = False
    ends: ClassVar[tuple[str, str] | None] = None
    idle: ClassVar[tuple[float, ...] | int | None] = None

    def people(self, rng: Generator, n: int) -> State:
        """Traits of n people, those that stay from one trajectory to the next."""
        return {"one": np.ones(n)}

    @abstractmethod
    def start(self, rng: Generator, state: State, n: int) -> None:
        """Put first states into ``state``, which holds the traits."""

    def observe(self, state: State) -> list[NDArray[Any]]:
        """One array ``[n]`` for each column; of categories, their numbers.

        By default what the state calls so.
        """
        return [state[column.column] for column in self.observation]

    @abstractmethod
    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Move ``state`` on and return the rewards ``[n]``."""

    @abstractmethod
    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """What those who were logged did."""

    @abstractmethod
    def best_known(self, observed: Observed) -> NDArray[Any]:
        """A good policy, made by hand with knowledge of the simulator."""

    def lengths(self, rng: Generator, n: int) -> NDArray[np.int64]:
        """Steps after which the recordings end: any number from the shortest, or all."""
        if self.shortest is None:
            return np.full(n, self.horizon)
        return rng.integers(self.shortest, self.horizon + 1, n)

    def observed(self, state: State) -> Observed:
        """Observations ``[n, S]`` as policies get them."""
        parts = []
        for column, values in zip(self.observation, self.observe(state), strict=True):
            if isinstance(column, Choice):
                parts.append(np.eye(len(column.categories))[values])
            else:
                parts.append(np.clip(values, column.low, column.high)[:, None])
        return np.concatenate(parts, 1).astype(np.float32)

    def simulate(self, rng: Generator, state: State, n: int, acting: Acting) -> Iterator[Step]:
        """Run n trajectories side by side; those that ended are left out of later steps."""
        state = dict(state)
        self.start(rng, state, n)
        lengths = np.minimum(self.lengths(rng, n), self.horizon)
        trajectory = np.arange(n)
        for number in range(self.horizon):
            observed = self.observed(state)
            action = self.action.kept(acting(rng, observed, state))
            state[TERMINATED] = state[DISCHARGED] = np.zeros(len(trajectory), bool)
            reward = np.clip(self.step(rng, state, action), *self.reward)
            terminated = state[TERMINATED]
            yield Step(trajectory, number, observed, action, reward, terminated)
            over = terminated | state[DISCHARGED] | (number + 1 >= lengths)
            cut = over & ~terminated
            if cut.any():
                last = self.observed({name: value[cut] for name, value in state.items()})
                yield Step(trajectory[cut], number + 1, last, None, None, np.zeros(len(last), bool))
            if over.all():
                return
            if over.any():
                state = {name: value[~over] for name, value in state.items()}
                lengths, trajectory = lengths[~over], trajectory[~over]

    def returns(self, act: Act, episodes: int, seed: int) -> Array:
        """Undiscounted returns ``[episodes]`` of a policy, one trajectory each of as many new
        people.

        Their mean estimates the mean over people of the mean over a person's trajectories.
        """
        return self._returns(lambda rng, observed, state: act(observed), episodes, seed)

    def behaviour_returns(self, episodes: int, seed: int) -> Array:
        """Returns of those who were logged."""
        return self._returns(self.behave, episodes, seed)

    def random_returns(self, episodes: int, seed: int) -> Array:
        """Returns of uniformly random actions."""
        return self._returns(
            lambda rng, observed, state: self.action.uniform(rng, len(observed)), episodes, seed
        )

    def usual_returns(self, episodes: int, seed: int) -> Array:
        """Returns of actions drawn from all that the logged did, whoever comes."""
        rng = np.random.default_rng([2, seed])
        steps = self.simulate(rng, self.people(rng, _USUAL), _USUAL, self.behave)
        done = np.concatenate([step.action for step in steps if step.action is not None])
        return self._returns(
            lambda rng, observed, state: rng.choice(done, len(observed)), episodes, seed
        )

    def nothing(self, observed: Observed) -> NDArray[Any]:
        """The policy that does nothing; only where `idle` is not None."""
        return np.tile(
            np.asarray(self.idle),
            (len(observed), 1) if isinstance(self.action, Box) else len(observed),
        )

    def _returns(self, acting: Acting, episodes: int, seed: int) -> Array:
        rng = np.random.default_rng([1, seed])
        totals = np.zeros(episodes)
        for step in self.simulate(rng, self.people(rng, episodes), episodes, acting):
            if step.reward is not None:
                totals[step.trajectory] += step.reward
        return totals

    def write(self, folder: Path, people: int, seed: int) -> int:
        """Write ``log.parquet``, a row group for a block of people, and return the number
        of rows.
        """
        folder.mkdir(parents=True, exist_ok=True)
        block = max(1, _STEPS_AT_ONCE // (self.horizon * sum(self.trajectories)) * 2)
        rows, writer = 0, None
        for first in range(0, people, block):
            table = self._table(
                np.random.default_rng([0, seed, first]), first, min(block, people - first)
            )
            writer = writer or pq.ParquetWriter(folder / "log.parquet", table.schema)
            writer.write_table(table)
            rows += table.num_rows
        if writer is not None:
            writer.close()
        return rows

    def _table(self, rng: Generator, first: int, people: int) -> pa.Table:
        traits = self.people(rng, people)
        counts = rng.integers(self.trajectories[0], self.trajectories[1] + 1, people)
        person = np.repeat(np.arange(people), counts)
        within = np.arange(len(person)) - np.repeat(counts.cumsum() - counts, counts)
        state = {name: value[person] for name, value in traits.items()}
        steps = list(self.simulate(rng, state, len(person), self.behave))
        trajectory = np.concatenate([step.trajectory for step in steps])
        order = np.argsort(trajectory, kind="stable")
        trajectory = trajectory[order]
        number = np.concatenate([np.full(len(step.trajectory), step.number) for step in steps])[
            order
        ]
        empty = np.concatenate(
            [np.full(len(step.trajectory), step.reward is None) for step in steps]
        )[order]
        columns: dict[str, pa.Array] = {
            self.unit: pa.array(person[trajectory] + first + 1),
            "trajectory": pa.array(within[trajectory]),
            "step": pa.array(number),
        }
        columns |= self._observation_columns(
            np.concatenate([step.observed for step in steps])[order]
        )
        actions = np.concatenate([self._or_empty(step.action, step) for step in steps])[order]
        actions = actions.reshape(len(actions), -1)
        for column, values in zip(self.action.columns, actions.T, strict=True):
            columns[column] = pa.array(values, mask=empty)
        rewards = np.concatenate(
            [np.zeros(len(s.trajectory)) if s.reward is None else s.reward for s in steps]
        )[order]
        columns["reward"] = pa.array(rewards.astype(np.float32), mask=empty)
        if self.terminates and not self.outcome:
            columns["terminated"] = pa.array(
                np.concatenate([step.terminated for step in steps])[order]
            )
        return pa.table(columns)

    def _or_empty(self, action: NDArray[Any] | None, step: Step) -> NDArray[Any]:
        if action is not None:
            return action
        return np.zeros_like(
            self.action.kept(self.action.uniform(np.random.default_rng(0), len(step.trajectory)))
        )

    def _observation_columns(self, observed: Observed) -> dict[str, pa.Array]:
        columns, at = {}, 0
        for column in self.observation:
            if isinstance(column, Choice):
                codes = observed[:, at : at + len(column.categories)].argmax(1)
                columns[column.column] = pa.array(np.array(column.categories)[codes])
                at += len(column.categories)
            else:
                columns[column.column] = pa.array(observed[:, at])
                at += 1
        return columns

    def entry(self, files: str) -> dict[str, object]:
        """The content of the entry ``datasets/<name>.yaml``: columns, bounds, unit and horizon,
        nothing else.

        Args:
            files: of the log, as ``options.files`` names them.
        """
        bounds = [
            (0.0, 1.0) if isinstance(column, Choice) else (column.low, column.high)
            for column in self.observation
            for _ in (column.categories if isinstance(column, Choice) else (None,))
        ]
        observation = [
            {"column": c.column, "categories": list(c.categories)}
            if isinstance(c, Choice)
            else c.column
            for c in self.observation
        ]
        columns = {
            "unit": self.unit,
            "trajectory": "trajectory",
            "order": "step",
            "observation": observation,
            "action": self.action.entry(),
            "reward": "reward",
            "terminated": "terminated" if self.terminates and not self.outcome else None,
        }
        return {
            "source": "tabular",
            "environment": None,
            "unit": self.unit,
            "population": self.name,
            "trajectories_per_person": self.trajectories[1],
            "horizon": self.horizon,
            "termination": "learned" if self.terminates else "none",
            "ingestion": {},
            "options": {
                "files": files,
                "columns": columns,
                "trajectory_ids": "per_unit",
                "end": "outcome" if self.outcome else "observed",
                "sorted": True,
            },
            "bounds": {
                "observation": {
                    "low": [float(low) for low, _ in bounds],
                    "high": [float(high) for _, high in bounds],
                },
                "reward": [float(bound) for bound in self.reward],
                "before_end": None if self.before_end is None else list(self.before_end),
                "outcomes": None if self.ends is None else list(self.ends),
            },
            "score": None,
            "recipe": {},
        }
