import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from pipeline import ingest
from primorl.config.params import Params
from primorl.trajectories.storage.parquet import PartReader
from tests.pipeline.fakes import FakeRun
from tests.trajectories.builders import episode, episodes, snapshot, write_raw

ROOT = Path(__file__).parents[2]


def test_it_logs_the_keyed_fingerprint_and_nothing_of_the_rows(
    small: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    """What MLflow holds must not tell neighbouring datasets apart, nor give the secret away."""
    write_raw(Path("data/raw"), episodes(6))
    run = FakeRun()
    ingest.body(small, run)
    fingerprint = run.logged.pop("dataset_fingerprint")
    assert run.logged == {"dataset": "pendulum-replay", "environment": "Pendulum-v1", "unit": "trajectory"}
    assert PartReader(Path("data/trajectories"), made_by="ingest").info.dataset_fingerprint == fingerprint
    assert Path(".primorl/secret").read_bytes().hex() not in fingerprint
    assert capsys.readouterr() == ("", "")


def command(folder: Path, before: Callable[[], None] | None = None) -> "subprocess.CompletedProcess[str]":
    """The stage as DVC starts it; ``before`` is called in its process first."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline.ingest"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
    )


def test_the_command_reports_bad_data_in_one_line(small: Params, tmp_path: Path) -> None:
    """The person who runs `dvc repro` sees which episode to mend, and keeps the last good data."""
    path = write_raw(Path("data/raw"), episodes(6))
    ingest.body(small, FakeRun())
    before = snapshot(Path("data"))
    with h5py.File(path, "a") as file:
        file["episode_4/actions"][1] = 1234.5
    spoiled = snapshot(Path("data/raw"))
    done = command(tmp_path)
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "main_data.hdf5: trajectory number 5, step 1: found an action outside the declared space" in errors[0]
    assert "allowed: [-2, 2]" in errors[0]
    assert "1234" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    after = snapshot(Path("data"))
    assert {name: after[name] for name in after if not name.startswith("raw")} == {
        name: before[name] for name in before if not name.startswith("raw")
    }
    assert snapshot(Path("data/raw")) == spoiled


def test_a_full_disk_is_one_error_and_leaves_the_last_good_data(small: Params, tmp_path: Path) -> None:
    """A limit on the size of a file stands in for the disk: the system refuses the very write."""
    write_raw(Path("data/raw"), episodes(6))
    ingest.body(small, FakeRun())
    shutil.rmtree("data/raw")
    write_raw(Path("data/raw"), [episode(200, seed) for seed in range(400)])
    before = snapshot(Path("data"))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))

    done = command(tmp_path, limited)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "File too large" in errors[0]
    assert snapshot(Path("data")) == before
