"""stable-baselines3's PPO and A2C on the same tasks, without privacy.

Settings are those of RL Baselines3 Zoo (Raffin 2020, hyperparams/ppo.yml and a2c.yml), but for the number of steps.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.quality.online.runs import Row
from benchmarks.quality.online.tasks import TASKS, Act
from primorl.simulators import environments

_SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("CartPole", "PPO"): {
        **{"envs": 8, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98},
        **{"ent_coef": 0.0, "learning_rate": 1e-3, "clip_range": 0.2},
    },
    ("CartPole", "A2C"): {"envs": 8, "ent_coef": 0.0},
    ("Acrobot", "PPO"): {"envs": 16, "n_steps": 256, "n_epochs": 4, "gae_lambda": 0.94, "gamma": 0.99, "ent_coef": 0.0},
    ("Acrobot", "A2C"): {"envs": 16, "ent_coef": 0.0},
}
"""Others have the defaults of stable-baselines3 and one environment."""


@dataclass(frozen=True)
class Peer:
    """A run of stable-baselines3.

    Attributes:
        table: the row belongs to.
        task: among `TASKS`.
        method: ``PPO`` or ``A2C``.
        episodes: after which it stops; None: no such bound.
        steps: after which it stops.
    """

    table: str
    task: str
    method: str
    episodes: int | None
    steps: int

    @property
    def key(self) -> Row:
        """See `Case`."""
        names = {"table": self.table, "task": self.task, "method": self.method, "column": "stable-baselines3"}
        return {**names, "budget": "–", "setting": self._setting()}

    def _setting(self) -> Row:
        return {"episodes": self.episodes, "steps": self.steps, **_SETTINGS.get((self.task, self.method), {})}

    def run(self, seed: int) -> Row:
        """Learn and judge the last policy."""
        import primorl.simulators.gym_notice  # noqa: F401, I001  before stable-baselines3, which imports Gym
        from stable_baselines3 import A2C, PPO
        from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
        from stable_baselines3.common.env_util import make_vec_env

        task = TASKS[self.task]
        algorithm = {"PPO": PPO, "A2C": A2C}[self.method]
        setting = dict(_SETTINGS.get((self.task, self.method), {}))
        made = make_vec_env(lambda: environments.make(task.environment), setting.pop("envs", 1), seed)
        model = algorithm("MlpPolicy", made, seed=seed, device="cpu", **setting)
        # It counts the episodes of all environments together, and multiplies its bound by their number.
        bound = None if self.episodes is None else self.episodes // made.num_envs
        stop = None if bound is None else StopTrainingOnMaxEpisodes(bound)
        started = time.perf_counter()
        model.learn(self.steps, callback=stop)
        seconds = time.perf_counter() - started

        def act(*, deterministic: bool) -> Act:
            def chosen(observations: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
                return np.asarray(model.predict(observations, deterministic=deterministic)[0])

            return chosen

        return {
            "steps_taken": model.num_timesteps,
            "drawn": task.judge(act(deterministic=False)),
            "greedy": task.judge(act(deterministic=True)),
            "seconds": seconds,
        }
