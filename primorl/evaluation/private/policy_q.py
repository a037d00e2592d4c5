"""Action-values of the policy in the released model: made from public and released things alone, at no cost."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, one_hot

from primorl.dynamics.pessimism import PessimisticModel
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.evaluation.private.problem import Problem
from primorl.policy.exported import Layers, mlp

_EXPLORERS = 64  # rollouts that look for states to begin at
_EXPLORED = 200  # steps of each, at most
_ROWS = 1 << 19  # of the policy's rollouts, about
_ROLLOUTS = (512, 8192)  # least and most of them
_NEGLIGIBLE = 1e-3  # with a discount and no horizon, rewards that count for less are left out
_HIDDEN = 64
_LAYERS = 6  # weights and biases
_UPDATES, _BATCH, _LEARNING_RATE = 1500, 512, 3e-3
_PREFIX = "model_q."


def model_q(problem: Problem) -> dict[str, Tensor]:
    """Fit Q(s, a, t), the policy's expected return from step t on in the released model, after action a in state s.

    Explorers, which act at random every other step, give the states. From a sample of these the policy is rolled out
    in the model, after a first action that is uniformly random or the policy's own. A small MLP is fitted to the
    observed returns by least squares. Its inputs are the standardised observation, the centred action and the share of
    time that is left.

    Args:
        problem: the question. All draws follow its seed.

    Returns:
        The MLP's weights and the mean and scale of its targets, float64, by names that `q_values` knows.
    """
    generator = torch.Generator().manual_seed(problem.seed)
    rolled = _rollouts(problem, *_explored(problem, generator), generator)
    inputs = _inputs(problem, rolled.observation, rolled.action, rolled.step).float()
    centre, scale = rolled.to_go.mean(), rolled.to_go.std().clamp(min=1e-6)
    targets = ((rolled.to_go - centre) / scale).float()
    sizes = (inputs.shape[1], _HIDDEN, _HIDDEN, 1)
    layers = [
        made
        for a, b in itertools.pairwise(sizes)
        for made in (torch.randn(b, a, generator=generator) / math.sqrt(a), torch.zeros(1, b))
    ]
    for layer in layers:
        layer.requires_grad_()
    optimiser = torch.optim.Adam(layers, _LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _UPDATES)
    for _ in range(_UPDATES):
        # Half of the batch are first actions, the only ones that are not the policy's.
        rows = torch.cat(
            [torch.randint(most, (_BATCH // 2,), generator=generator) for most in (rolled.first, len(inputs))]
        )
        optimiser.zero_grad()
        mse_loss(mlp(tuple(layers), inputs[rows])[:, 0], targets[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    values = {f"{_PREFIX}{number}": layer.detach().double() for number, layer in enumerate(layers)}
    return values | {f"{_PREFIX}centre": centre, f"{_PREFIX}scale": scale}


def q_values(
    problem: Problem, values: Mapping[str, Tensor], observation: Tensor, action: Tensor, step: Tensor
) -> Tensor:
    """Q(s, a, t) for any states, actions and steps, held within the bounds of a return.

    Args:
        problem: the question.
        values: what `model_q` made, and possibly more.
        observation: ``[.., S]``, in the environment's units.
        action: ``[.., A]``.
        step: int64 ``[..]``.

    Returns:
        float64 ``[..]``.
    """
    inputs = _inputs(problem, observation, action, step)
    layers: Layers = tuple(values[f"{_PREFIX}{number}"].to(inputs.device) for number in range(_LAYERS))
    output = mlp(layers, inputs.flatten(0, -2)).view(step.shape)
    held = output * values[f"{_PREFIX}scale"].to(output.device) + values[f"{_PREFIX}centre"].to(output.device)
    return held.clamp(problem.return_low, problem.return_high)


@dataclass(frozen=True)
class _Rollouts:
    """Rows of the policy's rollouts in the model; the first ``first`` of them are first actions.

    ``observation [R, S]``, ``action [R, A]``, ``step [R]`` and the return ``to_go [R]``, float64.
    """

    observation: Tensor
    action: Tensor
    step: Tensor
    to_go: Tensor
    first: int


def _inputs(problem: Problem, observation: Tensor, action: Tensor, step: Tensor) -> Tensor:
    left = problem.time_left(step)[..., None]
    return torch.cat((problem.standardised(observation), problem.centred(action), left), -1)


def _any_action(problem: Problem, rows: int, generator: torch.Generator) -> Tensor:
    """Uniformly random actions, float64 ``[rows, A]``."""
    if problem.discrete_actions:
        return one_hot(torch.randint(problem.action_size, (rows,), generator=generator), problem.action_size).double()
    low, high = problem.action_low.double(), problem.action_high.double()
    return low + (high - low) * torch.rand(rows, problem.action_size, generator=generator, dtype=torch.float64)


def _mixed(problem: Problem, observation: Tensor, generator: torch.Generator) -> Tensor:
    """The policy's action or any other, each with probability one half."""
    random = torch.rand(len(observation), 1, generator=generator) < 0.5
    return torch.where(random, _any_action(problem, len(observation), generator), problem.actions(observation))


