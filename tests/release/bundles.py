"""Making bundles and changing files for the tests of a release."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from primorl.config import params
from primorl.project.files import read_json, write_json
from primorl.project.records import to_json
from primorl.release import contents
from primorl.release.build import release
from primorl.release.contents import FILES, MANIFEST

TEXTS = sorted((FILES | {MANIFEST}) - {"dynamics/model.safetensors", "policy/policy.safetensors"})


def made(target: str = "out", *, void_ok: bool = False) -> Path:
    release(Path(target), params.load(Path("params.yaml")), void_ok=void_ok)
    return Path(target)


def edit(path: Path, **changes: Any) -> None:
    write_json(path, read_json(path) | changes)


def edit_statements(folder: str = "models", **changes: Any) -> None:
    """The same change in the model's and the policy's statement."""
    for part in ("dynamics", "policy"):
        edit(Path(folder, part, "privacy.json"), **changes)


def edit_tensors(path: Path, extra: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    save_file(load_file(path) | extra, path, metadata=metadata)


def relist(folder: Path) -> None:
    """What a forger does last."""
    write_json(folder / MANIFEST, to_json(contents.manifest_of(folder)))
