"""The wheel: the library alone, small, and of use without the pipeline's packages."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from primorl.policy.exported import save
from primorl.project.template import FILES, FOLDER
from tests.policy.test_exported import EPOCHS
from tests.wheels import ROOT, build

# What somebody who only uses a policy has not installed.
ABSENT = (
    *("torch", "dvc", "mlflow", "dp_accounting", "pandas", "scipy", "sqlalchemy", "pyarrow"),
    *("gymnasium", "minari", "h5py", "yaml", "jinja2", "matplotlib", "psutil", "tqdm", "stable_baselines3"),
)
BLOCKED = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that git knows or does not ignore."""
    return build(tmp_path_factory.mktemp("wheel"), "--wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's own files in a folder of their own, as `pip install --no-deps --target` puts them there."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    return target


def python(installed: Path, code: str, *, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run ``code`` with the installed wheel first on the path and the pipeline's packages out of reach."""
    whole = f"{BLOCKED}\nsys.path.insert(0, {str(installed)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", whole], cwd=cwd, capture_output=True, text=True)


def test_the_wheel_holds_the_library_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} - {f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"} == {
        "primorl"
    }
    ours = {file.relative_to(ROOT).as_posix() for file in (ROOT / "primorl").rglob("*.py")}
    assert ours <= set(names)
    assert "primorl/py.typed" in names
    templates = {file.relative_to(ROOT).as_posix() for file in (ROOT / "primorl").rglob("*.j2")}
    assert {name for name in names if name.endswith(".j2")} == templates != set()
    assert not any("test" in Path(name).name or "benchmark" in name for name in names)


def test_the_wheel_holds_a_new_projects_files_as_the_repository_has_them(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        prefix = f"primorl/{FOLDER}/"
        held = {name.removeprefix(prefix): archive.read(name) for name in archive.namelist() if name.startswith(prefix)}
    files = {path.relative_to(ROOT).as_posix() for pattern in FILES for path in ROOT.glob(pattern)}
    assert held == {name: (ROOT / name).read_bytes() for name in files}


def test_a_source_distribution_can_build_that_wheel(tmp_path: Path) -> None:
    with tarfile.open(build(tmp_path, "--sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"setup.py", "dvc.yaml", "params.yaml", "pipeline/runner.py", "data/consent/.gitignore"} <= names


def test_a_policy_needs_few_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
        (entries,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        assert "primorl = primorl.commands.main:main" in archive.read(entries).decode()
    base = re.findall(r"^Requires-Dist: ([\w.-]+)(?!.*extra ==).*$", text, re.M)
    assert set(base) == {"numpy", "pydantic", "rich", "safetensors", "typer"}


def test_the_readmes_example_runs_without_the_pipelines_packages(installed: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Use the policy")[2]
    example = text.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "models/policy").mkdir(parents=True)
    save(tmp_path / "models/policy", EPOCHS, variant="private", environment=None)
    done = python(installed, f"{example}\nprint(primorl.__file__, action.shape, actions.shape)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{installed / 'primorl/__init__.py'} (2,) (2, 2)\n"


def test_what_is_not_installed_is_named_with_its_extra(installed: Path, tmp_path: Path) -> None:
    done = python(installed, "import primorl; primorl.load_model('models/dynamics')", cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: primorl.load_model needs torch, which is not installed; run `pip install 'primorl[model]'`"
    )
    command = "from primorl.commands.main import main; sys.exit(main(['data', 'describe']))"
    done = python(installed, command, cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: data: needs \w+, which is not installed; run `pip install 'primorl\[pipeline\]'`\n", done.stderr
    )
    assert python(installed, command.replace("'data', 'describe'", "'--version'"), cwd=tmp_path).returncode == 0


def test_importing_primorl_is_quick() -> None:
    """0.1 s beside the interpreter's own start; the best of several."""
    code = "import time; begun = time.perf_counter(); import primorl; print(time.perf_counter() - begun)"
    took = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(took) < 0.1
