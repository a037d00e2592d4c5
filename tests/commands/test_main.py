"""Every command: errors are one line, help imports little, and it works from any folder of the project.

``primorl doctor`` names what needs to be done, cleans up after killed runs, and breaks nothing.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import primorl as package
from primorl.base.errors import PipelineError
from primorl.commands import doctor, plan_answer
from primorl.config import params
from primorl.paid.accounts import project_ledger
from tests.commands.charging import edit
from tests.commands.conftest import Call
from tests.data.builders import snapshot
from tests.privacy.ledger.ledgers import GAUSSIAN, request, version
from tests.projects import ROOT

HEAVY = (
    "torch",
    "mlflow",
    "dvc",
    "pydantic",
    "dp_accounting",
    "pandas",
    "numpy",
    "sqlalchemy",
    "scipy",
    "pyarrow",
)
EVERY = (
    *(
        "init",
        "check",
        "plan",
        "summary",
        "report",
        "runs",
        "predict",
        "export",
        "release",
        "doctor",
    ),
    *(
        "select",
        "data",
        "data describe",
        "data push",
        "ledger",
        "ledger show",
        "ledger verify",
        "ledger export",
    ),
    *("ledger repair", "audit", "audit mechanism", "audit one-run"),
)


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch, primorl: Call) -> None:
    """The message of an unforeseen exception may quote private values: it is shown with --debug only."""
    raised: list[BaseException] = []

    def fail(*_: Any, **__: Any) -> None:
        raise raised[-1]

    monkeypatch.setattr(plan_answer, "show", fail)
    for wrong, says in (
        (PipelineError("privacy.delta: too large"), "error: privacy.delta: too large"),
        (
            FileNotFoundError(2, "No such file or directory", "gone.parquet"),
            "error: gone.parquet: No such file",
        ),
        (
            ModuleNotFoundError(name="dvc"),
            "error: plan: needs dvc, which is not installed; run `pip install 'primorl[",
        ),
        (KeyboardInterrupt(), "error: interrupted"),
        (ValueError("PRIVATE-42"), "error: plan: unforeseen ValueError at test_main.py:"),
    ):
        raised.append(wrong)
        status, _, err = primorl("plan")
        assert status == (130 if isinstance(wrong, KeyboardInterrupt) else 1)
        assert (err.startswith(says), err.count("\n"), "PRIVATE-42" in err) == (True, 1, False)
    assert "Traceback" in primorl("plan", "--debug")[2]


def test_a_wrong_command_line_is_one_line_too(primorl: Call) -> None:
    for words, says in (
        ("", "error: Missing command; see `primorl --help`"),
        ("plna", "error: No such command 'plna'. Did you mean 'plan'?; see `primorl --help`"),
        ("ledger", "error: Missing command; see `primorl ledger --help`"),
        ("plan --nois 1", "error: No such option: --nois"),
        ("release", "error: Missing argument 'DIR'"),
        (
            "audit mechanism --runs 0",
            "error: Invalid value for '--runs': found '0', allowed: 1 and more",
        ),
    ):
        status, out, err = primorl(*words.split())
        assert (status, out, err.count("\n"), err.startswith(says), "--help`" in err) == (
            2,
            "",
            1,
            True,
            True,
        ), err


def test_help_has_examples_and_imports_nothing_heavy() -> None:
    code = f"""
import sys
import primorl.commands.main as c
c.main(["--help"])
print("HEAVY", [m for m in {HEAVY!r} if m in sys.modules])
for words in {EVERY!r}:
    print("RUNS:", words)
    c.main([*words.split(), "--help"])
print("HEAVY", [m for m in {HEAVY!r} if m in sys.modules and m != "pydantic"])  # typer reads options with it
c.main(["--version"])
"""
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert shown.count("HEAVY []\n") == 2
    assert shown.endswith(f"primorl {package.__version__}\n")
    whole, *helps = shown.split("RUNS: ")
    for words, text in zip(EVERY, helps, strict=True):
        name = words.split()[0]
        assert re.search(rf"^  {name} ", whole, re.M)
        assert re.match(rf"^ +primorl {name}", text.partition("Examples:\n")[2]), words


def test_a_reader_may_close_the_pipe() -> None:
    shell = ["bash", "-c", f"{sys.executable} -m primorl.commands.main plan --help | head -n 1"]
    script = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (script.stdout[:7], script.stderr) == ("Usage: ", "")


def test_the_project_is_found_from_a_folder_inside_it_and_paths_are_the_callers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """A folder with its own params.yaml is its own project, and a params.yaml alone, further up, makes none."""
    for name in ("params.yaml", "dvc.yaml", "datasets"):
        (folder / name).symlink_to(ROOT / name)
    here = folder / "notes" / "deep"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    words = ("--json", "--rounds", "3", "--noise-multiplier", "20", "--sampling-probability", "1")
    assert '"delta"' in primorl("plan", *words)[1], "of params.yaml"
    assert Path.cwd() == here
    assert primorl("release", "--check", "../here")[2].startswith("error: notes/here: not a folder")
    elsewhere = folder.parent / "elsewhere"
    assert primorl("release", "--check", os.path.relpath(elsewhere))[2].startswith(
        f"error: {elsewhere}: not a folder"
    )
    Path("params.yaml").write_text("[]", encoding="utf-8")
    assert primorl("check")[2].startswith("error: params.yaml: ")
    Path("params.yaml").unlink()
    (folder / "dvc.yaml").unlink()
    assert "params.yaml: not there" in primorl("check")[2]


LOCK = """stages:
  collect: {cmd: c, outs: [{path: data/raw, md5: 0123456789abcdef0123456789abcdef.dir}]}
  train_model: {cmd: t, outs: [{path: models/dynamics, md5: 0123456789abcdef0123456789abcdef.dir}]}
