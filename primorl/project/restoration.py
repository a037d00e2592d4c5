"""Put back the last good outputs of a stage that failed.

DVC deletes a stage's outputs before it runs the stage; otherwise it could not bring an earlier run's outputs back from
its cache when ``dataset:`` is swapped back. So a stage that fails puts back what ``dvc.lock`` says it made last. Where
DVC itself fails before it starts the stage (an unknown dataset, a missing block of params.yaml), no code of ours runs:
the next command or stage finds the outputs missing and says how to get them back (`hint`).
"""

import json
import shutil
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from primorl.project.dvc import run_dvc
from primorl.project.files import home, replaced_directory, replaced_file, workspace
from primorl.project.paths import LOCK

_LISTED = 3


def restore_outputs(stage: str) -> list[str]:
    """Put back every missing output of ``stage`` that is in DVC's cache; return their paths.

    Outputs that are there are left alone: a stage that was not started by DVC has lost nothing.
    """
    missing = _missing(stage)
    if not missing:
        return []
    cache = _cache()
    return [path for path, digest in missing.items() if _is_cached(digest, cache) and _put_back(path, digest, cache)]


def missing_outputs() -> list[str]:
    """Paths of all outputs that ``dvc.lock`` lists and that are not in the workspace."""
    return list(_missing())


def recorded_file(output: Path, name: str | None = None) -> str | None:
    """A text file as ``dvc.lock`` records it; None if DVC's cache does not have it.

    Args:
        output: of a stage.
        name: of the file, if the output is a folder; None: the output is the file.
    """
    digest = _recorded().get(str(output), "")
    if not digest or digest.endswith(".dir") != (name is not None) or not (home() / ".dvc").is_dir():
        return None
    cache = home() / ".dvc" / "cache"  # the usual place first: asking DVC takes a second
    if not _is_cached(digest, cache):
        cache = _cache()
    if not _is_cached(digest, cache):
        return None
    if name is not None:
        listed = json.loads(_object(cache, digest).read_text(encoding="utf-8"))
        digest = next((entry["md5"] for entry in listed if entry["relpath"] == name), "")
        if not digest or not _is_cached(digest, cache):
            return None
    return _object(cache, digest).read_text(encoding="utf-8")


def is_recorded(stage: str) -> bool:
    """Whether ``dvc.lock`` says that a stage has run to its end."""
    return bool(_recorded(stage))


def hint(stage: str | None = None) -> str | None:
    """One line that says how to get missing outputs back; None if DVC's cache holds none of them.

    Args:
        stage: a stage whose own outputs are expected to be missing, because DVC is running it now.
    """
    expected = _missing(stage) if stage is not None else {}
    missing = {path: digest for path, digest in _missing().items() if path not in expected}
    if not missing:
        return None
    cache = _cache()
    lost = [path for path, digest in missing.items() if _is_cached(digest, cache)]
    if not lost:
        return None
    more = f" and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
    return f"missing: {', '.join(lost[:_LISTED])}{more}; `dvc checkout` brings back what dvc.lock lists"


def _missing(stage: str | None = None) -> dict[str, str]:
    """Map missing outputs of one stage, or of all, to their digests in ``dvc.lock``."""
    return {path: digest for path, digest in _recorded(stage).items() if not (workspace() / path).exists()}


def _recorded(stage: str | None = None) -> dict[str, str]:
    """Map outputs of one stage, or of all, to their digests in ``dvc.lock``."""
    try:
        stages = _parsed((workspace() / LOCK).read_text(encoding="utf-8"))["stages"]
        chosen = stages.values() if stage is None else [stages[stage]]
        outputs: list[dict[str, Any]] = [output for entry in chosen for output in entry.get("outs", [])]
        return {str(output["path"]): str(output.get("md5", "")) for output in outputs}
    except (OSError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return {}  # nothing has run to its end yet


@lru_cache(maxsize=1)
def _parsed(text: str) -> Any:
    return yaml.safe_load(text)


def _put_back(path: str, digest: str, cache: Path) -> bool:
    target = workspace() / path
    if not digest.endswith(".dir"):
        with replaced_file(target) as fresh:
            shutil.copyfile(_object(cache, digest), fresh)
        return True
    listed = json.loads(_object(cache, digest).read_text(encoding="utf-8"))
    if not all(_is_cached(entry["md5"], cache) for entry in listed):
        return False
    with replaced_directory(target) as fresh:
        for entry in listed:
            file = fresh / PurePosixPath(entry["relpath"])
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_object(cache, entry["md5"]), file)
    return True


def _is_cached(digest: str, cache: Path) -> bool:
    return _object(cache, digest).is_file()


def _object(cache: Path, digest: str) -> Path:
    return cache / "files" / "md5" / digest[:2] / digest[2:]


def _cache() -> Path:
    return Path(run_dvc(home(), "cache", "dir").stdout.strip() or home() / ".dvc" / "cache")
