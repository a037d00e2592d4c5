"""Record a behaviour policy's whole training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise

from pipeline.environments import make
from pipeline.errors import PipelineError
from pipeline.params import ReplayOptions
from pipeline.progress import progress_bar
from pipeline.trajectories.environments import spaces_of
from pipeline.trajectories.minari_files import EpisodeWriter
from pipeline.trajectories.recording import Episode, RecordingEnvs

_FOREVER = 2**62  # time steps; the callback ends the training


def record_training(environment: str, options: ReplayOptions, root: Path, dataset_id: str) -> None:
    """Train a behaviour policy and keep the first ``options.episodes`` episodes of its training.

    Random exploration comes first, then a policy that gets better: a replay dataset in the sense of
    D4RL (Fu et al., 2020). Episodes still running at the end are dropped.

    Args:
        environment: a Gymnasium id with one-dimensional boxes for observations and actions.
        options: the learner and how much it collects.
        root: the folder of Minari datasets to write into.
        dataset_id: the new dataset's id.

    Raises:
        PipelineError: the environment is unknown, or its spaces are not such boxes with finite actions.
    """
    reference = make(environment)
    spaces = spaces_of(f"environment {environment!r}", reference.observation_space, reference.action_space)
    if not np.isfinite([*spaces.action_low, *spaces.action_high]).all():
        raise PipelineError(
            f"environment {environment!r}: found an action space without finite bounds; allowed are finite ones; "
            "wrap the environment in gymnasium.wrappers.RescaleAction"
        )
    writer = EpisodeWriter(root, dataset_id, reference, options.algorithm)
    with progress_bar(options.episodes, f"collect {environment}", "episode") as progress:

        def done() -> bool:
            return progress.n >= options.episodes

        def finished(episode: Episode) -> None:
            if not done():  # several environments may end in the same step as the last one
                writer.add(episode)
                progress.update()

        envs = RecordingEnvs(lambda: make(environment), options.num_envs, finished)
        try:
            _learner(envs, spaces.action_size, options).learn(_FOREVER, callback=_Until(done), log_interval=None)
        finally:
            envs.close()
            reference.close()
    writer.flush()


def _learner(envs: RecordingEnvs, action_size: int, options: ReplayOptions) -> Any:
    algorithms = {"ddpg": stable_baselines3.DDPG, "td3": stable_baselines3.TD3, "sac": stable_baselines3.SAC}
    return algorithms[options.algorithm](
        "MlpPolicy",
        envs,
        learning_rate=options.learning_rate,
        learning_starts=options.learning_starts,
        gradient_steps=options.gradient_steps,
        action_noise=NormalActionNoise(np.zeros(action_size), np.full(action_size, options.action_noise)),
        policy_kwargs={"net_arch": list(options.hidden)},
        seed=options.seed,
        device="cpu",  # networks this small lose more to transfers than an accelerator gains
    )


class _Until(BaseCallback):
    """Ends the training when ``done`` says so."""

    def __init__(self, done: Callable[[], bool]):
        super().__init__()
        self._done = done

    def _on_step(self) -> bool:
        return not self._done()
