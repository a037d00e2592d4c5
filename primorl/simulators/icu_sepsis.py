"""The ICU-Sepsis MDP (Choudhary, Gupta and Thomas, 2024), with observations a model can be trained on.

The package ``icu-sepsis`` ships the MDP as tables, estimated from MIMIC-III: 713 states of a patient, 25 actions (five
levels of intravenous fluid times five of vasopressor), death, survival. Its own environment observes the number of
the state and reads 200 MB of tables for every copy; here all copies share them. The transitions are the same, that is:
actions that were too rare in a state to be estimated go where the others go on average (its strategy ``mean``), the
reward is 1 on survival and 0 otherwise, death and survival end an episode, and so do 500 steps.

``primorl.simulators.icu_sepsis:primorl/ICU-Sepsis-centres-v0`` observes 50 numbers: the 47 standardised features
of the state's cluster centre as shipped (zeros after death and survival, which have none), then one-hot: treated, died,
survived. ``…:primorl/ICU-Sepsis-one-hot-v0`` observes the state's number, one-hot among 716.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

Observation = Literal["centres", "one_hot"]

LIMIT = 500
DEATH, SURVIVAL = 713, 714
ENVIRONMENTS: dict[Observation, str] = {
    "centres": f"{__name__}:primorl/ICU-Sepsis-centres-v0",
    "one_hot": f"{__name__}:primorl/ICU-Sepsis-one-hot-v0",
}


@dataclass(frozen=True)
class Tables:
    """The MDP of S = 716 states and A = 25 actions, ready to be drawn from.

    Attributes:
        first: cumulated probabilities of the first state [S].
        cumulated: of all positive transition probabilities, row by row (row s·A + a): row + the probability of
            its successors so far, so that one search in the whole draws from any rows.
        successors: the state that each of these stands for.
        expert: the clinicians' policy as estimated [S, A]; zeros in states where nothing is done.
        observations: of each state [S, 50] or [S, S], float32.
    """

    first: npt.NDArray[np.float64]
    cumulated: npt.NDArray[np.float64]
    successors: npt.NDArray[np.int16]
    expert: npt.NDArray[np.float64]
    observations: dict[Observation, npt.NDArray[np.float32]]

    @property
    def actions(self) -> int:
        """A."""
        return int(self.expert.shape[1])

    def starts(self, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int16]:
        """First states, one for each number drawn from [0, 1)."""
        return np.searchsorted(self.first, uniform, side="right").astype(np.int16)

    def step(
        self,
        states: npt.NDArray[np.int16],
        actions: npt.NDArray[Any],
        uniform: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.int16]:
        """Draw the states after ``actions`` in ``states``, one for each number from [0, 1)."""
        rows = states.astype(np.int64) * self.actions + actions
        after: npt.NDArray[np.int16] = self.successors[
            np.searchsorted(self.cumulated, rows + uniform, side="right")
        ]
        return after


def ended(states: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
    """Say whether these are states in which nothing is done any more."""
    over: npt.NDArray[np.bool_] = states >= DEATH
    return over


@lru_cache(maxsize=1)
def tables() -> Tables:
    """Read the shipped tables, without importing the package, which would import the retired ``gym``.

    Raises:
        ImportError: the package is not installed.
    """
    package = find_spec("icu_sepsis")
    if package is None or package.origin is None:
        raise ImportError("icu-sepsis is not installed; `pip install primorl[medical]`")
    with np.load(Path(package.origin).parent / "envs" / "assets" / "dynamics.npz") as shipped:
        transitions, expert = shipped["tx_mat"], shipped["expert_policy"]
        first, centres = shipped["d_0"], shipped["state_cluster_centers"]
    states, actions, _ = transitions.shape
    flat = transitions.reshape(states * actions, states)
    rows, successors = np.nonzero(flat)
    cumulated = rows + np.minimum(np.cumsum(flat, axis=1)[rows, successors], 1.0)
    cumulated[np.flatnonzero(np.diff(rows, append=-1))] = (
        np.arange(states * actions) + 1.0
    )  # no gap by rounding
    condition = np.zeros((states, 3))
    condition[:DEATH, 0] = condition[DEATH, 1] = condition[SURVIVAL:, 2] = 1
    return Tables(
        np.where(np.arange(states) < np.flatnonzero(first)[-1], np.cumsum(first), 1.0),
        cumulated,
        successors.astype(np.int16),
        expert,
        {
            "centres": np.hstack([centres, condition]).astype(np.float32),
            "one_hot": np.eye(states, dtype=np.float32),
        },
    )


class ICUSepsis(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """One patient of the MDP.

    Args:
        observation: ``centres`` or ``one_hot``.
    """

    def __init__(self, observation: Observation):
        self._tables = tables()
        self._seen = self._tables.observations[observation]
        self._state = np.zeros(1, dtype=np.int16)
        self.observation_space = Box(
            self._seen.min(axis=0), self._seen.max(axis=0), dtype=np.float32
        )
        self.action_space = Discrete(self._tables.actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin with a new patient."""
        super().reset(seed=seed, options=options)
        self._state = self._tables.starts(self.np_random.random(1))
        return self._seen[self._state[0]].copy(), {}

    def step(
        self, action: np.int64
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Four hours of treatment."""
        if ended(self._state)[0]:
            raise gymnasium.error.ResetNeeded("the episode has ended")
        self._state = self._tables.step(self._state, np.array([action]), self.np_random.random(1))
        survived, over = float(self._state[0] == SURVIVAL), bool(ended(self._state)[0])
        return self._seen[self._state[0]].copy(), survived, over, False, {}


for _observation, _id in ENVIRONMENTS.items():
    gymnasium.register(
        _id.partition(":")[2],
        f"{__name__}:ICUSepsis",
        max_episode_steps=LIMIT,
        kwargs={"observation": _observation},
    )
