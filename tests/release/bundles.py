"""Making bundles, and changing single things in them as a forger would, for the tests of a
release.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from primorl.base import PipelineError
from primorl.base.files import read_json, write_json
from primorl.base.records import to_json
from primorl.config import params
from primorl.release import bundle
from primorl.release.build import release
from primorl.release.card import render
from primorl.release.contents import (
    CARD,
    MANIFEST,
    Bundle,
    make_manifest,
)

Change = Callable[[Path], object]


def made(target: str = "out") -> Path:
    release(Path(target), params.load(Path("params.yaml")))
    return Path(target)


def edit(path: Path, **changes: Any) -> None:
    write_json(path, read_json(path) | changes)


def edit_statements(folder: str = "models", **changes: Any) -> None:
    """The same change in the model's and the policy's statement."""
    for part in ("dynamics", "policy"):
        edit(Path(folder, part, "privacy.json"), **changes)


def say_who(path: Path) -> None:
    """Let a file of tensors tell more than its tensors."""
    save_file(load_file(path), path, metadata={"made": "by ana"})


def at(name: str, path: str | tuple[Any, ...], value: Any) -> Change:
    """Another value at a path of keys in a file, such as ``records.0.state``, or a function of the
    old one.
    """

    def forge(folder: Path) -> None:
        keys = (
            [int(key) if key.isdigit() else key for key in path.split(".")]
            if isinstance(path, str)
            else path
        )
        content = read_json(folder / name)
        inner: Any = content
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value(inner[keys[-1]]) if callable(value) else value
        write_json(folder / name, content)

    return forge


def relist(folder: Path) -> None:
    """What a forger does last."""
    write_json(folder / MANIFEST, to_json(make_manifest(folder)))


def renew_card(folder: Path) -> None:
    """Card and manifest, with the ledger's digests left as they are."""
    (folder / CARD).write_text(render(Bundle.read(folder)), encoding="utf-8")
    relist(folder)


def refusal(folder: Path, renew: Change = relist) -> str | None:
    """What the check says of a bundle, in one line; None: it is sound."""
    said = None
    try:
        renew(folder)
        bundle.verify(folder)
    except PipelineError as refused:
        said = str(refused)
    assert "\n" not in (said or "")
    return said


def each_refused(
    original: Path, tmp_path: Path, table: Iterable[tuple[Change, str]], renew: Change = relist
) -> None:
    """Each change alone, of a fresh copy, is refused in one line with these words."""
    for number, (change, says) in enumerate(table):
        folder = shutil.copytree(original, tmp_path / f"forged{number}")
        change(folder)
        reason = refusal(folder, renew)
        assert says in (reason or "accepted"), f"{number}: {says!r}: {reason}"
        shutil.rmtree(folder)


def refused_at_home(says: str) -> None:
    """`release` refuses in one line and leaves nothing behind."""
    before = set(Path().iterdir())
    with pytest.raises(PipelineError) as wrong:
        made()
    assert says in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert set(Path().iterdir()) == before


def in_tensor(file: str, name: str, change: Callable[[torch.Tensor], Any]) -> Change:
    def forge(folder: Path) -> None:
        tensors = load_file(folder / file)
        change(tensors[name])
        save_file(tensors, folder / file)

    return forge


def leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(content, dict | list) and content:
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))
    else:
        yield path, content
