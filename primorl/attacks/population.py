"""A population to attack: units that can be told apart and whose responses cannot be guessed. Public, made here."""

import numpy as np
import torch

from primorl.attacks.units import Units
from primorl.dynamics.ensemble import Bounds

COVARIATES = 20
OBSERVATION_SIZE, ACTION_SIZE = 1 + COVARIATES, 1
_GAIN, _BEST = 0.5, 0.7
_NOISE = 0.05


def population(units: int, steps: int, seed: int) -> Units:
    """Trajectories of treated units under uniform random doses.

    A unit has a state x, covariates c ~ N(0, I) that never change and stand in every observation (x, c), and two hidden
    signs g and b that say how it responds to a dose a in [-1, 1]:

        x' = 0.7 x + 0.5 g a + 0.05 N(0, 1),   reward = -(a - 0.7 b)² + 0.05 N(0, 1).

    The signs are fair coins that do not depend on c. A model that only learns what all units share cannot know them;
    one that knows them for some c has memorised the unit with that c, and a policy that picks that unit's best dose
    there has inherited it. So whatever an attack finds on such data is memory, never luck in the data.

    Args:
        units: U.
        steps: M, of each.
        seed: of all of it.

    Returns:
        ``inputs [U, M, S + 1]`` and ``targets [U, M, S + 1]`` with S = `OBSERVATION_SIZE`.
    """
    rng = np.random.default_rng(seed)
    covariates = rng.standard_normal((units, COVARIATES))
    gain, best = rng.choice([-1.0, 1.0], (2, units))
    state = rng.standard_normal(units)
    inputs = np.empty((units, steps, OBSERVATION_SIZE + ACTION_SIZE), dtype=np.float32)
    targets = np.zeros((units, steps, OBSERVATION_SIZE + 1), dtype=np.float32)
    inputs[:, :, 1:OBSERVATION_SIZE] = covariates[:, None]
    for step in range(steps):
        dose = rng.uniform(-1, 1, units)
        following = 0.7 * state + _GAIN * gain * dose + _NOISE * rng.standard_normal(units)
        inputs[:, step, 0], inputs[:, step, -1] = state, dose
        targets[:, step, 0] = following - state
        targets[:, step, -1] = -((dose - _BEST * best) ** 2) + _NOISE * rng.standard_normal(units)
        state = following
    return Units(torch.from_numpy(inputs), torch.from_numpy(targets))


def bounds() -> Bounds:
    """Declared bounds of observations, doses and rewards."""
    far, most = torch.full((OBSERVATION_SIZE,), 6.0), torch.ones(ACTION_SIZE)
    return Bounds(-far, far, -most, most, reward_low=-4.0, reward_high=0.5)
