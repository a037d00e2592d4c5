"""Record behaviour policies' whole training."""

import multiprocessing
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import stable_baselines3
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import DtypeObservation
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise

from primorl.config.datasets import ReplayOptions
from primorl.project.errors import PipelineError
from primorl.project.files import replaced_directory
from primorl.project.processes import cores, when_parent_ends
from primorl.project.progress import progress_bar
from primorl.simulators.environments import make
from primorl.trajectories.sources.minari.writing import EpisodeWriter, join_parts
from primorl.trajectories.sources.replay.backends import Backend, EnvpoolBackend, GymnasiumBackend
from primorl.trajectories.sources.replay.recording import Episode, RecordingEnvs
from primorl.trajectories.sources.replay.resumption import KeptRun, kept_collection, restore
from primorl.trajectories.sources.spaces import spaces_of

_FOREVER = 2**62  # time steps; the callback ends the training
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_CHECKPOINTS, _SHARE_OF_SAVING = 120.0, 0.01
_RESUMED = 2**30  # seeds of resumed runs lie below: envpool takes 31 bits, and one seed for each environment


def record_training(environment: str, options: ReplayOptions, root: Path, dataset_id: str) -> None:
    """Train behaviour policies and keep the first ``options.episodes`` episodes of their training.

    Random exploration comes first, then a policy that gets better: a replay dataset in the sense of
    D4RL (Fu et al., 2020). Episodes still running at the end are dropped. Several runs go side by side, a
    process each, with as many episodes each; the dataset holds them in order of the runs, so it
    does not depend on which ended first.

    After a kill, a call with the same arguments goes on: finished runs are not done again, and the others go on from
    their last checkpoint, with new episodes (`KeptRun`).

    Args:
        environment: a Gymnasium id with discrete actions, or a one-dimensional box of them.
        options: the learner and how much it collects.
        root: the folder of Minari datasets to write into.
        dataset_id: the new dataset's id.

    Raises:
        PipelineError: the environment is unknown, is not there in the backend, or has other actions than
            the learner's; a run was killed; another process collects the same.
    """
    _check(environment, options)
    with kept_collection(dataset_id, environment, options) as kept:
        if kept.exists():
            print(f"collect: goes on with what {kept} holds; to begin again, delete it", file=sys.stderr)
        runs = [kept / str(run) for run in range(options.runs)]
        with progress_bar(options.episodes, f"collect {environment}", "episode") as progress:
            if options.runs == 1:
                _record_run(environment, options, 0, runs[0], dataset_id, progress.update, lambda: False)
            else:
                with _Workers(options.runs, progress.update) as workers:
                    workers.run([(environment, options, run, folder, dataset_id) for run, folder in enumerate(runs)])
        parts = [KeptRun(folder).dataset / dataset_id for folder in runs]
        with replaced_directory(root / dataset_id) as whole:  # on the disk, before the parts are deleted
            if options.runs == 1:
                shutil.copytree(parts[0], whole, dirs_exist_ok=True)
            else:
                join_parts(parts, whole)


def _recordable(environment: str) -> gymnasium.Env[Any, Any]:
    """The environment with observations in single precision, as the dataset's schema has them."""
    env = make(environment)
    if env.observation_space.dtype != np.float64:
        return env
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it lowers the precision, as it is asked to
        return DtypeObservation(env, "float32")  # as text, which Minari can write down


def _check(environment: str, options: ReplayOptions) -> None:
    reference = make(environment)
    reference.close()
    spaces = spaces_of(f"environment {environment!r}", reference.observation_space, reference.action_space)
    if spaces.discrete_actions != (options.algorithm == "dqn"):
        found, allowed = ("discrete", "dqn") if spaces.discrete_actions else ("a box", "ddpg, td3 or sac")
        raise PipelineError(
            f"options.algorithm: found {options.algorithm!r}, but the actions of {environment!r} are {found}; "
            f"allowed is {allowed}"
        )
    if not np.isfinite([*spaces.action_low, *spaces.action_high]).all():
        raise PipelineError(
            f"environment {environment!r}: found an action space without finite bounds; allowed are finite ones; "
            "wrap the environment in gymnasium.wrappers.RescaleAction"
        )
    if options.backend == "envpool":
        EnvpoolBackend(environment, reference.unwrapped.observation_space, options.num_envs)


def _record_run(
    environment: str,
    options: ReplayOptions,
    run: int,
    folder: Path,
    dataset_id: str,
    ended: Callable[[int], object],
    stopped: Callable[[], bool],
) -> None:
    """One behaviour policy's training, or what is left of it, kept in ``folder`` as a `KeptRun`."""
    share = options.episodes // options.runs + (run < options.episodes % options.runs)
    kept = KeptRun(folder)
    if kept.dataset.exists():
        ended(share)
        return
    checkpoint = kept.resume()
    ended(len(kept))
    # Environment i of a run takes the seed of the run plus i: runs must not share any.
    seed = options.seed + run * options.num_envs
    if checkpoint is not None:  # nor may a run begin a second time with the episodes that it began with
        resumed = np.random.SeedSequence([seed, checkpoint.episodes, _RESUMED])
        seed = int(resumed.generate_state(1)[0]) % _RESUMED
    reference = _recordable(environment)
    observation_space, action_space = reference.observation_space, reference.action_space
    assert isinstance(observation_space, Box)
    assert isinstance(action_space, Box | Discrete)

    def finished(episode: Episode) -> None:
        if len(kept) < share:  # several environments may end in the same step as the last one
            kept.add(episode)
            ended(1)

    backend: Backend
    if options.backend == "envpool":
        backend = EnvpoolBackend(environment, reference.unwrapped.observation_space, options.num_envs)
    else:
        backend = GymnasiumBackend(lambda: _recordable(environment), options.num_envs)
    envs = RecordingEnvs(backend, options.num_envs, observation_space, action_space, finished)
    try:
        learner = _learner(envs, options, seed, lambda: len(kept) / share)
        if checkpoint is not None:
            restore(learner, checkpoint.learner)
        until = _Until(lambda: len(kept) >= share or stopped(), lambda: kept.save(learner))
        learner.learn(_FOREVER, callback=until, log_interval=None, reset_num_timesteps=False)
        if len(kept) < share:
            return
        with replaced_directory(kept.dataset) as fresh:
            writer = EpisodeWriter(fresh, dataset_id, reference, options.algorithm)
            for episode in kept.episodes():
                writer.add(episode)
            writer.flush()
        kept.finish()
    finally:
        envs.close()
        reference.close()


