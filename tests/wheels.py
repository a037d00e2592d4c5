"""The wheel, built once for a test module, and an environment that has it in the place of the
repository.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from primorl.base.template import FILES
from tests.projects import ROOT, copy_known

_SOURCES = (
    "primorl/",
    "pipeline/",
    "tests/__",
    "benchmarks/",
    "pyproject",
    "setup.py",
    "LIC",
    "READ",
)


def build(folder: Path, kind: str) -> Path:
    """A wheel (``--wheel``) or a source distribution (``--sdist``), made in ``folder``."""
    template = {str(path.relative_to(ROOT)) for pattern in FILES for path in ROOT.glob(pattern)}
    source = copy_known(
        folder / "source", lambda name: name.startswith(_SOURCES) or name in template
    )
    command = [
        sys.executable,
        "-m",
        "build",
        kind,
        "--no-isolation",
        "--outdir",
        str(folder),
        str(source),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (made,) = (path for path in folder.iterdir() if path.is_file())
    return made


def environment(wheel: Path, folder: Path) -> dict[str, str]:
    """Variables of a shell in a new virtual environment with the wheel; other packages are those of
    this one.
    """
    venv.create(folder)
    python = folder / "bin/python"
    packages = Path(
        sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    )
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, "--force-reinstall", str(wheel)], check=True, capture_output=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DVC_", "PYTHONPATH"))
    }
    others = Path(sys.executable).parent  # dvc's command
    return kept | {"PATH": f"{folder / 'bin'}{os.pathsep}{others}{os.pathsep}{os.environ['PATH']}"}
