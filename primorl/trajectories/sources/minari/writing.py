"""Write episodes as Minari datasets."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
from gymnasium.envs.registration import EnvSpec
from minari.dataset.minari_storage import MinariStorage

from primorl.trajectories.sources.hdf5 import checked_writing
from primorl.trajectories.sources.replay.recording import Episode

_EPISODES_PER_WRITE = 250
_MAIN_FILE = "main_data.hdf5"


class EpisodeWriter:
    """Writes episodes as they come into a new Minari dataset, in Minari's HDF5 format.

    Args:
        root: the folder of Minari datasets to write into.
        dataset_id: Minari's name for the dataset, with its version.
        env: the environment the episodes come from.
        algorithm: the behaviour policy's name.
    """

    def __init__(self, root: Path, dataset_id: str, env: gymnasium.Env[Any, Any], algorithm: str):
        data = root.resolve() / dataset_id / "data"  # Minari counts the sizes of relative paths wrongly
        data.mkdir(parents=True)
        self._storage = MinariStorage.new(
            data,
            env_spec=_storable(env.spec),
            observation_space=env.observation_space,
            action_space=env.action_space,
            data_format="hdf5",
        )
        self._storage.update_metadata(
            {"dataset_id": dataset_id, "minari_version": minari.__version__, "algorithm_name": algorithm}
        )
        self._file = data / _MAIN_FILE
        self._waiting: list[Episode] = []

    def add(self, episode: Episode) -> None:
        """Append one episode."""
        self._waiting.append(episode)
        if len(self._waiting) == _EPISODES_PER_WRITE:
            self.flush()

    def flush(self) -> None:
        """Write the episodes that wait; call it after the last episode.

        Raises:
            PipelineError: if the disk is full.
        """
        episodes, steps = self._storage.total_episodes, self._storage.total_steps
        with checked_writing(self._file, "r+") as file:
            for episode in self._waiting:
                _write(file.create_group(f"episode_{episodes}", track_order=True), episodes, episode)
                episodes += 1
                steps += len(episode.rewards)
        size = self._storage.get_size()
        self._storage.update_metadata({"total_episodes": episodes, "total_steps": steps, "dataset_size": size})
        self._waiting = []


def _write(group: h5py.Group, number: int, episode: Episode) -> None:
    """One episode as Minari lays it out; Minari's own writer cannot tell a full disk from a programming error."""
    last = np.arange(len(episode.rewards)) == len(episode.rewards) - 1
    arrays = {
        "observations": episode.observations,
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminations": last & episode.terminated,
        "truncations": last & episode.truncated,
    }
    for name, values in arrays.items():
        group.create_dataset(name, data=np.asarray(values))
    group.attrs["id"] = number
    group.attrs["total_steps"] = len(episode.rewards)


def _storable(spec: EnvSpec | None) -> EnvSpec | None:
    """None for an environment built by a function (dm_control): Minari cannot write it down, and says so at length."""
    return None if spec is None or callable(spec.entry_point) else spec


def join_parts(parts: Sequence[Path], target: Path) -> None:
    """Write the episodes of several Minari datasets of the same spaces, in order, as the one at ``target``.

    Minari's own joining opens the file anew for every episode; this copies what is stored as it is.
    """
    data = target.resolve() / "data"
    data.mkdir(parents=True)
    for name in ("metadata.json", _MAIN_FILE):
        shutil.copyfile(parts[0] / "data" / name, data / name)
    whole = MinariStorage.read(data)
    episodes, steps = whole.total_episodes, whole.total_steps
    with checked_writing(data / _MAIN_FILE, "r+") as file:
        for part in parts[1:]:
            storage = MinariStorage.read(part.resolve() / "data")
            with h5py.File(part / "data" / _MAIN_FILE, "r") as source:
                for index in range(storage.total_episodes):
                    source.copy(f"episode_{index}", file, f"episode_{episodes}")
                    file[f"episode_{episodes}"].attrs["id"] = episodes
                    episodes += 1
            steps += storage.total_steps
    whole.update_metadata({"total_episodes": episodes, "total_steps": steps, "dataset_size": whole.get_size()})
