"""A stranger's bundle with any one thing changed in it: every tensor, every key of every JSON file."""

import shutil
from pathlib import Path

import pytest

from primorl.release import bundle
from tests.release.bundles import relist
from tests.release.edits import accepted, key_edits, renew_everything, tensor_edits

pytestmark = pytest.mark.usefixtures("accounted_once")


def test_every_edit_is_refused_when_the_stranger_lists_the_hashes_anew(original: Path, tmp_path: Path) -> None:
    """Nothing is accepted: no list of exceptions."""
    edits = [*tensor_edits(original), *key_edits(original)]
    assert len(edits) > 150
    assert accepted(original, tmp_path, edits, relist) == []


def test_the_bundle_itself_is_sound_also_with_every_digest_renewed(original: Path, tmp_path: Path) -> None:
    """The twin: without an edit nothing is refused, so the tests above refuse the edits."""
    shutil.copytree(original, tmp_path / "copy")
    renew_everything(tmp_path / "copy")
    assert bundle.check(tmp_path / "copy", void_ok=False).private
