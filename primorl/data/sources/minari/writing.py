"""Write episodes as Minari datasets."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import numpy.typing as npt
from minari.dataset.minari_storage import MinariStorage

from primorl.base.errors import PipelineError

Array = npt.NDArray[Any]

_EPISODES_PER_WRITE = 250
_MAIN_FILE = "main_data.hdf5"


@dataclass
class Episode:
    """One episode of T steps as it happened.

    Attributes:
        observations: [T + 1, S], the true last one included.
        actions: [T, A], or whole numbers [T].
        rewards: [T].
        terminated: whether it ended in a terminal state.
        truncated: whether a limit ended it.
    """

    observations: Array
    actions: Array
    rewards: Array
    terminated: bool
    truncated: bool


class EpisodeWriter:
    """Writes episodes as they come into a new Minari dataset, in Minari's HDF5 format.

    Args:
        root: the folder of Minari datasets to write into.
        dataset_id: Minari's name for the dataset, with its version.
        env: the environment the episodes come from.
        algorithm: the behaviour policy's name.
    """

    def __init__(self, root: Path, dataset_id: str, env: gymnasium.Env[Any, Any], algorithm: str):
        data = (
            root.resolve() / dataset_id / "data"
        )  # Minari counts the sizes of relative paths wrongly
        data.mkdir(parents=True)
        spec = env.spec
        if spec is not None and callable(spec.entry_point):
            spec = None  # of an environment built by a function (dm_control): Minari cannot write it down
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        self._storage = MinariStorage.new(data, env_spec=spec, data_format="hdf5", **spaces)
        self._storage.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": minari.__version__,
                "algorithm_name": algorithm,
            }
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
        with checked_writing(self._file) as file:
            for episode in self._waiting:
                # Minari's own writer opens the file itself, and HDF5 then crashes the process where the disk is full.
                length = len(episode.rewards)
                last = np.arange(length) == length - 1
                group = file.create_group(f"episode_{episodes}", track_order=True)
                for name in ("observations", "actions", "rewards"):
                    group.create_dataset(name, data=np.asarray(getattr(episode, name)))
                group.create_dataset("terminations", data=last & episode.terminated)
                group.create_dataset("truncations", data=last & episode.truncated)
                group.attrs["id"] = episodes
                group.attrs["total_steps"] = length
                episodes += 1
                steps += length
        size = self._storage.get_size()
        self._storage.update_metadata(
            {"total_episodes": episodes, "total_steps": steps, "dataset_size": size}
        )
        self._waiting = []


@contextmanager
def checked_writing(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file to append to; a full disk is one error when the block ends.

    HDF5 itself does not recover from a write that fails: it writes what waits again at every later call, and at last
    crashes the process. So the file that it sees takes everything from the first failure on, and keeps nothing.

    Raises:
        PipelineError: if the system refused a write.
    """
    target = _CheckedFile(path, "r+")
    try:
        with h5py.File(target, "r+") as file:
            yield file
    except (OSError, RuntimeError, ValueError):
        if target.refused is None:
            raise
    finally:
        target.close()
    if target.refused is not None:
        raise PipelineError(
            f"{path}: cannot be written ({target.refused.strerror}); make room on the disk and run the stage again"
        )


class _CheckedFile(io.FileIO):
    """A file that remembers the first write that the system refused, and pretends that later ones succeed."""

    def __init__(self, path: Path, mode: str):
        super().__init__(path, mode)
        self.refused: OSError | None = None

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while self.refused is None and len(left) > 0:
            try:
                left = left[super().write(left) :]
            except OSError as refused:
                self.refused = refused
        return size

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size) if self.refused is None else size or 0
        except OSError as refused:
            self.refused = refused
            return size or 0
