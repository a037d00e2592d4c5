"""What a stage leaves behind under real DVC: when it fails, and when its dataset is swapped away and back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from primorl.project.restoration import hint, missing_outputs, restore_outputs

STAGE = """
import sys, time
from pathlib import Path
from primorl.project.restoration import restore_outputs
word = Path("params.yaml").read_text().split()[-1]
print("RUNS", word)
if word == "bad":
    restore_outputs("make")
    sys.exit(1)
folder = Path("made/folder")
(folder / "deep").mkdir(parents=True)
(folder / "deep" / "file").write_text(f"{word} {time.time_ns()}")
Path("made/single").write_text(word)
"""
PIPELINE = """
stages:
  make:
    cmd: python stage.py
    deps: [stage.py]
    params: [word]
    outs: [made/folder, made/single]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    subprocess.run(["dvc", "init", "--no-scm", "--quiet"], check=True)
    subprocess.run(["dvc", "config", "core.analytics", "false"], check=True)
    Path("stage.py").write_text(STAGE)
    Path("dvc.yaml").write_text(PIPELINE)
    return tmp_path


def repro(word: str) -> subprocess.CompletedProcess[str]:
    Path("params.yaml").write_text(f"word: {word}\n")
    return subprocess.run(["dvc", "repro"], capture_output=True, text=True, check=False)


def test_a_failed_stage_puts_the_last_good_outputs_back_and_a_swap_back_recomputes_nothing(project: Path) -> None:
    repro("one")
    one = Path("made/folder/deep/file").read_text()
    repro("two")
    two = Path("made/folder/deep/file").read_text()
    assert one.startswith("one ")
    assert two.startswith("two ")
    failed = repro("bad")
    assert failed.returncode != 0
    assert Path("made/folder/deep/file").read_text() == two
    assert Path("made/single").read_text() == "two"
    back = repro("one")
    assert "RUNS" not in back.stdout
    assert Path("made/folder/deep/file").read_text() == one
    assert Path("made/single").read_text() == "one"


def test_only_what_is_missing_and_whole_in_the_cache_comes_back(project: Path) -> None:
    """A folder that is half in the cache is left for `dvc pull`: half of an output is worse than none."""
    assert restore_outputs("make") == []  # nothing was ever made
    repro("one")
    Path("made/single").write_text("edited")
    content = Path("made/folder/deep/file").read_text()
    Path("made/folder/deep/file").unlink()
    Path("made/folder/deep").rmdir()
    Path("made/folder").rmdir()
    assert restore_outputs("make") == ["made/folder"]
    assert Path("made/folder/deep/file").read_text() == content
    assert Path("made/single").read_text() == "edited"
    Path("made/folder/deep/file").unlink()
    Path("made/folder/deep").rmdir()
    Path("made/folder").rmdir()
    for file in Path(".dvc/cache/files/md5").rglob("*"):
        if file.is_file() and file.read_bytes() == content.encode():
            file.unlink()
    assert restore_outputs("make") == []
    assert not Path("made/folder").exists()
    assert restore_outputs("other") == []


def test_lost_outputs_are_named_with_the_command_that_brings_them_back(project: Path) -> None:
    """DVC deletes a stage's outputs and then fails itself, before the stage starts: nobody puts them back."""
    assert missing_outputs() == []
    repro("one")
    assert missing_outputs() == []
    assert hint() is None
    Path("made/single").unlink()
    assert missing_outputs() == ["made/single"]
    assert hint() == "missing: made/single; `dvc checkout` brings back what dvc.lock lists"
    assert hint("make") is None, "DVC is running that stage now, and has deleted its outputs itself"
    assert subprocess.run(["dvc", "checkout", "--quiet"], check=False).returncode == 0
    assert Path("made/single").read_text() == "one"
    assert missing_outputs() == []


def test_no_advice_is_given_that_would_not_help(project: Path) -> None:
    """What the cache does not hold, `dvc checkout` cannot bring back."""
    repro("one")
    Path("made/single").unlink()
    for file in Path(".dvc/cache/files/md5").rglob("*"):
        if file.is_file():
            file.unlink()
    assert missing_outputs() == ["made/single"]
    assert hint() is None


@pytest.mark.parametrize("lock", ["", "stages: 3", "stages: {make: 3}", "[", "stages: {make: {outs: [3]}}"])
def test_a_broken_lock_file_is_dvcs_to_report(project: Path, lock: str) -> None:
    Path("dvc.lock").write_text(lock)
    assert (missing_outputs(), hint(), restore_outputs("make")) == ([], None, [])
