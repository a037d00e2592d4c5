"""The import contract is kept, and is able to break."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.release.conftest import trained

__all__ = ["trained"]

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("room", "forbidden", "kept"),
    [
        ("policy", None, True),
        ("policy", "from primorl.data.storage import store", False),
        ("model", "import primorl.data.storage.schema", False),
        ("privacy", "from primorl.model import ensemble", False),
        ("data", "from primorl.policy import sac", False),
        ("policy", "import mlflow", False),
        ("policy", "from primorl.engine import rounds", False),
        ("evaluate", "import primorl.engine.training", False),
        ("base", "import primorl.config.params", False),
        ("work", "from primorl.data.private import open_units", False),
        ("commands", "from primorl.work.desk import open_private", False),
        ("simulators", "import primorl.data.storage.schema", False),
    ],
)
def test_a_planted_import_breaks_the_contract(
    tmp_path: Path, room: str, forbidden: str | None, kept: bool
) -> None:
    """What comes after the private model must not reach the data, by any path."""
    for package in ("primorl", "pipeline"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    if forbidden is not None:
        (tmp_path / "primorl" / room / "planted.py").write_text(f"{forbidden}\n", encoding="utf-8")
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--no-cache"],
        cwd=tmp_path,
        env={"PATH": str(lint.parent), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) is kept, done.stdout + done.stderr


RESULTS = ("torch", "mlflow", "pandas", "dp_accounting", "scipy", "pyarrow")
"""Modules that take a short command a second or more."""


@pytest.mark.parametrize(
    ("command", "spared"),
    [
        ("runs", ("torch", "dp_accounting")),
        ("summary", RESULTS[:-1]),
        ("ledger show", RESULTS[:3]),
        ("plan", RESULTS[:3]),
    ],
)
def test_a_short_command_imports_only_what_it_needs(
    trained: Path, empty_store: Path, tmp_path: Path, command: str, spared: tuple[str, ...]
) -> None:
    shutil.copytree(trained, tmp_path / "project")
    shutil.copy(empty_store, tmp_path / "project")
    program = (
        "import sys; from primorl.commands.main import main; "
        f"print(main({command.split()!r}), [m for m in {spared!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "project",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("0 []\n"), done.stdout + done.stderr


def test_a_policy_is_loaded_where_files_cannot_be_locked() -> None:
    """Windows has no fcntl; `primorl.load_policy` must not ask for it."""
    program = "import sys; sys.modules['fcntl'] = None; import primorl; primorl.load_policy"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
