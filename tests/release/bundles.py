"""Making bundles, and changing single things in them as a forger would, for the tests of a
release.
"""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256, read_json, write_json
from primorl.base.records import to_json
from primorl.config import params
from primorl.evaluate.private.results import PrivateEvaluation
from primorl.release import bundle
from primorl.release.build import release
from primorl.release.card import render
from primorl.release.contents import (
    ANSWERS,
    CARD,
    EVALUATION,
    LEDGER,
    MANIFEST,
    MODEL,
    POLICY,
    make_manifest,
)

Change = Callable[[Path], object]
Edit = tuple[str, Change]
# Lists of like numbers: of each, every fifth entry is edited, and in the model's statement only.
_CURVES = ("profile", "attacks", "groups")
_REMOVED = object()


def made(target: str = "out") -> Path:
    release(Path(target), params.load(Path("params.yaml")))
    return Path(target)


def edit(path: Path, **changes: Any) -> None:
    write_json(path, read_json(path) | changes)


def edit_statements(folder: str = "models", **changes: Any) -> None:
    """The same change in the model's and the policy's statement."""
    for part in ("dynamics", "policy"):
        edit(Path(folder, part, "privacy.json"), **changes)


def edit_tensors(
    path: Path, extra: dict[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> None:
    save_file(load_file(path) | extra, path, metadata=metadata)


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
        if value is _REMOVED:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = value(inner[keys[-1]]) if callable(value) else value
        write_json(folder / name, content)

    return forge


def without(name: str, path: str) -> Change:
    return at(name, path, _REMOVED)


def together(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def relist(folder: Path) -> None:
    """What a forger does last."""
    write_json(folder / MANIFEST, to_json(make_manifest(folder)))


def renew_card(folder: Path) -> None:
    """Card and manifest, with the ledger's digests left as they are."""
    (folder / CARD).write_text(render(folder), encoding="utf-8")
    relist(folder)


def renew_everything(folder: Path) -> None:
    """All that needs no secret: both statements alike, digests along the chain, the card, the
    manifest.
    """
    shutil.copyfile(folder / MODEL[2], folder / POLICY[2])
    digests = {
        "model_sha256": file_sha256(folder / MODEL[0]),
        "policy_sha256": file_sha256(folder / POLICY[0]),
    }
    for name in (POLICY[1], EVALUATION, *([ANSWERS] if (folder / ANSWERS).exists() else [])):
        edit(folder / name, **digests)
    ledger = read_json(folder / LEDGER)
    for record in ledger["records"]:
        if record["stage"].startswith("evaluate_private"):
            record["made"] = PrivateEvaluation.read(folder / ANSWERS).made(
                record["stage"].partition(": ")[2]
            )
        elif "made" in record:
            record["made"] = {
                name: file_sha256(folder / "dynamics" / name) for name in record["made"]
            }
    write_json(folder / LEDGER, ledger)
    renew_card(folder)


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
        assert says in (reason or "accepted"), f"{says!r}: {reason}"
        shutil.rmtree(folder)


def accepted(original: Path, tmp_path: Path, edits: Iterable[Edit], renew: Change) -> list[str]:
    """Names of the edits that the check lets through."""
    found = []
    for name, change in edits:
        folder = shutil.copytree(original, tmp_path / "edited")
        change(folder)
        if refusal(folder, renew) is None:
            found.append(name)
        shutil.rmtree(folder)
    return found


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


def impossible_tensors(original: Path) -> Iterator[Edit]:
    """Numbers that no training finds, in every tensor; and bounds that are swapped."""
    for file in (MODEL[0], POLICY[0]):
        tensors = load_file(original / file)
        for name, tensor in tensors.items():
            wrong = [torch.full_like(tensor, number) for number in (torch.nan, torch.inf)]
            if name.endswith("scale"):
                wrong += [0 * tensor, -tensor]
            if name.endswith("_low"):
                wrong.append(tensors[name.replace("_low", "_high")] + 1)
            for number, other in enumerate(wrong):
                yield f"{file}: {name}: {number}", with_tensor(file, name, other)
    config = read_json(original / MODEL[1])
    for bound in ("reward", "log_variance"):
        higher = config[f"{bound}_high"] + 1
        yield f"{bound}: swapped", at(MODEL[1], f"{bound}_low", higher)


def with_tensor(file: str, name: str, tensor: torch.Tensor) -> Change:
    return lambda folder: edit_tensors(folder / file, {name: tensor})


def moved_tensors(original: Path) -> Iterator[Edit]:
    """One number of every tensor, a little."""
    for file in (MODEL[0], POLICY[0]):
        for name in load_file(original / file):
            yield (
                f"{file}: {name}",
                in_tensor(file, name, lambda tensor: tensor.view(-1)[0].add_(0.25)),
            )


def changed_leaves(folder: Path, names: Iterable[str]) -> Iterator[Edit]:
    """Every leaf of these files, another value of its type."""
    for name in names:
        for path, value in leaves(read_json(folder / name)):
            if path[0] not in _CURVES or len(path) == 1 or (path[1] % 5 == 0 and name != POLICY[2]):
                yield f"{name}: {path[0]}: {path[1:]}", at(name, path, another(value))


def removed_keys(folder: Path, names: Iterable[str]) -> Iterator[Edit]:
    """Every key of these files, missing."""
    for name in names:
        for key in read_json(folder / name):
            yield f"{name}: {key}: removed", without(name, key)


def another(value: Any) -> Any:
    """A value of the same type, near by where it is a number; a guess where there is none."""
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        # by more than any rounding that a check allows
        return value + math.copysign(max(abs(value) / 1000, 1e-5), value) if value else 0.001
    if isinstance(value, str):
        return ("0" if value[0] != "0" else "1") + value[1:]
    return [*value, "x"] if isinstance(value, list) else {**value, "x": "x"}


def leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(content, dict | list) and content:
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))
    else:
        yield path, content
