"""Decisions at irregular times: used as they are, or binned to a grid. The truth is the simulator's.

python -m benchmarks.quality.irregular --seeds 0 1 2 3 4 --people 3000

Three simulators log a row at each decision. Time between decisions depends on the patient: calm ones are seen rarely,
and an alarm brings the next decision forward. Each log is learned from twice with the same settings; ε is 1 for the
model, and nobody is public:

- ``as it is``: a row is a decision; the observation has the time since the last one and the time since the beginning.
- ``grid``: a row is a bin of fixed length. The observation is the last one at the bin's beginning, the dose is the mean
  over the bin (of levels the longest in force), the reward is that of the bin, shared out evenly over each interval.

The policy of a grid is tried twice: at the patients' irregular decisions, and at the grid's times with no alarm.
Resumable: rows in benchmarks/results/irregular.json are not run again.
"""

import argparse
import json
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.machine import command, commit, keep, machine, put, read
from benchmarks.quality.logs.care import glucose_start, glucose_step
from benchmarks.quality.logs.log import (
    TERMINATED,
    Act,
    Array,
    Box,
    Levels,
    Log,
    Number,
    Observed,
    State,
)
from benchmarks.quality.logs.project import act_of, data_project, lay, stages
from primorl.base.paths import POLICY, SUMMARY
from primorl.evaluate.statistics import MeanInterval
from primorl.policy.exported import DeterministicPolicy

_STAGES = (
    "train_model",
    "clone_behaviour",
    "optimize_policy",
    "evaluate_private",
    "evaluate",
)
_JUDGED, _SEED = 20_000, 77