def _longest(problem: Problem) -> int:
    """Steps of a rollout."""
    return problem.horizon or math.ceil(math.log(_NEGLIGIBLE) / math.log(problem.discount))


def _model(problem: Problem) -> PessimisticModel:
    return PessimisticModel(problem.ensemble, uncertainty="max_aleatoric", penalty=0.0)


def _explored(problem: Problem, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """States that explorers come by, ``[n, S]``, and at which step, ``[n]``; who has ended begins anew."""
    model, draws, longest = _model(problem), SeedGenerators([generator]), _longest(problem)

    def fresh() -> Tensor:
        return problem.starts[torch.randint(len(problem.starts), (_EXPLORERS,), generator=generator)].float()

    observation, step = fresh(), torch.zeros(_EXPLORERS, dtype=torch.int64)
    states, steps = [], []
    for _ in range(min(longest, _EXPLORED)):
        states.append(observation)
        steps.append(step)
        made = model.step(observation, _mixed(problem, observation, generator).float(), draws)
        ended = step + 1 >= longest
        if made.terminated is not None:
            ended = ended | made.terminated
        observation = torch.where(ended[:, None], fresh(), made.next_observation)
        step = torch.where(ended, 0, step + 1)
    return torch.cat(states), torch.cat(steps)


def _rollouts(problem: Problem, states: Tensor, steps: Tensor, generator: torch.Generator) -> _Rollouts:
    model, draws, longest = _model(problem), SeedGenerators([generator]), _longest(problem)
    most = longest if problem.horizon else 2 * longest  # without a horizon, each row that is kept sees enough rewards
    count = min(max(_ROWS // longest, _ROLLOUTS[0]), _ROLLOUTS[1])
    begin = torch.randint(len(states), (count,), generator=generator)
    observation, step = states[begin], steps[begin]
    alive = torch.arange(count)
    taken: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []  # alive, observation, action, step, reward
    while len(alive) and len(taken) < most:
        action = problem.actions(observation) if taken else _mixed(problem, observation, generator)
        made = model.step(observation, action.float(), draws)
        taken.append((alive, observation, action, step, made.reward))
        goes_on = step + 1 < (problem.horizon or math.inf)
        if made.terminated is not None:
            goes_on &= ~made.terminated
        alive, observation, step = alive[goes_on], made.next_observation[goes_on], step[goes_on] + 1
    to_go, later = [], torch.zeros(count, dtype=torch.float64)
    for own, _, _, _, reward in reversed(taken):
        later[own] = problem.reward(reward) + problem.discount * later[own]
        to_go.append(later[own])
    to_go, taken = to_go[::-1][:longest], taken[:longest]
    _, observations, actions, passed, _ = (torch.cat(part) for part in zip(*taken, strict=True))
    return _Rollouts(observations, actions, passed, torch.cat(to_go), count)
