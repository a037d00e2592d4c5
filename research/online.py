"""Tables of DPPG (Rio et al.) and of private policy optimisation (He), with the nulls that could
explain each figure.

python -m research.online [--only Acrobot] [--rows strict "no noise"] [--seeds 10]
python -m research.online --report

The first makes the rows of research/results/online.jsonl that are missing, the second writes their
tables into benchmarks/results.md. Kinds of rows:

- strict: what the pipeline does. ε is that of one user by the exact Gaussian mechanism at δ = 1e-5.
- no noise: the same with z = 0. The clip is kept.
- no clip: neither noise nor clip.
- noise alone: the same noise, but nobody contributes.
- paper: the papers' mode, which guarantees nothing: advantages normalised over the cohort and, for
  DPPG, a critic carried from user to user and Adam inside a user. Where a user has steps and not
  episodes, environments are not reset between users (CleanRL, which DPPG's authors build on).
- PPO, A2C: stable-baselines3, with the settings of RL Baselines3 Zoo (Raffin 2020) and as many
  steps.
- untrained: the first policy.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.machine import RESULTS_PAGE, put
from primorl.evaluate.summary import Estimate
from primorl.online.learning import (
    PARAMETERS,
    OnlineState,
    SimulatedUsers,
    Trajectories,
    Update,
    learn,
    online_mechanism,
)
from primorl.online.network import PolicyNetwork
from primorl.online.updates import DPPG
from primorl.privacy.accounting.figures import solve_noise_multiplier
from primorl.privacy.accounting.rounding import at_most
from primorl.simulators import environments
from research.classic_control import batch
from research.networks import random_network
from research.paper_mode import (
    AdamDPPG,
    AnnealedDPPG,
    CarriedCritic,
    CarriedUsers,
    ReleasedMoments,
    loose,
)
from research.regression import NaturalGradientByDescent, PolicyGradient, Rebel
from research.rows import Row, complete_rows, read

Act = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Actions of observations ``[n, S]``, as the environment takes them."""
DELTA, LOOKS = 1e-5, 10
NO_CLIP = 1e3
"""A clipping norm beyond all contributions. Far larger ones would be lost in `Mechanism.grid`."""
_JUDGED_SEED = 1_000_003  # users' seeds are the runs' numbers, from 0


@dataclass(frozen=True)
class Task:
    """A control task.

    Attributes:
        environment: registered Gymnasium id.
        scale: ``[S]``, observations are divided by it: constants from the environment's
            description, not from users.
        limit: steps after which an episode is cut off.
        judged: episodes by which a final policy is judged.
        steps: of PPO and A2C.
    """

    environment: str
    scale: tuple[float, ...]
    limit: int
    judged: int
    steps: int

    def network(self, hidden: tuple[int, ...], seed: int = 0) -> PolicyNetwork:
        """Make a random policy for this task."""
        own = batch(self.environment)
        low, high = torch.from_numpy(own.action_low), torch.from_numpy(own.action_high)
        scale = torch.tensor(self.scale)
        discrete = own.discrete_actions
        return random_network(
            hidden, torch.zeros(len(scale)), scale, low, high, discrete, seed=seed
        )

    def returns(self, act: Act, episodes: int) -> NDArray[np.float64]:
        """Play whole episodes, and return their undiscounted returns.

        First states are the same for all policies.
        """
        own = batch(self.environment)
        observations = own.reset(episodes, _JUDGED_SEED)
        total, going = np.zeros(episodes), np.ones(episodes, bool)
        for _ in range(self.limit):
            observations, rewards, terminated, truncated = own.step(act(observations))
            total += np.where(going, rewards, 0.0)
            going &= ~(terminated | truncated)
            if not going.any():
                break
        return total

    def judge(self, actor: Callable[[bool], Act]) -> Row:
        """Play the final policy's episodes, with drawn actions and with the likeliest ones."""
        return {
            name: float(self.returns(actor(greedily), self.judged).mean())
            for name, greedily in _HOW.items()
        }


