"""What a killed process left is deleted; what living processes write stays. What cannot be written is refused."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from primorl.project import files, paths
from primorl.project.errors import PipelineError
from primorl.project.files import check_writable, locked, sweep_leftovers

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from primorl.project.files import replaced_directory, replaced_file, scratch_directory
with ExitStack() as open_outputs:
    for target in sys.argv[1:]:
        make = replaced_file if "." in Path(target).name else replaced_directory
        fresh = open_outputs.enter_context(make(Path(target)))
        (fresh if fresh.is_file() else fresh / "rows").write_text("private")
    (open_outputs.enter_context(scratch_directory(Path("data/raw"))) / "rows").write_text("private")
    print("written", flush=True)
    time.sleep(600)
"""
TARGETS = [
    "data/raw",
    "data/trajectories",
    "data/partitions/private",
    "data/partitions/units.bin",
    "models/dynamics",
    "models/mopo",
    "metrics/seconds/ingest.json",
    "metrics/summary.json",
    "plots/curves.csv",
    "reports/audit.json",
    "reports/audit/one.json",
    ".primorl/checkpoints/0123.safetensors",
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def writer() -> "subprocess.Popen[str]":
    """Start a process that is writing every output."""
    command = [sys.executable, "-c", WRITER, *TARGETS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


def temporary(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob(".*.new-*"))


def test_what_a_killed_process_left_is_swept_and_what_others_write_stays(project: Path) -> None:
    """What a living process or another machine writes stays."""
    process = writer()
    try:
        before = temporary(project)
        assert len(before) == len(TARGETS) + 1
        assert sweep_leftovers(project) == []
        assert temporary(project) == before
    finally:
        process.kill()
        process.communicate()
    (project / "data/raw").mkdir()
    other = project / "data" / ".raw.new-0badcafe-1-x"
    other.mkdir()
    assert len(sweep_leftovers(project)) == len(TARGETS) + 1
    assert temporary(project) == [other.name]
    assert [path for path in project.rglob("*") if path.is_file()] == []
    assert (project / "data/raw").is_dir()
    previous = project / "data" / f".raw.new-{files.HOST}-{process.pid}-old-x"
    previous.mkdir()
    (previous / "file").write_text("good")
    (project / "data/raw").rmdir()
    assert sweep_leftovers(project) == [], "killed between the two moves: the last good output is put back"
    assert (project / "data/raw/file").read_text() == "good"


def lock(project: Path, name: str, age: float) -> Path:
    file = project / paths.CHECKPOINTS / f"{name}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.utime(file, (time.time() - age,) * 2)
    return file


def test_locks_without_a_checkpoint_go_unless_they_are_held_or_new(project: Path) -> None:
    day = 24 * 3600.0
    orphan, held, new, kept = (lock(project, n, 60.0 if n == "new" else day) for n in ("orphan", "held", "new", "kept"))
    kept.with_suffix(".safetensors").touch()
    with held.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert sweep_leftovers(project) == [orphan]
    assert not orphan.exists()
    assert all(path.exists() for path in (held, new, kept))


def test_a_lock_on_a_file_that_was_deleted_is_taken_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two processes would each hold the lock: one of the deleted file, one of the new."""
    file, flock = project / "x.lock", fcntl.flock
    deleted: list[None] = []

    def deleting(handle: object, how: int) -> None:
        if not deleted:
            deleted.append(file.unlink())
        flock(handle, how)  # type: ignore[call-overload]

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", deleting)
        with locked(file) as free, file.open("w") as other:
            assert free
            with pytest.raises(BlockingIOError):
                flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with locked(file) as first, locked(file) as second:
        assert (first, second) == (True, False)


def test_a_folder_that_refuses_files_is_one_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns the machine may write everywhere, so the refusal is planted where permissions do not bind."""
    models = project / "models"
    models.mkdir()
    if os.geteuid() != 0:
        models.chmod(0o555)
    else:

        def refuse(*, dir: Path, **_: object) -> None:
            raise PermissionError(13, "Permission denied", dir)

        monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with pytest.raises(
        PipelineError, match=r"^\S+/models: no file can be written there \(Permission denied\)"
    ) as raised:
        check_writable([Path("models/dynamics")])
    assert "\n" not in str(raised.value)
    models.chmod(0o755)


def test_a_disk_without_the_space_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(project)._replace(free=3 << 20)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: usage)
    check_writable([Path("models/dynamics"), project / "deep/er/file"], bytes_needed=3 << 20)
    assert list(project.iterdir()) == [], "nothing is left behind"
    with pytest.raises(PipelineError, match="found 3 MB free, this stage needs 4 MB"):
        check_writable([project / "x"], bytes_needed=(3 << 20) + 1)
