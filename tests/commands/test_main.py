"""Every command: errors are one line, help imports little, and it works from any folder of the project."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import primorl as package
from primorl.commands import plan_answer
from primorl.project.errors import PipelineError
from tests.commands.conftest import Call
from tests.projects import ROOT

HEAVY = ("torch", "mlflow", "dvc", "pydantic", "dp_accounting", "pandas", "numpy", "sqlalchemy", "scipy", "pyarrow")
EVERY = (
    *("init", "check", "plan", "summary", "report", "runs", "predict", "export", "release", "doctor", "sweep"),
    *("select", "data", "data describe", "data push", "ledger", "ledger show", "ledger verify", "ledger export"),
    *("audit", "audit mechanism", "audit one-run"),
)
WORDS = [sys.executable, "-m", "primorl.commands.main"]


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch, primorl: Call) -> None:
    """The message of an unforeseen exception may quote private values: it is shown with --debug only."""
    raised: list[BaseException] = []

    def fail(*_: Any, **__: Any) -> None:
        raise raised[-1]

    monkeypatch.setattr(plan_answer, "show", fail)
    for wrong, says in (
        (PipelineError("privacy.delta: too large"), "error: privacy.delta: too large"),
        (FileNotFoundError(2, "No such file or directory", "gone.parquet"), "error: gone.parquet: No such file"),
        (
            ModuleNotFoundError("No module named 'dvc'", name="dvc"),
            "error: plan: needs dvc, which is not installed; run `pip install 'primorl[pipeline]'`",
        ),
        (KeyboardInterrupt(), "error: interrupted"),
        (ValueError("PRIVATE-42"), "error: plan: unforeseen ValueError at test_main.py:"),
    ):
        raised.append(wrong)
        status, _, err = primorl("plan")
        assert status == (130 if isinstance(wrong, KeyboardInterrupt) else 1)
        assert err.startswith(says)
        assert (err.count("\n"), "PRIVATE-42" in err) == (1, False)
    assert "Traceback" in primorl("plan", "--debug")[2]


def test_a_wrong_command_line_is_one_line_too(primorl: Call) -> None:
    for words, says in (
        ("", "error: Missing command; see `primorl --help`"),
        ("plna", "error: No such command 'plna'. Did you mean 'plan'?; see `primorl --help`"),
        ("ledger", "error: Missing command; see `primorl ledger --help`"),
        ("plan --nois 1", "error: No such option: --nois"),
        ("plan --solve time", "error: Invalid value for '--solve': "),
        ("plan surplus", "error: Got unexpected extra argument"),
        ("release", "error: Missing argument 'DIR'"),
        ("audit mechanism --runs 0", "error: Invalid value for '--runs': found '0', allowed: 1 and more"),
    ):
        status, out, err = primorl(*words.split())
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(says)
        assert "--help`" in err


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
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line for line in shown.splitlines() if line.startswith("HEAVY")] == ["HEAVY []"] * 2
    assert shown.endswith(f"primorl {package.__version__}\n")
    assert "\b" not in shown
    whole, *helps = shown.split("RUNS: ")
    for words, text in zip(EVERY, helps, strict=True):
        name = words.split()[0]
        assert re.search(rf"^  {name} ", whole, re.M)
        assert re.match(rf"^ +primorl {name}", text.partition("Examples:\n")[2]), words


def test_the_shell_completes_commands_and_options_and_may_close_the_pipe() -> None:
    """As bash asks, after `primorl --install-completion`."""
    for typed, place, completed in (("primorl in", "1", "init\n"), ("primorl plan --targ", "2", "--target-epsilon\n")):
        asked = {"_PRIMORL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": place}
        shown = subprocess.run(WORDS, env=os.environ | asked, cwd=ROOT, capture_output=True, text=True, check=True)
        assert shown.stdout == completed
    shell = ["bash", "-c", f"{' '.join(WORDS)} --show-completion; {' '.join(WORDS)} plan --help | head -n 1"]
    script = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "_PRIMORL_COMPLETE=complete_bash" in script.stdout
    assert script.stdout.splitlines()[-1].startswith("Usage: ")
    assert script.stderr == ""


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
    assert primorl("summary")[2].startswith("error: metrics/summary.json: not there")
    assert primorl("release", "--check", "../here")[2].startswith("error: notes/here: not a folder")
    elsewhere = folder.parent / "elsewhere"
    outside = os.path.relpath(elsewhere)
    assert primorl("release", "--check", outside)[2].startswith(f"error: {elsewhere}: not a folder")
    Path("params.yaml").write_text("[]", encoding="utf-8")
    assert primorl("check")[2].startswith("error: params.yaml: ")
    Path("params.yaml").unlink()
    (folder / "dvc.yaml").unlink()
    assert "params.yaml: not there" in primorl("check")[2]
