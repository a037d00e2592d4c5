"""The last good outputs of a stage that failed, back in their place.

DVC takes a stage's outputs away before it runs it, or it could not bring back an earlier run's from its cache when
``dataset:`` is swapped back. So a stage that fails puts back what ``dvc.lock`` says it had made last.
"""

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from primorl.project.dvc import run_dvc
from primorl.project.files import home, replaced_directory, replaced_file, workspace


def restore_outputs(stage: str) -> list[str]:
    """Put back every missing output of ``stage`` that is in DVC's cache; return their paths.

    What is still there is left alone: a stage that was not started by DVC has lost nothing.
    """
    try:
        lock = yaml.safe_load((workspace() / "dvc.lock").read_text(encoding="utf-8"))
        outputs: list[dict[str, Any]] = lock["stages"][stage]["outs"]
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return []  # it never ran to its end
    missing = {str(o["path"]): str(o.get("md5", "")) for o in outputs if not (workspace() / o["path"]).exists()}
    if not missing:
        return []
    cache = _cache()
    return [p for p, found in missing.items() if _object(cache, found).is_file() and _put_back(p, found, cache)]


def _put_back(path: str, digest: str, cache: Path) -> bool:
    target = workspace() / path
    if not digest.endswith(".dir"):
        with replaced_file(target) as fresh:
            shutil.copyfile(_object(cache, digest), fresh)
        return True
    listed = json.loads(_object(cache, digest).read_text(encoding="utf-8"))
    if not all(_object(cache, entry["md5"]).is_file() for entry in listed):
        return False
    with replaced_directory(target) as fresh:
        for entry in listed:
            file = fresh / PurePosixPath(entry["relpath"])
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_object(cache, entry["md5"]), file)
    return True


def _object(cache: Path, digest: str) -> Path:
    return cache / "files" / "md5" / digest[:2] / digest[2:]


def _cache() -> Path:
    """Where DVC's cache is: DVC knows all the places where that may be configured."""
    return Path(run_dvc(home(), "cache", "dir").stdout.strip() or home() / ".dvc" / "cache")
