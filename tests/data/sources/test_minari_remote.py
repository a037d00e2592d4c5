import shutil
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from primorl.base.errors import PipelineError
from primorl.data.sources import source_of
from tests.data.builders import create, snapshot
from tests.data.sources.minari_builders import box_episode, box_spaces, entry


@pytest.fixture
def root(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of datasets; a hub, in the place of the client's, has one dataset in ``there``."""
    (project / "raw").mkdir()
    spaces = box_spaces()
    create(project / "there/farama-minari/hop", "medium-v0", [box_episode(3, 0)], **spaces)

    class Hub:
        def dataset_info(self, place: str, **_: Any) -> None:
            (project / "there" / place).stat()

        def snapshot_download(self, place: str, **asked: Any) -> None:
            folder = asked["allow_patterns"].removesuffix("/*")
            shutil.copytree(project / "there" / place / folder, asked["local_dir"] / folder)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    return project / "minari"


def collect(dataset_id: str, root: Path) -> None:
    source_of("small", entry(dataset_id, root=root, remote=True)).collect(Path("raw"))


def test_a_dataset_that_is_not_here_is_fetched_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect("hop/medium-v0", root)
    here = {
        f"hop/{name}": body
        for name, body in snapshot(root.parent / "there/farama-minari/hop").items()
    }
    assert snapshot(root) == snapshot(Path("raw")) == here
    shutil.rmtree("raw/hop")
    monkeypatch.setattr(huggingface_hub, "HfApi", None)
    collect("hop/medium-v0", root)


def test_what_cannot_be_fetched_is_told_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(dataset_id: str, message: str) -> None:
        with pytest.raises(PipelineError, match=message) as wrong:
            collect(dataset_id, root)
        assert "\n" not in str(wrong.value)

    for unknown in ("hop/expert-v0", "skip/medium-v0"):
        refused(unknown, f"{unknown}'")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused("hop/medium-v0", r"pip install 'primorl\[minari-remote\]'")
    assert snapshot(Path("raw")) == {}