class Irregular(Log):
    """A log whose steps last as many ticks as the next decision is away; see `Log`.

    Attributes:
        minutes: of a tick.
        ticks: of a whole trajectory, after which it ends.
        bin: ticks of a bin of the grid.

    Args:
        grid: the log is binned to the grid. Such a log is written and described, and not simulated.
    """

    trajectories = (1, 3)
    terminates = True
    minutes: ClassVar[float]
    ticks: ClassVar[int]
    bin: ClassVar[int]
    fixed = False
    """Whether decisions come at the grid's times only."""

    def __init__(self, *, grid: bool = False):
        self._grid = grid
        if grid:
            self.name, self.terminates = f"{self.name}-grid", False
            self.observation = tuple(
                column for column in self.observation if column.column != "since"
            )
            self.horizon = self.ticks // self.bin

    @abstractmethod
    def signs(self, state: State) -> list[NDArray[Any]]:
        """Observed columns but the two times."""

    @abstractmethod
    def tick(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Move ``state`` on by a tick and return the rewards ``[n]``."""

    @abstractmethod
    def wait(self, rng: Generator, state: State) -> NDArray[np.int64]:
        """Ticks until the next decision, if no alarm comes."""

    @abstractmethod
    def alarm(self, rng: Generator, state: State) -> NDArray[np.bool_]:
        """Whether the patient is seen at once."""

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Begin the clock; subclasses add their own."""
        state["now"] = state["since"] = np.zeros(n, np.int64)

    def observe(self, state: State) -> list[NDArray[Any]]:
        """Signs, the time since the last decision and since the beginning, in hours."""
        hours = self.minutes / 60
        return [*self.signs(state), state["since"] * hours, state["now"] * hours]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Go on tick by tick until the next decision of each."""
        left = self.ticks - state["now"]
        wait = np.full(len(left), self.bin) if self.fixed else self.wait(rng, state)
        going, total, since = (
            np.ones(len(left), bool),
            np.zeros(len(left)),
            np.zeros(len(left), np.int64),
        )
        while going.any():
            moved = dict(state)
            earned = self.tick(rng, moved, action)
            for name, value in moved.items():
                state[name] = np.where(
                    going[:, None] if value.ndim == 2 else going, value, state[name]
                )
            total += earned * going
            since += going
            called = np.zeros(len(left), bool) if self.fixed else self.alarm(rng, state)
            going = going & (since < np.minimum(wait, left)) & ~called
        state["since"], state["now"] = since, state["now"] + since
        state[TERMINATED] = state["now"] >= self.ticks
        return total

    def write(self, folder: Path, people: int, seed: int) -> int:
        """See `Log.write`; a binned log is written as it is first."""
        if not self._grid:
            return super().write(folder, people, seed)
        type(self)().write(folder, people, seed)
        table = self._binned(pq.read_table(folder / "log.parquet"))
        pq.write_table(table, folder / "log.parquet")
        return table.num_rows

    def _binned(self, rows: pa.Table) -> pa.Table:
        now = np.rint(rows["clock"].to_numpy() * 60 / self.minutes).astype(np.int64)
        lasts = np.append(now[1:] == 0, True)
        held = (
            np.where(lasts, self.ticks, np.append(now[1:], 0)) - now
        )  # ticks until the next decision
        at = np.repeat(np.arange(len(now)), held).reshape(-1, self.horizon, self.bin)
        first, count = pa.array(at[:, :, 0].ravel()), len(at)
        columns = {name: rows[name].take(first) for name in (self.unit, "trajectory")}
        columns["step"] = pa.array(np.tile(np.arange(self.horizon), count))
        columns |= {column.column: rows[column.column].take(first) for column in self.observation}
        hours = self.bin * self.minutes / 60
        columns["clock"] = pa.array(
            np.tile(np.arange(self.horizon) * hours, count).astype(np.float32)
        )
        for column in self.action.columns:
            given = rows[column].to_numpy()[at]
            if isinstance(self.action, Levels):
                columns[column] = pa.array(
                    (given[..., None] == np.arange(self.action.count)).sum(2).argmax(2).ravel()
                )
            else:
                columns[column] = pa.array(given.mean(2).ravel().astype(np.float32))
        earned = (rows["reward"].to_numpy() / held)[at].sum(2).ravel()
        columns["reward"] = pa.array(np.clip(earned, *self.reward).astype(np.float32))
        return pa.table(columns)


class Dialysis(Irregular):
    """Four hours of dialysis: water to draw, and a blood pressure that falls where it is drawn faster than refilled.

    Invented after the two-compartment picture of ultrafiltration and plasma refilling (Schneditz et al. 1992).
    """

    name, kind, unit = (
        "dialysis",
        "five rates of ultrafiltration, checks every 10 to 60 minutes",
        "patient",
    )
    observation = (
        Number("pressure", 50.0, 220.0),
        Number("overload", -1.0, 6.0),
        Number("drawn_lately", 0.0, 1.5),
        Number("since", 0.0, 4.0),
        Number("clock", 0.0, 4.0),
    )
    action = Levels("uf_level", 5)
    reward = (-2.0, 1.5)
    horizon, minutes, ticks, bin = 48, 5.0, 48, 6
    idle = 0

    def people(self, rng: Generator, n: int) -> State:
        """Pressure at rest, its fall by the litre that plasma lacks, and how fast tissue refills it."""
        traits = {
            "rest": rng.normal(135, 14, n),
            "fall": rng.uniform(30, 90, n),
            "refill": rng.uniform(0.4, 1.4, n),
        }
        return traits | {"habit": rng.uniform(0.6, 1.6, n)}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """One to four litres too much."""
        super().start(rng, state, n)
        state["overload"], state["deficit"] = rng.uniform(1, 4, n), np.zeros(n)
        state["rate"] = np.zeros(n)
        state["pressure"] = state["rest"] + rng.normal(0, 4, n)

    def signs(self, state: State) -> list[NDArray[Any]]:
        """Pressure, what is left to draw, and the rate before."""
        return [state["pressure"], state["overload"], state["rate"]]

    def tick(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Earn a litre drawn; lose by low pressure, and by drawing below the dry weight."""
        hours = self.minutes / 60
        rate = 0.35 * action
        useful = np.minimum(rate * hours, np.maximum(state["overload"], 0)) - 2 * np.maximum(
            rate * hours - np.maximum(state["overload"], 0), 0
        )
        refill = state["refill"] * (0.4 + 0.2 * np.maximum(state["overload"], 0)) * state["deficit"]
        state["deficit"] = np.maximum(state["deficit"] + hours * (rate - refill), 0)
        state["overload"] = state["overload"] - rate * hours
        state["pressure"] = (
            state["rest"] - state["fall"] * state["deficit"] + rng.normal(0, 4, len(rate))
        )
        state["rate"] = rate
        low = np.clip((100 - state["pressure"]) / 20, 0, 1)
        return useful - 0.12 * low

    def wait(self, rng: Generator, state: State) -> NDArray[np.int64]:
        """Two to six ticks where pressure is low, else four to twelve."""
        calm = state["pressure"] > 110
        return np.where(calm, rng.integers(4, 13, len(calm)), rng.integers(2, 7, len(calm)))

    def alarm(self, rng: Generator, state: State) -> NDArray[np.bool_]:
        """Half of the time where pressure is below 95."""
        return (state["pressure"] < 95) & (rng.random(len(state["now"])) < 0.5)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """Draw evenly over what is left of the time, less where pressure is low."""
        pressure, overload, _, _, clock = observed.T
        even = overload / np.maximum(4 - clock, 0.5) / 0.35 * state["habit"]
        return np.rint(
            even - 1.0 * (pressure < 100) - 1.0 * (pressure < 90) + rng.normal(0, 1.0, len(even))
        )

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """As fast as pressure allows."""
        pressure, overload, _, _, clock = observed.T
        even = np.maximum(overload, 0) / np.maximum(4 - clock, 0.3) / 0.35
        return np.where(
            overload < 0.05,
            0,
            np.rint(np.clip(even * 1.25 - np.clip((112 - pressure) / 7, 0, 4), 0, 4)),
        )


class Pump(Irregular):
    """A day of insulin by the minimal model (Bergman et al. 1981), seen after a quarter of an hour to three hours."""

    name, kind, unit = (
        "pump",
        "continuous insulin, visits every 15 minutes to 3 hours, and at alarms",
        "patient",
    )
    observation = (
        Number("glucose", 40.0, 400.0),
        Number("insulin", 0.0, 200.0),
        Number("gut", 0.0, 160.0),
        Number("trend", -200.0, 200.0),
        Number("since", 0.0, 3.0),
        Number("clock", 0.0, 24.0),
    )
    action = Box(("rate",), (0.0,), (6.0,))
    reward = (-3.0, 3.0)
    horizon, minutes, ticks, bin = 96, 15.0, 96, 8
    idle = (0.0,)

    def people(self, rng: Generator, n: int) -> State:
        """Sensitivity to insulin."""
        return {"sensitivity": 1.3e-5 * np.exp(rng.normal(0, 0.2, n))}

    def start(self, rng: Generator, state: State, n: int) -> None:
        """See `glucose_start`."""
        super().start(rng, state, n)
        glucose_start(rng, state, n)
        state["eaten"] = np.zeros(n)

    def signs(self, state: State) -> list[NDArray[Any]]:
        """A noisy sensor, what was eaten, and the change since the last visit."""
        trend = np.clip(state["read"] - state["before"], -200, 200)
        return [state["read"], state["insulin"], state["gut"], trend]

    def step(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Remember what was read at the visit."""
        state["before"] = state["read"]
        return super().step(rng, state, action)

    def tick(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Earn 1 an hour where glucose is within 70 and 180, down to -1 below 54 or above 250."""
        state["eaten"] = glucose_step(rng, state, action[:, 0])
        return np.interp(state["glucose"], [54, 70, 180, 250], [-1, 1, 1, -1]) * self.minutes / 60

    def wait(self, rng: Generator, state: State) -> NDArray[np.int64]:
        """Up to an hour where glucose is out of 80 to 170, else half an hour to three hours."""
        calm = (state["read"] > 80) & (state["read"] < 170)
        return np.where(calm, rng.integers(2, 13, len(calm)), rng.integers(1, 5, len(calm)))

    def alarm(self, rng: Generator, state: State) -> NDArray[np.bool_]:
        """At most meals, and half of the time below 65 or above 260."""
        drawn, read = rng.random(len(state["now"])), state["read"]
        return ((state["eaten"] > 0) & (drawn < 0.8)) | (
            ((read < 65) | (read > 260)) & (drawn < 0.5)
        )

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """A basal rate, and far too little for what was eaten."""
        rule = 0.4 + 0.01 * observed[:, 2] + 0.004 * (observed[:, 0] - 130)
        return (rule + rng.normal(0, 0.6, len(rule)))[:, None]

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """Covers meals and corrects, with what is still active taken off."""
        glucose, insulin, gut, trend = observed.T[:4]
        rule = 0.95 + 0.05 * gut + 0.02 * (glucose - 120) + 0.004 * trend - 0.03 * (insulin - 15)
        return np.maximum(rule, 0)[:, None]


class Anaesthesia(Irregular):
    """A hundred minutes of propofol: three compartments and an effect site (Marsh et al. 1991), BIS by a sigmoid."""

    name, kind, unit = (
        "anaesthesia",
        "continuous propofol, set after 30 seconds to 5 minutes, and at alarms",
        "patient",
    )
    observation = (
        Number("bis", 0.0, 100.0),
        Number("effect", 0.0, 12.0),
        Number("plasma", 0.0, 20.0),
        Number("rate_before", 0.0, 300.0),
        Number("since", 0.0, 0.1),
        Number("clock", 0.0, 1.7),
    )
    action = Box(("rate",), (0.0,), (300.0,))
    reward = (-8.0, 5.0)
    horizon, minutes, ticks, bin = 200, 0.5, 200, 8
    idle = (0.0,)

    _OUT, _THERE, _BACK, _DEEP, _SHALLOW, _VOLUME, _EFFECT = (
        0.119,
        0.112,
        0.055,
        0.042,
        0.0033,
        0.228,
        0.26,
    )

    def people(self, rng: Generator, n: int) -> State:
        """Clearance and sensitivity of one's own; the observed concentrations are those of the mean patient."""
        return {
            "clearance": np.exp(rng.normal(0, 0.2, n)),
            "half": 3.4 * np.exp(rng.normal(0, 0.2, n)),
            "base": rng.uniform(20, 160, n),
            "gain": rng.uniform(0, 6, n),
        }

    def start(self, rng: Generator, state: State, n: int) -> None:
        """Awake: true and assumed concentrations (µg/mL) of three compartments and the effect site."""
        super().start(rng, state, n)
        state["true"], state["assumed"] = np.zeros((n, 4)), np.zeros((n, 4))
        state["bis"], state["rate"] = 93 + rng.normal(0, 2, n), np.zeros(n)

    def signs(self, state: State) -> list[NDArray[Any]]:
        """BIS, and the concentrations that a pump displays."""
        return [state["bis"], state["assumed"][:, 3], state["assumed"][:, 0], state["rate"]]

    def _moved(self, now: Array, rate: Array, clearance: Array | float) -> Array:
        central, fast, slow, effect = now.T
        out = clearance * self._OUT + self._THERE + self._DEEP
        change = (
            rate / 1000 / self._VOLUME - out * central + self._BACK * fast + self._SHALLOW * slow
        )
        moves = (
            change,
            self._THERE * central - self._BACK * fast,
            self._DEEP * central - self._SHALLOW * slow,
        )
        return np.maximum(
            now + self.minutes * np.stack((*moves, self._EFFECT * (central - effect)), 1), 0
        )

    def tick(self, rng: Generator, state: State, action: NDArray[Any]) -> Array:
        """Earn 1 a minute with BIS in 40 to 60, else lose 0.5, or 2 where it is beyond 30 to 70."""
        rate = action[:, 0]
        state["true"] = self._moved(state["true"], rate, state["clearance"])
        state["assumed"] = self._moved(state["assumed"], rate, 1.0)
        share = (state["true"][:, 3] / state["half"]) ** 2.6
        bis = 93 - 93 * share / (1 + share)
        state["bis"] = np.clip(bis + rng.normal(0, 3, len(bis)), 0, 100)
        state["rate"] = rate
        far = (bis < 30) | (bis > 70)
        return np.where((bis >= 40) & (bis <= 60), 1.0, np.where(far, -2.0, -0.5)) * self.minutes

    def wait(self, rng: Generator, state: State) -> NDArray[np.int64]:
        """Half a minute to a minute and a half where BIS is out of 40 to 60, else two to five minutes."""
        calm = (state["bis"] >= 40) & (state["bis"] <= 60)
        return np.where(calm, rng.integers(4, 11, len(calm)), rng.integers(1, 4, len(calm)))

    def alarm(self, rng: Generator, state: State) -> NDArray[np.bool_]:
        """A third of the time where BIS is below 30 or above 70."""
        return ((state["bis"] < 30) | (state["bis"] > 70)) & (rng.random(len(state["now"])) < 0.33)

    def behave(self, rng: Generator, observed: Observed, state: State) -> NDArray[Any]:
        """In proportion to the error, with a hand of one's own."""
        rule = (
            state["base"] + state["gain"] * (observed[:, 0] - 50) + rng.normal(0, 30, len(observed))
        )
        return rule[:, None]

    def best_known(self, observed: Observed) -> NDArray[Any]:
        """A plasma concentration that follows BIS, and a rate that holds it."""
        bis, _, plasma, _, _, clock = observed.T
        aim = 3.3 + 0.06 * (bis - 48)
        return (100 - 15 * clock + 150 * (aim - plasma))[:, None]


LOGS: dict[str, Irregular] = {log.name: log for log in (Dialysis(), Pump(), Anaesthesia())}
ARMS = ("as it is", "grid")


def run(base: Irregular, arm: str, people: int, seed: int, work: Path) -> dict[str, Any]:
    """Learn from one log in one form; true returns of the policy at irregular decisions and at the grid's times."""
    log = type(base)(grid=arm == "grid")
    settings = {
        "partition.public_fraction": 0,
        "privacy.target_epsilon": 1.0,
        "evaluation.private.estimators": {},
    }
    key = {"people": people, "seed": seed, "public": "nobody", "learner": "private"}
    folder = work / f"{log.name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(data_project(log, **key, changes=settings, folder=work / "data"), folder)
    lay(log, seed, settings, folder)
    status, error = stages(folder, _STAGES)
    found: dict[str, Any] = {"status": status, "error": error}
    if (folder / SUMMARY).exists():
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        found |= {name: summary.get(name) for name in ("epsilon", "model_value", "recommendation")}
        seconds = json.loads((folder / "stages.json").read_text(encoding="utf-8"))
        found["seconds"] = round(sum(seconds.values()))
    if (folder / POLICY / "policy.safetensors").exists():
        act = act_of(
            DeterministicPolicy.load(folder / POLICY), discrete=isinstance(base.action, Levels)
        )
        found |= judged(base, act if arm == "as it is" else _without_since(base, act))
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _without_since(base: Irregular, act: Act) -> Act:
    kept = [at for at, column in enumerate(base.observation) if column.column != "since"]
    return lambda observed: act(np.ascontiguousarray(observed[:, kept]))


def judged(base: Irregular, act: Act) -> dict[str, float]:
    """True mean returns of a policy: at irregular decisions, and at the grid's times."""
    at_grid = type(base)()
    at_grid.fixed = True
    return {
        "at decisions": float(base.returns(act, _JUDGED, _SEED).mean()),
        "at the grid": float(at_grid.returns(act, _JUDGED, _SEED).mean()),
    }


@cache
def truth(base: Irregular) -> dict[str, float]:
    """True mean returns of behaviour, the rule made by hand, random actions and none, at irregular decisions."""
    asked: dict[str, Callable[[], Array]] = {
        "behaviour": lambda: base.behaviour_returns(_JUDGED, _SEED),
        "by hand": lambda: base.returns(base.best_known, _JUDGED, _SEED),
        "random": lambda: base.random_returns(_JUDGED, _SEED),
        "nothing": lambda: base.returns(base.nothing, _JUDGED, _SEED),
    }
    return {name: float(returns().mean()) for name, returns in asked.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Make the table of docs/results.md: true returns, each seed, and their mean ± 95% (Student's t)."""
    lines = [
        "| log | learned from | each seed | mean at decisions | at the grid's times | by the model | today | by hand |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, arm in product(LOGS, ARMS):
        own = [
            row
            for row in rows
            if row["log"] == name and row["arm"] == arm and "at decisions" in row
        ]
        if len(own) < 2:
            continue
        seeds = ", ".join(f"{row['at decisions']:.2f}" for row in own)
        cells = []
        for key in ("at decisions", "at the grid", "model_value"):
            found = MeanInterval.of(np.array([row[key] for row in own]))
            half = (
                f" ± {found.high - found.mean:.2f}" if len(own) > 2 else ""
            )  # of two, it says nothing
            cells.append(f"{found.mean:.2f}{half}")
        known = [f"{own[0]['truth'][key]:.2f}" for key in ("behaviour", "by hand")]
        lines.append("| " + " | ".join([name, arm, seeds, *cells, *known]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=list(LOGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--people", type=int, default=3000)
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="irregular-"))
    rows = read("irregular")
    for seed, name, arm in product(arguments.seeds, arguments.logs, ARMS):
        key = {"log": name, "arm": arm, "people": arguments.people, "seed": seed}
        if any(row.items() >= key.items() for row in rows):
            continue
        found = run(LOGS[name], arm, arguments.people, seed, work)
        same = {
            "machine": machine(),
            "commit": commit(),
            "command": command("benchmarks.quality.irregular"),
        }
        rows.append(key | found | {"truth": truth(LOGS[name])} | same)
        keep("irregular", rows)
        print(key, found, flush=True)
    put(Path("docs/results.md"), "irregular", table(rows))


if __name__ == "__main__":
    main()
