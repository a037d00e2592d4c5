"""Single changes of a bundle or a project, every tensor and every key of every JSON file, and whether they pass."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from primorl.evaluation.private.results import PrivateEvaluation
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, read_json, write_json
from primorl.release import bundle
from primorl.release.card import render
from primorl.release.contents import ANSWERS, EVALUATION, LEDGER, MODEL, POLICY
from tests.release.bundles import relist

Edit = tuple[str, Callable[[Path], None]]
JSON = (*MODEL[1:], *POLICY[1:], LEDGER, EVALUATION)
# Lists of like numbers: of each, every third entry is edited, and in the model's statement only.
_CURVES = ("profile", "attacks", "groups")


def accepted(original: Path, tmp_path: Path, edits: list[Edit], renew: Callable[[Path], None]) -> list[str]:
    """Names of the edits that the check lets through; each is refused in one line."""
    found = []
    folder = tmp_path / "edited"
    for name, change in edits:
        shutil.copytree(original, folder)
        change(folder)
        reason = refusal(folder, renew)
        if reason is None:
            found.append(name)
        assert "\n" not in (reason or ""), name
        shutil.rmtree(folder)
    return found


def refusal(folder: Path, renew: Callable[[Path], None]) -> str | None:
    try:
        renew(folder)
        bundle.check(folder, void_ok=False)
    except PipelineError as refused:
        return str(refused)
    return None


def renew_everything(folder: Path) -> None:
    """All that needs no secret: both statements alike, digests along the chain, both cards, the manifest."""
    shutil.copyfile(folder / MODEL[2], folder / POLICY[2])
    digests = {"model_sha256": file_sha256(folder / MODEL[0]), "policy_sha256": file_sha256(folder / POLICY[0])}
    for name in (POLICY[1], EVALUATION, *([ANSWERS] if (folder / ANSWERS).exists() else [])):
        write_json(folder / name, read_json(folder / name) | digests)
    ledger = read_json(folder / LEDGER)
    for record in ledger["records"]:
        if record["stage"].startswith("evaluate_private"):
            answers = PrivateEvaluation.read(folder / ANSWERS)
            record["made"] = answers.made(record["stage"].partition(": ")[2])
        elif "made" in record:
            record["made"] = {name: file_sha256(folder / "dynamics" / name) for name in record["made"]}
    write_json(folder / LEDGER, ledger)
    for name, text in render(folder).items():
        (folder / name).write_text(text, encoding="utf-8")
    relist(folder)


def tensor_edits(original: Path) -> Iterator[Edit]:
    for file in (MODEL[0], POLICY[0]):
        for name in load_file(original / file):
            for what, number in (("NaN", torch.nan), ("infinity", torch.inf), ("overflow", 3e38)):
                yield f"{file}: {name}: {what}", in_tensor(file, name, lambda tensor, to=number: tensor.fill_(to))
            yield f"{file}: {name}: one number", in_tensor(file, name, lambda tensor: tensor.view(-1)[0].add_(0.25))
            if name.endswith("scale"):
                yield f"{file}: {name}: zero", in_tensor(file, name, lambda tensor: tensor.view(-1)[0].zero_())
                yield f"{file}: {name}: negative", in_tensor(file, name, lambda tensor: tensor.neg_())
            if name.endswith("_low"):
                yield f"{file}: {name}: swapped", exchange(file, name, name.replace("_low", "_high"))


def in_tensor(file: str, name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / file)
        change(tensors[name])
        save_file(tensors, folder / file)

    return edit


def exchange(file: str, one: str, other: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / file)
        save_file(tensors | {one: tensors[other].clone(), other: tensors[one].clone()}, folder / file)

    return edit


def swapped(key: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = read_json(folder / MODEL[1])
        low, high = f"{key}_low", f"{key}_high"
        write_json(folder / MODEL[1], config | {low: config[high], high: config[low]})

    return edit


def key_edits(original: Path) -> Iterator[Edit]:
    """Every leaf changed; every key removed."""
    for name in JSON:
        content = read_json(original / name)
        for path, value in leaves(content):
            if is_sampled(name, path):
                yield f"{name}: {path[0]}: {path[1:]}: changed", setting(name, path, another(value))
        for path in keys(content):
            if is_sampled(name, path):
                yield f"{name}: {path[0]}: {path[1:]}: removed", setting(name, path, None, remove=True)


def is_sampled(name: str, path: tuple[Any, ...]) -> bool:
    """All but most entries of the curves; the policy's copy of the statement is compared as a whole."""
    if path[0] in _CURVES and len(path) > 1:
        return path[1] % 3 == 0 and name != POLICY[2]
    return True


def setting(name: str, path: tuple[Any, ...], value: Any, remove: bool = False) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = copy.deepcopy(read_json(folder / name))
        inner: Any = content
        for key in path[:-1]:
            inner = inner[key]
        if remove:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    return edit


def another(value: Any) -> Any:
    """A value of the same type, near by where it is a number; a guess where there is none."""
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.001 if value else 0.001
    if isinstance(value, str):
        return ("0" if value[0] != "0" else "1") + value[1:]
    return [*value, "x"] if isinstance(value, list) else {**value, "x": "x"}


def leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(content, dict | list) and content:
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))
    else:
        yield path, content


def keys(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield (*path, key)
            yield from keys(value, (*path, key))
