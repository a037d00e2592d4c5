"""What DVC is asked for is what it would do."""

from pathlib import Path

import pytest

from primorl.project.dvc import Status, changed_stages, run_dvc
from primorl.project.errors import PipelineError

_STAGES = """\
stages:
  first:
    cmd: cp params.yaml one.txt
    params:
    - a
    outs:
    - one.txt
  second:
    cmd: cp one.txt two.txt
    deps:
    - one.txt
    outs:
    - two.txt
"""


def test_changed_stages_are_those_whose_inputs_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert changed_stages() == set(), "no DVC project"
    assert run_dvc(tmp_path, "init", "--no-scm").returncode == 0
    Path("dvc.yaml").write_text(_STAGES, encoding="utf-8")
    Path("params.yaml").write_text("a: 1\nb: 1\n", encoding="utf-8")
    assert changed_stages() == {"first", "second"}
    assert run_dvc(tmp_path, "repro").returncode == 0
    assert changed_stages() == set()
    Path("params.yaml").write_text("a: 1\nb: 2\n", encoding="utf-8")
    assert changed_stages() == set(), "no stage follows b"
    Path("params.yaml").write_text("a: 2\nb: 2\n", encoding="utf-8")
    assert changed_stages() == {"first"}
    Path("dvc.yaml").write_text("stages: [", encoding="utf-8")
    with pytest.raises(PipelineError, match="`dvc status` fails: "):
        changed_stages()


def test_a_status_that_nobody_waits_for_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    (tmp_path / ".dvc").mkdir()
    Path("dvc.yaml").write_text(_STAGES, encoding="utf-8")
    with Status() as status:
        assert status._process is not None
        assert status._process.poll() is None
    assert status._process.returncode not in (None, 0)
