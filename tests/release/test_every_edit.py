"""A stranger's bundle with any one thing changed in it: every tensor, every key of every JSON file."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting import dp_event
from safetensors.torch import load_file, save_file

from primorl.config import params
from primorl.privacy.ledger.ledger import Request, Version
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, read_json, write_json
from primorl.release import bundle
from primorl.release.contents import EVALUATION, LEDGER, MODEL, POLICY
from primorl.release.pages import render
from primorl.setup.accounts import project_ledger
from tests.release.bundles import made, relist
from tests.release.released_project import inside

Edit = tuple[str, Callable[[Path], None]]
JSON = (*MODEL[1:], *POLICY[1:], LEDGER, EVALUATION)


@pytest.fixture(scope="module")
def original(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of data that a failed run of an earlier version has used, too; read only."""
    folder = tmp_path_factory.mktemp("edited") / "project"
    shutil.copytree(trained, folder)
    with inside(folder):
        chosen = params.load(Path("params.yaml"))
        shared = Version("5" * 64, "trajectory", 1, Path("data/partitions/units.bin").read_bytes()[:32])
        rounds = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(1.0, dp_event.GaussianDpEvent(9.0)), 2)
        request = Request(shared, "other", "audit", "7" * 64, rounds, 1e-3, None, None)
        with closing(project_ledger(chosen)) as ledger:
            ledger.abort(ledger.reserve(request, None).id, "")
        return made().absolute()


def test_every_edit_is_refused_when_the_stranger_lists_the_hashes_anew(original: Path, tmp_path: Path) -> None:
    """Nothing is accepted: no list of exceptions."""
    edits = [*tensor_edits(original), *key_edits(original)]
    assert len(edits) > 150
    assert accepted(original, tmp_path, edits, relist) == []


# What nothing in a bundle can show about a stranger who renews every digest along the chain and makes the cards again.
# The bundle agrees with itself then. Only its maker's signature tells (`tests/release/test_signature.py`).
NEEDS_A_SIGNATURE = {
    # Numbers that training could have found; a change by chance breaks the digests.
    *(f"{file}: layers" for file in (MODEL[0], POLICY[0])),
    *(f"{MODEL[0]}: target_{part}" for part in ("mean", "scale")),
    *(f"{MODEL[1]}: {key}" for key in ("log_variance_low", "log_variance_high", "reward_low", "reward_high")),
    *(f"{MODEL[1]}: {key}" for key in ("engine_version", "public_loss")),
    f"{POLICY[1]}: epochs",
    # Public facts of the data, and C, of which neither ε nor the weights depend in a way that could be seen.
    *(f"{MODEL[2]}: {key}" for key in ("units", "public_units", "public_assumptions", "clipping_norm", "clipping")),
    # The accountant's version: an ε that claims another one may be 0.1% lower than ours.
    *(f"{name}: accountant" for name in (MODEL[2], LEDGER)),
    # Names and days of charges; their events, ε and number are accounted again.
    f"{LEDGER}: records",
    # The returns, which a simulator measured, and their dataset's name.
    *(f"{EVALUATION}: {key}" for key in ("dataset", "return_mean", "return_ci95", "normalized_score", "episodes")),
}


def test_from_a_stranger_who_renews_every_digest_only_these_edits_need_a_signature(
    original: Path, tmp_path: Path
) -> None:
    """The list is exact: an edit that is noticed without a signature must not stand in it."""
    edits = [(name, change) for name, change in tensor_edits(original) if "one number" in name]
    edits += [
        (name, change)
        for name, change in key_edits(original)
        if name.endswith("changed") and not name.startswith(POLICY[2]) and "sha256" not in name and "made" not in name
    ]
    found = {
        ": ".join(name.replace(": layers.", ": layers: ").split(": ")[:2])
        for name in accepted(original, tmp_path, edits, renew_everything)
    }
    assert found == NEEDS_A_SIGNATURE


def test_impossible_numbers_are_refused_from_a_stranger_who_renews_every_digest(original: Path, tmp_path: Path) -> None:
    """NaN, infinity, scales that are not positive, swapped bounds, weights that overflow: in every tensor."""
    impossible = [(name, change) for name, change in tensor_edits(original) if "one number" not in name]
    impossible += [(f"{key} swapped", swapped(key)) for key in ("reward", "log_variance")]
    assert accepted(original, tmp_path, impossible, renew_everything) == []


def test_a_lower_epsilon_is_refused_from_a_stranger_who_renews_every_digest(original: Path, tmp_path: Path) -> None:
    """0.1% less, at every place that states an ε; and another δ."""
    edits = [
        (f"{name}: {'.'.join(map(str, path))}", setting(name, path, value * factor))
        for name in (MODEL[2], LEDGER)
        for path, value in leaves(read_json(original / name))
        if path[-1] in ("epsilon", "epsilon_rdp", "delta") and value
        for factor in (0.999, 1 - 1e-8, 1.001)
    ]
    assert len(edits) >= 3 * 10
    assert accepted(original, tmp_path, edits, renew_everything) == []


def test_the_bundle_itself_is_sound_also_with_every_digest_renewed(original: Path, tmp_path: Path) -> None:
    """The twin: without an edit nothing is refused, so the tests above refuse the edits."""
    shutil.copytree(original, tmp_path / "copy")
    renew_everything(tmp_path / "copy")
    assert bundle.check(tmp_path / "copy", void_ok=False).private


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
    for name in (POLICY[1], EVALUATION):
        write_json(folder / name, read_json(folder / name) | digests)
    ledger = read_json(folder / LEDGER)
    for record in ledger["records"]:
        if "made" in record:
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
            yield f"{name}: {path[0]}: {path[1:]}: changed", setting(name, path, another(value))
        for path in keys(content):
            yield f"{name}: {path[0]}: {path[1:]}: removed", setting(name, path, None, remove=True)


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
