"""The wheel is the library alone and of use without the pipeline's packages; files about the project agree with it."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import primorl
from primorl.base.template import FILES, FOLDER
from primorl.policy.exported import save
from tests.policy.test_exported import EPOCHS
from tests.wheels import ROOT, build

# What somebody who only uses a policy has not installed.
ABSENT = (
    *("torch", "dvc", "mlflow", "dp_accounting", "pandas", "scipy", "sqlalchemy", "pyarrow"),
    *(
        "gymnasium",
        "minari",
        "h5py",
        "yaml",
        "jinja2",
        "matplotlib",
        "psutil",
        "tqdm",
        "stable_baselines3",
    ),
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
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
    ]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    return target


def python(installed: Path, code: str, *, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run ``code`` with the installed wheel first on the path and the pipeline's packages out of reach."""
    whole = f"{BLOCKED}\nsys.path.insert(0, {str(installed)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", whole], cwd=cwd, capture_output=True, text=True)


def test_the_wheel_holds_the_library_and_a_new_projects_files_and_needs_few_packages(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    about = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    assert {name.partition("/")[0] for name in content} == {"primorl", about}
    library, prefix = ROOT / "primorl", f"primorl/{FOLDER}/"
    ours = {
        path.relative_to(ROOT).as_posix()
        for ending in ("*.py", "*.j2")
        for path in library.rglob(ending)
    }
    assert ours | {"primorl/py.typed"} <= set(content)
    assert not any("test" in Path(name).name or "benchmark" in name for name in content)
    held = {
        name.removeprefix(prefix): text for name, text in content.items() if name.startswith(prefix)
    }
    files = {path.relative_to(ROOT).as_posix() for pattern in FILES for path in ROOT.glob(pattern)}
    assert held == {name: (ROOT / name).read_bytes() for name in files}
    assert b"primorl = primorl.commands.main:main" in content[f"{about}/entry_points.txt"]
    needed = re.findall(
        r"^Requires-Dist: ([\w.-]+)(?!.*extra ==).*$", content[f"{about}/METADATA"].decode(), re.M
    )
    assert set(needed) == {"numpy", "pydantic", "rich", "safetensors", "typer"}


def test_a_source_distribution_can_build_that_wheel(tmp_path: Path) -> None:
    with tarfile.open(build(tmp_path, "--sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "setup.py",
        "dvc.yaml",
        "params.yaml",
        "pipeline/runner.py",
        "data/consent/.gitignore",
    } <= names


def test_the_readmes_example_runs_without_the_pipelines_packages(
    installed: Path, tmp_path: Path
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Use the policy")[2]
    example = text.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "models/policy").mkdir(parents=True)
    save(tmp_path / "models/policy", EPOCHS, variant="private", environment=None)
    done = python(
        installed, f"{example}\nprint(primorl.__file__, action.shape, actions.shape)", cwd=tmp_path
    )
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
        r"error: data: needs \w+, which is not installed; run `pip install 'primorl\[pipeline\]'`\n",
        done.stderr,
    )
    assert (
        python(
            installed, command.replace("'data', 'describe'", "'--version'"), cwd=tmp_path
        ).returncode
        == 0
    )


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version_and_every_extra_of_a_how_to_exists() -> None:
    citation, project = (
        yaml.safe_load(text("CITATION.cff")),
        tomllib.loads(text("pyproject.toml"))["project"],
    )
    assert {"cff-version", "message", "title", "authors"} <= citation.keys(), (
        "what the format needs"
    )
    assert (citation["version"], citation["license"]) == (primorl.__version__, project["license"])
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    named = {
        name
        for page in pages
        for found in re.findall(r"primorl\[([\w,-]+)\]", page)
        for name in found.split(",")
    }
    assert named <= project["optional-dependencies"].keys()
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in text("constraints.txt").splitlines()
    }
    assert {"zensical", "dvc-s3", "moto", "riskcal"} <= pinned
    assert "mlflow>=3.11" in text("pyproject.toml"), "older ones have known holes"


def test_what_git_ignores_enters_no_image() -> None:
    """Private rows, the ledger, the secret and DVC's cache would otherwise leave with the image."""
    kept_out = text(".dockerignore").splitlines()
    ignored = [
        line.strip("/")
        for line in text(".gitignore").splitlines()
        if line and not line.startswith("#")
    ]
    for path in [
        *ignored,
        ".git",
        ".dvc/cache",
        ".dvc/config.local",
        "data/withdrawals/*",
        "data/consent/*",
    ]:
        parts = Path(path).parts
        above = {"/".join(parts[: n + 1]) for n in range(len(parts))} | {
            f"{parts[0]}/*",
            f"**/{parts[-1]}",
        }
        caught = above & set(kept_out) or (path.endswith("_cache") and ".*_cache" in kept_out)
        assert caught, path


def test_the_container_runs_as_a_user_without_rights() -> None:
    dockerfile = text("Dockerfile")
    assert re.findall(r"^USER (\d+)", dockerfile, re.MULTILINE)[-1] != "0"
    assert "COPY --chown=primorl:primorl pyproject.toml constraints.txt" in dockerfile
    assert "-c constraints.txt" in text("Makefile"), "make setup installs the pinned versions"
    container = json.loads(text(".devcontainer/devcontainer.json"))
    assert f"AS {container['build']['target']}\n" in dockerfile
