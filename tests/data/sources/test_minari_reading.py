"""Damaged and unfit files of Minari's, claims of size, and writes to a full disk: each is one clear line."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text
from minari.serialization import serialize_space

from primorl.base.errors import PipelineError
from primorl.data.sources.minari.reading import read_recorded
from primorl.data.sources.minari.writing import checked_writing
from tests.data.builders import SPACES, episodes, write_raw

ROOT = Path(__file__).parents[3]
CLAIMED = 10**12


def exchange(name: str, values: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[f"episode_2/{name}"]
        file[f"episode_2/{name}"] = values

    return change


def without_steps(file: h5py.File) -> None:
    for name, shape in {"observations": (1, 3), "actions": (0, 1), "rewards": (0,)}.items():
        exchange(name, np.zeros(shape))(file)
    for name in ("terminations", "truncations"):
        exchange(name, np.zeros(0, dtype=bool))(file)


def claim(file: h5py.File) -> None:
    del file["episode_2/rewards"]
    file.create_dataset("episode_2/rewards", (CLAIMED,), "f8", chunks=(64,))


MISSING = (
    ": episode 2: a file or array is missing, nested or corrupt, or claims more than the file holds"
)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            exchange("observations", np.zeros((8, 4))),
            ": episode 2: observations: found shape (4,) a step, declared is",
        ),
        (
            exchange("observations", np.zeros((8, 3), int)),
            ": episode 2: observations: found type int64; allowed: floa",
        ),
        (
            exchange("observations", np.zeros((7, 3))),
            ": episode 2: observations: wrong number of rows; allowed: one m",
        ),
        (
            exchange("actions", np.zeros((6, 1))),
            ": episode 2: actions: wrong number of rows; allowed: as many as rew",
        ),
        (
            exchange("rewards", np.zeros((7, 2))),
            ": episode 2: rewards: found shape (2,) a step, declared is one num",
        ),
        (
            exchange("truncations", np.zeros(7)),
            ": episode 2: truncations: found type float64; allowed: booleans",
        ),
        (lambda file: file["episode_2"].pop("truncations"), MISSING),
        (claim, MISSING),
        (without_steps, ": episode 2: found no steps; allowed is at least one"),
        (
            lambda file: file.pop("episode_3"),
            ": its number of episodes is not the one in metadata.json",
        ),
    ],
)
def test_unfit_episodes_are_named(
    tmp_path: Path, damage: Callable[[h5py.File], Any], message: str
) -> None:
    path = write_raw(tmp_path, episodes(4))  # episode 2 has 7 steps
    with h5py.File(path, "a") as file:
        damage(file)
    with pytest.raises(PipelineError) as wrong:
        list(read_recorded(tmp_path, SPACES).tables())
    assert str(wrong.value).startswith(f"{path}{message}")
    assert "\n" not in str(wrong.value)


def test_one_number_a_step_may_have_an_axis_or_none_and_a_truncated_file_is_refused(
    tmp_path: Path,
) -> None:
    path = write_raw(tmp_path, episodes(3))
    (before,) = read_recorded(tmp_path, SPACES).tables()
    with h5py.File(path, "a") as file:
        for name, change in (
            ("actions", lambda values: values[:, 0]),
            ("rewards", lambda values: values[:, None]),
        ):
            exchange(name, change(file[f"episode_2/{name}"][()]))(file)
    (after,) = read_recorded(tmp_path, SPACES).tables()
    assert after.equals(before)
    good = path.read_bytes()
    for bad in (good[: len(good) // 2], b"", b"not HDF5" * 1000, None):
        path.unlink() if bad is None else path.write_bytes(bad)
        with pytest.raises(PipelineError, match="truncated, corrupt or missing HDF5"):
            list(read_recorded(tmp_path, SPACES).tables())


def test_unfit_datasets_are_refused_before_a_row_is_read(tmp_path: Path) -> None:
    path = write_raw(tmp_path, episodes(1)).with_name("metadata.json")
    good = json.loads(path.read_text())
    two = Box(-1, 1, (2,), np.float32)
    for change, message in (
        ({"data_format": "zarr"}, "data_format: found 'zarr'; allowed are hdf5, arrow, parquet"),
        ({"total_episodes": 0}, "found no episodes"),
        ({"total_episodes": None}, "not the metadata of a Minari dataset"),
        (
            {"observation_space": Text(4)},
            "observation space: found Text; allowed are Box, Discrete",
        ),
        (
            {"observation_space": Box(0, 1, (2, 2), np.float32)},
            "observation space: found 4 dimensions, declared are 3",
        ),
        ({"action_space": Discrete(1)}, "action space: found discrete actions, declared are a box"),
        ({"action_space": '{"type": "os.system"}'}, "spaces that cannot be read"),
        (
            {"action_space": Box(0, 9, (1,), np.int64)},
            "action space: found a Box of shape (1,) and type int64",
        ),
        ({"action_space": two}, "action space: found 2 dimensions, declared are 1"),
    ):
        stored = {
            key: serialize_space(v) if isinstance(v, gymnasium.Space) else v
            for key, v in change.items()
        }
        path.write_text(json.dumps(good | stored))
        with pytest.raises(PipelineError) as wrong:
            read_recorded(tmp_path, SPACES)
        assert message in str(wrong.value)
    with pytest.raises(PipelineError, match="found 0 Minari datasets, allowed is one"):
        read_recorded(tmp_path / "nothing", SPACES)
    write_raw(tmp_path / "b", episodes(1))
    with pytest.raises(PipelineError, match="found 2 Minari datasets"):
        read_recorded(tmp_path, SPACES)


RECORD = """
import sys
from pathlib import Path
from primorl.base.errors import PipelineError
from tests.data.builders import episode, write_raw
try:
    write_raw(Path("raw"), [episode(200, seed) for seed in range(600)])
except PipelineError as refused:
    sys.exit(f"error: {refused}")
"""


def test_a_full_disk_is_one_error_and_no_crash(project: Path) -> None:
    """A limit on the size of a file stands in for the disk: the system refuses the very write."""
    done = subprocess.run(
        [sys.executable, "-c", RECORD],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20)),
    )
    lines = [line for line in done.stderr.splitlines() if "gym" not in line.lower()]
    assert (done.returncode, len(lines)) == (1, 1), done.stderr[-2000:]
    assert lines[0].startswith("error: ")
    assert "main_data.hdf5: cannot be written (File too large); make room on the disk" in lines[0]
    with (
        pytest.raises(ValueError, match="mine"),
        checked_writing(write_raw(Path("good"), episodes(1))),
    ):
        raise ValueError("mine")  # an error of the program stays what it is
