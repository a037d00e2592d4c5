"""Whatever goes wrong in a command is one line that starts with ``error:``; a traceback only where it was asked for."""

import argparse
import subprocess
import sys

import pytest

from primorl.commands import main as cli
from primorl.commands import plan
from primorl.project.errors import PipelineError


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (PipelineError("privacy.delta: too large"), "error: privacy.delta: too large"),
        (FileNotFoundError(2, "No such file or directory", "gone.parquet"), "error: gone.parquet: No such file"),
        (ValueError("PRIVATE-42"), "error: plan: unforeseen ValueError at test_main.py:"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_an_error_is_one_line(
    wrong: Exception, says: str, debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message of an exception nobody foresaw may quote private values: it is shown with --debug only."""

    def fail(arguments: argparse.Namespace) -> int:
        raise wrong

    monkeypatch.setattr(plan, "run", fail)
    assert cli.main(["plan", *(["--debug"] if debug else [])]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(says)
    assert (len(shown.splitlines()) > 1) is debug
    assert ("Traceback" in shown) is debug
    assert debug or "PRIVATE-42" not in shown


def test_help_starts_without_the_heavy_libraries() -> None:
    code = "import sys, primorl.commands.main as c\ntry: c.main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'mlflow', 'sqlalchemy', 'dp_accounting') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"
    for command in cli.COMMANDS:
        assert command in shown
