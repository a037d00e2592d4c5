"""Riverswim: a chain of six states, in which the large reward is up the river (Strehl and Littman 2008).

Transitions are those of Osband, Van Roy and Russo (2013, "(More) efficient reinforcement learning via posterior
sampling", Figure 1), with horizon 20. Action 0 swims left and always succeeds; at the left bank it brings 5/1000.
Action 1 swims right: from the left bank it succeeds with probability 0.6 and stays otherwise; between the banks it
succeeds with 0.35, stays with 0.6 and drifts left with 0.05; at the right bank it stays there with probability p, which
brings 1, and drifts left otherwise. Osband et al. have p = 0.6; Rio et al. (DPPG, Section 6) also have p = 0.9.

``primorl.simulators.riverswim:primorl/Riverswim-60-v0`` has p = 0.6, ``…:primorl/Riverswim-90-v0`` p = 0.9. They
observe the state, one-hot. An episode is cut off after 20 steps.
"""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from primorl.simulators.single import Flags, Floats, Single

STATES, ACTIONS, HORIZON = 6, 2, 20
LEFT_REWARD, RIGHT_REWARD = 5 / 1000, 1.0
ENVIRONMENTS: dict[float, str] = {p: f"{__name__}:primorl/Riverswim-{round(100 * p)}-v0" for p in (0.6, 0.9)}
"""Ids by p."""


def transition_probabilities(p: float) -> npt.NDArray[np.float64]:
    """Probability of each next state, ``[S, A, S]``."""
    found = np.zeros((STATES, ACTIONS, STATES))
    for state in range(STATES):
        found[state, 0, max(state - 1, 0)] = 1
        if 0 < state < STATES - 1:
            found[state, 1, state - 1 : state + 2] = 0.05, 0.6, 0.35
    found[0, 1, :2] = 0.4, 0.6
    found[-1, 1, -2:] = 1 - p, p
    return found


def rewards() -> npt.NDArray[np.float64]:
    """Give the reward of each transition, ``[S, A, S]``."""
    found = np.zeros((STATES, ACTIONS, STATES))
    found[0, 0, 0] = LEFT_REWARD
    found[-1, 1, -1] = RIGHT_REWARD
    return found


class RiverswimBatch:
    """n rivers; see `EnvironmentBatch`.

    Args:
        p: probability of the large reward at the right bank.
    """

    observation_size: int = STATES
    observation_low = np.zeros(STATES, np.float32)
    observation_high = np.ones(STATES, np.float32)
    action_low = np.zeros(ACTIONS, np.float32)
    action_high = np.ones(ACTIONS, np.float32)
    discrete_actions: bool = True
    step_limit: int | None = HORIZON

    def __init__(self, p: float):
        self._cumulated = transition_probabilities(p).cumsum(-1)[..., :-1]
        self._rewards = rewards().astype(np.float32)

    def reset(self, count: int, seed: int) -> Floats:
        """See `EnvironmentBatch.reset`. Everybody begins at the left bank."""
        self._random = np.random.default_rng(seed)
        self._states, self._steps = np.zeros((2, count), np.int64)
        return self._seen()

    def restart(self, which: Flags) -> Floats:
        """See `EnvironmentBatch.restart`."""
        self._states[which] = self._steps[which] = 0
        return self._seen()

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]:
        """See `EnvironmentBatch.step`."""
        drawn = self._random.random((len(actions), 1))
        after = (drawn >= self._cumulated[self._states, actions]).sum(1)
        found = self._rewards[self._states, actions, after]
        self._states = after
        self._steps += 1
        return self._seen(), found, np.zeros(len(actions), bool), self._steps >= HORIZON

    def _seen(self) -> Floats:
        return np.eye(STATES, dtype=np.float32)[self._states]


class Riverswim(Single):
    """One river.

    Args:
        p: see `RiverswimBatch`.
    """

    def __init__(self, p: float):
        super().__init__(RiverswimBatch(p), RiverswimBatch.observation_low, RiverswimBatch.observation_high)


for _p, _id in ENVIRONMENTS.items():
    gymnasium.register(_id.partition(":")[2], f"{__name__}:Riverswim", max_episode_steps=HORIZON, kwargs={"p": _p})
