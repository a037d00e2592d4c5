"""The control tasks, with everything about them that is public, and how a policy is judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories, Users
from primorl.simulators.batches import batch

Act = Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]
"""Observations ``[n, S]`` to actions, as the environment takes them."""

_JUDGED_SEED = 1_000_003  # users' seeds are the runs' numbers, from 0


@dataclass(frozen=True)
class Task:
    """A control task.

    Attributes:
        environment: registered Gymnasium id.
        scale: ``[S]``, what observations are divided by: constants from the environment's description, not from users.
        limit: steps after which an episode is cut off.
        judged: episodes by which a final policy is judged.
        traced: episodes by which a policy on the way is judged.
        bonus: of next observations, which a run may add to the rewards it learns from; a public function. No policy is
            judged by it.
    """

    environment: str
    scale: tuple[float, ...]
    limit: int
    judged: int
    traced: int
    bonus: Callable[[Tensor], Tensor] | None = None

    def network(self, hidden: tuple[int, ...], scale: tuple[float, ...] | None = None) -> PolicyNetwork:
        """A policy's shape for this task; ``scale`` in place of the task's."""
        environments = batch(self.environment)
        return PolicyNetwork(
            hidden=hidden,
            observation_mean=torch.zeros(environments.observation_size),
            observation_scale=torch.tensor(scale or self.scale),
            action_low=torch.from_numpy(environments.action_low),
            action_high=torch.from_numpy(environments.action_high),
            discrete_actions=environments.discrete_actions,
        )

    def returns(self, act: Act, episodes: int) -> npt.NDArray[np.float64]:
        """Undiscounted returns of whole episodes, ``[episodes]``; starts are the same for all policies."""
        environments = batch(self.environment)
        observations = environments.reset(episodes, _JUDGED_SEED)
        total, going = np.zeros(episodes), np.ones(episodes, bool)
        for _ in range(self.limit):
            observations, rewards, terminated, truncated = environments.step(act(observations))
            total += np.where(going, rewards, 0.0)
            going &= ~(terminated | truncated)
            if not going.any():
                break
        return total

    def judge(self, act: Act) -> dict[str, float]:
        """Mean return of a final policy over `judged` episodes, and its standard error."""
        found = self.returns(act, self.judged)
        return {"mean": float(found.mean()), "error": float(found.std(ddof=1) / len(found) ** 0.5)}


@dataclass(frozen=True)
class Encouraged:
    """Users in whose rewards there is a bonus, a function of their own observations.

    Attributes:
        users: who are met.
        bonus: of next observations ``[U, T, S]``, ``[U, T]``.
        weight: what it is multiplied by.
    """

    users: Users
    bonus: Callable[[Tensor], Tensor]
    weight: float

    def meet(self, numbers: Sequence[int], network: PolicyNetwork, parameters: Tensor) -> Trajectories:
        """See `Users.meet`."""
        met = self.users.meet(numbers, network, parameters)
        added = self.weight * self.bonus(met.next_observations) * met.valid
        return replace(met, rewards=met.rewards + added)


def height(observations: Tensor) -> Tensor:
    """Of Acrobot's tip over the fixed end, in lengths of a link: -cos θ1 - cos(θ1 + θ2)."""
    first_cosine, first_sine, second_cosine, second_sine = observations[..., :4].unbind(-1)
    return -first_cosine - (first_cosine * second_cosine - first_sine * second_sine)


def drawn(network: PolicyNetwork, parameters: Tensor) -> Act:
    """The stochastic policy itself."""
    generator = torch.Generator().manual_seed(_JUDGED_SEED)

    def act(observations: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        found = network.sample(parameters, torch.from_numpy(observations), generator)
        return network.squashed(found).numpy()

    return act


def greedy(network: PolicyNetwork, parameters: Tensor) -> Act:
    """Its likeliest actions."""
    rows = parameters.unsqueeze(0)

    def act(observations: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        outputs = network.outputs(rows, torch.from_numpy(observations).unsqueeze(0))[0]
        return (outputs.argmax(-1) if network.discrete_actions else network.squashed(outputs)).numpy()

    return act


_DOSING = "primorl.simulators.dosing:primorl/Dosing-{}-v0"
TASKS: dict[str, Task] = {
    # 1 m and 1 m/s, 0.1 rad (half of the angle at which the pole has fallen) and 0.5 rad/s.
    "CartPole": Task("CartPole-v1", (1.0, 1.0, 0.1, 0.5), 500, judged=100, traced=50),
    # Cosines and sines; 1 and 2 rad/s.
    "Acrobot": Task("Acrobot-v1", (1.0, 1.0, 1.0, 1.0, 1.0, 2.0), 500, judged=100, traced=30, bonus=height),
    # 1 m or rad of positions and angles; of speeds about what the fastest published gaits have.
    "HalfCheetah": Task("HalfCheetah-v5", (1.0,) * 8 + (5.0,) * 9, 1000, judged=20, traced=5),
    "Hopper": Task("Hopper-v5", (1.0,) * 5 + (3.0,) * 6, 1000, judged=20, traced=5),
    # Glucose by 180 and 600 mg/dL, insulin by 60 mU/L and 10 U, 100 g of carbohydrates, half a day.
    "Dosing-0": Task(_DOSING.format(0), (3.0, 10.0, 2.0, 2.0, 2.0, 1.0), 96, judged=200, traced=50),
    "Dosing-1": Task(_DOSING.format(1), (3.0, 10.0, 2.0, 2.0, 2.0, 1.0), 96, judged=200, traced=50),
}
