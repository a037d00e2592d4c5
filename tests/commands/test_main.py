"""Every command: errors are one line, help imports little, and it works from any folder of the
project.

``primorl check`` names what needs to be done and changes nothing.
"""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import primorl as package
from pipeline import collect
from primorl.base import PipelineError
from primorl.base.reporting import StageLog
from primorl.commands import plan_answer, runs
from primorl.config import params
from primorl.data.sources.log_paths import describe_edits
from primorl.work.data import open_to_charge
from tests.commands.conftest import Call
from tests.data.builders import snapshot
from tests.privacy.ledger.ledgers import GAUSSIAN, request, version
from tests.projects import ROOT, project_settings, write_settings

HEAVY = ("torch", "mlflow", "dvc", "dp_accounting", "pandas", "numpy", "scipy", "pyarrow")
EVERY = (
    *("init", "check", "plan", "run", "summary", "report", "runs", "predict", "release"),
    *("ledger", "ledger show", "ledger verify"),
)


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch, primorl: Call) -> None:
    """The message of an unforeseen exception may quote private values: it is shown with --debug
    only.
    """
    raised: list[BaseException] = []

    def fail(*_: Any, **__: Any) -> None:
        raise raised[-1]

    monkeypatch.setattr(plan_answer, "show", fail)
    for wrong, says in (
        (PipelineError("privacy.delta: too large"), "error: privacy.delta: too large"),
        (FileNotFoundError(2, "No such file", "gone.parquet"), "error: gone.parquet: No such file"),
        (ModuleNotFoundError(name="dvc"), "error: plan: needs dvc, which is not installed"),
        (
            PermissionError(errno.EACCES, "Permission denied", ".primorl/secret"),
            "error: .primorl/secret: Permission denied; a project is its owner's: work in a clone",
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
    ):
        status, out, err = primorl(*words.split())
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(says), err


def test_help_has_examples_imports_nothing_heavy_and_can_be_read_in_any_terminal() -> None:
    code = f"""
import sys
import primorl.commands.main as c
c.main(["--help"])
print("HEAVY", [m for m in ("pydantic", *{HEAVY!r}) if m in sys.modules])
for words in {EVERY!r}:
    print("RUNS:", words)
    c.main([*words.split(), "--help"])
print("HEAVY", [m for m in {HEAVY!r} if m in sys.modules])  # typer reads options with pydantic
"""
    words, ascii_only = [sys.executable, "-c", code], os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, cwd=ROOT, env=ascii_only, capture_output=True, text=True)
    assert (done.returncode, "error" in done.stderr) == (0, False)
    shown = done.stdout
    assert shown.count("HEAVY []\n") == 2
    module = [sys.executable, "-m", "primorl", "--version"]
    done = subprocess.run(module, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"primorl {package.__version__}\n"
    whole, *helps = shown.split("RUNS: ")
    for command, text in zip(EVERY, helps, strict=True):
        name = command.split()[0]
        assert re.search(rf"^  {name} ", whole, re.M)
        assert re.match(rf"^ +primorl {name}", text.partition("Examples:\n")[2]), command


def test_the_project_is_found_from_a_folder_inside_it_and_paths_are_the_callers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """A folder with its own params.yaml is its own project, and a params.yaml alone, further up,
    makes none.
    """
    for name in ("params.yaml", "dvc.yaml", "datasets"):
        (folder / name).symlink_to(ROOT / name)
    here = folder / "notes" / "deep"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    words = ("--json", "--rounds", "3", "--noise-multiplier", "20", "--sampling-probability", "1")
    assert '"delta"' in primorl("plan", *words)[1], "of params.yaml"
    assert Path.cwd() == here
    assert primorl("release", "--check", "../here")[2].startswith("error: notes/here: not a folder")
    Path("params.yaml").write_text("[]", encoding="utf-8")
    assert primorl("check")[2].startswith("error: params.yaml: ")
    Path("params.yaml").unlink()
    (folder / "dvc.yaml").unlink()
    for command in ("check", "report", "runs", "run", "ledger show", "release x"):
        assert "params.yaml: not there; no project is here" in primorl(*command.split())[2]
    given = ("--observations", "in.csv", "--out", "out.csv")
    assert "not there; name a policy's folder (--policy DIR)" in primorl("predict", *given)[2]


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone with nothing wrong."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    monkeypatch.setenv("PATH", path)
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "datasets", folder / "datasets")
    return folder


