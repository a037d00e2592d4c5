"""A bundle of data of which a clone was made: the clone's statement is in it, bound to its charge."""

import shutil
from pathlib import Path

import pytest

from primorl.config import params
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.release import bundle
from primorl.release.contents import CLONE
from primorl.release.making import release
from primorl.release.pages import promised, render
from tests.release.bundles import relist
from tests.release.released_project import EPISODES, inside, run_stages, tiny_params


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cloned")
    raw = tiny_params()
    raw["behaviour"]["target_epsilon"] = 0.5
    run_stages(folder / "project", raw, EPISODES)
    with inside(folder / "project"):
        release(folder / "bundle", params.load(Path("params.yaml")), void_ok=False)
    return folder / "bundle"


def test_the_clone_is_part_of_the_guarantee(made: Path) -> None:
    assert bundle.check(made, void_ok=False).private
    assert "clone of the behaviour included" in promised(made)
    assert "clone of the behaviour included" in (made / "card.md").read_text(encoding="utf-8")


def test_a_clone_s_statement_that_is_not_its_charge_s_is_refused(made: Path, tmp_path: Path) -> None:
    """Edited, or left out; with cards and hashes made again."""
    edited, without = tmp_path / "edited", tmp_path / "without"
    shutil.copytree(made, edited)
    write_json(edited / CLONE, read_json(edited / CLONE) | {"public_units": 1})
    shutil.copytree(made, without)
    shutil.rmtree(without / "behaviour")
    for folder, says in ((edited, "charge .* made"), (without, "allowed only there")):
        for card, text in render(folder).items():
            (folder / card).write_text(text, encoding="utf-8")
        relist(folder)
        with pytest.raises(PipelineError, match=says):
            bundle.check(folder, void_ok=False)
