"""A killed collection goes on; one that was not killed is what it would be without any checkpoint."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from primorl.config.datasets import ReplayOptions
from primorl.project.errors import PipelineError
from primorl.trajectories.sources.minari.writing import EpisodeWriter
from primorl.trajectories.sources.replay import collection, resumption
from primorl.trajectories.sources.replay.backends import GymnasiumBackend
from primorl.trajectories.sources.replay.collection import _FOREVER, _learner, _record_run, _recordable, _Until
from primorl.trajectories.sources.replay.collection import record_training as collect
from primorl.trajectories.sources.replay.recording import Episode, RecordingEnvs
from primorl.trajectories.sources.replay.resumption import KeptRun, kept_collection, restore
from tests.trajectories.builders import snapshot
from tests.trajectories.sources.test_collection import options, recorded

TD3 = options(algorithm="td3", episodes=6, num_envs=2, learning_starts=780)
KEPT = Path(".primorl/collect/x-v0")


def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint every 50 ms."""
    monkeypatch.setattr(collection, "_SECONDS_BETWEEN_CHECKPOINTS", 0.05)
    monkeypatch.setattr(collection, "_SHARE_OF_SAVING", 1e9)


def killed(enough: int) -> None:
    """Collect in a process group that is killed once a checkpoint has ``enough`` episodes."""
    torch.optim.Adam([torch.zeros(1)])  # imports, once, what both processes need
    child = os.fork()
    if child == 0:
        os.setsid()
        torch.set_num_threads(1)
        often(pytest.MonkeyPatch())
        collect("Pendulum-v1", TD3, Path("raw"), "x-v0")
        os._exit(0)
    deadline = time.monotonic() + 60
    while not any(int(file.stem) >= enough for file in KEPT.glob("*/0/*.npz")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_killed_run_goes_on_with_new_episodes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learner and recorded episodes come back. Starts must not: an episode would be in the dataset twice."""
    killed(enough=2)
    assert not Path("raw").exists()
    (folder,) = KEPT.glob("*/0")
    kept = KeptRun(folder)
    checkpoint = kept.resume()
    assert checkpoint is not None
    assert 2 <= checkpoint.episodes == len(kept) < 6
    before = list(kept.episodes())
    restored: list[dict[str, Any]] = []

    def spying(learner: Any, state: dict[str, Any]) -> None:
        restore(learner, state)
        restored.append(resumption._state(learner))

    monkeypatch.setattr(collection, "restore", spying)
    collect("Pendulum-v1", TD3, Path("raw"), "x-v0")
    assert len(restored) == 1
    assert restored[0]["counters"]["num_timesteps"] >= 400
    same(restored[0]["counters"], checkpoint.learner["counters"])
    episodes = recorded("raw")
    assert [episode.id for episode in episodes] == list(range(6))
    for one, other in zip(before, episodes, strict=False):
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.actions, other.actions)
        assert np.array_equal(one.rewards, other.rewards)
    assert len({tuple(episode.observations[0]) for episode in episodes}) == 6
    assert all(len(episode.rewards) == 200 for episode in episodes)
    assert not KEPT.exists()


@pytest.mark.parametrize(
    ("environment", "algorithm"), [("Pendulum-v1", "td3"), ("Pendulum-v1", "sac"), ("CartPole-v1", "dqn")]
)
def test_a_learner_comes_back_whole(project: Path, environment: str, algorithm: str) -> None:
    """Networks and their targets, optimisers, SAC's coefficient, counters, and the replay buffer with its place."""
    small = options(algorithm=algorithm, learning_starts=10)
    kept, learner = KeptRun(Path("run")), learning(environment, small, seed=0)
    calls = iter(range(30))
    learner.learn(_FOREVER, callback=_Until(lambda: next(calls) == 29, lambda: None), log_interval=None)
    kept.save(learner)
    other = learning(environment, small, seed=1)
    checkpoint = kept.resume()
    assert checkpoint is not None
    with pytest.raises(AssertionError):
        same(resumption._state(other), checkpoint.learner)
    restore(other, checkpoint.learner)
    same(resumption._state(other), resumption._state(learner))
    assert other.replay_buffer.size() == learner.replay_buffer.size() == 29


@pytest.mark.parametrize(("environment", "algorithm"), [("Pendulum-v1", "td3"), ("CartPole-v1", "dqn")])
def test_checkpoints_change_no_byte(
    project: Path, monkeypatch: pytest.MonkeyPatch, environment: str, algorithm: str
) -> None:
    """When a checkpoint is written depends on the clock; what is collected must not."""
    small = options(algorithm=algorithm, episodes=5, learning_starts=1080 if algorithm == "td3" else 30)
    plainly_recorded(environment, small, Path("plain"))
    often(monkeypatch)
    collect(environment, small, Path("kept"), "x-v0")
    assert snapshot(Path("kept")) == snapshot(Path("plain"))
    assert {path.name for path in Path().iterdir()} == {"kept", "plain", ".primorl"}
    assert snapshot(Path(".primorl")) == {}


def test_a_finished_run_is_not_done_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, ended = options(episodes=2, num_envs=2), list[int]()
    _record_run("Pendulum-v1", small, 0, Path("run"), "x-v0", ended.append, lambda: False)
    before = snapshot(Path())
    monkeypatch.setattr(collection, "_learner", None)
    _record_run("Pendulum-v1", small, 0, Path("run"), "x-v0", ended.append, lambda: False)
    assert ended == [0, 1, 1, 2]
    assert snapshot(Path()) == before
    assert {Path(name).parts[1] for name in before} == {"dataset"}, "the parts of a finished run are deleted"


def test_a_stopped_run_is_not_taken_for_a_finished_one(project: Path) -> None:
    """Another run's error ends it; the next call goes on."""
    _record_run("Pendulum-v1", options(), 0, Path("run"), "x-v0", lambda count: None, lambda: True)
    assert not KeptRun(Path("run")).dataset.exists()


@pytest.mark.parametrize("changed", [{"seed": 1}, {"hidden": (8, 8)}, {"episodes": 9}])
def test_other_options_begin_afresh(project: Path, changed: dict[str, Any]) -> None:
    first = interrupted()
    with kept_collection("x-v0", "Pendulum-v1", TD3) as again:
        assert again == first
        with (
            pytest.raises(PipelineError, match="another process collects x-v0"),
            kept_collection("x-v0", "Pendulum-v1", TD3),
        ):
            pass
        with kept_collection("x-v0", "Pendulum-v1", replace(TD3, **changed)) as other:
            KeptRun(other / "0")
            assert other != first
        assert first.exists(), "in use"
    assert not KEPT.exists()


def test_a_kill_in_the_last_deletion_leaves_nothing_that_looks_finished(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run is told by its dataset's folder, whose files go first: the next call would join what is left."""
    real = resumption.shutil.rmtree

    def killed_after_one_file(folder: Path, **_: Any) -> None:
        if folder.exists():
            next(file for file in folder.rglob("*") if file.is_file()).unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(resumption.shutil, "rmtree", killed_after_one_file)
    with suppress(KeyboardInterrupt), kept_collection("x-v0", "Pendulum-v1", TD3) as folder:
        (folder / "0/dataset").mkdir(parents=True)
        (folder / "0/dataset/main_data.hdf5").touch()
    monkeypatch.setattr(resumption.shutil, "rmtree", real)
    with kept_collection("x-v0", "Pendulum-v1", TD3) as again:
        assert not again.exists()
        KeptRun(again / "0")
    assert not KEPT.exists()


def test_what_was_recorded_after_the_last_checkpoint_is_left_out(project: Path) -> None:
    """The learner that recorded it is lost, and the resumed one records other episodes in its place."""
    kept, learner = KeptRun(Path("run")), learning("Pendulum-v1", TD3, seed=0)
    for number in range(3):
        kept.add(Episode(np.full((3, 3), number, np.float32), np.zeros((2, 1)), np.ones(2), False, True))
        if number == 1:
            kept.save(learner)
    assert [episode.observations[0, 0] for episode in kept.episodes()] == [0, 1, 2]
    again = KeptRun(Path("run"))
    checkpoint = again.resume()
    assert checkpoint is not None
    assert checkpoint.episodes == len(again) == len(list(again.episodes())) == 2


def learning(environment: str, small: ReplayOptions, seed: int, finished: Any = lambda episode: None) -> Any:
    """A new learner with environments that record."""
    made = _recordable(environment)
    assert isinstance(made.observation_space, Box)
    assert isinstance(made.action_space, Box | Discrete)
    backend = GymnasiumBackend(lambda: _recordable(environment), small.num_envs)
    envs = RecordingEnvs(backend, small.num_envs, made.observation_space, made.action_space, finished)
    return _learner(envs, small, seed, lambda: 0.5)


def interrupted() -> Path:
    """The folder of a collection that was interrupted."""
    with suppress(KeyboardInterrupt), kept_collection("x-v0", "Pendulum-v1", TD3) as folder:
        KeptRun(folder / "0")
        raise KeyboardInterrupt
    return folder


def plainly_recorded(environment: str, small: ReplayOptions, root: Path) -> None:
    """The dataset of one run, by a loop that writes every episode at once and knows no checkpoint."""
    writer, kept = EpisodeWriter(root, "x-v0", _recordable(environment), small.algorithm), list[Episode]()

    def finished(episode: Episode) -> None:
        if len(kept) < small.episodes:
            kept.append(episode)
            writer.add(episode)

    learner = learning(environment, small, small.seed, finished)
    learner.exploration_schedule = lambda _: max(small.action_noise, 1 - 2 * len(kept) / small.episodes)
    learner.learn(_FOREVER, callback=_Until(lambda: len(kept) >= small.episodes, lambda: None), log_interval=None)
    writer.flush()


def same(one: Any, other: Any) -> None:
    """Compare nested values, tensors included."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