SECRET = Path(".primorl/secret")


def begin_ledger() -> None:
    ledger = open_to_charge(params.load())
    ledger.reserve(request(version("ab"), GAUSSIAN), None)


def name_ledger(url: str) -> None:
    content = Path("params.yaml").read_text(encoding="utf-8")
    named = content.replace("ledger:\n  url:", f"ledger:\n  url: {url}", 1)
    Path("params.yaml").write_text(named, encoding="utf-8")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda: Path("params.yaml").write_text("seed: [\n", encoding="utf-8"), "params.yaml"),
        (lambda: SECRET.chmod(0o644), "chmod 600"),
        (SECRET.unlink, "restore .primorl from its backup"),
        (lambda: name_ledger("postgresql+psycopg://127.0.0.1:9/x"), "see that the server is up"),
        (lambda: SECRET.parent.chmod(0o755), "chmod 700"),
    ],
)
def test_check_names_what_is_wrong_with_what_to_do(
    primorl: Call, damage: Callable[[], object], says: str
) -> None:
    begin_ledger()
    damage()
    status, _, err = primorl("check")
    assert (status, err.count("\n"), err.startswith("error: "), says in err) == (1, 1, True, True)


def test_check_finds_a_fresh_clone_healthy_and_leaves_it_as_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Another Python is a note, as `make run` names its own."""
    before = snapshot(project)
    status, out, err = primorl("check")
    assert (status, err) == (0, "")
    given = ("--observations", "a.csv", "--out", "b.csv")
    for words in (["summary"], ["report"], ["predict", *given]):
        assert "in a clone" in primorl(*words)[2], words
    assert snapshot(project) == before
    monkeypatch.setenv("PATH", "/nowhere")
    _, out, err = primorl("check")
    assert "params.yaml and the datasets are valid" in out
    assert f"put {Path(sys.executable).parent} first" in out


HEADER = "patient,stay,time,glucose,insulin_on_board,meal,dose,reward\n"
CHANGES: dict[str, tuple[Callable[[Path], Any], str | None]] = {
    "edited": (lambda file: file.write_text(HEADER), "1 of 2 files changed"),
    "gone": (Path.unlink, "1 of 2 files changed"),
    "added": (lambda file: file.with_name("log-3.csv").write_text(HEADER), "1 of 3 files changed"),
    "touched": (lambda file: os.utime(file, (1, 1)), None),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_at_the_source_is_said_until_it_is_collected_again(
    what: str, primorl: Call
) -> None:
    """Twin: a file that has only a new time."""
    files, (change, says) = Path("examples/insulin-log"), CHANGES[what]
    files.mkdir(parents=True)
    for patient in (1, 2):
        rows = "".join(f"{patient},1,{hour},7.5,0.1,none,0.2,-0.1\n" for hour in range(3))
        (files / f"log-{patient}.csv").write_text(HEADER + rows)
    chosen = write_settings(project_settings("csv-log") | {"dataset": "csv-log"})
    collect.body(chosen, StageLog())
    change(files / "log-1.csv")
    status, _, err = primorl("check")
    told = (1, True) if says else (0, False)
    assert (status, "the source changed since it was collected" in err) == told
    assert (says or "") in err
    kept = shutil.copytree("data/raw", "kept")
    collect.body(chosen, StageLog())
    assert describe_edits(chosen.dataset, chosen.chosen) is None
    shutil.rmtree("data/raw")
    shutil.copytree(kept, "data/raw")
    came_back = describe_edits(chosen.dataset, chosen.chosen)
    assert (came_back is None) == (says is None), "an old copy that came back is old"
    own = project_settings("csv-log")
    own["chosen"]["options"]["files"] += "/*"
    edited = write_settings(own | {"dataset": "csv-log"}).chosen
    assert describe_edits(chosen.dataset, edited) is None, "of an edited entry DVC tells by itself"
    shutil.rmtree(files)
    assert describe_edits(chosen.dataset, chosen.chosen) is None, (
        "a log that was moved tells nothing"
    )


def test_a_user_without_a_name_and_a_hidden_folder_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # as in a container without its name
    with pytest.raises(PipelineError, match="USER: not set"):
        list(runs._python(cast(Any, None)))
    monkeypatch.setenv("USER", "ana")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # which hides the stages
    with pytest.raises(PipelineError, match="unset it"):
        list(runs._python(cast(Any, None)))
