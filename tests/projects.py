"""A project's settings in a folder of a test's own, and folders that all tests share."""

import copy
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from primorl.config import params

ROOT = Path(__file__).resolve().parents[1]


PRIVACY: dict[str, Any] = {"sampling_probability": 0.1, "rounds": 150, "clipping_norm": 0.35}
DYNAMICS: dict[str, Any] = {
    "train_anyway": True,
    "start": "random",
    "ensemble_size": 3,
    "log_variance_bounds": [-10.0, 0.5],
    "hidden": [64, 64],
    "beta_nll": 0.0,
    "learning_rate": 0.005,
    "max_transitions_per_unit": 10_000,
    "server_momentum": 0.6,
    "server_averaging": 0.9,
}
"""What a run has where nothing is fitted.

Tests train on a few units, where no settings could learn.
"""


def project_settings(dataset: str = "pendulum-replay") -> dict[str, Any]:
    """The repository's own settings with every key decided, and what the dataset's file says
    as ``chosen``.

    What a run would fit to its data has the value of `PRIVACY` and `DYNAMICS`, or else the
    dataset's own. One unit in fifty is public where its recipe says nothing.
    """
    return copy.deepcopy(_settings(dataset))


@cache
def _settings(dataset: str) -> dict[str, Any]:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    entry = yaml.safe_load((ROOT / f"datasets/{dataset}.yaml").read_text(encoding="utf-8"))
    raw["partition"] |= {
        "public_fraction": entry["recipe"].get("partition", {}).get("public_fraction", 0.02)
    }
    checked = params.parse(raw | {"dataset": dataset}, ROOT / "params.yaml")
    content = params.plain(checked)
    for name, block in (("privacy", PRIVACY), ("dynamics", DYNAMICS)):
        content[name] |= {
            key: value
            for key, value in block.items()
            if key == "train_anyway" or f"{name}.{key}" in checked.undecided
        }
    content["privacy"]["shares"] = {"model": 1.0}
    if content["policy"]["starts"] is None and checked.chosen.environment is None:
        content["policy"]["starts"] = "public"
    return content


def from_plain(content: dict[str, Any], origins: Mapping[str, str] | None = None) -> params.Params:
    """Check values as `params.plain` gives them: every key decided, the dataset's under
    ``chosen``.
    """
    own = Path(f"datasets/{content.get('dataset')}.yaml")
    return params.check({**content, "origins": dict(origins or {})}, Path("params.yaml"), own)


def write_settings(content: dict[str, Any], folder: Path = Path()) -> params.Params:
    """Write ``params.yaml`` and the dataset's file, both from `project_settings`; return them as a
    stage reads them.
    """
    (folder / "datasets").mkdir(exist_ok=True)
    own = {key: value for key, value in content.items() if key not in ("chosen", "online")}
    for file, said in (
        ("params.yaml", own),
        ("online.yaml", content.get("online", {})),
        (f"datasets/{content['dataset']}.yaml", content["chosen"]),
    ):
        (folder / file).write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    return params.load(folder / "params.yaml")


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in ``folder``, which is made if need be, as the project."""
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        yield


def copy_known(folder: Path, wanted: Callable[[str], bool] = bool) -> Path:
    """Copy the wanted ones of the files that git knows or does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(wanted, found.split("\0")):
        source, copy = ROOT / name, folder / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    return folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Have one process of a test run fill a folder, for all of them to read."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
            make(folder)
            done.touch()
    return folder
