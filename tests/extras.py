"""Each extra alone does what README and docs promise of it: `python -m tests.extras [NAME ...]`.

Every one gets a virtual environment with the wheel and that extra; the nightly job runs it, as
packages of gigabytes are installed.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from tests.projects import ROOT
from tests.wheels import build

_PRIMORL = "import sys; from primorl.commands.main import main; sys.exit(main({words!r}))"
_MADE = "import gymnasium, {module}; gymnasium.make({name!r}).reset(seed=0)"
USES: dict[str, tuple[str, str]] = {  # a program, and what it says
    "model": ("import primorl; primorl.load_model('models/dynamics')", "models/dynamics"),
    "pipeline": (_PRIMORL.format(words=["init", "project"]), "made "),
    "postgresql": ("import psycopg; print(psycopg.pq.__impl__)", "binary"),
    "dm-control": (_MADE.format(module="shimmy", name="dm_control/cartpole-balance-v0"), ""),
    "mujoco": (_MADE.format(module="mujoco", name="HalfCheetah-v5"), ""),
    "minari-remote": ("from minari.storage.remotes import get_hfs; get_hfs()", ""),
    "s3": ("from dvc_s3 import S3FileSystem; S3FileSystem(url='s3://bucket')", ""),
    "docs": ("import zensical", ""),
    "medical": (_MADE.format(module="anesthesim", name="anesthesim/PropofolControl-v0"), ""),
}


def main(names: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys() - {"dev"}
    assert extras == USES.keys(), extras ^ USES.keys()
    with tempfile.TemporaryDirectory(prefix="primorl-extras-") as folder:
        wheel = build(Path(folder), "--wheel")
        for name in names or list(USES):
            use(name, wheel, Path(folder) / name)
    print("extras: passed")


def use(name: str, wheel: Path, folder: Path) -> None:
    """Install the wheel with one extra, and run its program outside of the repository."""
    venv.create(folder)
    python = str(folder / "bin/python")
    uv = str(Path(sys.executable).with_name("uv"))
    given = ["--quiet", "--python", python, "-c", str(ROOT / "constraints.txt")]
    subprocess.run([uv, "pip", "install", *given, f"{wheel}[{name}]"], check=True)
    program, says = USES[name]
    environment = os.environ | {"MUJOCO_GL": "disable"}
    done = subprocess.run(
        [python, "-I", "-c", program], cwd=folder, env=environment, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    expected = name == "model"  # there is no model, which is said once torch is there
    if bool(done.returncode) != expected or says not in said or "pip install" in said:
        sys.exit(f"extras: {name}: {said}")
    print(f"extras: {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