def _learner(envs: RecordingEnvs, options: ReplayOptions, seed: int, done: Callable[[], float]) -> Any:
    common: dict[str, Any] = {
        "learning_rate": options.learning_rate,
        "learning_starts": options.learning_starts,
        "gradient_steps": options.gradient_steps,
        "policy_kwargs": {"net_arch": list(options.hidden)},
        "seed": seed,
        "device": "cpu",  # networks this small lose more to transfers than an accelerator gains
    }
    if options.algorithm == "dqn":
        learner = stable_baselines3.DQN("MlpPolicy", envs, train_freq=1, **common)
        # Its own schedule counts time steps, whose number nobody knows; random actions grow rarer over the first half.
        learner.exploration_schedule = lambda _: max(options.action_noise, 1 - 2 * done())
        return learner
    algorithms = {"ddpg": stable_baselines3.DDPG, "td3": stable_baselines3.TD3, "sac": stable_baselines3.SAC}
    size = spaces_of("", envs.observation_space, envs.action_space).action_size
    noise = _Noise(options.action_noise, size, envs.num_envs)
    return algorithms[options.algorithm]("MlpPolicy", envs, action_noise=noise, **common)


class _Noise(VectorizedActionNoise):
    """What its base class gives, number by number, in one call: one for each environment took 15% of the time."""

    def __init__(self, deviation: float, size: int, num_envs: int):
        super().__init__(NormalActionNoise(np.zeros(size), np.full(size, deviation)), num_envs)
        self._deviation, self._shape = deviation, (num_envs, size)

    def __call__(self) -> npt.NDArray[np.float32]:
        """Normal numbers [N, A] of stable-baselines3's own, global generator."""
        return np.random.normal(0.0, self._deviation, self._shape).astype(np.float32)


class _Until(BaseCallback):
    """Ends the training when ``done`` says so, and calls ``save`` now and then between two steps.

    Saving takes at most `_SHARE_OF_SAVING` of the time, however large the replay buffer is.
    """

    def __init__(self, done: Callable[[], bool], save: Callable[[], None]):
        super().__init__()
        self._done, self._save = done, save
        self._due = time.monotonic() + _SECONDS_BETWEEN_CHECKPOINTS

    def _on_rollout_start(self) -> None:
        started = time.monotonic()
        if started < self._due:
            return
        self._save()
        ended = time.monotonic()
        self._due = ended + max(_SECONDS_BETWEEN_CHECKPOINTS, (ended - started) / _SHARE_OF_SAVING)

    def _on_step(self) -> bool:
        return not self._done()


class _Workers:
    """Processes that record runs and tell how many episodes have ended; as a context manager."""

    def __init__(self, runs: int, ended: Callable[[int], object]):
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads in any state
        # Bare memory: a run that is killed while it holds a lock would hold it for ever.
        self._episodes = context.RawArray("q", runs)
        self._stop = context.RawValue("b", 0)
        self._pool = ProcessPoolExecutor(
            min(runs, cores()),
            mp_context=context,
            initializer=_begin,
            initargs=(self._episodes, self._stop, os.getpid()),
            max_tasks_per_child=1,  # a process gives back what 200 copies of MuJoCo took only when it ends
        )
        self._ended = ended

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.value = 1
        self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: list[tuple[str, ReplayOptions, int, Path, str]]) -> None:
        """Do all of them; the first error ends the others."""
        told = 0
        waiting: set[Future[None]] = {self._pool.submit(_work, *task) for task in tasks}
        while waiting:
            done, waiting = wait(waiting, timeout=_SECONDS_BETWEEN_LOOKS)
            for future in done:
                try:
                    future.result()
                except BrokenProcessPool:
                    raise PipelineError(
                        "a behaviour run's process was killed, perhaps for want of memory; set fewer options.runs or "
                        "num_envs, and run the stage again"
                    ) from None
            now = sum(self._episodes)
            self._ended(now - told)
            told = now


_shared: tuple[Any, Any] | None = None  # in a worker: how many episodes each run has ended, and whether to stop


def _begin(episodes: Any, stop: Any, parent: int) -> None:
    global _shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which tells
    torch.set_num_threads(1)
    # An orphan, of a stage that was killed, has nobody to record for; idle, it would wait for ever.
    when_parent_ends(parent, lambda: os._exit(1), every=_SECONDS_BETWEEN_LOOKS)
    _shared = episodes, stop


def _work(environment: str, options: ReplayOptions, run: int, folder: Path, dataset_id: str) -> None:
    assert _shared is not None
    episodes, stop = _shared

    def ended(count: int) -> None:
        episodes[run] += count

    _record_run(environment, options, run, folder, dataset_id, ended, lambda: bool(stop.value))
