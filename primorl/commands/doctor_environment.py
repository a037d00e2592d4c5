"""What ``primorl doctor`` looks at beside the project: environment, packages, device, and who may read ``.primorl``."""

import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal

State = Literal["ok", "warning", "problem"]
Verdict = tuple[State, str]
"""``warning``: runs work, with a loss that the text names. ``problem``: something needs to be done."""

_SUPPORTED = ((3, 11), (3, 12))
_SHOWN = ("torch", "numpy", "pyarrow", "dvc", "mlflow", "dp-accounting", "gymnasium")
_EXTRAS = ("", "model", "pipeline")
_INSTALL = "pip install 'primorl[pipeline]'"


def python(root: Path) -> Verdict:
    """Whether this Python is supported."""
    del root
    version = sys.version_info[:2]
    name = ".".join(map(str, sys.version_info[:3]))
    return ("ok", name) if version in _SUPPORTED else ("problem", f"found {name}; install Python 3.11 or 3.12")


def environment(root: Path) -> Verdict:
    """Where packages are installed. DVC runs the stages with the first ``python`` on PATH, which must be this one."""
    del root
    ours, found = Path(sys.executable).parent, shutil.which("python")
    if found is not None and Path(found).absolute().parent == ours:
        return "ok", sys.prefix
    return "problem", f"found {found or 'no python'} first on PATH; put {ours} first: source {ours}/activate"


def packages(root: Path) -> Verdict:
    """Versions of the main packages, and those that are missing or that primorl was not made for."""
    from packaging.requirements import Requirement

    del root
    try:
        listed = [Requirement(text) for text in metadata.requires("primorl") or ()]
    except metadata.PackageNotFoundError:
        return "problem", f"primorl itself is not installed, so its packages may be any; {_INSTALL}"
    absent, other = [], []
    for wanted in listed:
        if wanted.name == "primorl" or not any(_asked(wanted.marker, extra) for extra in _EXTRAS):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            absent.append(wanted.name)
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            other.append(f"{wanted.name} {version}, made for {wanted.specifier}")
    if absent:
        return "problem", f"missing: {', '.join(absent)}; {_INSTALL}"
    if other:
        return "warning", f"{'; '.join(other)}; {_INSTALL}"
    return "ok", ", ".join(f"{name} {metadata.version(name)}" for name in _SHOWN)


def _asked(marker: object, extra: str) -> bool:
    """Whether a requirement's marker (None: always) holds with an extra."""
    from packaging.markers import Marker

    return marker.evaluate({"extra": extra}) if isinstance(marker, Marker) else True


def git(root: Path) -> Verdict:
    """Whether the project can be versioned."""
    if shutil.which("git") is None:
        return "warning", "not installed: `dvc exp` and versions of the project need it; install git"
    if not any((folder / ".git").exists() for folder in (root.absolute(), *root.absolute().parents)):
        return "warning", "the project is in no repository, so `dvc exp` does not work; run `git init`"
    return "ok", "there"


def device(root: Path) -> Verdict:
    """Where the stages compute."""
    import torch

    from primorl.config.params import load
    from primorl.project.paths import PARAMS
    from primorl.setup.compute import chosen_device

    if not (root / PARAMS).exists():
        return "ok", "GPU" if torch.cuda.is_available() else "CPU"
    chosen = chosen_device(load(root / PARAMS).compute)
    if chosen.type == "cuda":
        return "ok", f"{torch.cuda.device_count()} GPU: {torch.cuda.get_device_name(chosen)}"
    return "ok", f"CPU, {torch.get_num_threads()} threads"


def version(root: Path) -> Verdict:
    """Whether the project's stages are of the installed version."""
    import primorl
    from primorl.project.template import check_version

    check_version(root, primorl.__version__)
    return "ok", primorl.__version__


def tracking(root: Path) -> Verdict:
    """Whether MLflow's store answers."""
    from primorl.config.params import load
    from primorl.project.paths import PARAMS
    from primorl.tracking.store import check_store

    if not (root / PARAMS).exists():
        return "ok", "no project, no store"
    return "ok", check_store(load(root / PARAMS))


def permissions(root: Path) -> Verdict:
    """Whether others may read what ``.primorl`` holds: secret, ledger, checkpoints, datasets in the making."""
    from primorl.project.files import home
    from primorl.project.paths import STATE

    del root
    state = home() / STATE
    if not state.exists():
        return "ok", "not there yet; the first run makes it"
    if state.stat().st_mode & 0o077:
        return "problem", f"others may read {state}; chmod 700 {state}"
    return "ok", "only its owner may read it"
