"""What ``dvc.lock`` says the stages wrote, held against what is there now."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from primorl.project.errors import PipelineError
from primorl.project.paths import LOCK


def check_outputs(paths: Sequence[Path]) -> None:
    """Refuse outputs that were changed since a stage wrote them. Where DVC recorded none, nothing is compared.

    So an edit that no digest of the chain covers, such as a return in the summary, and a checkout that was interrupted
    are noticed before anything leaves.

    Raises:
        PipelineError: names the output.
    """
    listed = _listed()
    for path in paths:
        if (digest := listed.get(path.as_posix())) is not None and digest != _digest(path):
            raise PipelineError(
                f"{path}: not what {LOCK} says that its stage wrote: edited, or a checkout was interrupted; "
                "`dvc checkout` brings it back, `dvc repro` makes it again"
            )


def _listed() -> dict[str, str]:
    """MD5 of every output by path, as DVC 3 writes them."""
    try:
        stages = yaml.safe_load(LOCK.read_text(encoding="utf-8"))["stages"].values()
        outputs: list[dict[str, Any]] = [output for stage in stages for output in stage.get("outs", [])]
        return {output["path"]: output["md5"] for output in outputs if output.get("hash") == "md5"}
    except (OSError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return {}


def _digest(path: Path) -> str:
    """DVC's MD5 of a file, or of the list of a folder's files."""
    if not path.is_dir():
        return _md5(path)
    files = sorted((file.relative_to(path).as_posix(), file) for file in path.rglob("*") if file.is_file())
    listing = [{"md5": _md5(file), "relpath": name} for name, file in files]
    return hashlib.md5(json.dumps(listing, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
