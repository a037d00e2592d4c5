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
from primorl.trajectories.sources.minari.reading import read_recorded
from tests.trajectories.builders import SPACES, episodes, write_raw


def without_steps(file: h5py.File) -> None:
    for name, shape in {"observations": (1, 3), "actions": (0, 1), "rewards": (0,)}.items():
        exchange(file, name, np.zeros(shape))
    for name in ("terminations", "truncations"):
        exchange(file, name, np.zeros(0, dtype=bool))


def exchange(file: h5py.File, name: str, values: Any) -> None:
    del file[f"episode_2/{name}"]
    file[f"episode_2/{name}"] = values


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("observations", np.zeros((8, 4)), "observations: found shape (4,) a step, declared is (3,)"),
        ("observations", np.zeros((8, 3), dtype=int), "observations: found type int64; allowed: floating"),
        ("observations", np.zeros((7, 3)), "observations: wrong number of rows; allowed: one more than rewards"),
        ("actions", np.zeros((7, 2)), "actions: found shape (2,) a step, declared is (1,)"),
        ("actions", np.zeros((6, 1)), "actions: wrong number of rows; allowed: as many as rewards"),
        ("rewards", np.zeros((7, 2)), "rewards: found shape (2,) a step, declared is one number"),
        ("rewards", np.array([b"x"] * 7), "rewards: found type |S1; allowed: real numbers"),
        ("truncations", np.zeros(7), "truncations: found type float64; allowed: booleans"),
        ("terminations", np.zeros(3, dtype=bool), "terminations: wrong number of rows"),
    ],
)
def test_unfit_episodes_are_named(tmp_path: Path, name: str, values: Any, message: str) -> None:
    path = write_raw(tmp_path, episodes(4))  # episode 2 has 7 steps
    with h5py.File(path, "a") as file:
        exchange(file, name, values)
    with pytest.raises(PipelineError) as wrong:
        list(read_recorded(tmp_path, SPACES).tables())
    assert str(wrong.value).startswith(f"{path}: episode 2: {message}")
    assert "\n" not in str(wrong.value)


def test_missing_and_empty_episodes_are_named(tmp_path: Path) -> None:
    damages: list[tuple[Callable[[h5py.File], Any], str]] = [
        (lambda file: file["episode_2"].pop("truncations"), ": episode 2: a file or array is missing, nested or corr"),
        (lambda file: file.move("episode_2", "episode_9"), ": episode 2: a file or array is missing, nested or corru"),
        (without_steps, ": episode 2: found no steps; allowed is at least one"),
        (lambda file: file.pop("episode_3"), ": its number of episodes is not the one in metadata.json"),
    ]
    for number, (damage, message) in enumerate(damages):
        path = write_raw(tmp_path / str(number), episodes(4))
        with h5py.File(path, "a") as file:
            damage(file)
        with pytest.raises(PipelineError) as wrong:
            list(read_recorded(tmp_path / str(number), SPACES).tables())
        assert str(wrong.value).startswith(f"{path}{message}")


def test_one_number_a_step_may_have_an_axis_or_none(tmp_path: Path) -> None:
    path = write_raw(tmp_path, episodes(3))
    (before,) = read_recorded(tmp_path, SPACES).tables()
    with h5py.File(path, "a") as file:
        for name, change in (("actions", lambda values: values[:, 0]), ("rewards", lambda values: values[:, None])):
            exchange(file, name, change(file[f"episode_2/{name}"][()]))
    (after,) = read_recorded(tmp_path, SPACES).tables()
    assert after.equals(before)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write_raw(tmp_path, episodes(4))
    good = path.read_bytes()
    for bad in (good[: len(good) // 2], b"", b"not HDF5" * 1000):
        path.write_bytes(bad)
        with pytest.raises(PipelineError, match="truncated, corrupt or missing HDF5"):
            list(read_recorded(tmp_path, SPACES).tables())
    path.unlink()
    with pytest.raises(PipelineError, match="truncated, corrupt or missing HDF5"):
        list(read_recorded(tmp_path, SPACES).tables())


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
        read_recorded(tmp_path, SPACES)
    assert message in str(wrong.value)


def test_no_dataset_or_two_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="found 0 Minari datasets, allowed is one"):
        read_recorded(tmp_path, SPACES)
    write_raw(tmp_path / "a", episodes(1))
    write_raw(tmp_path / "b", episodes(1))
    with pytest.raises(PipelineError, match="found 2 Minari datasets"):
        read_recorded(tmp_path, SPACES)
