"""What DVC is asked for, and what a stage leaves behind under real DVC when it fails or its dataset is swapped."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from primorl.base import dvc
from primorl.base.dvc import (
    Status,
    changed_params,
    changed_stages,
    hint,
    missing_outputs,
    remade_inputs,
    restore_outputs,
    run_dvc,
)
from primorl.base.errors import PipelineError
from tests.projects import ROOT

STAGE = """
import sys, time
from pathlib import Path
from primorl.base.dvc import restore_outputs
word = Path("params.yaml").read_text().split()[-1]
print("RUNS", word)
if word == "bad":
    restore_outputs("make")
    sys.exit(1)
Path("made/folder/deep").mkdir(parents=True)
Path("made/folder/deep/file").write_text(f"{word} {time.time_ns()}")
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
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def repro(word: str) -> tuple[bool, bool]:
    """Whether it succeeds, and whether the stage ran."""
    Path("params.yaml").write_text(f"word: {word}\n")
    done = run_dvc(Path(), "repro")
    return done.returncode == 0, "RUNS" in done.stdout


def made() -> tuple[str, str]:
    return Path("made/folder/deep/file").read_text(), Path("made/single").read_text()


def test_a_project_is_asked_and_restored(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One project for all of it, as each start of DVC takes a second."""
    assert changed_stages() == set(), "no DVC project"
    assert run_dvc(project, "init", "--no-scm", "--quiet").returncode == 0
    Path("stage.py").write_text(STAGE)
    Path("dvc.yaml").write_text(PIPELINE)
    assert repro("one") == (True, True)
    one = made()
    assert changed_stages() == set()
    for word, said in (("zwölf", 'word: "one" → "zwölf"'), ("zwölf" * 20, "word")):
        Path("params.yaml").write_text(f"word: {word}\n", encoding="utf-8")
        assert changed_params() == [f"params.yaml: {said}"]
    Path("params.yaml").write_text("word: two\n")
    assert changed_stages() == {"make"}
    lock = Path(".dvc/tmp/rwlock")
    before = lock.read_text()
    lock.write_text(
        json.dumps(
            {"write": {str(project / "made/single"): {"pid": os.getpid(), "cmd": "dvc repro"}}}
        )
    )
    with pytest.raises(PipelineError, match="`dvc status` fails: a run of DVC is under way"):
        changed_stages()
    lock.write_text(before)
    assert changed_params() == ['params.yaml: word: "one" → "two"']
    assert run_dvc(project, "repro", "--single-item", "make").returncode == 0
    assert (changed_params(), remade_inputs()) == ([], ["made/single"])
    repro("two")
    assert remade_inputs() == []
    two = made()
    assert (one[1], two[1]) == ("one", "two")
    assert repro("bad")[0] is False
    assert made() == two, "a failed stage puts back what there was"
    assert repro("one") == (True, False), "a swap back computes nothing"
    assert made() == one

    monkeypatch.setattr(
        dvc, "_cache", lambda: project / ".dvc/cache"
    )  # to ask DVC takes a second each time
    assert (missing_outputs(), hint(), restore_outputs("make"), restore_outputs("other")) == (
        [],
        None,
        [],
        [],
    )
    shutil.rmtree("made/folder")
    Path("made/single").write_text("edited")
    assert missing_outputs() == ["made/folder"]
    assert hint() == "missing: made/folder; `dvc checkout` brings back what dvc.lock lists"
    assert hint("make") is None, "DVC is running that stage now, and has deleted its outputs itself"
    assert restore_outputs("make") == ["made/folder"]
    assert made() == (one[0], "edited")
    shutil.rmtree("made/folder")
    for file in Path(".dvc/cache/files/md5").rglob("*"):
        if file.is_file() and file.read_bytes() == one[0].encode():
            file.unlink()
    assert restore_outputs("make") == [], "half of an output is worse than none"
    shutil.rmtree(".dvc/cache")
    assert (missing_outputs(), hint()) == (["made/folder"], None), "no advice that would not help"
    Path("dvc.yaml").write_text("stages: [")
    with pytest.raises(PipelineError, match="`dvc status` fails: "):
        changed_stages()
    for lock in ("", "stages: 3", "stages: {make: 3}", "[", "stages: {make: {outs: [3]}}"):
        Path("dvc.lock").write_text(lock)
        assert (missing_outputs(), hint(), restore_outputs("make")) == ([], None, []), (
            "DVC reports it"
        )
        assert (changed_params(), remade_inputs()) == ([], [])


def test_a_status_that_nobody_waits_for_ends() -> None:
    Path(".dvc").mkdir()
    Path("dvc.yaml").write_text(PIPELINE)
    with Status() as status:
        assert status._process is not None
        assert status._process.poll() is None
    assert status._process.returncode not in (None, 0)


def test_params_that_differ_are_listed_and_no_others() -> None:
    """Column names have dots, categories are numbers, and DVC writes 1e-05 where YAML reads a text."""
    for before, now, found in (
        ("{a.b: [1e-05], c: .nan}", "a: {b: [0.00001]}\nc: .nan", []),
        ("{a: {lab.value: 1, 2: x}}", "a: {lab.value: 1, 2: x}", []),
        (
            "{a: {lab.value: 1, 2: x}}",
            "a: {lab.value: 3, 2: x, c: 4}",
            ["a.lab.value: 1 → 3", "a.c: null → 4"],
        ),
        ("{a: true}", "a: 1", ["a: true → 1"]),
        ("{a: 1}", "a: 2020-01-01", ['a: 1 → "2020-01-01"']),
        ("{a: 1}", "a: &b [*b]", []),
    ):
        Path("dvc.lock").write_text(f"stages: {{make: {{params: {{params.yaml: {before}}}}}}}")
        Path("params.yaml").write_text(now)
        assert changed_params() == [f"params.yaml: {line}" for line in found], now
    Path("params.yaml").write_bytes(b"a: \xff")
    assert changed_params() == []
