"""``primorl doctor`` names what needs to be done, cleans up after killed runs, and breaks nothing."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from primorl.commands import doctor
from primorl.config import params
from primorl.setup.accounts import project_ledger
from tests.commands.conftest import Call
from tests.privacy.ledger.ledgers import GAUSSIAN, request, version
from tests.projects import ROOT
from tests.trajectories.builders import snapshot

LOCK = """stages:
  collect: {cmd: c, outs: [{path: data/raw, md5: 0123456789abcdef0123456789abcdef.dir}]}
  train_model: {cmd: t, outs: [{path: models/dynamics, md5: 0123456789abcdef0123456789abcdef.dir}]}
"""


@pytest.fixture(autouse=True)
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone with nothing wrong."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "datasets", folder / "datasets")
    return folder


def to_do(primorl: Call) -> list[str]:
    """The lines of the table that ask for something; the exit status says whether there are any."""
    status, out, _ = primorl("doctor")
    lines = [line for line in out.splitlines() if re.search(r"  problem +\S", line)]
    assert status == (1 if lines else 0)
    return lines


def begun(then: Callable[[], object] = lambda: None) -> None:
    with closing(project_ledger(params.load(Path("params.yaml")))) as ledger:
        ledger.reserve(request(version("ab"), GAUSSIAN), None)
    then()


def set_key(old: str, new: str) -> None:
    text = Path("params.yaml").read_text(encoding="utf-8")
    assert text.count(old) == 1
    Path("params.yaml").write_text(text.replace(old, new), encoding="utf-8")


def made(*outputs: str, lock: str = LOCK) -> None:
    if lock:
        Path("dvc.lock").write_text(lock, encoding="utf-8")
    for output in outputs:
        Path(output).mkdir(parents=True)


SECRET = Path(".primorl/secret")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda: Path("params.yaml").write_text("seed: [\n", encoding="utf-8"), "params.yaml"),
        (lambda: made(lock="stages: [}\n"), "git checkout dvc.lock"),
        (lambda: made("models/dynamics", lock=""), "not there, although there is a model"),
        (lambda: made("models/dynamics"), "data/raw missing; `dvc checkout` brings back"),
        (lambda: begun(lambda: SECRET.chmod(0o644)), "chmod 600"),
        (lambda: begun(lambda: SECRET.parent.chmod(0o755)), "chmod 700"),
        (lambda: Path("primorl.version").write_text("0.0.1\n"), "run `primorl init .`"),
        (lambda: set_key("  device: auto", "  device: cuda"), "torch sees no GPU; use auto or cpu"),
        (
            lambda: set_key("  uri:\n", "  uri: http://user:PRIVATE@127.0.0.1:9\n"),
            "the MLflow store 127.0.0.1 cannot be used",
        ),
        (lambda: Path("mlflow.db").write_bytes(b"no database, and long enough " * 50), "mlflow.db cannot be used"),
        (lambda: set_key("  url:\n", "  url: postgresql+psycopg://user:PRIVATE@127.0.0.1:9/none\n"), "ledger"),
        (lambda: begun(SECRET.unlink), "without it the ledger cannot be read; put it back from its backup"),
        (lambda: begun(Path(".primorl/ledger.db").unlink), "record 1: missing"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(primorl: Call, damage: Callable[[], object], says: str) -> None:
    if says.startswith("torch") and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    damage()
    lines = to_do(primorl)
    assert any(says in line for line in lines), lines
    assert not any("PRIVATE" in line for line in lines)


def test_a_fresh_clone_is_healthy_and_stays_as_it_is_and_a_healthy_project_is_counted_and_swept(
    project: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Without git, runs work, and experiments do not: that is a warning, and no problem."""
    before = snapshot(project)
    assert to_do(primorl) == []
    assert snapshot(project) == before
    begun()
    made("data/raw", "models/dynamics")
    left = Path("data/.raw.new-1234")
    monkeypatch.setattr(doctor, "sweep_leftovers", lambda root: [left] if root == project else [])
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    found = {finding.what: finding for finding in doctor.examine()}
    assert {what for what, finding in found.items() if finding.state != "ok"} <= {"git", "packages"}
    for what, says in {
        "git": "install git",
        "ledger": "complete: 2 records",
        "outputs": "all 2 are there",
        "environment": sys.prefix,
        "packages": f"torch {torch.__version__}",
        "device": "GPU" if torch.cuda.is_available() else "CPU",
        ".primorl": "only its owner may read it",
        "left-overs": f"removed 1: {left}",
    }.items():
        assert says in found[what].says


def test_another_python_a_full_disk_and_no_project_are_noticed(
    project: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    usage = shutil.disk_usage(project)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
        assert "make room for at least 1 GiB" in to_do(primorl)[0]
    (project / "other").mkdir()
    (project / "other/python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{project / 'other'}{os.pathsep}{os.environ['PATH']}")
    (line,) = to_do(primorl)
    assert line.startswith("environment")
    assert f"put {Path(sys.executable).parent} first" in line
    monkeypatch.chdir(project / "other")
    wrong = {finding.what: finding.says for finding in doctor.examine() if finding.state == "problem"}
    assert wrong["params.yaml"].startswith("not there: this folder is no project")
    assert wrong["dvc.lock"] == "dvc.yaml is not there: this folder is no project"
