"""What collecting keeps on the disk until the dataset is complete, so that a killed stage goes on."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from primorl.config.datasets import ReplayOptions
from primorl.project.errors import PipelineError
from primorl.project.files import home, locked, replaced_file
from primorl.project.paths import COLLECTED
from primorl.trajectories.sources.replay.recording import Episode

_LIBRARIES = ("gymnasium", "numpy", "stable-baselines3", "torch")
_EPISODES_PER_FILE = 250
_GONE = ".gone"
_COUNTERS = ("num_timesteps", "_episode_num", "_n_updates", "_n_calls", "exploration_rate")
_ROWS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


@contextmanager
def kept_collection(dataset_id: str, environment: str, options: ReplayOptions) -> Iterator[Path]:
    """Give the folder that keeps what was recorded so far; if the block succeeds, it is deleted.

    Other options, another environment or other versions of the libraries have a folder of their own. Those of the same
    dataset that no process uses are deleted with it.

    Args:
        dataset_id: Minari's name of the dataset.
        environment: a Gymnasium id.
        options: the learner and how much it collects.

    Raises:
        PipelineError: another process collects the same.
    """
    content = [environment, asdict(options), [version(library) for library in _LIBRARIES]]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    folder = home() / COLLECTED / dataset_id / digest
    with locked(folder.with_suffix(".lock")) as free:
        if not free:
            raise PipelineError(f"{folder}: another process collects {dataset_id} here; wait until it has ended")
        yield folder
        _delete(folder)
        folder.with_suffix(".lock").unlink()
    for lock in folder.parent.glob("*.lock"):
        with locked(lock) as free:
            if free:
                _delete(lock.with_suffix(""))
                lock.unlink()
    for gone in folder.parent.glob(f"*{_GONE}"):  # of a process that was killed while it deleted
        shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):  # another process collects this dataset with other options
        folder.parent.rmdir()


def _delete(folder: Path) -> None:
    """Delete a folder under another name: killed in the middle, it must not look like a run that has finished."""
    if folder.exists():
        gone = folder.with_suffix(_GONE)
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone)


@dataclass(frozen=True)
class Checkpoint:
    """A learner between two steps of its environments.

    Attributes:
        episodes: that were recorded before it.
        learner: networks and optimisers, counters, and the rows of its replay buffer.
    """

    episodes: int
    learner: dict[str, Any]


class KeptRun:
    """One behaviour run on the disk: its episodes, and the last checkpoint of its learner.

    Episodes lie in files of whole episodes, in order. A checkpoint counts those before it. What was recorded after the
    last checkpoint is left out when the run goes on, because the learner that recorded it is lost.

    Args:
        folder: of this run alone; it is made.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._checkpoint = folder / "checkpoint.safetensors"
        self._waiting: list[Episode] = []
        self._written = 0

    def __len__(self) -> int:
        """Episodes so far."""
        return self._written + len(self._waiting)

    @property
    def dataset(self) -> Path:
        """The run as a Minari dataset: it is there if and only if the run has finished."""
        return self._folder / "dataset"

    def add(self, episode: Episode) -> None:
        """Append one episode."""
        self._waiting.append(episode)
        if len(self._waiting) == _EPISODES_PER_FILE:
            self._write()

    def save(self, learner: Any) -> None:
        """Write down the learner and the episodes so far. Changes neither, and draws no random number."""
        self._write()
        tensors: dict[str, Tensor] = {}
        values = _without_tensors(_state(learner), tensors)
        header = {"episodes": str(len(self)), "learner": json.dumps(values)}
        with replaced_file(self._checkpoint) as fresh:
            save_file(tensors, fresh, header)

    def resume(self) -> Checkpoint | None:
        """Go back to the last checkpoint; None: there is none, and the run begins."""
        found = None
        if self._checkpoint.exists():
            with safe_open(self._checkpoint, "pt") as stored:
                header = stored.metadata()
                learner = _with_tensors(json.loads(header["learner"]), stored.get_tensor)
            found = Checkpoint(int(header["episodes"]), learner)
        self._written = 0 if found is None else found.episodes
        for file in self._files():
            if int(file.stem) >= self._written:
                file.unlink()
        return found

    def episodes(self) -> Iterator[Episode]:
        """All of them, in order."""
        self._write()
        for file in self._files():
            with np.load(file, allow_pickle=False) as arrays:
                lengths, ends = arrays["lengths"], np.cumsum(arrays["lengths"])
                observations = np.split(arrays["observations"], np.cumsum(lengths + 1)[:-1])
                actions, rewards = (np.split(arrays[name], ends[:-1]) for name in ("actions", "rewards"))
                flags = arrays["terminated"].tolist(), arrays["truncated"].tolist()
            for parts in zip(observations, actions, rewards, *flags, strict=True):
                yield Episode(*parts)

    def finish(self) -> None:
        """Delete what the dataset has, too; call it when `dataset` is complete."""
        self._checkpoint.unlink(missing_ok=True)
        for file in self._files():
            file.unlink()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.npz"))

    def _write(self) -> None:
        """Write the episodes that wait to a file that is named after the first one's number."""
        if not self._waiting:
            return
        with replaced_file(self._folder / f"{self._written:09d}.npz") as fresh, fresh.open("wb") as file:
            np.savez(
                file,
                lengths=[len(episode.rewards) for episode in self._waiting],
                observations=np.concatenate([episode.observations for episode in self._waiting]),
                actions=np.concatenate([episode.actions for episode in self._waiting]),
                rewards=np.concatenate([episode.rewards for episode in self._waiting]),
                terminated=[episode.terminated for episode in self._waiting],
                truncated=[episode.truncated for episode in self._waiting],
            )
        self._written += len(self._waiting)
        self._waiting = []


