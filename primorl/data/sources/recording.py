"""Record the whole training of behaviour policies in an environment."""

from primorl.simulators.environments import make  # before Stable-Baselines3, which imports Gym

# isort: split
import gc
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import stable_baselines3
import torch
from minari.data_collector import EpisodeBuffer
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from primorl.base import PipelineError
from primorl.base.processes import ONE_THREAD_UP_TO
from primorl.base.processes import environment as variables
from primorl.base.reporting import progress_bar
from primorl.config.datasets import ReplayOptions

_FOREVER = 2**62  # time steps; a callback ends the training
_EPISODES_PER_WRITE = 250


def record_training(environment: str, options: ReplayOptions, root: Path, dataset_id: str) -> None:
    """Train behaviour policies and keep the first ``options.episodes`` episodes as a Minari dataset
    under ``root``.

    Random exploration comes first, then a policy that improves: a replay dataset in the sense of
    D4RL (Fu et al., 2020). Episodes still running at the end are dropped. Several runs, each from
    scratch and with an equal share of the episodes, follow one another, and so do their episodes in
    the dataset.

    Raises:
        PipelineError: if the environment is unknown, or the learner refuses its spaces.
    """
    with make(environment) as env:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    threads = torch.get_num_threads()
    # With two, networks of 64 units take three times the processor time of one, and no less wall
    # time.
    torch.set_num_threads(1 if max(options.hidden) <= ONE_THREAD_UP_TO else threads)
    with variables({"MINARI_DATASETS_PATH": str(root.resolve())}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for authors and links
        batches = _batches(environment, options)
        dataset = minari.create_dataset_from_buffers(
            dataset_id,
            next(batches),
            algorithm_name=options.algorithm,
            data_format="hdf5",
            **spaces,
        )
        for batch in batches:
            dataset.storage.update_episodes(batch)
    torch.set_num_threads(threads)


def _batches(environment: str, options: ReplayOptions) -> Iterator[list[EpisodeBuffer]]:
    """Train one policy after the other; yield the episodes of each in the order in which
    they end.
    """
    share, more = divmod(options.episodes, options.runs)
    with progress_bar(options.episodes, f"collect {environment}", "episode") as progress:
        for run in range(options.runs):
            left = share + (run < more)
            ended: list[EpisodeBuffer] = []
            # Environment i of a run takes the seed of the run plus i: runs must not share any.
            learner = _learner(environment, options, options.seed + run * options.num_envs, ended)
            while left > 0:
                enough = min(left, _EPISODES_PER_WRITE)
                learner.learn(_FOREVER, partial(_goes_on, ended, enough), reset_num_timesteps=False)
                batch = ended[:left]
                yield batch
                left -= len(batch)
                progress.update(len(batch))
                ended.clear()
            # Its last callback keeps itself and all environments, 3 GB of 200 cart-poles.
            del learner
            gc.collect()


def _goes_on(ended: list[EpisodeBuffer], enough: int, *_: Any) -> bool:
    return len(ended) < enough


def _learner(
    environment: str, options: ReplayOptions, seed: int, ended: list[EpisodeBuffer]
) -> OffPolicyAlgorithm:
    envs = DummyVecEnv([lambda: Recorder(make(environment), ended)] * options.num_envs)
    size = envs.action_space.shape or ()
    noise = NormalActionNoise(np.zeros(size), np.full(size, options.action_noise))
    own: dict[str, Any] = {"action_noise": noise}
    if options.algorithm == "dqn":
        rate = options.action_noise
        own = {"exploration_initial_eps": rate, "exploration_final_eps": rate, "train_freq": 1}
    try:
        kind = getattr(stable_baselines3, options.algorithm.upper())
        learner: OffPolicyAlgorithm = kind(
            "MlpPolicy",
            envs,
            learning_rate=options.learning_rate,
            learning_starts=options.learning_starts,
            gradient_steps=options.gradient_steps,
            policy_kwargs={"net_arch": list(options.hidden)},
            seed=seed,
            device="cpu",  # networks this small lose more to transfers than an accelerator gains
            **own,
        )
    except AssertionError as refused:
        reason = " ".join(str(refused).split())[:200]
        found = f"{options.algorithm} refuses {environment!r} ({reason})"
        allowed = "dqn for discrete actions; ddpg, td3 or sac for a box with finite bounds"
        raise PipelineError(f"options.algorithm: {found}; allowed: {allowed}") from None
    return learner


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps every episode that ends: executed actions, raw rewards, the true last observation.

    Args:
        env: the environment.
        ended: takes the episodes.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], ended: list[EpisodeBuffer]):
        super().__init__(env)
        self._ended = ended

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(**kwargs)
        self._steps: list[tuple[Any, float, bool, bool]] = []
        self._seen = [observation]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and keep what happened."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._seen.append(observation)
        self._steps.append((np.array(action), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            columns = map(np.array, zip(*self._steps, strict=True))
            self._ended.append(EpisodeBuffer(None, None, None, np.stack(self._seen), *columns))
        return observation, reward, terminated, truncated, info
