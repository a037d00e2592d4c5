"""What DVC is asked for, under real DVC."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from primorl.base.dvc import Status, changed_stages, hint
from primorl.base.errors import PipelineError

PIPELINE = """
stages:
  make: {cmd: mkdir made && cp params.yaml made/single, params: [word], outs: [made]}
"""


@pytest.fixture(autouse=True)
def with_dvc(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def dvc(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *words], capture_output=True, check=True)


def test_what_changed_and_what_is_gone_are_told() -> None:
    assert changed_stages() == set(), "no DVC project"
    dvc("init", "--no-scm", "--quiet")
    Path("dvc.yaml").write_text(PIPELINE)
    Path("params.yaml").write_text("word: one\n")
    dvc("repro")
    assert (changed_stages(), hint()) == (set(), None)
    Path("params.yaml").write_text("word: two\n")
    assert changed_stages() == {"make"}
    shutil.rmtree("made")
    assert hint() == "missing: made; `dvc checkout` brings them back"
    Path(".dvc/tmp/rwlock").write_text("")  # as a kill may leave it
    with pytest.raises(PipelineError, match=r"rwlock.*if there is none, delete that file"):
        changed_stages()
    Path(".dvc/tmp/rwlock").unlink()
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
