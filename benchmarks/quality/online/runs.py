"""One run: what it is, and the row that it makes."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from benchmarks.quality.online.tasks import TASKS, Encouraged, drawn, greedy
from primorl.online.learning import OnlineState, Update, learn
from primorl.online.mechanism import online_plan
from primorl.online.trajectories import Users
from primorl.setup.simulated_users import SimulatedUsers
from primorl.simulators.batches import batch

DELTA = 1e-5
_LOOKS = 20

Row = dict[str, Any]


class Case(Protocol):
    """One cell of a table: a method with its settings, run once a seed."""

    @property
    def key(self) -> Row:
        """What tells its rows from others."""

    def run(self, seed: int) -> Row:
        """The row's figures."""


@dataclass(frozen=True)
class Learning:
    """A run of this project.

    Attributes:
        table: the row belongs to.
        task: among `TASKS`.
        method: name of the row.
        column: ``strict``, ``paper`` or ``twin``.
        budget: what the row is indexed by, such as ``ε 1`` or ``z 3``.
        update: with its settings.
        noise_multiplier: z; 0: the non-private twin.
        cohort: m.
        cohorts: of the run; every user is in one.
        steps: T, of a user at most.
        episodes: of a user at most; None: as many as fit.
        hidden: sizes of the hidden layers; none: a log-linear policy.
        scale: what observations are divided by; None: the task's.
        standard_deviation: of the first policy in a box.
        bonus: weight of the task's bonus in the rewards that are learned from.
    """

    table: str
    task: str
    method: str
    column: str
    budget: str
    update: Update = field(repr=False)
    noise_multiplier: float
    cohort: int
    cohorts: int
    steps: int
    episodes: int | None
    hidden: tuple[int, ...] = ()
    scale: tuple[float, ...] | None = None
    standard_deviation: float = 1.0
    bonus: float = 0.0

    @property
    def key(self) -> Row:
        """See `Case`."""
        off = set() if self.bonus else {"bonus"}
        setting = {name: value for name, value in vars(self).items() if name not in {*_NAMES, "update", *off}}
        setting["update"] = {"name": self.update.name, **asdict(self.update)}  # type: ignore[call-overload]
        return {**{name: getattr(self, name) for name in _NAMES}, "setting": _plain(setting)}

    def run(self, seed: int) -> Row:
        """Learn, look at released policies on the way, judge the last one."""
        task = TASKS[self.task]
        network = task.network(self.hidden, self.scale)
        plan = online_plan(
            users=self.cohort * self.cohorts,
            cohort=self.cohort,
            noise_multiplier=self.noise_multiplier,
            releases=self.update.releases,
            appearances=1,
            delta=DELTA,
        )
        first = network.initial(seed, self.standard_deviation)
        state = OnlineState(self.update.begin(network, first), self.cohorts)
        cohorts = [range(at, at + self.cohort) for at in range(0, self.cohort * self.cohorts, self.cohort)]
        every = max(1, self.cohorts // _LOOKS)
        released: list[OnlineState] = []

        def keep(now: OnlineState) -> None:
            if now.done % every == 0:
                released.append(now)

        users: Users = SimulatedUsers(batch(task.environment), self.steps, self.episodes, seed)
        if self.bonus and task.bonus is not None:
            users = Encouraged(users, task.bonus, self.bonus)
        started = time.perf_counter()
        last = learn(self.update, network, plan, users, cohorts, state, on_update=keep)
        seconds = time.perf_counter() - started
        spent = plan.spent()
        looks = [(now.done * self.cohort, drawn(network, now.parameters)) for now in released]
        return {
            "users": plan.units,
            "parameters": network.parameters,
            "epsilon": None if spent is None else spent.epsilon_pld,
            "void": [*plan.void(), *(["the papers' mode"] if self.column == "paper" else [])],
            "curve": [[count, float(task.returns(act, task.traced).mean())] for count, act in looks],
            "drawn": task.judge(drawn(network, last.parameters)),
            "greedy": task.judge(greedy(network, last.parameters)),
            "seconds": seconds,
        }


_NAMES = ("table", "task", "method", "column", "budget")


def _plain(value: Any) -> Any:
    """As JSON gives it back, so that keys can be compared with rows that were read."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def one_thread() -> None:
    """Rows are made on one thread, so that two runs can go side by side."""
    torch.set_num_threads(1)
