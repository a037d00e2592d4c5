"""The MDP of simulated sepsis patients as tables, and data drawn from it: what `benchmarks.quality.icu_sepsis` uses."""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from primorl.simulators.icu_sepsis import DEATH, SURVIVAL, tables
from primorl.trajectories.sources.icu_sepsis import simulate

PATIENTS, EXPERT_SHARE = 98_000, 0.5
STATES, ACTIONS = DEATH, 25

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """The MDP: ``onward [S, A, S]`` among treated states, ``survived`` and ``died [S, A]``, ``first [S]``."""

    onward: Floats
    survived: Floats
    died: Floats
    first: Floats
    expert: Floats
    centres: Floats
    sofa: Floats

    def values(self, policy: Floats) -> Floats:
        """Survival from every state under ``policy [S, A]``."""
        moves = np.einsum("sa,sat->st", policy, self.onward)
        solved: Floats = np.linalg.solve(np.eye(STATES) - moves, (policy * self.survived).sum(1))
        return solved

    def survival(self, policy: Floats) -> float:
        """Survival of a patient under ``policy [S, A]``."""
        return float(self.first @ self.values(policy))

    def action_values(self, policy: Floats) -> Floats:
        """``[S, A]``."""
        values: Floats = self.survived + self.onward @ self.values(policy)
        return values

    def visits(self, policy: Floats) -> Floats:
        """Expected visits of every state in a stay."""
        moves = np.einsum("sa,sat->st", policy, self.onward)
        solved: Floats = np.linalg.solve(np.eye(STATES) - moves.T, self.first)
        return solved

    @property
    def behaviour(self) -> Floats:
        """The policy of the data."""
        mixed: Floats = EXPERT_SHARE * self.expert + (1 - EXPERT_SHARE) / ACTIONS
        return mixed

    @property
    def standardised(self) -> Floats:
        """Centres as a network takes them, by the visits of the behaviour."""
        return scaled(self.centres, self.visits(self.behaviour))


def world() -> World:
    """Read the shipped tables."""
    package = find_spec("icu_sepsis")
    assert package is not None
    assert package.origin is not None
    with np.load(Path(package.origin).parent / "envs" / "assets" / "dynamics.npz") as shipped:
        transitions, first, expert = shipped["tx_mat"][:STATES], shipped["d_0"], shipped["expert_policy"]
        centres, sofa = shipped["state_cluster_centers"], shipped["sofa_scores"]
    return World(
        transitions[:, :, :STATES].astype(np.float64),
        transitions[:, :, SURVIVAL].astype(np.float64),
        transitions[:, :, DEATH].astype(np.float64),
        *(part[:STATES].astype(np.float64) for part in (first, expert, centres, sofa)),
    )


def scaled(features: Floats, weights: Floats) -> Floats:
    """Columns of ``features [n, d]`` less their weighted mean, over their weighted standard deviation."""
    share = weights / weights.sum()
    centred = features - share @ features
    result: Floats = centred / np.maximum(np.sqrt(share @ centred**2), 1e-3)
    return result


def greedy(values: Floats) -> Floats:
    """The policy that takes the best action of ``values [S, A]``."""
    policy: Floats = np.eye(ACTIONS)[values.argmax(1)]
    return policy


def optimal(onward: Floats, survived: Floats, sweeps: int = 300) -> Floats:
    """Values of all actions under the best policy of an MDP, by value iteration to 1e-6 or ``sweeps`` times."""
    values, of_actions = np.zeros(STATES), survived
    for _ in range(sweeps):
        of_actions = survived + (onward.reshape(-1, STATES) @ values).reshape(STATES, ACTIONS)
        before, values = values, of_actions.max(1)
        if np.abs(values - before).max() < 1e-6:
            break
    return of_actions


@dataclass(frozen=True)
class Data:
    """A simulated data set: ``states``, ``actions``, states ``after`` and the number of the ``stay`` of R rows."""

    states: npt.NDArray[np.int64]
    actions: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    stay: npt.NDArray[np.int64]

    @property
    def cells(self) -> npt.NDArray[np.int64]:
        """s·A + a of every row."""
        return self.states * ACTIONS + self.actions

    def table(self, weights: Floats) -> Floats:
        """Sums of ``weights [R]`` by cell ``[S, A]``."""
        sums: Floats = np.bincount(self.cells, weights, STATES * ACTIONS).reshape(STATES, ACTIONS)
        return sums


@lru_cache(maxsize=1)
def data(seed: int) -> Data:
    """98,000 patients."""
    patients = simulate(tables(), PATIENTS, EXPERT_SHARE, seed)
    ends = np.cumsum(patients.lengths + 1)
    first, last = np.zeros((2, len(patients.states)), dtype=bool)
    first[ends - patients.lengths - 1] = True
    last[ends - 1] = True
    states = patients.states.astype(np.int64)
    stay = np.repeat(np.arange(PATIENTS), patients.lengths)
    return Data(states[~last], patients.actions.astype(np.int64), states[~first], stay)
