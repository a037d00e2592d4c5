"""The import contract is kept, and is able to break."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.projects import ROOT
from tests.release.conftest import trained

__all__ = ["trained"]


PLANTED = (
    ("policy", "from primorl.data.storage import store"),
    ("model", "import primorl.data.storage.schema"),
    ("privacy", "from primorl.model import ensemble"),
    ("data", "from primorl.policy import sac"),
    ("policy", "import mlflow"),
    ("policy", "from primorl.engine import rounds"),
    ("evaluate", "import primorl.engine.training"),
    ("base", "import primorl.config.params"),
    ("work", "from primorl.data.private import open_units"),
    ("commands", "from primorl.work.desk import open_private"),
    ("simulators", "import primorl.data.storage.schema"),
)


def test_every_planted_import_breaks_the_contract(tmp_path: Path) -> None:
    """What comes after the private model must not reach the data, by any path.

    Twin: a module that imports what it may. `make imports` finds the contract kept.
    """
    for package in ("primorl", "pipeline"):
        ours = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ours)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for number, (room, forbidden) in enumerate((*PLANTED, ("policy", "import primorl.model"))):
        (tmp_path / f"primorl/{room}/planted_{number}.py").write_text(f"{forbidden}\n")
    lint = Path(sys.executable).with_name("lint-imports")
    environment = {"PATH": str(lint.parent), "PYTHONPATH": str(tmp_path)}
    words = [str(lint), "--no-cache"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    named = {int(number) for number in re.findall(r"planted_(\d+) ->", done.stdout)}
    assert named == set(range(len(PLANTED))), done.stdout + done.stderr


# Commands, and modules that take a second or more, of which each that is spared is spared by all
# commands before it.
MOST = "torch mlflow pandas"
TABLES = "--observations today.csv --out actions.csv"
SHORT = (
    (("summary", f"{MOST} scipy dp_accounting"), ("ledger show", MOST)),
    (("plan", f"{MOST} scipy.special dp_accounting"),),
    ((f"predict --policy models/policy --against-advice {TABLES}", "torch mlflow dp_accounting"),),
    (("runs", "torch dp_accounting"),),
)


@pytest.mark.parametrize("commands", SHORT)
def test_a_short_command_imports_only_what_it_needs(
    trained: Path, empty_store: Path, tmp_path: Path, commands: tuple[tuple[str, str], ...]
) -> None:
    shutil.copytree(trained, tmp_path / "project")
    shutil.copy(empty_store, tmp_path / "project")
    rows = "observation_0,observation_1,observation_2\n0.1,0.2,0.3\n"
    (tmp_path / "project/today.csv").write_text(rows)
    program = "import sys; from primorl.commands.main import main\n" + "\n".join(
        f"print('FOUND', main({command.split()!r}), {{*{spared.split()!r}}} & {{*sys.modules}})"
        for command, spared in commands
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path / "project", capture_output=True, text=True)
    found = re.findall("FOUND (.*)", done.stdout)
    assert found == ["0 set()"] * len(commands), done.stdout + done.stderr


def test_a_policy_is_loaded_where_files_cannot_be_locked() -> None:
    """Windows has no fcntl; `primorl.load_policy` must not ask for it."""
    program = "import sys; sys.modules['fcntl'] = None; import primorl; primorl.load_policy"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
