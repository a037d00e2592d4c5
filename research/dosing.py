"""Insulin dosing in type 1 diabetes: one episode is one day of one patient.

Glucose G [mg/dL] and remote insulin action X [1/min] follow the minimal model (Bergman, Phillips
and Cobelli 1981, "Physiologic evaluation of factors controlling glucose tolerance in man"), with
the values of a patient without secretion of her own (Fisher 1991, "A semiclosed-loop algorithm for
the control of blood glucose levels in diabetics"):

    dG/dt = -p1 (G - G_b) - X G + D2 / (t_G V_G)
    dX/dt = -p2 X + p3 (I - I_b)
    dI/dt = S2 / (t_I V_I) - n I                         plasma insulin [mU/L]

Subcutaneous insulin S1, S2 [mU] and carbohydrates in the gut D1, D2 [mg] are two compartments in a
row each (Hovorka et al. 2004, "Nonlinear model predictive control of glucose concentration in
subjects with type 1 diabetes"):

    dS1/dt = u - S1 / t_I        dS2/dt = (S1 - S2) / t_I
    dD1/dt = -D1 / t_G           dD2/dt = (D1 - D2) / t_G    a meal adds A_G times its carbohydrates
    to D1

The action is the rate u, from 0 to 5 U/h, for 15 minutes. Integration is by Runge-Kutta steps of 5
minutes. Glucose is held within 10 and 1000 mg/dL, outside which the model means nothing. The reward
of a step is 1 where glucose after it lies within 70 and 180 mg/dL, -1 below 54 or above 250, and
linear in between (levels of Battelino et al. 2019, "Clinical targets for continuous glucose
monitoring data interpretation"). A day is cut off after 96 steps.

Six observations: (G - 120) / 60; the same difference a step ago; I / 30; insulin on board (S1 + S2)
/ 5 U; carbohydrates in the gut (D1 + D2) / 50 g; and the hour / 12 - 1.

Dosing-0: every day has the same three meals. Dosing-1: times and sizes of the meals, a snack and
the insulin sensitivity p3 are drawn anew for each patient.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from primorl.simulators.environments import Flags, Floats

State = npt.NDArray[np.float64]

STEPS = 96
MOST_RATE = 5.0
"""U/h."""

_P1, _P2, _P3, _BASAL_INSULIN, _BASAL_GLUCOSE = 0.0, 0.025, 1.3e-5, 15.0, 81.0
_CLEARANCE, _INSULIN_VOLUME = 5 / 54, 12.0
_GLUCOSE_VOLUME = 112.0
"""dL: 0.16 L/kg and 70 kg."""
_GUT_TIME, _SKIN_TIME, _ABSORBED = 40.0, 55.0, 0.8
_LOWEST, _HIGHEST = 10.0, 1000.0
_SUBSTEPS, _MINUTES = 3, 5.0
_MEALS = ((28, 45.0), (50, 65.0), (74, 65.0), (64, 20.0))
"""Steps and grams: 07:00, 12:30, 18:30; a snack at 16:00 is eaten by half of the patients who
differ.
"""


def runge_kutta(derivatives: Callable[[State], State], state: State, step: float) -> State:
    """Advance a state ``[D, n]`` by one step of the classical Runge-Kutta method."""
    first = derivatives(state)
    second = derivatives(state + step / 2 * first)
    third = derivatives(state + step / 2 * second)
    fourth = derivatives(state + step * third)
    return state + step / 6 * (first + 2 * second + 2 * third + fourth)


class DosingBatch:
    """n patients for a day; see `GymBatch`.

    Args:
        varied: whether patients and their meals differ.
    """

    observation_size: int = 6
    observation_low = np.array([-2, -20, 0, 0, 0, -1], np.float32)
    observation_high = np.array([15, 20, 40, 40, 10, 1], np.float32)
    action_low = np.zeros(1, np.float32)
    action_high = np.full(1, MOST_RATE, np.float32)
    discrete_actions: bool = False
    step_limit: int | None = STEPS

    def __init__(self, varied: bool):
        self._varied = varied

    def reset(self, count: int, seed: int) -> Floats:
        """See `GymBatch.reset`."""
        self._random = np.random.default_rng(seed)
        self._state = np.zeros((7, count))
        self._before = np.zeros(count)
        self._steps = np.zeros(count, np.int64)
        self._sensitivity = np.full(count, _P3)
        self._meals = np.zeros((count, STEPS))
        return self.restart(np.ones(count, bool))

    def restart(self, which: Flags) -> Floats:
        """See `GymBatch.restart`.

        Insulin is at its basal level, glucose drawn from 80 to 160 mg/dL.
        """
        count = len(which)
        glucose = self._random.uniform(80, 160, count)[which]
        skin = _CLEARANCE * _INSULIN_VOLUME * _BASAL_INSULIN * _SKIN_TIME
        self._state[:, which] = np.array([0, 0, _BASAL_INSULIN, skin, skin, 0, 0])[:, None]
        self._state[0, which] = self._before[which] = glucose
        self._steps[which] = 0
        self._meals[which] = self._eaten(count)[which]
        if self._varied:
            self._sensitivity[which] = _P3 * self._random.uniform(0.8, 1.25, count)[which]
        return self._observe()

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Floats, Flags, Flags]:
        """See `GymBatch.step`."""
        rate = np.asarray(actions, np.float64).reshape(-1).clip(0, MOST_RATE) * 1000 / 60
        self._before = self._state[0]
        state = self._state.copy()
        meals = self._meals[np.arange(len(rate)), self._steps % STEPS]
        state[5] += 1000 * _ABSORBED * meals
        for _ in range(_SUBSTEPS):
            state = runge_kutta(lambda now: self._derivatives(now, rate), state, _MINUTES)
            state[0] = state[0].clip(_LOWEST, _HIGHEST)
        self._state = state
        self._steps += 1
        rewards = np.interp(state[0], [54, 70, 180, 250], [-1, 1, 1, -1]).astype(np.float32)
        return self._observe(), rewards, np.zeros(len(rate), bool), self._steps >= STEPS

    def _derivatives(self, state: State, rate: State) -> State:
        """Time derivatives per minute of G, X, I, S1, S2, D1 and D2, ``[7, n]``."""
        glucose, action, insulin, skin, deep, stomach, gut = state
        return np.stack(
            [
                -_P1 * (glucose - _BASAL_GLUCOSE)
                - action * glucose
                + gut / (_GUT_TIME * _GLUCOSE_VOLUME),
                -_P2 * action + self._sensitivity * (insulin - _BASAL_INSULIN),
                deep / (_SKIN_TIME * _INSULIN_VOLUME) - _CLEARANCE * insulin,
                rate - skin / _SKIN_TIME,
                (skin - deep) / _SKIN_TIME,
                -stomach / _GUT_TIME,
                (stomach - gut) / _GUT_TIME,
            ]
        )

    def _eaten(self, count: int) -> State:
        """Grams of carbohydrates in every step of the day, ``[count, STEPS]``."""
        found = np.zeros((count, STEPS))
        for at, grams in _MEALS[: 4 if self._varied else 3]:
            if not self._varied:
                found[:, at] = grams
                continue
            times = at + self._random.integers(-4, 5, count)
            sizes = grams * self._random.uniform(0.6, 1.4, count)
            eats = self._random.random(count) < (0.5 if (at, grams) == _MEALS[3] else 1)
            found[np.arange(count), times] += sizes * eats
        return found

    def _observe(self) -> Floats:
        glucose, _, insulin, skin, deep, stomach, gut = self._state
        insulin_on_board, gut_content = (skin + deep) / 5000, (stomach + gut) / 50_000
        change, hour = (glucose - self._before) / 60, self._steps / (STEPS / 2) - 1
        seen = np.stack(
            [(glucose - 120) / 60, change, insulin / 30, insulin_on_board, gut_content, hour], 1
        )
        return seen.astype(np.float32).clip(self.observation_low, self.observation_high)