"""


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone with nothing wrong."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), os.pathsep)
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


SECRET = Path(".primorl/secret")


def begun(then: Callable[[], object] = lambda: None) -> None:
    with closing(project_ledger(params.load())) as ledger:
        ledger.reserve(request(version("ab"), GAUSSIAN), None)
    then()


def made(*outputs: str, lock: str = LOCK) -> None:
    Path("dvc.lock").write_text(lock, encoding="utf-8")
    for output in outputs:
        Path(output).mkdir(parents=True)


URI, URL = "http://user:PRIVATE@127.0.0.1:9", "postgresql+psycopg://user:PRIVATE@127.0.0.1:9/none"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda: Path("params.yaml").write_text("seed: [\n", encoding="utf-8"), "params.yaml"),
        (lambda: made(lock="stages: [}\n"), "git checkout dvc.lock"),
        (
            lambda: Path("models/dynamics").mkdir(parents=True),
            "not there, although there is a model",
        ),
        (lambda: made("models/dynamics"), "data/raw missing; `dvc checkout` brings back"),
        (lambda: begun(lambda: SECRET.chmod(0o644)), "chmod 600"),
        (lambda: begun(lambda: SECRET.parent.chmod(0o755)), "chmod 700"),
        (
            lambda: edit("params.yaml", compute={"device": "cuda"}),
            "torch sees no GPU; use auto or cpu",
        ),
        (
            lambda: edit("params.yaml", tracking={"uri": URI}),
            "the MLflow store 127.0.0.1 cannot be used",
        ),
        (
            lambda: Path("mlflow.db").write_bytes(b"no database, and long enough " * 50),
            "mlflow.db cannot be used",
        ),
        (lambda: edit("params.yaml", ledger={"url": URL}), "ledger"),
        (
            lambda: begun(SECRET.unlink),
            "without it the ledger cannot be read; put it back from its backup",
        ),
        (lambda: begun(Path(".primorl/ledger.db").unlink), "record 1: missing"),
    ],
)
def test_doctor_names_what_is_wrong_with_what_to_do(
    primorl: Call, damage: Callable[[], object], says: str
) -> None:
    if says.startswith("torch") and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    damage()
    lines = "\n".join(to_do(primorl))
    assert (says in lines, "PRIVATE" in lines) == (True, False), lines


def test_doctor_finds_a_fresh_clone_healthy_and_leaves_it_as_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Of a project with outputs it counts and sweeps. It notices a full disk, another Python, and no project."""
    before = snapshot(project)
    assert to_do(primorl) == []
    assert snapshot(project) == before
    begun()
    made("data/raw", "models/dynamics")
    left, full = Path("data/.raw.new-1234"), shutil.disk_usage(project)._replace(free=2**20)
    with monkeypatch.context() as during:
        during.setattr(doctor, "sweep_leftovers", lambda root: [left] if root == project else [])
        during.setenv(
            "PATH", str(Path(sys.executable).parent)
        )  # without git, which experiments need, and runs do not
        found = {finding.what: finding for finding in doctor.examine()}
        assert {what for what, finding in found.items() if finding.state != "ok"} <= {
            "git",
            "packages",
        }
        says = [found[what].says for what in ("ledger", "outputs", "left-overs")]
        assert says == ["complete: 2 records", "all 2 are there", f"removed 1: {left}"]
        during.setattr(shutil, "disk_usage", lambda path: full)
        assert "make room for at least 1 GiB" in to_do(primorl)[0]
    (project / "other").mkdir()
    (project / "other/python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(project / "other"), os.pathsep)
    assert f"put {Path(sys.executable).parent} first" in to_do(primorl)[0]
    monkeypatch.chdir(project / "other")
    assert any(
        finding.says.startswith("not there: this folder is no project")
        for finding in doctor.examine()
    )
