"""``primorl doctor`` names what needs to be done, cleans up after killed runs, and breaks nothing."""

import os
import re
import shutil
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from primorl.commands import doctor
from primorl.commands import main as cli
from primorl.config import params
from primorl.setup.accounts import project_ledger
from tests.privacy.ledger.ledgers import GAUSSIAN, request, version
from tests.trajectories.builders import snapshot

ROOT = Path(__file__).parents[2]
LOCK = """schema: '2.0'
stages:
  collect:
    cmd: python -m pipeline.collect
    outs:
    - {path: data/raw, md5: 0123456789abcdef0123456789abcdef.dir}
  train_model:
    cmd: python -m pipeline.train_model
    outs:
    - {path: models/dynamics, md5: 0123456789abcdef0123456789abcdef.dir}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone with nothing wrong, as the working directory."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    if (ROOT / "datasets").exists():
        shutil.copytree(ROOT / "datasets", tmp_path / "datasets")
    return tmp_path


def to_do(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of the table that ask for something; the exit status says whether there are any."""
    status = cli.main(["doctor"])
    lines = [line for line in capsys.readouterr().out.splitlines() if re.search(r"  problem +\S", line)]
    assert status == (1 if lines else 0)
    return lines


def test_a_fresh_clone_is_healthy_and_stays_as_it_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(project)
    assert to_do(capsys) == []
    assert snapshot(project) == before


def bad_params(project: Path) -> None:
    (project / "params.yaml").write_text("seed: [\n", encoding="utf-8")


def bad_lock(project: Path) -> None:
    (project / "dvc.lock").write_text("stages: [}\n", encoding="utf-8")


def lost_lock(project: Path) -> None:
    (project / "models/dynamics").mkdir(parents=True)


def lost_output(project: Path) -> None:
    (project / "dvc.lock").write_text(LOCK, encoding="utf-8")
    (project / "models/dynamics").mkdir(parents=True)


def begun() -> None:
    with closing(project_ledger(params.load(Path("params.yaml")))) as ledger:
        ledger.reserve(request(version("ab"), GAUSSIAN), None)


def open_secret(project: Path) -> None:
    begun()
    (project / ".primorl/secret").chmod(0o644)


def open_state(project: Path) -> None:
    begun()
    (project / ".primorl").chmod(0o755)


def other_version(project: Path) -> None:
    (project / "primorl.version").write_text("0.0.1\n", encoding="utf-8")


def set_key(project: Path, old: str, new: str) -> None:
    text = (project / "params.yaml").read_text(encoding="utf-8")
    assert text.count(old) == 1
    (project / "params.yaml").write_text(text.replace(old, new), encoding="utf-8")


def no_gpu(project: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    set_key(project, "  device: auto", "  device: cuda")


def silent_store(project: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    set_key(project, "  uri:\n", f"  uri: http://user:PRIVATE@127.0.0.1:{port}\n")


def broken_store(project: Path) -> None:
    (project / "mlflow.db").write_bytes(b"no database at all, and long enough to have a header " * 20)


def silent_ledger(project: Path) -> None:
    set_key(project, "  url:\n", "  url: postgresql+psycopg://user:PRIVATE@127.0.0.1:9/none\n")


def lost_secret(project: Path) -> None:
    begun()
    (project / ".primorl/secret").unlink()


def lost_ledger(project: Path) -> None:
    begun()
    (project / ".primorl/ledger.db").unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (bad_params, ["params.yaml"]),
        (bad_lock, ["git checkout dvc.lock"]),
        (lost_lock, ["not there, although there is a model"]),
        (lost_output, ["data/raw missing; `dvc checkout` brings back"]),
        (open_secret, ["chmod 600"]),
        (open_state, ["others may read", "chmod 700"]),
        (other_version, ["found '0.0.1', and primorl", "run `primorl init .`"]),
        (no_gpu, ["compute.device: found cuda, but torch sees no GPU; use auto or cpu"]),
        (silent_store, ["the MLflow store 127.0.0.1 cannot be used", "set tracking.uri to null"]),
        (broken_store, ["mlflow.db cannot be used"]),
        (silent_ledger, ["ledger"]),
        (lost_secret, ["put it back from its backup", "without it the ledger cannot be read"]),
        (lost_ledger, ["record 1: missing"]),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(
    project: Path, damage: Any, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(project)
    lines = to_do(capsys)
    assert lines
    for line in says:
        assert any(line in found for found in lines), lines
    assert not any("PRIVATE" in line for line in lines)


def test_a_healthy_project_is_counted_and_swept(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without git, runs work, and experiments do not: that is a warning, and no problem."""
    begun()
    (project / "dvc.lock").write_text(LOCK, encoding="utf-8")
    for path in ("data/raw", "models/dynamics"):
        (project / path).mkdir(parents=True)
    left = Path("data/.raw.new-1234")
    monkeypatch.setattr(doctor, "sweep_leftovers", lambda root: [left] if root == project else [])
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    found = {finding.what: finding for finding in doctor.examine()}
    assert {what for what, finding in found.items() if finding.state != "ok"} <= {"git", "packages"}
    assert "install git" in found["git"].says
    assert found["ledger"].says == "complete: 2 records"
    assert found["outputs"].says == "all 2 are there"
    assert found["environment"].says == sys.prefix
    assert f"torch {torch.__version__}" in found["packages"].says
    assert found["device"].says.startswith("GPU" if torch.cuda.is_available() else "CPU")
    assert found[".primorl"].says == "only its owner may read it"
    assert found["left-overs"].says == f"removed 1: {left}"


def test_another_python_a_full_disk_and_no_project_are_noticed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(project)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
        assert "make room for at least 1 GiB" in to_do(capsys)[0]
    (project / "other").mkdir()
    (project / "other/python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{project / 'other'}{os.pathsep}{os.environ['PATH']}")
    (line,) = to_do(capsys)
    assert line.startswith("environment")
    assert f"put {Path(sys.executable).parent} first" in line
    monkeypatch.chdir(project / "other")
    wrong = {finding.what: finding.says for finding in doctor.examine() if finding.state == "problem"}
    assert wrong["params.yaml"].startswith("not there: this folder is no project")
    assert wrong["dvc.lock"] == "dvc.yaml is not there: this folder is no project"
