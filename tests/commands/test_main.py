"""Every command: errors are one line, help imports little, and it works from any folder of the project."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import primorl
from primorl.commands import main as cli
from primorl.commands import plan_text
from primorl.project.errors import PipelineError

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "mlflow", "dvc", "pydantic", "dp_accounting", "pandas", "numpy", "sqlalchemy", "scipy", "pyarrow")
EVERY = (
    *(("init",), ("check",), ("plan",), ("summary",), ("report",), ("runs",), ("predict",), ("export",)),
    *(("release",), ("doctor",), ("sweep",), ("select",)),
    *(("data",), ("data", "describe"), ("data", "push")),
    *(("ledger",), ("ledger", "show"), ("ledger", "verify"), ("ledger", "export")),
    *(("audit",), ("audit", "mechanism"), ("audit", "one-run")),
)


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The message of an unforeseen exception may quote private values: it is shown with --debug only."""
    raised: list[BaseException] = []

    def fail(*_: Any, **__: Any) -> None:
        raise raised[-1]

    monkeypatch.setattr(plan_text, "show", fail)
    for wrong, says in (
        (PipelineError("privacy.delta: too large"), "error: privacy.delta: too large"),
        (FileNotFoundError(2, "No such file or directory", "gone.parquet"), "error: gone.parquet: No such file"),
        (ValueError("PRIVATE-42"), "error: plan: unforeseen ValueError at test_main.py:"),
        (
            ModuleNotFoundError("No module named 'dvc'", name="dvc"),
            "error: plan: needs dvc, which is not installed; run `pip install 'primorl[pipeline]'`",
        ),
        (KeyboardInterrupt(), "error: interrupted"),
    ):
        raised.append(wrong)
        assert cli.main(["plan"]) == (130 if isinstance(wrong, KeyboardInterrupt) else 1)
        shown = capsys.readouterr().err
        assert shown.startswith(says)
        assert len(shown.splitlines()) == 1
        assert "PRIVATE-42" not in shown
    raised.append(ValueError("PRIVATE-42"))
    assert cli.main(["plan", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_wrong_command_line_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        ([], "error: Missing command; see `primorl --help`"),
        (["plna"], "error: No such command 'plna'. Did you mean 'plan'?; see `primorl --help`"),
        (["ledger"], "error: Missing command; see `primorl ledger --help`"),
        (["plan", "--nois", "1"], "error: No such option: --nois"),
        (["plan", "--rounds"], "error: Option '--rounds' requires an argument"),
        (["plan", "--solve", "time"], "error: Invalid value for '--solve': "),
        (["plan", "surplus"], "error: Got unexpected extra argument"),
        (["data", "push"], "error: Missing option '--remote'"),
        (["release"], "error: Missing argument 'DIR'"),
    ):
        assert cli.main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(says)
        assert err.count("\n") == 1
        assert "--help`" in err


def test_a_closed_pipe_is_no_error() -> None:
    words = [sys.executable, "-m", "primorl.commands.main", "plan", "--help"]
    shown = subprocess.run(
        ["bash", "-c", f"{' '.join(words)} | head -n 1"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.startswith("Usage: ")
    assert shown.stderr == ""


def test_help_has_examples_and_imports_nothing_heavy() -> None:
    code = f"""
import sys
import primorl.commands.main as c
c.main(["--help"])
print("HEAVY", [m for m in {HEAVY!r} if m in sys.modules])
for words in {EVERY!r}:
    print("RUNS:", *words)
    c.main([*words, "--help"])
print("HEAVY", [m for m in {HEAVY!r} if m in sys.modules and m != "pydantic"])  # typer reads options with it
c.main(["--version"])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [line for line in shown.splitlines() if line.startswith("HEAVY")] == ["HEAVY []"] * 2
    assert shown.endswith(f"primorl {primorl.__version__}\n")
    assert "\b" not in shown
    whole, *helps = shown.split("RUNS: ")
    for words, text in zip(EVERY, helps, strict=True):
        assert re.search(rf"^  {words[0]} ", whole, re.M)
        assert re.match(rf"^ +primorl {words[0]}", text.partition("Examples:\n")[2]), words


def test_the_shell_completes_commands_and_options() -> None:
    """As bash asks, after `primorl --install-completion`."""
    words = [sys.executable, "-m", "primorl.commands.main"]
    for typed, place, completed in (("primorl in", "1", "init\n"), ("primorl plan --targ", "2", "--target-epsilon\n")):
        asked = {"_PRIMORL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": place}
        shown = subprocess.run(words, env=os.environ | asked, cwd=ROOT, capture_output=True, text=True, check=True)
        assert shown.stdout == completed
    shell = ["bash", "-c", f"{' '.join(words)} --show-completion; true"]  # `true`: bash stays, and is recognised
    script = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "_PRIMORL_COMPLETE=complete_bash" in script.stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a project, and that one works in a folder of."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    if (ROOT / "datasets").exists():
        (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "notes" / "deep")
    return tmp_path


@pytest.mark.usefixtures("project")
def test_a_command_finds_the_project_from_a_folder_inside_it(capsys: pytest.CaptureFixture[str]) -> None:
    before = Path.cwd()
    assert cli.main(["plan", "--json", "--rounds", "3", "--noise-multiplier", "20", "--sampling-probability", "1"]) == 0
    assert '"delta"' in capsys.readouterr().out  # of params.yaml
    assert Path.cwd() == before
    assert cli.main(["summary"]) == 1
    assert capsys.readouterr().err.startswith("error: metrics/summary.json: not there")


def test_paths_stay_relative_to_where_the_user_stands(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["release", "--check", "../here"]) == 1
    assert capsys.readouterr().err.startswith("error: notes/here: not a folder")
    outside = os.path.relpath(project.parent / "elsewhere")
    assert cli.main(["release", "--check", outside]) == 1
    assert capsys.readouterr().err.startswith(f"error: {project.parent / 'elsewhere'}: not a folder")


def test_a_folder_with_its_own_params_is_its_own_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As DVC's temporary copies are; and a params.yaml alone, further up, makes no project."""
    Path("params.yaml").write_text("[]", encoding="utf-8")
    assert cli.main(["check"]) == 1
    assert capsys.readouterr().err.startswith("error: params.yaml: ")
    Path("params.yaml").unlink()
    (project / "dvc.yaml").unlink()
    assert cli.main(["check"]) == 1
    assert "params.yaml: not there" in capsys.readouterr().err
