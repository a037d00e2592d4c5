"""stable-baselines3's PPO and A2C on the same tasks, without privacy."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.quality.online.runs import Row
from benchmarks.quality.online.tasks import TASKS, Act
from primorl.simulators import environments


@dataclass(frozen=True)
class Peer:
    """A run of stable-baselines3 with its default settings.

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
        return {**names, "budget": "–", "setting": {"episodes": self.episodes, "steps": self.steps}}

    def run(self, seed: int) -> Row:
        """Learn and judge the last policy."""
        from stable_baselines3 import A2C, PPO
        from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes

        task = TASKS[self.task]
        algorithm = {"PPO": PPO, "A2C": A2C}[self.method]
        model = algorithm("MlpPolicy", environments.make(task.environment), seed=seed, device="cpu")
        stop = None if self.episodes is None else StopTrainingOnMaxEpisodes(self.episodes)
        started = time.perf_counter()
        model.learn(self.steps, callback=stop)
        seconds = time.perf_counter() - started

        def act(*, deterministic: bool) -> Act:
            def chosen(observations: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
                return model.predict(observations, deterministic=deterministic)[0]

            return chosen

        return {
            "steps_taken": model.num_timesteps,
            "drawn": task.judge(act(deterministic=False)),
            "greedy": task.judge(act(deterministic=True)),
            "seconds": seconds,
        }
