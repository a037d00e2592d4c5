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
from primorl.trajectories.sources.arrays import claims_too_much
from primorl.trajectories.sources.minari.reading import read_recorded
from primorl.trajectories.sources.minari.writing import checked_writing
from tests.trajectories.builders import SPACES, episodes, write_raw

ROOT = Path(__file__).parents[3]
CLAIMED = 10**12

RECORD = """
import sys
from pathlib import Path
from primorl.project.errors import PipelineError
from tests.trajectories.builders import episode, write_raw
try:
    write_raw(Path("raw"), [episode(200, seed) for seed in range(600)])
except PipelineError as refused:
    sys.exit(f"error: {refused}")
"""


def limited() -> None:
    """A limit on the size of a file stands in for the disk: the system refuses the very write."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))


def test_a_full_disk_is_one_error_and_no_crash(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECORD],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if "gym" not in line.lower()]
    assert len(lines) == 1, done.stderr[-2000:]
    assert lines[0].startswith("error: ")
    assert "main_data.hdf5: cannot be written (File too large); make room on the disk" in lines[0]


def test_errors_of_the_program_stay_what_they_are(tmp_path: Path) -> None:
    h5py.File(tmp_path / "x.hdf5", "w").close()
    with pytest.raises(ValueError, match="mine"), checked_writing(tmp_path / "x.hdf5"):
        raise ValueError("mine")


@pytest.mark.parametrize("how", ["contiguous", "chunked"])
def test_a_small_file_that_claims_much_is_known(tmp_path: Path, how: str) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        chunks = (1024,) if how == "chunked" else None
        huge = file.create_dataset("huge", (CLAIMED,), np.float32, chunks=chunks)
        zeros = file.create_dataset("zeros", data=np.zeros(10**7), compression="gzip", compression_opts=9)
        few = file.create_dataset("few", (1000,), np.float32)
        assert [claims_too_much(each.id) for each in (huge, zeros, few)] == [True, False, False]
    assert (tmp_path / "x.hdf5").stat().st_size < 200_000


def test_minari_files_that_claim_too_much_are_one_line(project: Path) -> None:
    path = write_raw(Path("raw"), episodes(3))
    with h5py.File(path, "a") as file:
        del file["episode_1/rewards"]
        file.create_dataset("episode_1/rewards", (CLAIMED,), "f8", chunks=(64,))
    with pytest.raises(PipelineError, match=r"episode 1: a file or array is .* claims more than the file holds"):
        list(read_recorded(Path("raw"), SPACES).tables())
