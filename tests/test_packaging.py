"""The wheel is the library alone and of use without the pipeline's packages; files about the
project agree with it.
"""

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import primorl
from primorl.base.template import FILES, FOLDER
from primorl.policy.exported import save
from tests.examples.test_serve_policy import asked, listening
from tests.policy.test_loaded import EPOCHS
from tests.projects import ROOT
from tests.wheels import build

METADATA = re.compile(r"^Requires-Dist: ([\w.-]+)(?!.*extra ==).*$", re.MULTILINE)


def about(wheel: Path, name: str = "METADATA") -> str:
    return f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/{name}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that git knows or does not ignore."""
    return build(tmp_path_factory.mktemp("wheel"), "--wheel")


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    needed = METADATA.findall(zipfile.ZipFile(wheel).read(about(wheel)).decode())
    python = folder / "bin/python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    if (uv := Path(sys.executable).with_name("uv")).exists():
        install = [str(uv), "pip", "install", "--quiet", "--python", str(python)]
    if subprocess.run([*install, *needed], capture_output=True).returncode != 0:
        pytest.skip("no registry of packages answers")
    subprocess.run([*install, "--no-deps", str(wheel)], check=True, capture_output=True)
    return python


def run(python: Path, code: str, *, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([python, "-I", "-c", code], cwd=cwd, capture_output=True, text=True)


def test_the_wheel_holds_the_library_and_a_new_projects_files_and_needs_few_packages(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    assert {name.partition("/")[0] for name in content} == {"primorl", Path(about(wheel)).parts[0]}
    library, prefix = ROOT / "primorl", f"primorl/{FOLDER}/"
    ours = {
        path.relative_to(ROOT).as_posix()
        for ending in ("*.py", "*.j2", "templates/*.yaml")
        for path in library.rglob(ending)
    }
    assert ours | {"primorl/py.typed"} <= set(content)
    assert not any("test" in Path(name).name or "benchmark" in name for name in content)
    held = {
        name.removeprefix(prefix): text for name, text in content.items() if name.startswith(prefix)
    }
    files = {path.relative_to(ROOT).as_posix() for pattern in FILES for path in ROOT.glob(pattern)}
    assert held == {name: (ROOT / name).read_bytes() for name in files}
    assert b"primorl = primorl.commands.main:main" in content[about(wheel, "entry_points.txt")]
    assert set(METADATA.findall(content[about(wheel)].decode())) == {
        "numpy",
        "pydantic",
        "safetensors",
        "typer",
    }


def test_the_bare_wheel_runs_the_readmes_lines_and_serves_a_policy(
    bare: Path, tmp_path: Path
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Use the policy")[2]
    example = text.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "models/policy").mkdir(parents=True)
    save(tmp_path / "models/policy", EPOCHS, variant="private", environment=None)
    done = run(bare, f"{example}\nprint(action.shape, actions.shape)", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "(2,) (2, 2)\n"), done.stderr
    script = tmp_path / "serve_policy.py"
    script.write_bytes((ROOT / "examples/serve_policy.py").read_bytes())
    with listening([str(bare), "-I", "-u", str(script)], tmp_path) as (port, _):
        assert asked(port, [1.0, 0.0, 0.0])[0] == 200


def test_what_is_not_installed_is_named_with_its_extra(bare: Path, tmp_path: Path) -> None:
    done = run(bare, "import primorl; primorl.load_model('models/dynamics')", cwd=tmp_path)
    assert "pip install 'primorl[model]'" in done.stderr.splitlines()[-1]
    command = "import sys; from primorl.commands.main import main; sys.exit(main(['plan']))"
    done = run(bare, command, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "pip install 'primorl[pipeline]'" in done.stderr
    assert run(bare, command.replace("'plan'", "'--version'"), cwd=tmp_path).returncode == 0


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version_and_every_extra_of_a_how_to_exists() -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert (citation["version"], citation["license"]) == (primorl.__version__, project["license"])
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    for extras in re.findall(r"primorl\[([\w,-]+)\]", pages):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_what_git_ignores_enters_no_image() -> None:
    """Private rows, the ledger, the secret and DVC's cache would otherwise leave with the image."""
    kept_out = text(".dockerignore").splitlines()
    ignored = [
        line.strip("/") for line in text(".gitignore").splitlines() if line and line[0] not in "#!"
    ]
    user = ["data/withdrawals/*", "data/consent/*"]
    for path in [*ignored, *user, ".git", ".dvc/cache", ".dvc/config.local"]:
        parts = Path(path).parts
        above = {"/".join(parts[: n + 1]) for n in range(len(parts))}
        above |= {f"{parts[0]}/*", f"**/{parts[-1]}"}
        caught = above & set(kept_out) or (path.endswith("_cache") and ".*_cache" in kept_out)
        assert caught, path