TASKS = {
    # 1 m and 1 m/s, 0.1 rad (half of the angle at which the pole has fallen) and 0.5 rad/s.
    "CartPole": Task("CartPole-v1", (1.0, 1.0, 0.1, 0.5), 500, 100, 50_000),
    # Cosines and sines; 1 and 2 rad/s.
    "Acrobot": Task("Acrobot-v1", (1.0, 1.0, 1.0, 1.0, 1.0, 2.0), 500, 100, 500_000),
    # Glucose by 180 and 600 mg/dL, insulin by 60 mU/L and 10 U, 100 g of carbohydrates, half a day.
    "Dosing-0": Task("Dosing-0", (3.0, 10.0, 2.0, 2.0, 2.0, 1.0), 96, 200, 100_000),
    "Dosing-1": Task("Dosing-1", (3.0, 10.0, 2.0, 2.0, 2.0, 1.0), 96, 200, 100_000),
    # 1 m or rad of positions and angles; of speeds about what the fastest published gaits have.
    "HalfCheetah": Task("HalfCheetah-v5", (1.0,) * 8 + (5.0,) * 9, 1000, 20, 1_000_000),
    "Hopper": Task("Hopper-v5", (1.0,) * 5 + (3.0,) * 6, 1000, 20, 1_000_000),
}


def actor(network: PolicyNetwork, parameters: Tensor, greedily: bool) -> Act:
    """Act by draws from the policy, or by its likeliest actions."""
    generator = torch.Generator().manual_seed(_JUDGED_SEED)

    def act(observations: NDArray[np.float32]) -> NDArray[Any]:
        seen = torch.from_numpy(observations)
        if not greedily:
            return network.squash(network.sample(parameters, seen, generator)).numpy()
        outputs = network.outputs(parameters.unsqueeze(0), seen.unsqueeze(0))[0]
        return (outputs.argmax(-1) if network.discrete_actions else network.squash(outputs)).numpy()

    return act


class NobodyThere(SimulatedUsers):
    """Users who come and take no step, so that the noise is all that an update has."""

    def meet(
        self, numbers: Sequence[int], network: PolicyNetwork, parameters: Tensor
    ) -> Trajectories:
        """See `SimulatedUsers.meet`."""
        # those who are not met contribute zero, too
        met = super().meet(numbers[:1], network, parameters)
        return replace(met, valid=torch.zeros_like(met.valid))


