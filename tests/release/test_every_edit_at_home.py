"""Any one thing changed in the project before `release`: every tensor and key, all copies of it alike."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, read_json, write_json
from primorl.release.build import check_outputs
from primorl.release.contents import MODEL
from tests.release.bundles import made
from tests.release.edits import Edit, another, in_tensor, is_sampled, leaves, setting

pytestmark = pytest.mark.usefixtures("accounted_once")

SUMMARY = "metrics/summary.json"
TENSORS = ("models/dynamics/model.safetensors", "models/policy/policy.safetensors")
CONFIGS = ("models/dynamics/config.json", "models/policy/config.json")
STATEMENTS = ("models/dynamics/privacy.json", "models/policy/privacy.json")
# Keys that only the simulator, the clock or params.yaml knows; `dvc.lock` tells where there is one.
MEASURED = {"seed", "return_mean", "return_ci95", "normalized_score", "episodes", "seconds", "epochs"} | {
    *("public_return_mean", "public_return_ci95", "public_trajectories")
}


def test_edits_that_agree_with_each_other_are_refused_but_of_what_nothing_repeats(project: Path) -> None:
    """Without DVC's record: only the figures of `MEASURED` can be changed."""
    assert {name.split(": ")[1] for name in released_after(project)} == MEASURED


def test_every_edit_is_refused_where_dvc_recorded_the_stages_outputs(project: Path) -> None:
    """As after `dvc repro`: no list of exceptions."""
    write_lock()
    made()
    shutil.rmtree("out")
    assert released_after(project) == []


def released_after(project: Path) -> list[str]:
    """Names of the edits after which a bundle was made."""
    found = []
    kept = {folder: shutil.copytree(folder, project.parent / "kept" / folder) for folder in ("models", "metrics")}
    edits = list(edits_before_release())
    assert len(edits) > 62
    for name, change in edits:
        change(Path())
        try:
            made()
            found.append(name)
            shutil.rmtree("out")
        except PipelineError:
            assert not Path("out").exists(), name
        for folder, copy in kept.items():
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
    return found


def edits_before_release() -> Iterator[Edit]:
    for file in TENSORS:
        for name in load_file(file):
            yield (
                f"{file}: {name}",
                with_renewed_hash(in_tensor(file, name, lambda tensor: tensor.view(-1)[0].add_(0.25))),
            )
    for file in CONFIGS:
        for path, value in leaves(read_json(Path(file))):
            yield f"{file}: {path[0]}", setting(file, path, another(value))
    for path, value in leaves(read_json(Path(STATEMENTS[0]))):
        if is_sampled(MODEL[2], path):
            yield f"statements: {path[0]}", everywhere(path, another(value))
    for path, value in leaves(read_json(Path(SUMMARY))):
        yield f"{SUMMARY}: {path[0]}", setting(SUMMARY, path, another(value))


def with_renewed_hash(change: Any) -> Any:
    """The summary names the policy's digest: it is renewed."""

    def edit(folder: Path) -> None:
        change(folder)
        digests = {"model_sha256": file_sha256(Path(TENSORS[0])), "policy_sha256": file_sha256(Path(TENSORS[1]))}
        write_json(Path(SUMMARY), read_json(Path(SUMMARY)) | digests)

    return edit


def everywhere(path: tuple[Any, ...], value: Any) -> Any:
    """Both statements, and the summary where it repeats the key."""

    def edit(folder: Path) -> None:
        for file in (*STATEMENTS, SUMMARY):
            if path[0] in read_json(folder / file):
                setting(file, path, value)(folder)

    return edit


def write_lock() -> None:
    """``dvc.lock`` as DVC 3 writes it (`test_the_digests_are_those_of_dvc`)."""
    outputs = [
        {"path": path, "hash": "md5", "md5": digest(Path(path))}
        for path in ("models/dynamics", "models/policy", SUMMARY)
    ]
    content = {"schema": "2.0", "stages": {"all": {"cmd": "x", "outs": outputs}}}
    Path("dvc.lock").write_text(yaml.safe_dump(content), encoding="utf-8")


def digest(path: Path) -> str:
    if path.is_file():
        return hashlib.md5(path.read_bytes()).hexdigest()
    files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    listing = [{"md5": digest(path / name), "relpath": name} for name in files]
    return hashlib.md5(json.dumps(listing, sort_keys=True).encode()).hexdigest() + ".dir"


def test_the_digests_are_those_of_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file and a folder with folders in it, hashed by DVC itself (3.x), with these digests in its lock."""
    monkeypatch.chdir(tmp_path)
    Path("m/seeds/1").mkdir(parents=True)
    for name, text in (("m/a", "1\n"), ("m/seeds/1/b", "2\n"), ("m/c", "3\n"), ("s.json", "3\n")):
        Path(name).write_text(text, encoding="utf-8")
    outputs = [
        {"path": "s.json", "hash": "md5", "md5": "6d7fce9fee471194aa8b5b6e47267f03"},
        {"path": "m", "hash": "md5", "md5": "0648ca3811b1f959f8346e19b683fa40.dir"},
    ]
    Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"a": {"outs": outputs}}}), encoding="utf-8")
    check_outputs((Path("s.json"), Path("m"), Path("not listed")))
    Path("m/c").unlink()
    with pytest.raises(PipelineError, match=r"m: not what dvc\.lock says that its stage wrote"):
        check_outputs((Path("s.json"), Path("m")))
