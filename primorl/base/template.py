"""A new project's files: copies of the repository's own, which the wheel holds.

``setup.py`` imports `FILES` and `FOLDER` where none of the dependencies is installed.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from primorl.base import PipelineError
from primorl.base.files import replaced_file

_DEFAULT = "datasets/pendulum-replay.yaml"  # the one that params.yaml names
FILES = (
    "dvc.yaml",
    "online.yaml",
    "params.yaml",
    _DEFAULT,
    "pipeline/*.py",
    ".gitignore",
    ".dvcignore",
    ".dvc/config",
    ".dvc/.gitignore",
    "data/README.md",
    "data/*/.gitignore",
    "models/README.md",
    "examples/serve_policy.py",
)
"""Patterns from the repository's root."""
FOLDER = "template"  # where they are in the installed package
_OF_THE_VERSION = (
    "dvc.yaml",
    "pipeline/",
    "primorl.version",
)  # the others are the user's once they are there
VERSION = Path("primorl.version")
"""Names the version that a project's stages are of.

Each stage depends on it, in the place of the package's code.
"""


def template(version: str) -> Iterator[tuple[str, str]]:
    """The path of each file in a project of the installed version, and its text.

    Raises:
        PipelineError: the installed package lacks the files.
    """
    package = Path(__file__).parents[1]
    root = package / FOLDER if (package / FOLDER).is_dir() else package.parent
    for pattern in FILES:
        found = sorted(root.glob(pattern))
        if not found:
            raise PipelineError(f"{root / pattern}: not there; install primorl anew")
        for path in found:
            name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
            yield name, _of_installed(text) if name == "dvc.yaml" else text
    yield str(VERSION), f"{version}\n"


def _of_installed(pipeline: str) -> str:
    """Make the stages of ``dvc.yaml`` depend on `VERSION` in the place of primorl's source code."""
    pipeline = re.sub(r"^      - primorl/.*\n", "", pipeline, flags=re.MULTILINE)
    ours = rf"\1      - {VERSION}\n"
    return re.sub(r"^(      - pipeline/.*\n)", ours, pipeline, flags=re.MULTILINE)


def write_new(folder: Path, version: str, entry: tuple[str, str] | None = None) -> None:
    """Fill a new or empty folder with a project, and make it a git repository where git is
    installed.

    DVC's files are those that ``dvc init`` writes. Without git they say so (``core.no_scm``). All
    is written beside the folder first, so that an error leaves nothing in it. `VERSION` comes last:
    with it the folder is a project.

    Args:
        folder: empty, or not there.
        version: the installed one.
        entry: name and content of the dataset's file that params.yaml shall name; None: the
            template's.

    Raises:
        PipelineError: the installed package lacks the files, or git fails.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    files = dict(template(version))
    if entry is not None:
        name, text = entry
        # in quotes, as YAML may read 1e5 or null else
        named = re.sub(r"(?m)^dataset: \S+", f'dataset: "{name}"', files["params.yaml"])
        files["params.yaml"] = named
        del files[_DEFAULT]
        files[f"datasets/{name}.yaml"] = text
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as scratch:
        made = Path(scratch) / folder.name
        for path, text in files.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_text(text, encoding="utf-8")
        _begin_repository(made)
        folder.mkdir(exist_ok=True)
        for item in sorted(made.iterdir(), key=lambda item: item.name == VERSION.name):
            item.rename(folder / item.name)


def _begin_repository(folder: Path) -> None:
    if shutil.which("git") is None:
        with (folder / ".dvc/config").open("a", encoding="utf-8") as config:
            config.write("    no_scm = true\n")
        return
    begin = ["git", "init", "--quiet"]
    if subprocess.run(begin, cwd=folder, check=False, capture_output=True).returncode != 0:
        raise PipelineError(f"{folder}: `git init` fails there; run it yourself to see why")


def bring_up_to_date(folder: Path, version: str) -> list[str]:
    """Write the files of the installed version into a project that `write_new` made; the user's own
    stay.

    Returns:
        The files that were others before.
    """
    changed = []
    for name, text in template(version):  # the version comes last: it speaks of all
        path = folder / name
        if name.startswith(_OF_THE_VERSION) and (
            not path.exists() or path.read_text(encoding="utf-8") != text
        ):
            with replaced_file(path) as fresh:
                fresh.write_text(text, encoding="utf-8")
            changed.append(name)
    return changed


def check_version(version: str) -> None:
    """Check that the project's stages are of the installed version; a clone of the repository has
    nothing to check.

    Raises:
        PipelineError: they are of another one.
    """
    found = VERSION.read_text(encoding="utf-8").strip() if VERSION.exists() else version
    if found != version:
        raise PipelineError(
            f"{VERSION}: found {found[:40]!r}, installed is primorl {version}; run `primorl init .`"
        )
