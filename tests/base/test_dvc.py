"""What DVC is asked for, and what a failed stage leaves behind under real DVC."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from primorl.base.dvc import Status, changed_stages, hint
from primorl.base.errors import PipelineError

STAGE = """
import sys, time
from pathlib import Path
word = Path("params.yaml").read_text().split()[-1]
if word == "bad":
    sys.exit(1)
Path("made/folder").mkdir(parents=True)
Path("made/folder/file").write_text(f"{word} {time.time_ns()}")
Path("made/single").write_text(word)
"""
PIPELINE = """
stages:
  make: {cmd: python stage.py, deps: [stage.py], params: [word], outs: [made/folder, made/single]}
  second: {cmd: cp made/single two.txt, deps: [made/single], outs: [two.txt]}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def dvc(*words: str) -> bool:
    command = [sys.executable, "-m", "dvc", *words]
    return subprocess.run(command, capture_output=True).returncode == 0


def repro(word: str, *words: str) -> bool:
    Path("params.yaml").write_text(f"word: {word}\n")
    return dvc("repro", *words)


def made() -> tuple[str, str]:
    return Path("made/folder/file").read_text(), Path("made/single").read_text()


def test_a_failed_stage_leaves_nothing_and_its_last_outputs_come_back_by_a_command() -> None:
    assert changed_stages() == set(), "no DVC project"
    assert dvc("init", "--no-scm", "--quiet")
    Path("dvc.yaml").write_text(PIPELINE)
    Path("stage.py").write_text(STAGE)
    assert repro("one")
    one = made()
    assert (changed_stages(), hint()) == (set(), None)
    Path("params.yaml").write_text("word: two\n")
    assert changed_stages() == {"make"}
    assert repro("two", "--single-item", "make")
    assert repro("two")
    assert not repro("bad")
    assert not list(Path("made").iterdir())
    assert str(hint()).startswith("missing: made/folder, made/single; `dvc checkout`")
    assert repro("one")
    assert made() == one, "a swap back computes nothing"
    assert not repro("bad")
    assert dvc("checkout")
    assert made() == one
    shutil.rmtree(".dvc/cache")
    Path("dvc.yaml").write_text("stages: [")
    with pytest.raises(PipelineError, match="`dvc status` fails: "):
        changed_stages()
    for lock in ("", "stages: 3", "stages: {make: 3}", "[", "stages: {make: {outs: [3]}}"):
        Path("dvc.lock").write_text(lock)
        assert hint() is None, "DVC reports it"


def test_a_status_that_nobody_waits_for_ends() -> None:
    Path(".dvc").mkdir()
    Path("dvc.yaml").write_text(PIPELINE)
    with Status() as status:
        assert status._process is not None
        assert status._process.poll() is None
    assert status._process.returncode not in (None, 0)
