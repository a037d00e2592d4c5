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

ROOT = Path(__file__).resolve().parents[1]
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


def copy_sources(folder: Path) -> Path:
    """The files that a build may read, of those that git knows or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    template = {
        path.relative_to(ROOT).as_posix() for pattern in FILES for path in ROOT.glob(pattern)
    }
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, copy = ROOT / name, folder / name
        if source.is_file() and (name.startswith(_SOURCES) or name in template):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    return folder


def build(folder: Path, kind: str) -> Path:
    """A wheel (``--wheel``) or a source distribution (``--sdist``), made in ``folder``."""
    source = copy_sources(folder / "source")
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