@dataclass(frozen=True)
class Run:
    """A line of a table, for all its seeds.

    Attributes:
        task: among `TASKS`.
        method: name of the algorithm.
        row: ``strict`` or another of this module's docstring.
        budget: ``ε 1``, ``z 3``, or none.
        update: with its settings.
        noise_multiplier: z.
        cohort: m.
        cohorts: of the run; every user is in one.
        steps: T, of a user at most.
        episodes: of a user at most; None: as many as fit.
        hidden: sizes of the hidden layers; none: a log-linear policy.
        deviation: standard deviation of the first actions in a box.
        averaged: share of the released policies, the last ones, whose mean is judged, which is
            post-processing; 0: the last one alone.
    """

    task: str
    method: str
    row: str
    budget: str
    update: Update
    noise_multiplier: float
    cohort: int
    cohorts: int
    steps: int
    episodes: int | None = None
    hidden: tuple[int, ...] = ()
    deviation: float = 1.0
    averaged: float = 0.0

    @property
    def key(self) -> Row:
        """Names and settings of the row."""
        users = f"{self.cohorts} × {self.cohort} users of {self.steps} steps"
        setting = f"{users}, {self.episodes or 'all'} episodes, hidden {list(self.hidden)}, "
        setting += f"deviation {self.deviation}, {self.update}"
        if self.averaged:
            setting += f", mean of the last {self.averaged:.0%}"
        return {
            "task": self.task,
            "method": self.method,
            "row": self.row,
            "budget": self.budget,
            "setting": setting,
        }

    def simulate(self, seed: int) -> SimulatedUsers:
        """Make the users."""
        kind = NobodyThere if self.row.endswith("noise alone") else SimulatedUsers
        # else the users before leave finished episodes
        if self.row in ("paper", "paper no noise") and self.episodes is None:
            kind = CarriedUsers
        return kind(batch(TASKS[self.task].environment), self.steps, self.episodes, seed)

    def make_row(self, seed: int) -> Row:
        """Learn, look at released policies on the way, and judge the last one."""
        task = TASKS[self.task]
        network, m = task.network(self.hidden, seed), self.cohort
        users = m * self.cohorts
        mechanism = online_mechanism(
            users=max(users, 1),
            cohort=m,
            noise_multiplier=self.noise_multiplier,
            releases=self.update.releases,
            delta=DELTA,
        )
        first = {PARAMETERS: network.initial(self.deviation)}
        every = max(1, self.cohorts // LOOKS)
        state = OnlineState.begin(first, self.cohorts, 1 if self.averaged else every)
        numbers = [range(at, at + m) for at in range(0, users, m)]
        last = learn(self.update, network, mechanism, self.simulate(seed), numbers, state)
        released = dict(zip(last.kept_after, last.kept, strict=True))
        curve = []
        for after in range(every, self.cohorts, every):
            looked = task.returns(actor(network, released[after], False), task.judged // 4)
            curve.append([after * m, round(float(looked.mean()), 1)])
        judged = last.parameters
        if self.averaged:
            first_judged = self.cohorts - int(self.averaged * self.cohorts) + 1
            judged = torch.stack([each for at, each in released.items() if at >= first_judged])
            judged = judged.mean(0)
        spent = mechanism.compute_spent()
        return {
            "users": users,
            "parameters": network.parameters,
            "epsilon": None if spent is None or "paper" in self.row else spent.epsilon_pld,
            "curve": curve,
            **task.judge(partial(actor, network, judged)),
        }


@dataclass(frozen=True)
class Peer:
    """PPO or A2C of stable-baselines3, not private."""

    task: str
    method: str
    row: str = "peer"
    budget: str = ""

    @property
    def key(self) -> Row:
        """See `Run.key`."""
        setting = f"{TASKS[self.task].steps} steps, {_PEERS[self.task, self.method]}"
        return {
            "task": self.task,
            "method": self.method,
            "row": self.row,
            "budget": "",
            "setting": setting,
        }

    def make_row(self, seed: int) -> Row:
        """Learn and judge the last policy."""
        from stable_baselines3 import A2C, PPO
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.vec_env import VecNormalize

        task, setting = TASKS[self.task], dict(_PEERS[self.task, self.method])
        envs: Any = make_vec_env(
            lambda: environments.make(task.environment), setting.pop("envs", 1), seed
        )
        seen: Any = np.array
        if setting.pop("normalise", False):
            envs = VecNormalize(envs, gamma=setting.get("gamma", 0.99))
            seen = envs.normalize_obs
        model = {"PPO": PPO, "A2C": A2C}[self.method](
            "MlpPolicy", envs, seed=seed, device="cpu", **setting
        )
        model.learn(task.steps)

        def act(greedily: bool) -> Act:
            return lambda observations: np.asarray(
                model.predict(seen(observations), deterministic=greedily)[0]
            )

        return task.judge(act)


_HOW = {"drawn": False, "greedy": True}
_PEERS: dict[tuple[str, str], dict[str, Any]] = {
    ("CartPole", "PPO"): {
        "envs": 8, "n_steps": 32, "batch_size": 256, "n_epochs": 20,
        "gae_lambda": 0.8, "gamma": 0.98, "learning_rate": 1e-3,
    },
    ("CartPole", "A2C"): {"envs": 8},
    ("Acrobot", "PPO"): {
        "envs": 16, "n_steps": 256, "n_epochs": 4, "gae_lambda": 0.94, "normalise": True,
    },
    ("Acrobot", "A2C"): {"envs": 16, "normalise": True},
    ("HalfCheetah", "PPO"): {"normalise": True},
    ("HalfCheetah", "A2C"): {"envs": 4, "normalise": True},
    ("Hopper", "PPO"): {"normalise": True},
    ("Hopper", "A2C"): {"envs": 4, "normalise": True},
}  # fmt: skip
"""Where nothing is said, the defaults of stable-baselines3 and one environment."""


@cache
def multiplier(budget: str, releases: int = 1) -> float:
    """Return z of ``z 3``, or solve it for ``ε 1`` by the exact mechanism."""
    kind, value = budget.split()
    return (
        float(value) if kind == "z" else solve_noise_multiplier(float(value), DELTA, 1.0, releases)
    )


def lines(base: Run, budgets: Sequence[str], nulls_at: str, **free: float) -> Iterator[Run]:
    """Vary a strict run: its budgets, then the rows that could explain it.

    Args:
        base: a strict run.
        budgets: of the strict rows.
        nulls_at: budget of the row of noise alone.
        free: settings of the update without a clip, under which steps have another length.
    """
    releases = base.update.releases
    for budget in budgets:
        yield replace(base, budget=budget, noise_multiplier=multiplier(budget, releases))
    yield replace(base, row="no noise", noise_multiplier=0.0)
    plain = replace(base.update, clipping_norm=NO_CLIP, **free)  # type: ignore[type-var]
    yield replace(base, row="no clip", noise_multiplier=0.0, update=plain)
    yield replace(
        base, row="noise alone", budget=nulls_at, noise_multiplier=multiplier(nulls_at, releases)
    )
    yield replace(base, row="untrained", noise_multiplier=0.0, cohorts=0)


def list_published(base: Run, budgets: Sequence[str]) -> Iterator[Run]:
    """Make rows in the papers' mode, whose z of ε is that of the classical formula and
    composition.
    """
    k = base.update.releases
    for budget in budgets:
        kind, value = budget.split()
        z = (
            float(value)
            if kind == "z"
            else math.sqrt(2 * math.log(1.25 * k / DELTA)) * k / float(value)
        )
        yield replace(base, row="paper", budget=budget, noise_multiplier=z)


def with_nulls(base: Run, nulls_at: str) -> Iterator[Run]:
    """Make rows of DPPG in the papers' mode: with the paper's entropy coefficient and last policy,
    as given, without noise, and of the noise alone.
    """
    printed = replace(base, update=CONTROL, cohorts=976, averaged=0.0)
    yield from list_published(replace(printed, method="DPPG, entropy 0.36"), Z)
    yield from list_published(base, Z)
    yield replace(base, row="paper no noise")
    z = multiplier(nulls_at)
    yield replace(base, row="paper noise alone", budget=nulls_at, noise_multiplier=z)


def cartpole() -> Iterator[Run]:
    """CartPole: 1,000 users of one episode each.

    In the papers' mode, DP-PG, NPG and REBEL have 100 × 10 episodes.
    """
    gradient = PolicyGradient(learning_rate=2.0, clipping_norm=1.0)
    natural = NaturalGradientByDescent(
        learning_rate=20.0, clipping_norm=0.1, steps=2, step_size=0.5, ball=0.5
    )
    regression = Rebel(temperature=10.0, step_size=10.0, steps=2, clipping_norm=0.1)
    theirs: tuple[tuple[str, Update, dict[str, float], Update], ...] = (
        ("DP-PG", gradient, {"learning_rate": 0.2}, replace(gradient, learning_rate=0.03)),
        (
            "DP-NPG",
            natural,
            {"learning_rate": 10.0, "ball": 1.0},
            replace(natural, learning_rate=0.5),
        ),
        (
            "DP-REBEL",
            regression,
            {"temperature": 3.0, "step_size": 3.0},
            replace(regression, step_size=1.0),
        ),
    )
    for method, own, free, paper in theirs:
        base = Run("CartPole", method, "strict", "", own, 0.0, 125, 8, 500, 1)
        yield from lines(base, ("ε 1", "ε 3", "ε 5"), "ε 1", **free)
        base = replace(base, cohort=10, cohorts=100, hidden=(64,))
        for budget in ("ε 3", "ε 5"):
            z = multiplier(budget, paper.releases)
            strict = replace(base, update=paper, budget=budget, noise_multiplier=z)
            yield replace(strict, method=f"{method}, 64 units")
        base = replace(base, update=loose(paper))
        yield replace(base, row="paper", budget="no noise", noise_multiplier=0.0)
        yield from list_published(base, ("ε 1", "ε 3", "ε 5"))
    local = replace(FULL_BATCH, epochs=4, learning_rate=20.0)
    base = Run("CartPole", "DPPG", "strict", "", local, 0.0, 125, 8, 500, 1)
    yield from lines(base, BUDGETS, "ε 1", learning_rate=1.0)
    base = Run("CartPole", "DPPG", "paper", "", CALM, 0.0, 8, 488, 64, None, (64, 64), averaged=0.5)
    yield from with_nulls(base, "z 3")
    yield from adam(base)


def adam(base: Run) -> Iterator[Run]:
    """Make strict rows of a run in the papers' mode: moments of Adam begin at zero, or are
    released ones.
    """
    settings = {name: value for name, value in vars(CALM).items() if name != "entropy_coefficient"}
    for method, kind in (("Adam", AdamDPPG), ("Adam, released moments", ReleasedMoments)):
        own = replace(base, method=f"DPPG, {method}", row="strict", update=kind(**settings))
        for budget in Z:
            yield replace(own, budget=budget, noise_multiplier=multiplier(budget))


Z = ("z 1", "z 3")
BUDGETS = (*Z, "ε 1", "ε 0.5", "ε 0.25", "ε 0.1")
FULL_BATCH = DPPG(
    clipping_norm=0.1,
    local_learning_rate=1.0,
    epochs=1,
    minibatches=1,
    decay=0.97,
    learning_rate=40.0,
)
CONTROL = CarriedCritic(
    clipping_norm=0.05,
    local_learning_rate=7.26e-4,
    epochs=8,
    minibatches=2,
    decay=0.85,
    entropy_coefficient=0.36,
)
CALM = replace(CONTROL, entropy_coefficient=0.01)
DOSING = CarriedCritic(
    clipping_norm=0.08, local_learning_rate=9.25e-4, epochs=4, minibatches=2, decay=0.97
)


def acrobot() -> Iterator[Run]:
    """Acrobot: a user has four episodes, for within one all rewards are equal until the goal."""
    base = Run("Acrobot", "DPPG", "strict", "", FULL_BATCH, 0.0, 300, 12, 2000, 4)
    yield from lines(base, BUDGETS, "ε 1", learning_rate=1.0)
    base = Run("Acrobot", "DPPG", "paper", "", CALM, 0.0, 8, 488, 64, None, (64, 64))
    yield from with_nulls(base, "z 3")


def dosing() -> Iterator[Run]:
    """Dosing: one day of each user.

    The simulator is this project's (Bergman's minimal model), not the paper's.
    """
    update = replace(FULL_BATCH, decay=1.0, learning_rate=8.0)
    for task in ("Dosing-0", "Dosing-1"):
        base = Run(task, "DPPG", "strict", "", update, 0.0, 250, 24, 96, 1, deviation=0.7)
        yield from lines(base, ("z 0.1", "z 0.5", "ε 1"), "ε 1", learning_rate=1.0)
        yield from list_published(
            Run(task, "DPPG", "paper", "", DOSING, 0.0, 8, 250, 96, 1, (64, 64)), ("z 0.1", "z 0.5")
        )


def mujoco() -> Iterator[Run]:
    """HalfCheetah and Hopper: 1,000 steps of 3,200 and 2,400 users, log-linear policies of 114 and
    39 numbers.
    """
    local: dict[str, Any] = {"epochs": 8, "minibatches": 32, "decay": 0.91}
    update = AnnealedDPPG(clipping_norm=0.5, local_learning_rate=2e-3, cohorts=100, **local)
    yield from lines(
        Run("HalfCheetah", "DPPG", "strict", "", update, 0.0, 32, 100, 1000, 1),
        ("z 0.05", "z 0.1", "ε 8"),
        "ε 8",
    )
    update = AnnealedDPPG(clipping_norm=0.4, local_learning_rate=1.5e-3, cohorts=150, **local)
    yield from lines(
        Run("Hopper", "DPPG", "strict", "", update, 0.0, 16, 150, 1000),
        ("z 0.05", "z 0.1", "ε 8"),
        "ε 8",
    )


def cases() -> list[Run | Peer]:
    """All lines of the tables."""
    return [*cartpole(), *acrobot(), *dosing(), *mujoco(), *(Peer(*key) for key in _PEERS)]


PUBLISHED = {
    ("CartPole", "DP-PG", "no noise"): "334.4 ± 25.3; 361.7",
    ("CartPole", "DP-NPG", "no noise"): "492.9 ± 10.0; 500.0",
    ("CartPole", "DP-PG", "ε 3"): "143.9 ± 22.9; 187.2",
    ("CartPole", "DP-PG", "ε 5"): "190.3 ± 52.9; 199.2",
    ("CartPole", "DP-NPG", "ε 3"): "400.9 ± 65.4; 410.4",
    ("CartPole", "DP-NPG", "ε 5"): "478.7 ± 28.1; 494.7",
    ("CartPole", "DPPG", "z 1"): "496.4 ± 6.6",
    ("CartPole", "DPPG", "z 3"): "375.5 ± 86.7",
    ("CartPole", "PPO", ""): "493.2 ± 9.4",
    ("Acrobot", "DPPG", "z 1"): "-83.0 ± 4.4",
    ("Acrobot", "DPPG", "z 3"): "-89.8 ± 7.6",
    ("Acrobot", "PPO", ""): "-82.1 ± 5.1",
    ("Dosing-0", "DPPG", "z 0.1"): "109.9 ± 4.8",
    ("Dosing-0", "DPPG", "z 0.5"): "17.2 ± 57.6",
    ("Dosing-1", "DPPG", "z 0.1"): "20.7 ± 53.4",
    ("Dosing-1", "DPPG", "z 0.5"): "-24.9 ± 58.8",
    ("HalfCheetah", "DPPG", "z 0.05"): "1548.9 ± 399.1",
    ("HalfCheetah", "DPPG", "z 0.1"): "1328.4 ± 306.5",
    ("HalfCheetah", "PPO", ""): "2105.5 ± 627.9",
    ("HalfCheetah", "A2C", ""): "1003.3 ± 27.2",
    ("Hopper", "DPPG", "z 0.05"): "645.0 ± 176.4",
    ("Hopper", "DPPG", "z 0.1"): "808.9 ± 321.7",
    ("Hopper", "PPO", ""): "2208.2 ± 477.6",
    ("Hopper", "A2C", ""): "625.0 ± 106.8",
}
"""The papers' means and standard deviations (DPPG, Table 1; private policy optimisation, Table 1:
and the mean of the best epoch).
"""


def table(rows: Sequence[Row]) -> str:
    """Write a line for each budget, beside the paper's figure."""
    head = "| task | method | budget | ε | the paper's | our mode of the papers, drawn; greedy "
    lines = [f"{head}| drawn | greedy | best look | users |", "|---" * 10 + "|"]
    by_place: dict[tuple[str, str, str], dict[str, list[Row]]] = {}
    for one in cases():
        if one.row in ("strict", "peer", "paper") and (found := _of(rows, one)):
            by_place.setdefault((one.task, one.method, one.budget), {})[one.row] = found
    for place, kinds in by_place.items():
        own, loose_rows = kinds.get("strict", kinds.get("peer", [])), kinds.get("paper", [])
        first = own[0] if own else {}
        cells = [
            at_most(first["epsilon"], 3) if first.get("epsilon") else "∞" if own else "void",
            PUBLISHED.get(place, "–"),
            "; ".join(interval(loose_rows, how) for how in _HOW) if loose_rows else "–",
            *(interval(own, how) for how in _HOW),
            best(own or loose_rows),
            f"{first['users']:,}" if "users" in first else "–",
        ]
        lines.append(f"| {place[0]} | {place[1]} | {place[2] or '–'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def nulls(rows: Sequence[Row]) -> str:
    """Write a line for each method: returns of drawn actions, and of everything that could explain
    them.
    """
    kinds = ("no noise", "no clip", "noise alone", "untrained")
    lines, all_lines = [f"| task | method | learning | {' | '.join(kinds)} |"], cases()
    lines.append("|---" * (3 + len(kinds)) + "|")
    for null in (one for one in all_lines if one.row.endswith("noise alone")):
        prefix = null.row.removesuffix("noise alone")
        same = [one for one in all_lines if (one.task, one.method) == (null.task, null.method)]
        by_row = {one.row: _of(rows, one) for one in same if one.budget in ("", null.budget)}
        first = f"{null.budget}: {interval(by_row[prefix.strip() or 'strict'], 'drawn')}"
        cells = [interval(by_row.get(prefix + kind, []), "drawn") for kind in kinds]
        name = f"{null.method}, papers' mode" if prefix else null.method
        lines.append(f"| {null.task} | {name} | {first} | {' | '.join(cells)} |")
    return "\n".join(lines)


def best(rows: Sequence[Row]) -> str:
    """Write the mean over seeds of the best of all looks on the way; none of PPO and A2C."""
    values = [max(value for _, value in row["curve"]) for row in rows if row.get("curve")]
    return f"{np.mean(values):.1f}" if values else "–"


def interval(rows: Sequence[Row], how: str) -> str:
    """Write the mean return and half of its 95% interval by Student's t, with the number of
    seeds.
    """
    values = [row[how] for row in rows]
    if len(values) < 2:
        return f"{values[0]:.1f} (1)" if values else "–"
    found = Estimate.of(np.array(values))
    return f"{found.mean:.1f} ± {found.high - found.mean:.1f} ({len(values)})"


def _of(rows: Sequence[Row], one: Run | Peer) -> list[Row]:
    return [row for row in rows if row.items() >= one.key.items()]


def main() -> None:
    """Make what is missing, or write the tables of what is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(TASKS), help="tasks")
    parser.add_argument("--rows", nargs="+", help="kinds of rows; all, if none is named")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--report",
        action="store_true",
        help="write the tables of benchmarks/results.md",
    )
    asked = parser.parse_args()
    if asked.report:
        found = read("online")
        rows = [row for one in cases() for row in _of(found, one)]
        for name, write in (("online", table), ("online nulls", nulls)):
            put(RESULTS_PAGE, name, write(rows))
        return
    chosen = [
        one
        for one in cases()
        if one.task in asked.only and (not asked.rows or one.row in asked.rows)
    ]
    runs = [(one, one.key | {"seed": seed}) for seed in range(asked.seeds) for one in chosen]
    made = {str(key): partial(one.make_row, key["seed"]) for one, key in runs}
    complete_rows("online", [key for _, key in runs], lambda key: made[str(key)]())


if __name__ == "__main__":
    main()
