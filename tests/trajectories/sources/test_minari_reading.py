import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from minari.serialization import serialize_space

from primorl.project.errors import PipelineError
from primorl.trajectories.sources.minari.reading import MinariReader
from tests.trajectories.builders import SPACES, episodes, write_raw


def replaced(name: str, values: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[f"episode_2/{name}"]
        if values is not None:
            file[f"episode_2/{name}"] = values

    return change


def nested(file: h5py.File) -> None:
    del file["episode_2/observations"]
    file["episode_2/observations/position"] = np.zeros((8, 3))


def missing(file: h5py.File) -> None:
    del file["episode_2"]
    file.create_group("episode_9")


def fewer(file: h5py.File) -> None:
    del file["episode_3"]


def empty(file: h5py.File) -> None:
    for name, shape in {"observations": (1, 3), "actions": (0, 1), "rewards": (0,)}.items():
        replaced(name, np.zeros(shape))(file)
    for name in ("terminations", "truncations"):
        replaced(name, np.zeros(0, dtype=bool))(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            replaced("observations", np.zeros((8, 4))),
            "observations: found shape (4,) a step, declared is (3,)",
        ),
        (replaced("observations", np.zeros(8)), "observations: found shape () a step"),
        (replaced("observations", np.zeros((8, 3), dtype=int)), "observations: found type int64; allowed: floating"),
        (
            replaced("observations", np.zeros((7, 3))),
            "observations: wrong number of rows; allowed: one more than rewards",
        ),
        (replaced("actions", np.zeros((7, 2))), "actions: found shape (2,) a step, declared is (1,)"),
        (replaced("actions", np.zeros((6, 1))), "actions: wrong number of rows; allowed: as many as rewards"),
        (replaced("rewards", np.zeros((7, 2))), "rewards: found an array of 2 axes"),
        (replaced("rewards", np.array([b"x"] * 7)), "rewards: found type |S1; allowed: real numbers"),
        (replaced("truncations", np.zeros(7)), "truncations: found type float64; allowed: booleans"),
        (replaced("terminations", np.zeros(3, dtype=bool)), "terminations: wrong number of rows"),
        (replaced("truncations", None), "array is missing, nested or corrupt"),
        (missing, "array is missing, nested or corrupt"),
        (nested, "array is missing, nested or corrupt"),
        (empty, "found no steps; allowed is at least one"),
        (fewer, "its number of episodes is not the one in metadata.json"),
    ],
)
def test_unfit_episodes_are_named(tmp_path: Path, change: Callable[[h5py.File], None], message: str) -> None:
    """Someone with thousands of episodes has to find the one that is wrong."""
    path = write_raw(tmp_path, episodes(4))  # episode 2 has 7 steps
    with h5py.File(path, "a") as file:
        assert len(file["episode_2/rewards"]) == 7
        change(file)
    with pytest.raises(PipelineError) as wrong:
        list(MinariReader(tmp_path, SPACES).tables())
    text = str(wrong.value)
    assert message in text
    assert text.startswith(f"{path}: " if change is fewer else f"{path}: episode 2")
    assert "\n" not in text


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write_raw(tmp_path, episodes(4))
    good = path.read_bytes()
    for bad in (good[: len(good) // 2], b"", b"not HDF5" * 1000):
        path.write_bytes(bad)
        with pytest.raises(PipelineError, match="truncated, corrupt or missing HDF5"):
            list(MinariReader(tmp_path, SPACES).tables())
    path.unlink()
    with pytest.raises(PipelineError, match="truncated, corrupt or missing HDF5"):
        list(MinariReader(tmp_path, SPACES).tables())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_format": "zarr"}, "data_format: found 'zarr'; allowed are hdf5, arrow, parquet"),
        ({"total_episodes": 0}, "found no episodes"),
        ({"total_episodes": None}, "not the metadata of a Minari dataset"),
        (
            {"observation_space": serialize_space(gymnasium.spaces.Text(4))},
            "observation space: found Text; allowed are Box, Discrete",
        ),
        (
            {"observation_space": serialize_space(gymnasium.spaces.Box(0, 1, (2, 2), np.float32))},
            "observation space: found 4 dimensions, declared are 3",
        ),
        (
            {"action_space": serialize_space(gymnasium.spaces.Discrete(1))},
            "action space: found discrete actions, declared are a box",
        ),
        ({"action_space": '{"type": "Box"}'}, "spaces that cannot be read"),
        ({"action_space": '{"type": "os.system"}'}, "spaces that cannot be read"),
        (
            {"action_space": serialize_space(gymnasium.spaces.Box(0, 9, (1,), np.int64))},
            "action space: found a Box of shape (1,) and type int64",
        ),
        (
            {"action_space": serialize_space(gymnasium.spaces.Box(-1, 1, (2,), np.float32))},
            "action space: found 2 dimensions, declared are 1",
        ),
    ],
)
def test_unfit_datasets_are_refused_before_a_row_is_read(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write_raw(tmp_path, episodes(1)).with_name("metadata.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PipelineError) as wrong:
        MinariReader(tmp_path, SPACES)
    assert message in str(wrong.value)


def test_a_dataset_without_stored_spaces_takes_its_environments(tmp_path: Path) -> None:
    """Minari writes the spaces only where they differ from the environment's, in its older versions."""
    path = write_raw(tmp_path, episodes(1)).with_name("metadata.json")
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in metadata.items() if not key.endswith("_space")}))
    assert sum(table.num_rows for table in MinariReader(tmp_path, SPACES).tables()) == 1


def test_no_dataset_or_two_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="found 0 Minari datasets, allowed is one"):
        MinariReader(tmp_path, SPACES)
    write_raw(tmp_path / "a", episodes(1))
    write_raw(tmp_path / "b", episodes(1))
    with pytest.raises(PipelineError, match="found 2 Minari datasets"):
        MinariReader(tmp_path, SPACES)
