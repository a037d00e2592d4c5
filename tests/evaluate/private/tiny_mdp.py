"""Random logs with discrete actions and a random model, and the question about them."""

import torch
from torch.nn.functional import one_hot

from primorl.evaluate.private.problem import Problem
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from tests.evaluate.private.conftest import Log, question

STATES, ACTIONS, HORIZON = 3, 2, 5


def problem(units: int) -> Problem:
    """Observations and rewards in [0, 1]."""
    shape = Architecture(STATES, ACTIONS, 2, (8,), -41.0, -40.0)
    zero, one = torch.zeros(STATES + ACTIONS), torch.ones(STATES + ACTIONS)
    normaliser = Normaliser(zero, one, zero[: STATES + 1], one[: STATES + 1])
    state, action = (zero[:STATES], one[:STATES]), (zero[:ACTIONS], one[:ACTIONS])
    bounds = Bounds(*state, *action, 0.0, 1.0, discrete_actions=True)
    return question(
        units,
        STATES,
        ACTIONS,
        delta=1e-6,
        horizon=HORIZON,
        observation_low=state[0],
        observation_mean=torch.full((STATES,), 0.3),
        observation_scale=torch.full((STATES,), 0.5),
        action_low=action[0],
        discrete_actions=True,
        reward_low=0.0,
        ensemble=GaussianEnsemble(shape, shape.initial_weights(0), normaliser, bounds),
        starts=torch.eye(STATES),
    )


def log(units: int) -> Log:
    """Trajectories of one to five steps; every other unit has two."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.arange(2 * HORIZON).expand(units, -1)
    begun, more = torch.randint(1, HORIZON + 1, (2, units), generator=generator)
    more[::2] = 0
    states = torch.randint(STATES, (units, 2 * HORIZON + 1), generator=generator)
    actions = torch.randint(ACTIONS, steps.shape, generator=generator)
    rewards = torch.rand(*steps.shape, 1, generator=generator)
    now = one_hot(states, STATES)
    inputs = torch.cat((now[:, :-1], one_hot(actions, ACTIONS)), -1).double()
    targets = torch.cat((now[:, 1:] - now[:, :-1], rewards, torch.zeros_like(rewards)), -1)
    first = (steps == 0) | (steps == begun[:, None])
    return Log(inputs, targets.double(), first, begun + more)