def _state(learner: Any) -> dict[str, Any]:
    """A stable-baselines3 learner as tensors, numbers and texts."""
    buffer = learner.replay_buffer
    return {
        "parameters": learner.get_parameters(),
        "coefficient": _coefficient(learner),
        "counters": {name: getattr(learner, name) for name in _COUNTERS if hasattr(learner, name)},
        "rows": {name: torch.from_numpy(getattr(buffer, name)[: buffer.size()]) for name in _ROWS},
        "next_row": buffer.pos,
        "full": buffer.full,
    }


def _without_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON takes it, each tensor in it by its name in ``tensors``, where it is put."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):  # an optimiser's keys are integers
        return {"items": [[key, _without_tensors(part, tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return [_without_tensors(part, tensors) for part in value]
    return value


def _with_tensors(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """What `_without_tensors` was given; tuples are lists."""
    if isinstance(value, dict):
        if "tensor" in value:
            return tensor(value["tensor"])
        return {key: _with_tensors(part, tensor) for key, part in value["items"]}
    if isinstance(value, list):
        return [_with_tensors(part, tensor) for part in value]
    return value


def restore(learner: Any, state: dict[str, Any]) -> None:
    """Bring a new learner to a checkpoint's state; its random numbers and environments are new."""
    learner.set_parameters(state["parameters"])
    if (coefficient := _coefficient(learner)) is not None:
        coefficient.copy_(state["coefficient"])  # in place: its optimiser holds this tensor
    for name, value in state["counters"].items():
        setattr(learner, name, value)
    buffer = learner.replay_buffer
    for name, rows in state["rows"].items():
        getattr(buffer, name)[: len(rows)] = rows.numpy()
    buffer.pos, buffer.full = state["next_row"], state["full"]


def _coefficient(learner: Any) -> Tensor | None:
    """Logarithm of SAC's entropy coefficient, which is learned and is no network's."""
    found: Tensor | None = getattr(learner, "log_ent_coef", None)
    return None if found is None else found.detach()
