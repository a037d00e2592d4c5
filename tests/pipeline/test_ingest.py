import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
    write_raw(Path("data/raw"), episodes(6))
    run = FakeRun()
    ingest.body(small, run)
    fingerprint = run.logged.pop("dataset_fingerprint")
    assert run.logged == {"dataset": "pendulum-replay", "environment": "Pendulum-v1", "unit": "trajectory"}
    assert PartReader(Path("data/trajectories"), made_by="ingest").info.dataset_fingerprint == fingerprint
    assert Path(".primorl/secret").read_bytes().hex() not in fingerprint
    assert capsys.readouterr() == ("", "")


def command(folder: Path, before: Callable[[], None] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pipeline.ingest"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
    )


def test_a_full_disk_is_one_error_and_leaves_the_last_good_data(small: Params, tmp_path: Path) -> None:
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
