"""Logs of Sarsa players on CartPole-v1 and Acrobot-v1, for `benchmarks.quality.dptd_figures`."""

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from primorl.evaluation.private.episodes import Episodes
from primorl.evaluation.private.problem import Problem

DISCOUNT = 0.95
SCALES = {
    "CartPole-v1": (2.4, 3.0, 0.21, 3.0),
    "Acrobot-v1": (1.0, 1.0, 1.0, 1.0, 12.6, 28.3),
}
REWARDS = {"CartPole-v1": (0.0, 1.0), "Acrobot-v1": (-1.0, 0.0)}
_FEATURES = 200
_TRAINED = {"CartPole-v1": 150, "Acrobot-v1": 40}  # episodes

Row = tuple[NDArray[np.float64], int, float, NDArray[np.float64], bool]


class Sarsa:
    """Semi-gradient Sarsa (Sutton and Barto 2018, section 10.1) with random Fourier features."""

    def __init__(self, environment: str, seed: int) -> None:
        self.env = gymnasium.make(environment)
        self.rng = np.random.default_rng(seed)
        self.scale = np.array(SCALES[environment])
        self.frequencies = self.rng.normal(size=(_FEATURES, len(self.scale)))
        self.phases = self.rng.uniform(0, 2 * np.pi, _FEATURES)
        self.weights = np.zeros((int(self.env.action_space.n), _FEATURES))
        self.env.reset(seed=seed)

    def act(self, features: NDArray[np.float64], exploration: float) -> int:
        """The greedy action, or a random one."""
        if self.rng.random() < exploration:
            return int(self.rng.integers(len(self.weights)))
        return int((self.weights @ features).argmax())

    def features(self, observation: NDArray[np.float64]) -> NDArray[np.float64]:
        """Random Fourier features of an observation."""
        return np.cos(self.frequencies @ (observation / self.scale) + self.phases) * np.sqrt(2 / _FEATURES)

    def episode(self, steps: int, exploration: float, rate: float) -> list[Row]:
        """One episode; the weights follow it at ``rate`` (0: they stay)."""
        here = np.asarray(self.env.reset()[0], dtype=np.float64)
        features = self.features(here)
        action, rows = self.act(features, exploration), []
        for _ in range(steps):
            following, reward, ended, _, _ = self.env.step(action)
            following = np.asarray(following, dtype=np.float64)
            next_features = self.features(following)
            next_action = self.act(next_features, exploration)
            if rate:
                target = reward + (0 if ended else 0.99 * self.weights[next_action] @ next_features)
                self.weights[action] += rate * (target - self.weights[action] @ features) * features
            rows.append((here, action, float(reward), following, ended))
            here, features, action = following, next_features, next_action
            if ended:
                break
        return rows


def logs(environment: str, units: int, steps: int, seed: int) -> Episodes:
    """``units`` trajectories of at most ``steps`` steps of a trained Sarsa player that explores in 5% of its steps."""
    player = Sarsa(environment, seed)
    for _ in range(_TRAINED[environment]):
        player.episode(500, 0.1, 0.1)
    played = [player.episode(steps, 0.05, 0.0) for _ in range(units)]
    shape = (units, max(map(len, played)))
    size = len(player.scale)
    observation, following = torch.zeros(*shape, size).double(), torch.zeros(*shape, size).double()
    reward, own, ended = torch.zeros(shape).double(), torch.zeros(shape).bool(), torch.zeros(shape).bool()
    for unit, rows in enumerate(played):
        last = len(rows)
        observation[unit, :last] = torch.from_numpy(np.stack([row[0] for row in rows]))
        following[unit, :last] = torch.from_numpy(np.stack([row[3] for row in rows]))
        reward[unit, :last] = torch.tensor([row[2] for row in rows]).double()
        ended[unit, :last] = torch.tensor([row[4] for row in rows])
        own[unit, :last] = True
    place = torch.arange(shape[1]).expand(shape)
    ends = own & (place == own.sum(1, keepdim=True) - 1)
    no_action = torch.zeros(*shape, 1).double()
    begins = own & (place == 0)
    return Episodes(observation, no_action, reward, following, ended, place, begins, ends, own)


def problem(environment: str, units: int) -> Problem:
    """The value of the player's own states, discounted, without a horizon."""
    scale = torch.tensor(SCALES[environment])
    low, high = REWARDS[environment]
    return Problem(
        units=units,
        unit="trajectory",
        delta=1 / (10 * units),
        horizon=None,
        discount=DISCOUNT,
        observation_low=-4 * scale,
        observation_high=4 * scale,
        observation_mean=torch.zeros(len(scale)),
        observation_scale=scale,
        action_low=torch.zeros(1),
        action_high=torch.ones(1),
        discrete_actions=False,
        reward_low=low,
        reward_high=high,
        return_low=0.0,
        return_high=0.0,
        policy=_no_policy,
        ensemble=None,  # type: ignore[arg-type]
        starts=torch.zeros(1, len(scale)),
    ).with_return_bounds(None)


def _no_policy(observation: Tensor) -> Tensor:
    raise NotImplementedError("only the value of the logged behaviour is asked for")
