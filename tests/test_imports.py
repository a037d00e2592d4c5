"""The import contract is kept, and is able to break."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("room", "forbidden", "kept"),
    [
        ("policy", None, True),
        ("policy", "from pipeline.trajectories import store", False),
        ("dynamics", "import pipeline.trajectories.schema", False),
        ("privacy", "from pipeline.dynamics import ensemble", False),
        ("trajectories", "from pipeline.policy import sac", False),
        ("policy", "import mlflow", False),
        ("simulators", "import pipeline.trajectories.schema", False),
    ],
)
def test_a_planted_import_breaks_the_contract(tmp_path: Path, room: str, forbidden: str | None, kept: bool) -> None:
    """What comes after the private model must not reach the data, by any path."""
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    if forbidden is not None:
        (tmp_path / "pipeline" / room / "planted.py").write_text(f"{forbidden}\n", encoding="utf-8")
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--no-cache"],
        cwd=tmp_path,
        env={"PATH": str(lint.parent), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) is kept, done.stdout + done.stderr
