import hashlib
import json
import shutil
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from primorl.base.errors import PipelineError
from primorl.data.sources import source_of
from tests.data.builders import create, snapshot
from tests.data.sources.minari_builders import box_episode, box_spaces, entry
from tests.data.sources.servers import Answer, serving

REVISION = "a" * 40


def hub(repository: str, files: dict[str, bytes]) -> dict[str, Answer]:
    """What the hub answers about one repository of datasets."""
    info = {"id": repository, "sha": REVISION, "siblings": [{"rfilename": name} for name in files]}
    tree = [
        {"type": "file", "path": name, "size": len(body), "oid": "0" * 40}
        for name, body in files.items()
    ]
    answers: dict[str, Answer] = {
        f"/api/datasets/{repository}": (200, {}, json.dumps(info).encode()),
        f"/api/datasets/{repository}/revision/main": (200, {}, json.dumps(info).encode()),
        f"/api/datasets/{repository}/tree/{REVISION}": (200, {}, json.dumps(tree).encode()),
    }
    for name, body in files.items():
        headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": REVISION}
        answers[f"/datasets/{repository}/resolve/{REVISION}/{name}"] = (200, headers, body)
    return answers


@pytest.fixture
def root(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of datasets, and in data/raw what an earlier collect left."""
    (project / "raw").mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(project / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    return project / "minari"


def point(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """What the variable HF_ENDPOINT does to a process that starts."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def collect(dataset_id: str, root: Path) -> None:
    source_of("small", entry(dataset_id, root=root, remote=True)).collect(Path("raw"))


def test_a_dataset_that_is_not_here_is_fetched_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = create(tmp_path / "there", "hop/medium-v0", [box_episode(3, 0)], **box_spaces())
    files = {f"medium-v0/data/{name}": body for name, body in snapshot(written).items()}
    others = {"expert-v0/data/metadata.json": b"{}", "README.md": b"x"}
    answers = hub("farama-minari/hop", files | others)
    with serving(answers) as address:
        point(monkeypatch, address)
        collect("hop/medium-v0", root)
    here = {f"hop/{name}": body for name, body in files.items()}
    assert snapshot(root) == here
    assert snapshot(Path("raw")) == here
    shutil.rmtree("raw/hop")
    collect("hop/medium-v0", root)  # nothing is asked for: the server is gone


def refused(dataset_id: str, root: Path, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as wrong:
        collect(dataset_id, root)
    assert "\n" not in str(wrong.value)


def test_what_cannot_be_fetched_is_told_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = hub("farama-minari/hop", {"README.md": b"x"})
    with serving(answers, {"X-Error-Code": "RepoNotFound"}) as address:
        point(monkeypatch, address)
        for unknown in ("hop/medium-v0", "skip/medium-v0"):
            refused(unknown, root, f"{unknown}'")
    refused("hop/medium-v0", root, "could not be fetched")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refused("hop/medium-v0", root, "could not be fetched .OfflineModeIsEnabled")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused("hop/medium-v0", root, r"pip install 'primorl\[minari-remote\]'")
    assert snapshot(Path("raw")) == {}
