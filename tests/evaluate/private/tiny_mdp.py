"""A small MDP, logs of it, and the question about a policy."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from primorl.evaluate.private.problem import Problem
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from tests.evaluate.private.conftest import Log, question

STATES, ACTIONS, HORIZON, DISCOUNT = 3, 2, 5, 0.9
_DRAWN = torch.Generator().manual_seed(4)
# The last one: the end.
MOVES = torch.rand(STATES, ACTIONS, STATES + 1, generator=_DRAWN, dtype=torch.float64) + 0.1
MOVES[..., -1] *= 0.3
MOVES /= MOVES.sum(-1, keepdim=True)
REWARDS = torch.rand(STATES, ACTIONS, generator=_DRAWN, dtype=torch.float64)
BEHAVIOUR = torch.tensor([[0.4, 0.6], [0.7, 0.3], [0.35, 0.65]], dtype=torch.float64)
POLICY = torch.tensor([1, 0, 0])


def act(observation: Tensor) -> Tensor:
    return one_hot(POLICY[observation.argmax(-1)], ACTIONS).float()


def ensemble(*, known: bool = True) -> GaussianEnsemble:
    """A model in which nothing moves and every step pays 0.5; or a random one."""
    shape = Architecture(STATES, ACTIONS, 2, (8,), -41.0, -40.0)
    weights = list(shape.initial_weights(0))
    if known:
        weights = [torch.zeros_like(part) for part in weights]
        weights[-1][:, 0, STATES] = 0.5
    zero, one = torch.zeros(STATES), torch.ones(STATES)
    bounds = Bounds(
        zero, one, torch.zeros(ACTIONS), torch.ones(ACTIONS), 0.0, 1.0, discrete_actions=True
    )
    parts = (
        part
        for size in (STATES + ACTIONS, STATES + 1)
        for part in (torch.zeros(size), torch.ones(size))
    )
    return GaussianEnsemble(shape, tuple(weights), Normaliser(*parts), bounds)


def problem(units: int, *, known: bool = True) -> Problem:
    settings = (
        {
            "delta": 1e-6,
            "horizon": HORIZON,
            "discount": DISCOUNT,
            "observation_low": torch.zeros(STATES),
        }
        | {
            "observation_mean": torch.full((STATES,), 0.3),
            "observation_scale": torch.full((STATES,), 0.5),
        }
        | {
            "action_low": torch.zeros(ACTIONS),
            "discrete_actions": True,
            "reward_low": 0.0,
            "policy": act,
        }
        | {"ensemble": ensemble(known=known), "starts": torch.eye(STATES)}
    )
    return question(units, STATES, ACTIONS, **settings)


def log(units: int, seed: int = 0, *, hostile: int | None = None) -> Log:
    """Simulate by the behaviour; every other unit has two trajectories.

    ``hostile``: a unit whose rows are absurd.
    """
    generator = torch.Generator().manual_seed(seed)
    state = torch.randint(STATES, (units, 2), generator=generator)
    alive = torch.ones(units, 2, dtype=torch.bool)
    alive[::2, 1] = False
    columns: list[tuple[Tensor, ...]] = []
    for step in range(HORIZON):
        action = torch.multinomial(BEHAVIOUR[state.flatten()], 1, generator=generator).view_as(
            state
        )
        after = torch.multinomial(
            MOVES[state, action].flatten(0, 1), 1, generator=generator
        ).view_as(state)
        over = after == STATES
        now, following = one_hot(state, STATES), one_hot(after.clamp(max=STATES - 1), STATES)
        target = torch.cat(
            (following - now, REWARDS[state, action][..., None], over[..., None]), -1
        )
        rows = torch.cat((now, one_hot(action, ACTIONS)), -1).double()
        columns.append((rows, target, torch.full_like(alive, step == 0), alive.clone()))
        alive &= ~over
        state = after.clamp(max=STATES - 1)
    parts = [
        torch.stack(part, 2).flatten(1, 2) for part in zip(*columns, strict=True)
    ]  # [U, 2 · HORIZON, ..]
    own = parts.pop()
    order = (~own).long().argsort(dim=1, stable=True)
    inputs, targets, first = (part[torch.arange(units)[:, None], order] for part in parts)
    if hostile is not None:
        inputs[hostile, 0, :STATES], inputs[hostile, 1:, :STATES] = float("nan"), 1e300
        # what the policy does
        inputs[hostile, :, STATES:] = torch.tensor([float("-inf"), 1e300], dtype=torch.float64)
        targets[hostile, 0], targets[hostile, 1:] = float("inf"), float("nan")
    return Log(inputs, targets, first, own.sum(1))
