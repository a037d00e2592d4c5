"""HDF5 files: claims of size, and writes to a full disk."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from primorl.project.errors import PipelineError
from primorl.trajectories.sources.hdf5 import checked_writing, claims_too_much
from primorl.trajectories.sources.minari.reading import MinariReader
from tests.trajectories.builders import SPACES, episodes, write_raw
from tests.trajectories.sources import d4rl_builders
from tests.trajectories.sources.test_d4rl import collected, ingested

ROOT = Path(__file__).parents[3]
CLAIMED = 10**12

RECORD = """
import sys
from pathlib import Path
from primorl.project.errors import PipelineError
from primorl.trajectories.sources.minari.writing import join_parts
from tests.trajectories.builders import episode, write_raw
try:
    if sys.argv[1] == "record":
        write_raw(Path("raw"), [episode(200, seed) for seed in range(600)])
    else:
        join_parts([Path(f"part{i}/small-v0") for i in range(2)], Path("raw/small-v0"))
except PipelineError as refused:
    sys.exit(f"error: {refused}")
"""


def limited() -> None:
    """A limit on the size of a file stands in for the disk: the system refuses the very write."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))


@pytest.mark.parametrize("work", ["record", "join"])
def test_a_full_disk_is_one_error_and_no_crash(project: Path, work: str) -> None:
    """HDF5 alone ended in a segmentation fault, after hundreds of tracebacks."""
    if work == "join":
        for part in range(2):
            write_raw(Path(f"part{part}"), episodes(600))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RECORD, work]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited if work == "record" else tight,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if "Gym" not in line and "gym" not in line]
    assert len(lines) == 1, done.stderr[-2000:]
    assert lines[0].startswith("error: ")
    assert "main_data.hdf5: cannot be written (File too large); make room on the disk" in lines[0]


def tight() -> None:
    """Less than two parts take."""
    size = Path("part0/small-v0/data/main_data.hdf5").stat().st_size * 3 // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_what_was_written_is_there(tmp_path: Path) -> None:
    with checked_writing(tmp_path / "x.hdf5", "w") as file:
        file["a"] = np.arange(1000)
    with checked_writing(tmp_path / "x.hdf5", "r+") as file:
        file["b"] = np.arange(10)
    with h5py.File(tmp_path / "x.hdf5") as file:
        assert file["a"][()].sum() + file["b"][()].sum() == 999 * 500 + 45


def test_errors_of_the_program_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), checked_writing(tmp_path / "x.hdf5", "w"):
        raise ValueError("mine")


@pytest.mark.parametrize("how", ["contiguous", "chunked"])
def test_a_small_file_that_claims_much_is_known(tmp_path: Path, how: str) -> None:
    """Neither zeros that compress well nor small arrays are taken for such a claim."""
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        chunks = (1024,) if how == "chunked" else None
        huge = file.create_dataset("huge", (CLAIMED,), np.float32, chunks=chunks)
        zeros = file.create_dataset("zeros", data=np.zeros(10**7), compression="gzip", compression_opts=9)
        few = file.create_dataset("few", (1000,), np.float32)
        assert [claims_too_much(each.id) for each in (huge, zeros, few)] == [True, False, False]
    assert (tmp_path / "x.hdf5").stat().st_size < 200_000


def test_d4rl_files_that_claim_too_much_are_one_line(project: Path) -> None:
    path = project / "x.hdf5"
    with h5py.File(path, "w") as file:
        for name, shape, kind in (("observations", (CLAIMED, 3), "f4"), ("actions", (CLAIMED, 1), "f4")):
            file.create_dataset(name, shape, kind, chunks=(64, shape[1]))
        for name, kind in (("rewards", "f4"), ("terminals", "?"), ("timeouts", "?")):
            file.create_dataset(name, (CLAIMED,), kind, chunks=(64,))
    dataset = d4rl_builders.entry(path)
    collected(dataset)
    with pytest.raises(PipelineError, match="observations: found 1000000000000 rows claimed, more than the file holds"):
        ingested(dataset)


def test_minari_files_that_claim_too_much_are_one_line(project: Path) -> None:
    path = write_raw(Path("raw"), episodes(3))
    with h5py.File(path, "a") as file:
        del file["episode_1/rewards"]
        file.create_dataset("episode_1/rewards", (CLAIMED,), "f8", chunks=(64,))
    with pytest.raises(PipelineError, match=r"episode 1: an array is .* claims more than the file holds"):
        list(MinariReader(Path("raw"), SPACES).tables())


def test_an_action_of_one_number_needs_no_axis_of_its_own(project: Path) -> None:
    """As rewards of (N, 1) are taken, so are actions of (N,) where the space has one dimension."""
    path = write_raw(Path("raw"), episodes(3))
    (before,) = MinariReader(Path("raw"), SPACES).tables()
    with h5py.File(path, "a") as file:
        actions = file["episode_2/actions"][()]
        del file["episode_2/actions"]
        file["episode_2/actions"] = actions[:, 0]
    (after,) = MinariReader(Path("raw"), SPACES).tables()
    assert after.equals(before)
    content = d4rl_builders.columns()
    tables = []
    for name, columns in (("a", content), ("b", content | {"actions": content["actions"][:, 0]})):
        d4rl_builders.write(Path(f"{name}.hdf5"), columns)
        dataset = d4rl_builders.entry(project / f"{name}.hdf5")
        collected(dataset)
        tables.append(ingested(dataset))
    assert tables[0].equals(tables[1])
